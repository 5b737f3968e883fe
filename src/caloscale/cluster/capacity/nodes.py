"""Nodes as the API server reports them, and the pools that they form."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from caloscale.cluster.names import (
    GKE_ACCELERATOR,
    GKE_NODE_POOL,
    GKE_SPOT,
    GKE_TPU_ACCELERATOR,
    GKE_TPU_TOPOLOGY,
    GPU,
    INSTANCE_TYPE,
    REGION,
    TPU,
)
from caloscale.planning.slices import load_slices
from caloscale.planning.usage import NodeUse
from caloscale.status import NodeTotals, Placed

CPU = "cpu"
"""Accelerator of nodes that have none."""
KIND = ("machine_type", "accelerator", "per_node", "topology", "region", "capacity_type")
"""What the price of a node depends on; pools, placements and nodes that were used have it."""
SHARING_LABELS = {
    "cloud.google.com/gke-gpu-sharing-strategy": "time-sharing or MPS",
    "cloud.google.com/gke-max-shared-clients-per-gpu": "shared clients",
    "cloud.google.com/gke-gpu-partition-size": "MIG partitions",
}
"""Labels of nodes whose GPUs are shared or cut into parts: a worker would not have whole accelerators."""
_SUFFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3}
_SUFFIXES |= {letter: 1e3**power for power, letter in enumerate("MGTPE", 2)}
_SUFFIXES |= {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", 1)}
_STANDING_LABELS = (GKE_NODE_POOL, GKE_ACCELERATOR, GKE_TPU_ACCELERATOR, GKE_TPU_TOPOLOGY, INSTANCE_TYPE)


def number(quantity: str | int | float) -> float:
    """The number of a quantity (bytes, processors, accelerators); raises ValueError for nonsense."""
    text = str(quantity)
    digits = text.rstrip("numkKMGTPEi") if not text[-1:].isdigit() else text
    suffix = text[len(digits) :]
    if suffix not in _SUFFIXES:
        raise ValueError(f"{quantity!r} is not a quantity")
    return float(digits) * _SUFFIXES[suffix]


@dataclass(frozen=True, slots=True)
class PoolKey:
    """What the nodes of a pool have in common."""

    name: str
    """Node pool, or the machine type where the nodes name none."""
    accelerator: str
    """GPU as GKE labels it, TPU generation, or cpu."""
    per_node: int
    """Allocatable accelerators of a node; 0 on processors."""
    machine_type: str
    topology: str | None
    """Topology of TPU slices."""
    region: str
    """Region; empty: unknown."""
    capacity_type: Literal["spot", "on-demand"]
    """spot or on-demand."""

    @property
    def workers_per_node(self) -> int:
        """Accelerators of a node, or 1 on processors."""
        return max(self.per_node, 1)


def kind_of(of: PoolKey | Placed | NodeTotals) -> dict[str, Any]:
    """The kind of nodes, by the names of `KIND`."""
    return {name: getattr(of, name) for name in KIND}


def node_use(of: PoolKey | Placed | NodeTotals, nodes: int, seconds: float) -> NodeUse:
    """So many nodes of a kind, each used so long (s), as bills and prices take them."""
    known = {
        "machine_type": of.machine_type or "unknown",
        "accelerator": "" if of.accelerator == CPU else of.accelerator,
        "region": of.region or "unknown",
    }
    return NodeUse(**(kind_of(of) | known), nodes=nodes, seconds=seconds)


@dataclass(frozen=True, slots=True)
class Node:
    """A node, as far as placement and bill need it."""

    name: str
    key: PoolKey
    """Its pool."""
    selector: tuple[tuple[str, str], ...]
    """Labels by which pods are sent to the pool."""
    cpus: float
    """Processors that pods may have."""
    memory_gib: float
    """Memory that pods may have, GiB."""
    ready: bool
    """Whether it is Ready."""
    open: bool
    """Whether our pods may be scheduled there: not cordoned, no taint that is not ours."""
    shared: str | None
    """Why its GPUs are not whole; None: they are."""


def node_of(raw: Mapping[str, Any]) -> Node:
    """The node of an API object."""
    labels: Mapping[str, str] = raw["metadata"].get("labels") or {}
    allocatable = raw.get("status", {}).get("allocatable") or {}
    accelerator, resource, topology = _accelerator(labels)
    spec = raw.get("spec") or {}
    conditions = raw.get("status", {}).get("conditions") or ()
    taints = spec.get("taints") or ()
    machine_type = labels.get(INSTANCE_TYPE, "")
    key = PoolKey(
        name=labels.get(GKE_NODE_POOL) or machine_type or "nodes",
        accelerator=accelerator,
        per_node=int(number(allocatable.get(resource, 0))) if resource else 0,
        machine_type=machine_type,
        topology=topology,
        region=labels.get(REGION, ""),
        capacity_type="spot" if any(labels.get(label) == "true" for label in GKE_SPOT) else "on-demand",
    )
    return Node(
        name=raw["metadata"]["name"],
        key=key,
        selector=tuple((label, labels[label]) for label in _STANDING_LABELS if labels.get(label)),
        cpus=number(allocatable.get("cpu", 0)),
        memory_gib=number(allocatable.get("memory", 0)) / 2**30,
        ready=any(c["type"] == "Ready" and c["status"] == "True" for c in conditions),
        open=not spec.get("unschedulable", False)
        and all(_is_tolerated(taint, tolerated(accelerator, topology, key.capacity_type)) for taint in taints),
        shared=_sharing(labels, key.name),
    )


def tolerated(accelerator: str, topology: str | None, capacity_type: str) -> list[dict[str, str]]:
    """Tolerations of our pods: of the taints of GPU, TPU and spot pools. Nodes with others are not for us."""
    found = []
    if accelerator != CPU:  # GKE taints with "present", others with "true" or nothing
        resource = TPU if topology is not None else GPU
        found.append({"key": resource, "operator": "Exists", "effect": "NoSchedule"})
    if capacity_type == "spot":
        found += [{"key": key, "operator": "Equal", "value": "true", "effect": "NoSchedule"} for key in GKE_SPOT]
    return found


def _is_tolerated(taint: Mapping[str, str], tolerations: Iterable[Mapping[str, str]]) -> bool:
    """As the scheduler decides it (a taint that is only preferred keeps nobody away)."""
    return taint["effect"] == "PreferNoSchedule" or any(
        (each["key"], each["effect"]) == (taint["key"], taint["effect"])
        and (each["operator"] == "Exists" or each["value"] == taint.get("value", ""))
        for each in tolerations
    )


def _accelerator(labels: Mapping[str, str]) -> tuple[str, str, str | None]:
    """Our name of the accelerator, the resource that Kubernetes counts it by, and the topology."""
    if GKE_TPU_ACCELERATOR in labels:
        label, topology = labels[GKE_TPU_ACCELERATOR], labels.get(GKE_TPU_TOPOLOGY)
        return _generation(label), TPU, topology
    if GKE_ACCELERATOR in labels:
        return labels[GKE_ACCELERATOR], GPU, None
    return CPU, "", None


@functools.cache
def _generation(label: str) -> str:
    return next((row.accelerator for row in load_slices() if row.label == label), label)


def _sharing(labels: Mapping[str, str], pool: str) -> str | None:
    what = next((what for label, what in SHARING_LABELS.items() if labels.get(label)), None)
    return None if what is None else f"pool {pool} shares its GPUs ({what}), so a worker would wait for other pods"


@dataclass(frozen=True, slots=True)
class Use:
    """What a pod takes of a node."""

    node: str
    accelerators: int
    """GPUs or TPU chips."""
    cpus: float
    memory_gib: float


@dataclass(frozen=True)
class Pool:
    """The nodes of a pool that our pods may use, and which of them are free."""

    key: PoolKey
    """What they have in common."""
    nodes: tuple[Node, ...]
    """Nodes that are ready and open to us, by name."""
    left: Mapping[str, tuple[int, float, float]]
    """Per node: accelerators, processors and GiB that no pod requests."""
    coming: int = 0
    """Workers of launched runs that will take a node and are not bound to one yet."""

    @functools.cached_property
    def worker_cpus(self) -> float:
        """Processors that a worker with a whole node asks for: the rest is for the node's own pods."""
        return _share(min((node.cpus for node in self.nodes), default=1.0))

    @functools.cached_property
    def worker_memory_gib(self) -> float:
        """Memory that a worker with a whole node asks for, GiB."""
        return _share(min((node.memory_gib for node in self.nodes), default=1.0))

    @functools.cached_property
    def free(self) -> int:
        """How many nodes a worker can have whole."""
        counted = sum(self._is_free(node) for node in self.nodes)
        return max(counted - self.coming, 0)

    def _is_free(self, node: Node) -> bool:
        accelerators, cpus, memory_gib = self.left[node.name]
        return (
            accelerators == node.key.per_node
            and cpus >= self.worker_cpus - 1e-6
            and memory_gib >= self.worker_memory_gib - 1e-6
        )


_PART = 0.6
"""Part of a node's processors and memory that its worker asks for: more than half, so two never share it."""


def _share(whole: float) -> float:
    return max(int(whole * _PART * 10) / 10, 0.1)


def pools_of(
    nodes: Iterable[Node], uses: Iterable[Use], coming: Mapping[str, int] | None = None
) -> tuple[list[Pool], list[str]]:
    """The pools of the cluster, and why nodes were refused (shared GPUs), a sentence a pool.

    ``uses``: pods that are bound and have not ended; ``coming``: by pool name, workers that are launched and not bound.
    """
    taken: dict[str, tuple[int, float, float]] = {}
    for use in uses:
        accelerators, cpus, memory_gib = taken.get(use.node, (0, 0.0, 0.0))
        taken[use.node] = (accelerators + use.accelerators, cpus + use.cpus, memory_gib + use.memory_gib)
    members: dict[PoolKey, list[Node]] = {}
    refused: dict[str, None] = {}
    for node in nodes:
        if node.shared:
            refused[node.shared] = None
        elif node.ready and node.open:
            members.setdefault(node.key, []).append(node)
    pools = []
    for key, found in sorted(members.items(), key=lambda item: (item[0].name, item[0].per_node)):
        found.sort(key=lambda node: node.name)
        left = {}
        for node in found:
            accelerators, cpus, memory_gib = taken.get(node.name, (0, 0.0, 0.0))
            left[node.name] = (key.per_node - accelerators, node.cpus - cpus, node.memory_gib - memory_gib)
        pools.append(Pool(key, tuple(found), left, (coming or {}).get(key.name, 0)))
    return pools, list(refused)
