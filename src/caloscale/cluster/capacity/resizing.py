"""The same run on fewer, more or other nodes, and the run configuration, which stays the same."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic.alias_generators import to_camel

from caloscale.cluster.capacity.nodes import Pool, kind_of
from caloscale.cluster.capacity.placement import fits
from caloscale.cluster.capacity.pool_plan import Catalogue, hardware_of, pool_of, requests_of, usd_per_hour_of
from caloscale.errors import InputError
from caloscale.planning.catalogue.hardware import load_accelerators, load_networks, replicas_of
from caloscale.planning.step_time.layout import memory_problem
from caloscale.spec import AnyRun, SolverRun
from caloscale.spec.train import divisors
from caloscale.status import Placed


def shrink(run: AnyRun, placed: Placed, pools: Sequence[Pool]) -> Placed | None:
    """The placement on as many nodes as are free, fewer than planned, with the same global batch; None: none."""
    pool = pool_of(placed, pools)
    if pool is None:
        return None
    placed = placed.model_copy(update={"pool": pool.key.name, "node_selector": dict(pool.nodes[0].selector)})
    return resize_down(run, placed, min(pool.free, placed.planned_nodes - 1))


def resize_down(run: AnyRun, placed: Placed, most_nodes: int) -> Placed | None:
    """The placement on the largest number of nodes up to ``most_nodes`` that divides the global batch.

    None when there is none from recovery.elastic.minNodes on. Slices do not shrink.
    """
    if placed.topology is not None:
        return None
    numbers = range(most_nodes, (run.recovery.elastic.min_nodes or 1) - 1, -1)
    layouts = (resize(run, placed, nodes) for nodes in numbers)
    return next((layout for layout in layouts if layout is not None), None)


def move(run: AnyRun, placed: Placed, pools: Sequence[Pool], catalogue: Catalogue) -> list[Placed]:
    """The planned layout in other pools that are allowed and have enough free nodes, the cheapest first."""
    full = resize(run, placed, placed.planned_nodes)
    if full is None:
        return []
    return _elsewhere(run, full, [pool for pool in pools if pool.free >= full.nodes], catalogue)


def alternatives(run: AnyRun, placed: Placed, pools: Sequence[Pool], catalogue: Catalogue) -> list[Placed]:
    """The placement, and the same layout in the other pools that are allowed, the cheapest first.

    All ask for the same processors and memory; their pools differ in one label of the nodes (`pool_label`).
    """
    everywhere = [placed, *_elsewhere(run, placed, pools, catalogue)]
    label = pool_label(everywhere)
    if label is None:
        return [placed]
    apart: dict[str, Placed] = {}
    for one in everywhere:
        if label in one.node_selector:
            apart.setdefault(one.node_selector[label], one)
    least = {name: min(getattr(one, name) for one in apart.values()) for name in ("worker_cpus", "worker_memory_gib")}
    return [one.model_copy(update=least) for one in apart.values()]


def pool_label(placements: Sequence[Placed]) -> str | None:
    """The label of nodes that has most values in these placements; None: the first one has no labels."""
    values = {
        label: {one.node_selector[label] for one in placements if label in one.node_selector}
        for label in placements[0].node_selector
    }
    return max(values, key=lambda label: len(values[label]), default=None)


def _elsewhere(run: AnyRun, placed: Placed, pools: Sequence[Pool], catalogue: Catalogue) -> list[Placed]:
    """The layout on as many equal accelerators of other pools that are allowed: cheapest first, unpriced last."""
    kind, own = (placed.accelerator, placed.per_node, placed.topology), pool_of(placed, pools)
    placements = []
    for pool in pools:
        key = pool.key
        alike = (key.accelerator, key.per_node, key.topology) == kind and fits(hardware_of(run), pool)
        if not alike or pool is own:
            continue
        try:
            usd, cluster_usd = usd_per_hour_of(run, pool, placed.nodes, catalogue)
        except InputError:
            usd, cluster_usd = None, 0.0
        ratio = usd / placed.usd_per_hour if usd and placed.usd_per_hour else None
        changes = {
            "pool": key.name,
            **kind_of(key),
            "usd_per_hour": usd,
            "control_plane_usd_per_hour": cluster_usd,
            "estimate_usd": placed.estimate_usd * ratio if ratio and placed.estimate_usd is not None else None,
            **requests_of(pool, placed.workers // placed.nodes),
        }
        placements.append(placed.model_copy(update=changes))
    return sorted(placements, key=lambda one: (one.usd_per_hour is None, one.usd_per_hour or 0.0, one.pool))


def resize(run: AnyRun, placed: Placed, nodes: int) -> Placed | None:
    """The placement on another number of nodes at the same global batch; None when that cannot be."""
    if isinstance(run, SolverRun):  # its ranks are as many as its nodes have room for
        return placed if nodes == placed.nodes else None
    chip = load_accelerators().get(placed.accelerator)
    replicas = replicas_of(placed.accelerator, nodes * max(placed.per_node, 1))
    if placed.global_batch % replicas:
        return None
    share = placed.global_batch // replicas
    most = placed.batch_per_replica * placed.accumulate if nodes >= placed.planned_nodes else placed.batch_per_replica
    network = load_networks().get(run.model.network)

    def fits_memory(batch: int) -> bool:
        return chip is None or network is None or memory_problem(chip, network, batch, run.train.precision) is None

    fitting = (n for n in divisors(share) if share // n <= max(most, 1) and fits_memory(share // n))
    accumulate = next(fitting, None)
    if accumulate is None:
        return None
    usd_per_hour = placed.usd_per_hour
    if usd_per_hour is not None:
        fixed_usd = placed.control_plane_usd_per_hour
        usd_per_hour = (usd_per_hour - fixed_usd) * nodes / placed.nodes + fixed_usd
    return placed.model_copy(
        update={
            "nodes": nodes,
            "workers": nodes * (placed.workers // placed.nodes),
            "batch_per_replica": share // accumulate,
            "accumulate": accumulate,
            "usd_per_hour": usd_per_hour,
        }
    )


def worker_configuration(spec: Mapping[str, Any], placed: Placed) -> dict[str, Any]:
    """The run configuration that the workers read: the same in every attempt, so that checkpoints and folder stay.

    What the operator does not set passes through as the API server has it: the workers' image understands it.
    """
    cluster = {**(spec.get("cluster") or {}), "suspend": False}
    if placed.slots:
        return {**spec, "cluster": cluster}
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
    train = dict(spec.get("train") or {})
    most = train.get("maxBatchPerReplica") or share
    return {
        **spec,
        "hardware": {**(spec.get("hardware") or {}), **hardware},
        "train": {**train, "globalBatchSize": placed.global_batch, "maxBatchPerReplica": most},
        "cluster": cluster,
    }
