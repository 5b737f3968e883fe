"""Node pools of Google Kubernetes Engine as a run wants them, and those that an autoscaler fills from zero. Pure."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from caloscale.cluster.capacity.nodes import Node, Pool, PoolKey
from caloscale.cluster.capacity.pool_plan import SCALE_FROM_ZERO, hardware_of
from caloscale.cluster.names import GKE_ACCELERATOR, GKE_SPOT, GKE_TPU_ACCELERATOR, GKE_TPU_TOPOLOGY, INSTANCE_TYPE
from caloscale.planning.catalogue.hardware import SPOT_ONLY, Machine, Slice, load_machines, load_slices
from caloscale.planning.catalogue.prices import CapacityType
from caloscale.spec import AnyRun

# The families that may be placed close together (GKE: compact placement); n1 may not.
COMPACT_FAMILIES = ("a2", "a3", "a4", "g2")
# Most nodes of a GPU pool: a bound on the bill that a person raises knowingly.
MAX_NODES = 16
WAYS: tuple[CapacityType, ...] = ("on-demand", "spot")


@dataclass(frozen=True)
class NodePool:
    """Equal nodes that appear when a run asks for them; a TPU pool of several hosts is one slice."""

    kind: Machine | Slice
    capacity_type: CapacityType
    max_nodes: int = MAX_NODES
    """Most nodes; the hosts of a slice."""

    @property
    def name(self) -> str:
        """Such as ``v100-8-spot`` or ``tpu-v4-2x2x2``; at most 40 characters, as GKE wants."""
        kind = self.kind
        short = kind.accelerator.removeprefix("nvidia-").removeprefix("tesla-")
        # Slices of one topology exist on several machine types.
        size = f"{kind.topology}-{kind.per_node}t" if kind.topology else str(kind.per_node)
        return f"{short}-{size}" + ("-spot" if self.capacity_type == "spot" else "")


def catalogue_pools(machine_type: str | None = None) -> list[NodePool]:
    """A pool for each GPU host that is usual or of ``machine_type``, and each TPU slice, on demand and spot."""
    machines = [m for m in load_machines() if m.provider == "gcp" and m.accelerator]
    usual = [NodePool(m, way) for m in machines if m.usual or m.machine_type == machine_type for way in WAYS]
    slices = [NodePool(s, way, s.hosts) for s in load_slices() if s.label and not s.retired for way in WAYS]
    return [
        pool for pool in (*usual, *slices) if pool.capacity_type == "spot" or pool.kind.machine_type not in SPOT_ONLY
    ]


def gcloud_command(pool: NodePool, *, cluster: str, location: str, disk_gib: float = 0) -> str:
    """The command of the Google Cloud CLI that makes the pool, ready for a shell. disk_gib: a node's disk; 0: 100.

    The bound is that of all zones: ``max-nodes`` counts for each, three times the plan in a region. A slice of several
    hosts is in one zone, and GKE wants its hosts as ``max-nodes``.
    """
    is_slice = pool.kind.topology is not None and pool.max_nodes > 1
    bound = "" if is_slice else "total-"
    options = {
        "cluster": cluster,
        "location": location,
        "machine-type": pool.kind.machine_type,
        "num-nodes": "0",
        "enable-autoscaling": None,
        f"{bound}min-nodes": "0",
        f"{bound}max-nodes": str(pool.max_nodes),
        "location-policy": "ANY",
        "disk-size": str(math.ceil(disk_gib or 100)),
        "enable-gvnic": None,
        "scopes": "cloud-platform",
        "shielded-secure-boot": None,
        "shielded-integrity-monitoring": None,
        "workload-metadata": "GKE_METADATA",
    }
    if pool.capacity_type == "spot":
        options |= {"spot": None, "node-taints": f"{GKE_SPOT[0]}=true:NoSchedule"}
    if pool.kind.topology is None:
        accelerator = f"type={pool.kind.accelerator},count={pool.kind.per_node},gpu-driver-version=latest"
        options |= {"accelerator": accelerator, "enable-fast-socket": None}
        if pool.kind.machine_type.split("-")[0] in COMPACT_FAMILIES:
            options["placement-type"] = "COMPACT"
    elif is_slice:
        options |= {"tpu-topology": pool.kind.topology}
    words = [f"--{key}" if value is None else f"--{key}={shlex.quote(value)}" for key, value in options.items()]
    return " \\\n  ".join([f"gcloud container node-pools create {pool.name}", *words])


USABLE = 0.9
"""Part of a machine's processors and memory that GKE leaves to pods, about."""
TPU_HOST = (96.0, 192.0)
"""Processors and GiB that TPU hosts have at least."""


def scale_from_zero_pools(run: AnyRun, pools: Sequence[Pool]) -> list[Pool]:
    """Pools of the kinds that hardware names and of which no node is there; their pods go by kind, not by name."""
    hardware = hardware_of(run)
    if hardware.accelerator is None and hardware.machine_type is None:
        return []
    there = {(pool.key.accelerator, pool.key.per_node, pool.key.topology, pool.key.capacity_type) for pool in pools}
    region = hardware.region or next((pool.key.region for pool in pools if pool.key.region), "")
    nodes = [
        _node(pool, region)
        for pool in catalogue_pools(hardware.machine_type)
        if hardware.capacity_type in (None, pool.capacity_type)
        and (pool.kind.accelerator, pool.kind.per_node, pool.kind.topology, pool.capacity_type) not in there
    ]
    return [Pool(node.key, (node,), whole=0) for node in nodes]


def _node(pool: NodePool, region: str) -> Node:
    """A node of a pool as it would come."""
    kind = pool.kind
    name = f"{SCALE_FROM_ZERO}{kind.machine_type}" + (f" {kind.topology}" if kind.topology else "")
    key = PoolKey(name, kind.accelerator, kind.per_node, kind.machine_type, kind.topology, region, pool.capacity_type)
    spot = ((GKE_SPOT[0], "true"),) if pool.capacity_type == "spot" else ()
    if isinstance(kind, Machine):
        labels = ((GKE_ACCELERATOR, kind.accelerator), (INSTANCE_TYPE, kind.machine_type), *spot)
        size = (kind.vcpus * USABLE, kind.memory_gib * USABLE)
    else:
        labels = ((GKE_TPU_ACCELERATOR, kind.label), (GKE_TPU_TOPOLOGY, kind.topology), *spot)
        size = TPU_HOST
    return Node(name, key, labels, *size, ready=True, open=True, refused=None)
