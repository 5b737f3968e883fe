"""The same run on fewer, more or other nodes, and the run configuration, which stays the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic.alias_generators import to_camel

from caloscale.cluster.capacity.nodes import Pool, kind_of
from caloscale.cluster.capacity.placement import fits
from caloscale.cluster.capacity.pool_plan import Catalogue, pool_of, requests_of, usd_per_node_hour
from caloscale.errors import InputError
from caloscale.planning.catalogue.accelerators import load_accelerators, load_networks, replicas_of
from caloscale.planning.step_time.layout import memory_problem
from caloscale.spec import Hardware, Run
from caloscale.status import Placed


def shrink(run: Run, placed: Placed, pools: Sequence[Pool]) -> Placed | None:
    """The placement on as many nodes as are free, fewer than planned: same global batch, by micro-batches in memory.

    None when no number from recovery.elastic.minNodes on divides the global batch, or none is free. Slices do not
    shrink.
    """
    if placed.topology is not None:
        return None
    pool = pool_of(placed, pools)
    if pool is None:
        return None
    placed = placed.model_copy(update={"pool": pool.key.name, "node_selector": dict(pool.nodes[0].selector)})
    for nodes in range(min(pool.free, placed.planned_nodes - 1), run.recovery.elastic.min_nodes - 1, -1):
        if (smaller := resize(run, placed, nodes)) is not None:
            return smaller
    return None


def move(run: Run, placed: Placed, pools: Sequence[Pool], catalogue: Catalogue) -> list[Placed]:
    """The planned layout in other pools that are allowed and have enough free nodes, the cheapest first.

    Same accelerators on as many nodes, so the same global batch and results. Spot and on-demand are both allowed where
    hardware.capacityType is not given. A pool without a price comes last.
    """
    full = resize(run, placed, placed.planned_nodes)
    wanted = (placed.accelerator, placed.per_node, placed.topology)
    found = []
    for pool in pools:
        key = pool.key
        alike = (key.accelerator, key.per_node, key.topology) == wanted and fits(run.hardware or Hardware(), pool)
        if full is None or not alike or pool is pool_of(placed, pools) or pool.free < full.nodes:
            continue
        try:
            usd: float | None = usd_per_node_hour(pool, catalogue) * full.nodes
        except InputError:
            usd = None
        ratio = usd * placed.nodes / full.nodes / placed.usd_per_hour if usd and placed.usd_per_hour else None
        changes = {
            "pool": key.name,
            **kind_of(key),
            "usd_per_hour": usd,
            "estimate_usd": placed.estimate_usd * ratio if ratio and placed.estimate_usd is not None else None,
            **requests_of(pool, full.workers // full.nodes),
        }
        found.append(full.model_copy(update=changes))
    return sorted(found, key=lambda one: (one.usd_per_hour is None, one.usd_per_hour or 0.0, one.pool))


def resize(run: Run, placed: Placed, nodes: int) -> Placed | None:
    """The placement on another number of nodes at the same global batch; None when that cannot be."""
    chip = load_accelerators().get(placed.accelerator)
    replicas = replicas_of(placed.accelerator, nodes * max(placed.per_node, 1))
    if placed.global_batch % replicas:
        return None
    share = placed.global_batch // replicas
    most = placed.batch_per_replica * placed.accumulate if nodes >= placed.planned_nodes else placed.batch_per_replica
    network = load_networks().get(run.model.preset)

    def fits_memory(batch: int) -> bool:
        return chip is None or network is None or memory_problem(chip, network, batch, run.train.precision) is None

    pieces = (n for n in range(1, share + 1) if share % n == 0 and share // n <= max(most, 1))
    accumulate = next((n for n in pieces if fits_memory(share // n)), None)
    if accumulate is None:
        return None
    part = nodes / placed.nodes
    return placed.model_copy(
        update={
            "nodes": nodes,
            "workers": nodes * (placed.workers // placed.nodes),
            "batch_per_replica": share // accumulate,
            "accumulate": accumulate,
            "usd_per_hour": None if placed.usd_per_hour is None else placed.usd_per_hour * part,
        }
    )


def worker_configuration(spec: Mapping[str, Any], placed: Placed) -> dict[str, Any]:
    """The run configuration that the workers read: the same in every attempt, so that checkpoints and folder stay.

    What the operator does not set passes through as the API server has it: the workers' image understands it.
    """
    nodes = placed.planned_nodes
    hardware = {
        **{to_camel(name): value or None for name, value in kind_of(placed).items()},
        "count": nodes * max(placed.per_node, 1),
        "perNode": max(placed.per_node, 1),
        "nodes": nodes,
        "workers": nodes * (placed.workers // placed.nodes),
        "acceleratorsPerWorker": max(placed.accelerators_per_worker, 1),
    }
    share = placed.global_batch // replicas_of(placed.accelerator, nodes * max(placed.per_node, 1))
    given = dict(spec.get("train") or {})
    most = given.get("maxBatchPerReplica") or share
    return {
        **spec,
        "hardware": {**(spec.get("hardware") or {}), **hardware},
        "train": {**given, "globalBatchSize": placed.global_batch, "maxBatchPerReplica": most},
        "cluster": {**(spec.get("cluster") or {}), "suspend": False},
    }
