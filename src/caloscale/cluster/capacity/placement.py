"""From a run and the pools of a cluster to a placement, or to the exact reason why there is none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from caloscale.cluster.capacity.nodes import Pool, PoolKey
from caloscale.cluster.capacity.pool_plan import Catalogue, cloud_of, hardware_of, plan_on, pool_of
from caloscale.cluster.names import CPU
from caloscale.errors import InputError
from caloscale.spec import AnyRun, Hardware
from caloscale.status import Placed


class Need(NamedTuple):
    """The change of a pool after which a run that it cannot hold now is planned again."""

    nodes: int | None
    """Number of free nodes; None: free nodes do not help."""
    changed: bool
    """Whether also any change of its nodes: the plan depends on their number."""

    def is_met(self, free: int, changed: bool) -> bool:
        """Whether the run is to be planned again; ``free``: free nodes; ``changed``: whether the nodes changed."""
        return (self.nodes is not None and self.nodes <= free) or (changed and self.changed)


@dataclass(frozen=True)
class PoolChoice:
    """A placement, or why there is none."""

    placed: Placed | None = None
    message: str = ""
    over_budget: bool = False
    """Whether it is the budget that is in the way, which no machine will mend."""
    needs: Mapping[PoolKey, Need] = field(default_factory=dict)
    """What the pools of its kind would have to have."""


def choose_placement(run: AnyRun, pools: Sequence[Pool], catalogue: Catalogue) -> PoolChoice:
    """The placement of a run: pools with enough free nodes first, then the cheapest (or the fastest in the budget).

    Never raises for a valid run configuration: the reasons against a pool are in the message.
    """
    hardware = hardware_of(run)
    counted = hardware.nodes is not None or hardware.count is not None
    plans = {pool.key: plan_on(run, pool, catalogue) for pool in pools if fits(hardware, pool)}
    options = [planned for planned in plans.values() if isinstance(planned, Placed)]
    over_budget = [planned for planned in plans.values() if isinstance(planned, str)]
    refused = dict.fromkeys(planned.sentence for planned in plans.values() if isinstance(planned, InputError))
    needs = {
        key: Need(planned.nodes if isinstance(planned, Placed) else None, not counted) for key, planned in plans.items()
    }
    if options:
        fast = run.budget.max_usd is not None and run.budget.deadline is None
        best = min(
            options,
            key=lambda placed: (
                shortage(placed, pools) is not None,
                (placed.estimate_seconds if fast else placed.estimate_usd) or float("inf"),
                (placed.estimate_usd if fast else placed.estimate_seconds) or float("inf"),
                placed.usd_per_hour or float("inf"),
                placed.pool,
            ),
        )
        return PoolChoice(best, needs=needs)
    if over_budget:
        return PoolChoice(message=min(over_budget, key=len), over_budget=True)
    if refused:
        return PoolChoice(message="; ".join(refused), needs=needs)
    return PoolChoice(message=_nothing(hardware, pools))


def shortage(placed: Placed, pools: Sequence[Pool]) -> str | None:
    """What is missing for a placement, exactly; None: the whole gang fits now."""
    pool = pool_of(placed, pools)
    free = pool.free if pool is not None else 0
    if free >= placed.nodes:
        return None
    there = len(pool.nodes) if pool is not None else 0
    what = "free processors" if placed.accelerator == CPU else f"{placed.per_node} free {placed.accelerator}"
    return f"{placed.nodes} nodes with {what} needed, {free} present: pool {placed.pool} is at {free}/{there}"


def fits(hardware: Hardware, pool: Pool) -> bool:
    """Whether a pool is of the kind that the run configuration asks for."""
    key = pool.key
    if hardware.accelerator is None and key.accelerator == CPU:
        return False
    fields = (
        (hardware.cloud, cloud_of(key.machine_type, key.topology)),
        (hardware.accelerator, key.accelerator),
        (hardware.machine_type, key.machine_type),
        (hardware.per_node, key.workers_per_node),
        (hardware.topology, key.topology),
        (hardware.region, key.region),
        (hardware.capacity_type, key.capacity_type),
    )
    whole = hardware.count is None or hardware.count % key.workers_per_node == 0
    return whole and all(asked_for in (None, there) for asked_for, there in fields)


def _nothing(hardware: Hardware, pools: Sequence[Pool]) -> str:
    """The sentence for a cluster that has no pool for the run."""
    per_node = hardware.per_node
    nodes = hardware.nodes or (hardware.count // per_node if hardware.count and per_node else None)
    named = {"none": "own", "gcp": None}.get(hardware.cloud or "", hardware.cloud)
    fields = (hardware.capacity_type, hardware.accelerator, hardware.machine_type, hardware.topology, hardware.region)
    kind = " ".join(filter(None, (named, *fields)))
    known = []
    for pool in pools:
        key = pool.key
        if key.accelerator != CPU:
            cloud = cloud_of(key.machine_type, key.topology)
            machine = key.machine_type if hardware.machine_type is not None else ""
            if hardware.cloud not in (None, cloud):  # a machine type that the catalogue does not have is of no cloud
                machine = f"its cloud is {cloud} by machine type {key.machine_type or 'unknown'}"
            where = ", ".join(filter(None, (machine, key.capacity_type, key.region)))
            known.append(f"{key.name} ({len(pool.nodes)} x {key.per_node} {key.accelerator}, {where})")
    return (
        f"{nodes or 'any number of'} nodes with {per_node or 'all'} free {kind or 'accelerators'} needed, 0 present: "
        + (f"the pools are {', '.join(known)}" if known else "the cluster has no pool with accelerators that is ready")
    )


def verify_placement(placed: Placed, workers: Sequence[tuple[str, str, int]]) -> list[str]:
    """What the actual placement lacks against the plan. ``workers``: name, node and accelerators of each pod."""
    problems = []
    if len(workers) != placed.workers:
        problems.append(f"{len(workers)} workers run, {placed.workers} are planned")
    by_node: dict[str, list[str]] = {}
    for name, node, accelerators in workers:
        by_node.setdefault(node, []).append(name)
        if accelerators != placed.accelerators_per_worker:
            problems.append(f"{name} has {accelerators} accelerators, {placed.accelerators_per_worker} are planned")
    most = placed.workers // placed.nodes
    problems += [
        f"{' and '.join(sorted(names))} share node {node}" for node, names in by_node.items() if len(names) > most
    ]
    return problems
