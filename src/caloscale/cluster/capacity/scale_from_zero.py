"""Scale-from-zero pools: pools without a node, to which an autoscaler adds nodes for pending pods."""

from __future__ import annotations

from collections.abc import Sequence

from caloscale.cluster.capacity.gke_pools import NodePool, catalogue_pools
from caloscale.cluster.capacity.nodes import Node, Pool, PoolKey
from caloscale.cluster.capacity.pool_plan import SCALE_FROM_ZERO, hardware_of
from caloscale.cluster.names import GKE_ACCELERATOR, GKE_SPOT, GKE_TPU_ACCELERATOR, GKE_TPU_TOPOLOGY, INSTANCE_TYPE
from caloscale.planning.catalogue.hardware import find_machine, find_slices
from caloscale.spec import AnyRun

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
        for kind in catalogue_pools(machine_type=hardware.machine_type)
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
