"""Pools of equal nodes, labelled and tainted as Google Kubernetes Engine does it: fake machines (kept alive by kwok),
and real ones."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tools.cluster.programs import KUBERNETES, version


@dataclass(frozen=True)
class Pool:
    """A pool of equal nodes."""

    name: str
    count: int
    accelerator: str = "nvidia-tesla-v100"
    """GPU as GKE labels it, or with `topology` the TPU; empty: a pool without accelerators."""
    per_node: int = 8
    """GPUs, or TPU chips, of a node."""
    topology: str = ""
    """TPU slice of the pool, such as 4x4."""
    spot: bool = False
    machine_type: str = "n1-standard-64"
    zone: str = "europe-west4-a"
    cpu: str = "64"
    memory: str = "240Gi"

    @property
    def resource(self) -> str:
        """Name under which a node offers its accelerators."""
        return "google.com/tpu" if self.topology else "nvidia.com/gpu"

    def names(self, first: int = 0) -> list[str]:
        """Names of its nodes, counted from `first`."""
        return [f"{self.name}-{index:04d}" for index in range(first, first + self.count)]


def labels_of(pool: Pool, name: str) -> dict[str, str]:
    """Labels of the pool's node `name`."""
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": pool.machine_type,
        "topology.kubernetes.io/region": pool.zone.rsplit("-", 1)[0],
        "topology.kubernetes.io/zone": pool.zone,
        "cloud.google.com/gke-nodepool": pool.name,
    }
    if pool.topology:
        labels["cloud.google.com/gke-tpu-accelerator"] = pool.accelerator
        labels["cloud.google.com/gke-tpu-topology"] = pool.topology
        labels["cloud.google.com/gke-accelerator-count"] = str(pool.per_node)
    elif pool.accelerator:
        labels["cloud.google.com/gke-accelerator"] = pool.accelerator
        labels["cloud.google.com/gke-accelerator-count"] = str(pool.per_node)
    if pool.spot:
        labels["cloud.google.com/gke-spot"] = "true"
        labels["cloud.google.com/gke-provisioning"] = "spot"
    return labels


def taints_of(pool: Pool) -> list[dict[str, str]]:
    """Taints of the pool's nodes: who does not tolerate them runs elsewhere."""
    taints = []
    if pool.accelerator:
        taints.append({"key": pool.resource, "value": "present", "effect": "NoSchedule"})
    if pool.spot:
        taints.append({"key": "cloud.google.com/gke-spot", "value": "true", "effect": "NoSchedule"})
    return taints


STAGES = Path(__file__).with_name("stages.yaml")
PODS = Path(__file__).with_name("fake_pods.yaml")
"""Objects by which pods take over their namespace's annotations on how long they run and how they end."""
PREFIX = "fake.caloscale.dev"
RUN, EXIT, BROKEN = f"{PREFIX}/run", f"{PREFIX}/exit", f"{PREFIX}/broken"
# kwok manages nodes with this annotation only, so that the cluster can have real nodes too.
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
