"""Fake machines: node objects that kwok keeps alive, labelled and tainted as on GKE, and how pods behave there."""

from collections.abc import Iterable
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tools.cluster.pools import Pool, labels_of, taints_of
from tools.cluster.programs import KUBERNETES, version

STAGES = Path(__file__).with_name("stages.yaml")
PODS = Path(__file__).with_name("fake_pods.yaml")
"""Objects by which pods take over their namespace's annotations on how long they run and how they end."""
PREFIX = "fake.caloscale.dev"
RUN, EXIT, BROKEN = f"{PREFIX}/run", f"{PREFIX}/exit", f"{PREFIX}/broken"
# kwok looks after nodes with this annotation and no others, so that real nodes can stand beside them.
MARK = MappingProxyType({"kwok.x-k8s.io/node": "fake"})
MARK_SELECTOR = "kwok.x-k8s.io/node=fake"


def node_objects(pool: Pool, *, first: int = 0) -> list[dict[str, Any]]:
    """The pool's nodes, to be created."""
    return [_node(pool, name) for name in pool.names(first)]


def _node(pool: Pool, name: str) -> dict[str, Any]:
    capacity = {"cpu": pool.cpu, "memory": pool.memory, "pods": "110", "ephemeral-storage": "100Gi"}
    if pool.accelerator:
        capacity[pool.resource] = str(pool.per_node)
    information = dict.fromkeys(
        ("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion"), "fake"
    )
    information |= {"kubeletVersion": version(KUBERNETES), "kubeProxyVersion": ""}
    information |= {"operatingSystem": "linux", "architecture": "amd64"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels_of(pool, name), "annotations": dict(MARK)},
        "spec": {"taints": taints_of(pool), "providerID": f"gce://fake/{pool.zone}/{name}"},
        "status": {"capacity": capacity, "allocatable": capacity, "nodeInfo": information},
    }


def stages(logs_file: Path) -> str:
    """Configuration of kwok; `kubectl logs` of a fake pod prints `logs_file`."""
    return STAGES.read_text(encoding="utf-8").replace("LOGS_FILE", str(logs_file))


def shutdown_status(containers: Iterable[str], now: str) -> dict[str, Any]:
    """Status of a pod that a kubelet ended because its machine is about to go (exit 143), as a patch."""
    message = "Pod was terminated in response to imminent node shutdown."
    ended = {"exitCode": 143, "reason": "Error", "finishedAt": now, "startedAt": now}
    state = {"ready": False, "started": False, "restartCount": 0, "state": {"terminated": ended}}
    conditions = [
        {"type": "Ready", "status": "False", "reason": "PodFailed"},
        {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": message},
    ]
    return {
        "phase": "Failed",
        "reason": "Terminated",
        "message": message,
        "conditions": [{**each, "lastTransitionTime": now} for each in conditions],
        "containerStatuses": [{"name": name, "image": "fake", "imageID": "", **state} for name in containers],
    }
