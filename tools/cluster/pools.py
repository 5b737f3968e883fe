"""Pools of equal nodes, labelled and tainted as Google Kubernetes Engine does it: fake machines (kept alive by kwok),
and real ones."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kubernetes import client

from tools.cluster.errors import ClusterError
from tools.cluster.programs import KUBERNETES, version

THREADS = 16
SECONDS_TO_READY = 300.0


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
    if pool.accelerator:
        labels[f"cloud.google.com/gke-{'tpu-' if pool.topology else ''}accelerator"] = pool.accelerator
        labels["cloud.google.com/gke-accelerator-count"] = str(pool.per_node)
    if pool.topology:
        labels["cloud.google.com/gke-tpu-topology"] = pool.topology
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


def add_pool(api: client.ApiClient, pool: Pool, *, first: int = 0) -> list[str]:
    """Create the pool's nodes, wait until all are ready, and return their names; 1,000 take a few seconds."""
    core, names = client.CoreV1Api(api), set(pool.names(first))
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(core.create_node, node_objects(pool, first=first)))
    end = time.monotonic() + SECONDS_TO_READY
    while missing := names - _ready_nodes(core, pool):
        if time.monotonic() > end:
            raise ClusterError(f"{len(missing)} nodes of {pool.name} are not ready", remedy="look into kwok's log")
        # Asking for 1,000 nodes keeps the server from making them ready.
        time.sleep(0.1 + len(names) / 1000)
    return sorted(names)


def _ready_nodes(core: client.CoreV1Api, pool: Pool) -> set[str]:
    selector = f"cloud.google.com/gke-nodepool={pool.name}"
    # As plain JSON: the client's own classes take a second for 1,000 nodes.
    answer = core.list_node(label_selector=selector, resource_version="0", _preload_content=False)
    return {node["metadata"]["name"] for node in json.loads(answer.data)["items"] if _ready(node)}


def _ready(node: dict[str, Any]) -> bool:
    conditions = node["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
