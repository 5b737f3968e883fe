"""Scale-from-zero pools: pools without a node, to which an autoscaler adds nodes for pending pods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from caloscale.cluster.capacity.nodes import Node, Pool, PoolKey
from caloscale.cluster.capacity.pool_plan import SCALE_FROM_ZERO
from caloscale.cluster.names import GKE_ACCELERATOR, GKE_SPOT, GKE_TPU_ACCELERATOR, GKE_TPU_TOPOLOGY, INSTANCE_TYPE
from caloscale.planning.machines import load_machines
from caloscale.planning.prices import Purchase
from caloscale.planning.slices import load_slices
from caloscale.spec import Hardware, Run

USABLE = 0.9
"""Part of a machine's processors and memory that GKE leaves to pods, about."""
TPU_HOST = (96.0, 192.0)
"""Processors and GiB that TPU hosts have at least."""


def scale_from_zero_pools(run: Run, pools: Sequence[Pool]) -> list[Pool]:
    """Pools of the kinds that hardware names and of which no node is there; their pods go by kind, not by name."""
    hardware = run.hardware or Hardware()
    if hardware.accelerator is None and hardware.machine_type is None:
        return []
    there = {(pool.key.accelerator, pool.key.per_node, pool.key.topology, pool.key.purchase) for pool in pools}
    region = hardware.region or next((pool.key.region for pool in pools if pool.key.region), "")
    return [
        Pool(node.key, (node,), {node.name: (0, 0.0, 0.0)})
        for node in _kinds(hardware, region)
        if (node.key.accelerator, node.key.per_node, node.key.topology, node.key.purchase) not in there
    ]


def _kinds(hardware: Hardware, region: str) -> Iterator[Node]:
    """A node of each kind that fits, as it would come."""
    purchases: tuple[Purchase, ...] = (hardware.purchase,) if hardware.purchase else ("spot", "on-demand")
    for purchase in purchases:
        spot = ((GKE_SPOT[0], "true"),) if purchase == "spot" else ()
        for machine in load_machines():
            if machine.provider != "gcp" or not machine.accelerator:
                continue
            if not (machine.usual or machine.machine_type == hardware.machine_type):
                continue
            key = PoolKey(
                f"{SCALE_FROM_ZERO}{machine.machine_type}",
                machine.accelerator,
                machine.per_node,
                machine.machine_type,
                None,
                region,
                purchase,
            )
            labels = ((GKE_ACCELERATOR, machine.accelerator), (INSTANCE_TYPE, machine.machine_type), *spot)
            size = (machine.vcpus * USABLE, machine.memory_gib * USABLE)
            yield Node(key.name, key, labels, *size, ready=True, open=True, shared=None)
        for piece in load_slices():
            if not piece.label or piece.retired:
                continue
            key = PoolKey(
                f"{SCALE_FROM_ZERO}{piece.machine_type} {piece.topology}",
                piece.accelerator,
                piece.chips_per_host,
                piece.machine_type,
                piece.topology,
                region,
                purchase,
            )
            labels = ((GKE_TPU_ACCELERATOR, piece.label), (GKE_TPU_TOPOLOGY, piece.topology), *spot)
            yield Node(key.name, key, labels, *TPU_HOST, ready=True, open=True, shared=None)
