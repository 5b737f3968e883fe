"""Node pools of Google Kubernetes Engine as a run wants them, and those that an autoscaler fills from zero. Pure."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from caloscale.cluster.capacity.nodes import Node, Pool, PoolKey
from caloscale.cluster.capacity.pool_plan import SCALE_FROM_ZERO, hardware_of
from caloscale.cluster.names import GKE_ACCELERATOR, GKE_SPOT, GKE_TPU_ACCELERATOR, GKE_TPU_TOPOLOGY, INSTANCE_TYPE
from caloscale.planning.catalogue.hardware import find_machine, find_slices, load_machines, load_slices
from caloscale.planning.catalogue.prices import CapacityType
from caloscale.spec import AnyRun

# The families that may be placed close together (GKE: compact placement); n1 may not.
COMPACT_FAMILIES = ("a2", "a3", "a4", "g2")
# Machine types with a part of an H100 host's GPUs are sold as spot (and flex-start), not on demand.
SPOT_ONLY = ("a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g")
# Most nodes of a GPU pool: a bound on the bill that a person raises knowingly.
MAX_NODES = 16


@dataclass(frozen=True)
class NodePool:
    """Equal nodes that appear when a run asks for them; a TPU pool of several hosts is one slice."""

    accelerator: str
    """GPU as GKE labels it, or TPU generation (tpu-v3)."""
    machine_type: str
    per_node: int
    capacity_type: CapacityType
    topology: str | None = None
    """Topology of a TPU slice."""
    max_nodes: int = MAX_NODES
    """Most nodes; the hosts of a slice."""

    @property
    def name(self) -> str:
        """Such as ``v100-8-spot`` or ``tpu-v4-2x2x2``; at most 40 characters, as GKE wants."""
        short = self.accelerator.removeprefix("nvidia-").removeprefix("tesla-")
        # Slices of one topology exist on several machine types.
        host = f"-{self.per_node}t" if self.topology else ""
        parts = [short, self.topology or str(self.per_node)]
        return "-".join(parts) + host + ("-spot" if self.capacity_type == "spot" else "")

    @property
    def several_hosts(self) -> bool:
        """Whether it is a TPU slice of several hosts, which comes and goes as a whole."""
        return self.topology is not None and self.max_nodes > 1

    @property
    def compact(self) -> bool:
        """Whether its nodes can be placed close together."""
        return self.topology is None and self.machine_type.split("-")[0] in COMPACT_FAMILIES


def catalogue_pools(machine_type: str | None = None) -> list[NodePool]:
    """A pool for each GPU host that is usual or of ``machine_type``, and each TPU slice, on demand and spot."""
    kinds: list[tuple[str, str, int, str | None, int]] = []
    for machine in load_machines():
        usual = machine.usual or machine.machine_type == machine_type
        if machine.provider == "gcp" and machine.accelerator and usual:
            kinds.append((machine.accelerator, machine.machine_type, machine.per_node, None, MAX_NODES))
    for row in load_slices():
        if row.label and not row.retired:
            kinds.append((row.accelerator, row.machine_type, row.chips_per_host, row.topology, row.hosts))
    ways: tuple[CapacityType, ...] = ("on-demand", "spot")
    return [
        NodePool(accelerator, machine_type, per_node, way, topology, most)
        for accelerator, machine_type, per_node, topology, most in kinds
        for way in ways
        if way == "spot" or machine_type not in SPOT_ONLY
    ]


def gcloud_command(pool: NodePool, *, cluster: str, location: str) -> str:
    """The command of the Google Cloud CLI that makes the pool, ready for a shell."""
    options = {
        "cluster": cluster,
        "location": location,
        "machine-type": pool.machine_type,
        "num-nodes": "0",
        "enable-autoscaling": None,
        "min-nodes": "0",
        "max-nodes": str(pool.max_nodes),
        "location-policy": "ANY",
        "disk-size": "100",
        "enable-gvnic": None,
        "scopes": "cloud-platform",
        "shielded-secure-boot": None,
        "shielded-integrity-monitoring": None,
        "workload-metadata": "GKE_METADATA",
    }
    if pool.capacity_type == "spot":
        options |= {"spot": None, "node-taints": f"{GKE_SPOT[0]}=true:NoSchedule"}
    if pool.topology is None:
        accelerator = f"type={pool.accelerator},count={pool.per_node},gpu-driver-version=latest"
        options |= {"accelerator": accelerator, "enable-fast-socket": None}
    if pool.several_hosts:
        options |= {"tpu-topology": pool.topology}
    elif pool.compact:
        options |= {"placement-type": "COMPACT"}
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
        _node(kind, region)
        for kind in catalogue_pools(hardware.machine_type)
        if hardware.capacity_type in (None, kind.capacity_type)
        and (kind.accelerator, kind.per_node, kind.topology, kind.capacity_type) not in there
    ]
    return [Pool(node.key, (node,), whole=0) for node in nodes]


def _node(kind: NodePool, region: str) -> Node:
    """A node of a pool as it would come."""
    name = f"{SCALE_FROM_ZERO}{kind.machine_type}" + (f" {kind.topology}" if kind.topology else "")
    key = PoolKey(name, kind.accelerator, kind.per_node, kind.machine_type, kind.topology, region, kind.capacity_type)
    labels: tuple[tuple[str, str], ...] = ((GKE_SPOT[0], "true"),) if kind.capacity_type == "spot" else ()
    if kind.topology is None:
        machine = find_machine(kind.machine_type, accelerator=kind.accelerator, per_node=kind.per_node)
        labels = ((GKE_ACCELERATOR, kind.accelerator), (INSTANCE_TYPE, kind.machine_type), *labels)
        size = (machine.vcpus * USABLE, machine.memory_gib * USABLE)
    else:
        label = find_slices(kind.accelerator, topology=kind.topology, machine_type=kind.machine_type)[0].label
        labels, size = ((GKE_TPU_ACCELERATOR, label), (GKE_TPU_TOPOLOGY, kind.topology), *labels), TPU_HOST
    return Node(name, key, labels, *size, ready=True, open=True, refused=None)
