"""Nodes as the API server reports them, and the pools that they form."""

import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kubernetes.utils import parse_quantity

from caloscale.cluster.capacity.labels import Concept, Meaning, NodeLabels, load_labels
from caloscale.cluster.names import CPU, GPU, TPU
from caloscale.planning.billing.usage import NodeUse
from caloscale.planning.catalogue.hardware import OWN, load_accelerators, load_slices, provider_of
from caloscale.planning.catalogue.prices import CapacityType
from caloscale.status import NodeTotals, Placed

KIND = ("machine_type", "accelerator", "per_node", "topology", "region", "capacity_type")
"""What the price of a node depends on; pools, placements and nodes that were used have it."""
_READ: tuple[Concept, ...] = (
    *("pool", "accelerator", "tpu", "topology", "machineType", "capacityType"),
    *("region", "count", "memory", "sharing"),
)
"""Concepts that are read from the labels of a node; node selectors are in this order."""
_MEMORY_SHARE = 0.85
"""Part of the catalogue's memory of a GPU that its driver reports at least."""
_PASSING = re.compile(r"kubernetes\.io/|ClusterAutoscaler|^karpenter\.sh/|/impending-")
"""Keys of taints by which Kubernetes, an autoscaler or a cloud keeps pods away from a node for a while."""
PoolGroup = tuple[str, str, str]
"""Name, accelerator and capacity type of a pool: what is known before nodes are there. A NodePool of Karpenter may have
both capacity types."""


@dataclass(frozen=True, slots=True)
class PoolKey:
    """What the nodes of a pool have in common."""

    name: str
    """Node pool, or machine type and GPU where the nodes name none."""
    accelerator: str
    """GPU by its name in the catalogue, TPU generation, or cpu."""
    per_node: int
    """Allocatable accelerators of a node; 0 on processors."""
    machine_type: str
    topology: str | None
    region: str
    """Empty: unknown."""
    capacity_type: CapacityType

    @property
    def workers_per_node(self) -> int:
        """Accelerators of a node, or 1 on processors."""
        return max(self.per_node, 1)

    @property
    def group(self) -> PoolGroup:
        """The group of pools that it belongs to."""
        return self.name, self.accelerator, self.capacity_type


@functools.lru_cache(maxsize=4096)
def quantity_of(text: str | int) -> float:
    """A quantity of Kubernetes such as 500m or 15Gi; few different ones occur."""
    return float(parse_quantity(text))


def kind_of(of: PoolKey | Placed | NodeTotals) -> dict[str, Any]:
    """The kind of nodes, by the names of `KIND`."""
    return {name: getattr(of, name) for name in KIND}


def node_use(of: NodeTotals, nodes: int, seconds: float) -> NodeUse:
    """Nodes of a kind, each used for a time (s), in the form that bills and prices take."""
    known = {
        "provider": provider_of(of.machine_type, of.topology),
        "machine_type": of.machine_type or OWN,
        "accelerator": "" if of.accelerator == CPU else of.accelerator,
        "region": of.region or OWN,
    }
    extra = {"disk_gib": of.disk_gib, "control_plane_seconds": of.control_plane_seconds}
    return NodeUse(**(kind_of(of) | known | extra), nodes=nodes, seconds=seconds)


@dataclass(frozen=True, slots=True)
class Node:
    """A node, as far as placement and bill need it."""

    name: str
    key: PoolKey
    selector: tuple[tuple[str, str], ...]
    """Labels by which pods are sent to the pool."""
    cpus: float
    """Processors that pods may have."""
    memory_gib: float
    """Memory that pods may have, GiB."""
    ready: bool
    open: bool
    """Whether our pods may be scheduled there: not cordoned, no taint that is not ours."""
    refused: str | None
    """Why no run goes there whatever it asks for: shared GPUs, labels that contradict each other, an administrator's
    taint; None: one may."""


def node_of(raw: Mapping[str, Any], table: NodeLabels | None = None) -> Node:
    """The node of an API object; ``table``: meaning of its labels; absent: the package's."""
    table = table or load_labels()
    labels: Mapping[str, str] = raw["metadata"].get("labels") or {}
    allocatable = raw.get("status", {}).get("allocatable") or {}
    spec = raw.get("spec") or {}
    conditions = raw.get("status", {}).get("conditions") or ()
    meanings = {concept: meaning for concept in _READ if (meaning := table.find(labels, concept)) is not None}
    accelerator, resource, topology = _accelerator(meanings, allocatable)
    means = {concept: meaning.means for concept, meaning in meanings.items()}
    capacity_type: CapacityType = "spot" if means.get("capacityType") == "spot" else "on-demand"
    machine_type = means.get("machineType", "")
    product = meanings["accelerator"].value if "accelerator" in meanings else ""
    kinds = dict.fromkeys((machine_type, "" if product in (accelerator, machine_type) else product))
    key = PoolKey(
        name=means.get("pool") or " ".join(filter(None, kinds)) or "nodes",
        accelerator=accelerator,
        per_node=int(quantity_of(allocatable.get(resource, 0))) if resource else 0,
        machine_type=machine_type,
        topology=topology,
        region=means.get("region", ""),
        capacity_type=capacity_type,
    )
    tolerations = tolerated(accelerator, topology, capacity_type, table)
    strange = [taint for taint in spec.get("taints") or () if not _is_tolerated(taint, tolerations)]
    return Node(
        name=raw["metadata"]["name"],
        key=key,
        selector=tuple({one.row.label: one.value for one in meanings.values() if one.row.selects}.items()),
        cpus=quantity_of(allocatable.get("cpu", 0)),
        memory_gib=quantity_of(allocatable.get("memory", 0)) / 2**30,
        ready=any(c["type"] == "Ready" and c["status"] == "True" for c in conditions),
        open=not spec.get("unschedulable", False) and not strange,
        refused=table.problem or _refusal(meanings, key) or _refusal_by_taint(strange, key),
    )


def tolerated(accelerator: str, topology: str | None, capacity_type: str, table: NodeLabels) -> list[dict[str, str]]:
    """Tolerations of our pods: of the taints of GPU, TPU and spot nodes. Nodes with others are not for us."""
    taints: list[tuple[str, str | None]] = [(TPU, None)] if topology is not None else []
    taints += table.taints(gpu=accelerator != CPU and topology is None, spot=capacity_type == "spot")
    return [
        {
            "key": key,
            **({"operator": "Exists"} if value is None else {"operator": "Equal", "value": value}),
            "effect": "NoSchedule",
        }
        for key, value in taints
    ]


def _is_tolerated(taint: Mapping[str, str], tolerations: Iterable[Mapping[str, str]]) -> bool:
    """As the scheduler decides it (a taint that is only preferred keeps nobody away)."""
    return taint["effect"] == "PreferNoSchedule" or any(
        (each["key"], each["effect"]) == (taint["key"], taint["effect"])
        and (each["operator"] == "Exists" or each["value"] == taint.get("value", ""))
        for each in tolerations
    )


def _accelerator(said: Mapping[Concept, Meaning], allocatable: Mapping[str, Any]) -> tuple[str, str, str | None]:
    """Our name of the accelerator, the resource that Kubernetes counts it by, and the topology."""
    if "tpu" in said:
        return _generation(said["tpu"].means), TPU, said["topology"].means if "topology" in said else None
    if "accelerator" in said:
        return said["accelerator"].means, GPU, None
    if quantity_of(allocatable.get(GPU, 0)):
        return UNKNOWN, GPU, None
    return CPU, "", None


UNKNOWN = "unknown"
"""Accelerator of nodes whose GPUs no label names."""


@functools.cache
def _generation(label: str) -> str:
    return next((row.accelerator for row in load_slices() if row.label == label), label)


def _refusal(said: Mapping[Concept, Meaning], key: PoolKey) -> str | None:
    """Why no run goes to a node, a sentence that is the same for all nodes of its pool."""
    if key.accelerator == UNKNOWN:
        return (
            f"pool {key.name} has {key.per_node} {GPU} of which no label says the model: label the nodes, or add a row "
            "to the ConfigMap caloscale-labels"
        )
    if "sharing" in said:
        means, row, value = said["sharing"]
        return (
            f"pool {key.name} shares its GPUs ({means}; {row.label}={value}), so a worker would wait for other pods: "
            "use a pool without GPU sharing and partitions"
        )
    if key.accelerator != CPU and not key.per_node:
        return f"pool {key.name} advertises no {key.accelerator}: driver or device plugin of its nodes are not ready"
    if "count" in said and key.per_node > int(said["count"].means):
        return (
            f"pool {key.name} advertises {key.per_node} {GPU}, and {said['count'].row.label} is {said['count'].value}: "
            "each GPU is shared; use a pool without GPU sharing"
        )
    known = load_accelerators().get(key.accelerator)
    if "memory" in said and known and int(said["memory"].means) < _MEMORY_SHARE * 1024 * known.memory_gib:
        return (
            f"pool {key.name} is taken for {key.accelerator} with {known.memory_gib:g} GiB, and "
            f"{said['memory'].row.label} is {said['memory'].value} MiB: name the GPU by a row of the ConfigMap "
            "caloscale-labels"
        )
    return None


def _refusal_by_taint(strange: Iterable[Mapping[str, str]], key: PoolKey) -> str | None:
    """Why no run goes to a node with accelerators and a taint that an administrator has set."""
    for taint in strange:
        if key.accelerator != CPU and not _PASSING.search(taint["key"]):
            title = "=".join(filter(None, (taint["key"], taint.get("value")))) + f":{taint['effect']}"
            row = ", or add its key with the concept taint to the ConfigMap caloscale-labels"
            row = row if taint["effect"] == "NoSchedule" else ""
            return f"pool {key.name} has the taint {title}, which workers do not tolerate: remove it{row}"
    return None


@dataclass(frozen=True, slots=True)
class Use:
    """What a pod takes of a node."""

    node: str
    accelerators: int
    cpus: float
    memory_gib: float


@dataclass(frozen=True)
class Pool:
    """The nodes of a pool that our pods may use, and how many of them are free."""

    key: PoolKey
    nodes: tuple[Node, ...]
    """Nodes that are ready and open to us, by name."""
    whole: int
    """Nodes of which no pod requests what a worker with a whole node asks for."""
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

    @property
    def free(self) -> int:
        """How many nodes a worker can have whole."""
        return max(self.whole - self.coming, 0)


_PART = 0.6
"""Part of a node's processors and memory that its worker asks for: more than half, so two never share it."""


def _share(whole: float) -> float:
    return max(int(whole * _PART * 10) / 10, 0.1)


@dataclass
class _Members:
    """Nodes of a pool that are open to us, and those of them that a worker can have whole."""

    nodes: dict[str, Node] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)
    pool: Pool | None = None
    """As it was asked for last; None: its nodes have changed since."""


class Capacity:
    """The pools of a cluster, kept up to date by nodes and pods that come and go one by one."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        """All nodes, by name."""
        self._taken: dict[str, tuple[int, int, float, float]] = {}
        self._members: dict[PoolKey, _Members] = {}
        self._grown: dict[PoolKey, bool] = {}
        self._refused: Counter[str] = Counter()

    def put(self, node: Node) -> None:
        """A node has come or changed."""
        if self.nodes.get(node.name) != node:
            self.remove(node.name)
            self.nodes[node.name] = node
            if node.refused:
                self._refused[node.refused] += 1
            if self._open(node.name) is not None:
                self._members.setdefault(node.key, _Members()).nodes[node.name] = node
                self._regroup(node.key)

    def remove(self, name: str) -> None:
        """A node has gone."""
        node = self.nodes.pop(name, None)
        if node is not None and node.refused:
            self._refused[node.refused] -= 1
            self._refused += Counter()  # without those that are zero
        if node is not None and (members := self._members.get(node.key)) and members.nodes.pop(name, None):
            self._regroup(node.key)

    def grown(self) -> dict[PoolKey, bool]:
        """Pools in which there is more room than when this was asked last, or (True) whose nodes are others."""
        grown, self._grown = self._grown, {}
        return grown

    def free(self, key: PoolKey, coming: int = 0) -> int:
        """How many nodes of a pool a worker can have whole."""
        return max(self._pool(key).whole - coming, 0) if key in self._members else 0

    def has(self, key: PoolKey) -> bool:
        """Whether a node of a pool is there."""
        return key in self._members

    def keys_of(self, group: PoolGroup) -> list[PoolKey]:
        """The pools of a group."""
        return [key for key in self._members if key.group == group]

    def pools(
        self, own: Iterable[Use] = (), coming: Mapping[PoolGroup, int] | None = None
    ) -> tuple[list[Pool], list[str]]:
        """The pools as they are without some pods, and why nodes were refused, a sentence a pool.

        ``coming``: by the groups of pools, workers that are launched and not bound.
        """
        returned: dict[PoolKey, set[str]] = {}
        own = list(own)
        before = {use.node: self._taken[use.node] for use in own}
        for use in own:
            self._count(use, -1)
        for name in before:
            node = self._open(name)
            if node is None or not self._is_whole(node, self._pool(node.key)):
                continue
            if name not in self._members[node.key].whole:
                returned.setdefault(node.key, set()).add(name)
        self._taken |= before
        pools = []
        for key in sorted(self._members, key=lambda key: (key.name, key.per_node)):
            pool, more = self._pool(key), len(returned.get(key, ()))
            expected = (coming or {}).get(key.group, 0)
            pools.append(replace(pool, whole=pool.whole + more, coming=expected) if more or expected else pool)
        return pools, list(self._refused)

    def _pool(self, key: PoolKey) -> Pool:
        members = self._members[key]
        if members.pool is None:
            nodes = tuple(members.nodes[name] for name in sorted(members.nodes))
            pool = Pool(key, nodes, 0)
            # what a worker asks for depends on the smallest node
            members.whole = {node.name for node in nodes if self._is_whole(node, pool)}
            members.pool = replace(pool, whole=len(members.whole))
        return members.pool

    def _regroup(self, key: PoolKey) -> None:
        """After a change of a pool's nodes."""
        self._grown[key] = True
        self._members[key].pool = None
        if not self._members[key].nodes:
            del self._members[key]

    def _open(self, name: str) -> Node | None:
        node = self.nodes.get(name)
        return node if node is not None and node.ready and node.open and not node.refused else None

    def add(self, use: Use, sign: int) -> None:
        """A pod is bound to a node (1), or uses it no more (-1)."""
        self._count(use, sign)
        if (node := self._open(use.node)) is None:
            return
        members = self._members[node.key]
        if (pool := members.pool) is None:
            self._grown.setdefault(node.key, False)  # not known before it is asked for
            return
        is_whole = self._is_whole(node, pool)
        if is_whole != (node.name in members.whole):
            (members.whole.add if is_whole else members.whole.discard)(node.name)
            members.pool = replace(pool, whole=len(members.whole))
            if is_whole:
                self._grown.setdefault(node.key, False)

    def _count(self, use: Use, sign: int) -> None:
        pods, accelerators, cpus, memory_gib = self._taken.get(use.node, (0, 0, 0.0, 0.0))
        if pods + sign:
            self._taken[use.node] = (
                pods + sign,
                accelerators + sign * use.accelerators,
                cpus + sign * use.cpus,
                memory_gib + sign * use.memory_gib,
            )
        else:  # sums of fractions would not be zero again
            self._taken.pop(use.node, None)

    def _is_whole(self, node: Node, pool: Pool) -> bool:
        _, accelerators, cpus, memory_gib = self._taken.get(node.name, (0, 0, 0.0, 0.0))
        return (
            accelerators == 0
            and node.cpus - cpus >= pool.worker_cpus - 1e-6
            and node.memory_gib - memory_gib >= pool.worker_memory_gib - 1e-6
        )
