"""What tests ask of pods and nodes."""

from typing import Any

from kubernetes import client

from tests.control_plane.native.python_image import IMAGE, PYTHON
from tools.cluster.native.configuration import DEFAULT_POOLS

Core = client.CoreV1Api
SYSTEM, *SPOT = [name for pool in DEFAULT_POOLS for name in pool.names()]
ACCELERATOR = "nvidia.com/gpu"
TOLERATIONS = [{"key": key, "operator": "Exists"} for key in (ACCELERATOR, "cloud.google.com/gke-spot")]
SLEEP = "import time; print('hello from', __import__('socket').gethostname()); time.sleep(3600)"


def pod(name: str, script: str, *, gpus: int = 0, node: str = "", **more: Any) -> dict[str, Any]:
    """A pod that runs a Python script; with `gpus` it goes to the nodes that have some."""
    limits = {ACCELERATOR: gpus} if gpus else {}
    container: dict[str, Any] = {
        "name": "python",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": [PYTHON, "-u", "-c", script],
        "resources": {"limits": limits | more.pop("limits", {})},
        **more.pop("container", {}),
    }
    spec: dict[str, Any] = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    if gpus or node:
        spec["tolerations"] = TOLERATIONS
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    metadata = {"name": name, "labels": more.pop("labels", {"app": name})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec | more}


def phase(core: Core, name: str, namespace: str) -> str:
    return str(core.read_namespaced_pod(name, namespace).status.phase)


def is_ready(core: Core, name: str, namespace: str) -> bool:
    conditions = core.read_namespaced_pod(name, namespace).status.conditions or []
    return any(each.type == "Ready" and each.status == "True" for each in conditions)


def node_ready(core: Core, name: str) -> str:
    return next(each.status for each in core.read_node(name).status.conditions if each.type == "Ready")


def log(core: Core, name: str, namespace: str) -> str:
    """As it is: the client would make a number of a log that is one."""
    answer = core.read_namespaced_pod_log(name, namespace, _preload_content=False)
    return str(answer.data.decode())
