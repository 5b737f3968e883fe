"""A run on one pool: as planned, or as the run configuration sets it where nothing can be estimated."""

import datetime as dt
import hashlib
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from caloscale.cluster.capacity.labels import NodeLabels, load_labels
from caloscale.cluster.capacity.nodes import Pool, PoolKey, kind_of, node_use
from caloscale.cluster.names import CPU
from caloscale.errors import InputError, InvalidValueError, PriceError, with_remedy
from caloscale.planning.billing.bill import rates_of_use
from caloscale.planning.catalogue.hardware import OWN, provider_of, replicas_of
from caloscale.planning.catalogue.measurements import Measurement
from caloscale.planning.catalogue.prices import Prices, usd_of
from caloscale.planning.search.plan import Candidate, plan
from caloscale.spec import AnyRun, Hardware, Run, SolverRun
from caloscale.spec.cluster import Backend
from caloscale.spec.hardware import MOST_WORKERS
from caloscale.status import NodeTotals, Placed

SCALE_FROM_ZERO = "scale-from-zero: "
"""Prefix of the names of pools that have no node yet (`scale_from_zero_pools`)."""
_NOT_KNOWN = ("data.showers", "hardware.accelerator", "hardware.machineType", "machineType", "model.family")
"""Fields of which a plan knows no measurement or price."""
MOST_KNOWN = 10_000
"""Plans that are kept, those that were asked for last."""


@dataclass(frozen=True)
class Catalogue:
    """What plans rest on."""

    prices: Prices
    measurements: Sequence[Measurement]
    """Measured steps."""
    as_of: dt.date
    """Day of the prices."""
    labels: NodeLabels = field(default_factory=load_labels)
    """What labels and taints of nodes say."""
    problem: str = ""
    """Why newer prices of the administrator do not count; empty: there are none."""
    known: dict[tuple[bytes, PoolKey, int], Placed | str | InputError] = field(default_factory=dict, compare=False)
    """Plans that were made: a run that waits is planned again with every node that comes and goes."""


def hardware_of(run: AnyRun) -> Hardware:
    """The machines that a run asks for; a solver run that names no accelerator has processors."""
    hardware = run.hardware or Hardware()
    on_processors = isinstance(run, SolverRun) and hardware.accelerator is None
    return hardware.model_copy(update={"accelerator": CPU}) if on_processors else hardware


def backend_of(run: AnyRun, topology: str | None) -> Backend:
    """The kind of object that holds the workers."""
    if isinstance(run, SolverRun):
        return "MPIJob"
    if run.cluster.backend != "auto":
        return run.cluster.backend
    return "TFJob" if topology is None else "JobSet"


def cloud_of(machine_type: str, topology: str | None) -> Literal["gcp", "azure", "none"]:
    """The cloud whose catalogue has the machines of a pool; none: they are priced by a row of one's own, or not."""
    provider = provider_of(machine_type, topology)
    return "none" if provider == "kind" else provider


def pool_of(placed: Placed, pools: Sequence[Pool]) -> Pool | None:
    """The pool of a placement; None when no node of it is there. A pool scaled from zero may have any name."""
    kind = kind_of(placed)
    alike = [pool for pool in pools if {**kind_of(pool.key), "region": placed.region} == kind]
    if placed.pool.startswith(SCALE_FROM_ZERO):
        return max(alike, key=lambda pool: pool.free, default=None)
    return next((pool for pool in alike if pool.key.name == placed.pool), None)


def plan_on(run: AnyRun, pool: Pool, catalogue: Catalogue) -> Placed | str | InputError:
    """The placement in a pool; a text when its estimate passes the budget, an error for what else is in the way.

    A count that is the planner's is planned on the nodes that are there; where an autoscaler adds what is missing, and
    where these are too few, on hardware.maxNodes. So a run that could end in time on more nodes waits for them.
    """
    if isinstance(run, SolverRun):
        return _for_ranks(run, pool, catalogue)
    hardware, hosts = hardware_of(run), _given_nodes(run, pool) if pool.key.topology is not None else 1
    if not (hardware.topology or hardware.count or hardware.nodes) and hosts is not None and hosts > 1:
        problem = f"is absent, and pool {pool.key.name} is a slice of {hosts} hosts, of which TensorFlow drives one"
        return InputError(problem, field="hardware.topology", remedy="use a slice of one host, or other machines")
    most = hardware.max_nodes
    there = most if run.cluster.add_nodes else max(min(most, len(pool.nodes)), 1)
    planned = _known(run, pool, catalogue, there)
    if not isinstance(planned, Placed) and there < most:
        planned = _on_more(run, pool, catalogue, there, planned)
    if not isinstance(planned, Placed):
        return planned
    if planned.workers > MOST_WORKERS:
        problem = f"{planned.workers} workers are more than a run can have on a cluster, {MOST_WORKERS}"
        remedy = "give each worker more accelerators (hardware.placement Aligned: all of its node)"
        return InputError(problem, field="hardware.acceleratorsPerWorker", remedy=remedy)
    workers_per_node = planned.workers // planned.nodes
    return planned.model_copy(update={"pool": pool.key.name, **requests_of(pool, workers_per_node)})


def _for_ranks(run: SolverRun, pool: Pool, catalogue: Catalogue) -> Placed | InputError:
    """The placement of a solver run, which its configuration sets; how long an epoch takes was not measured."""
    if pool.key.topology is not None:
        problem = f"pool {pool.key.name} has TPUs, and the ranks of a solver would run on its processors"
        return InputError(problem, field="hardware.accelerator", remedy="name a GPU, or leave it out")
    solver, per_node, given_nodes = run.solver, pool.key.per_node, _given_nodes(run, pool)
    nodes = solver.ranks // per_node if per_node else given_nodes or 1
    slots = per_node or math.ceil(solver.ranks / nodes)
    without_ranks = (nodes - 1) * slots >= solver.ranks
    if (per_node and solver.ranks % per_node) or given_nodes not in (None, nodes) or without_ranks:
        problem = f"{solver.ranks} do not fill {given_nodes or 'whole'} nodes of pool {pool.key.name} with {slots} each"
        return InputError(problem, field="solver.ranks", remedy="change solver.ranks, or hardware.nodes or count")
    cluster_usd, usd_per_hour, reasons = 0.0, None, ["no estimate: the time of an epoch was not measured"]
    try:
        usd_per_hour, cluster_usd = usd_per_hour_of(run, pool, nodes, catalogue)
    except InputError as error:
        if run.budget.max_usd is not None:
            return error
        reasons.append(error.problem)
    seconds = None if solver.max_minutes is None else 60 * solver.max_minutes
    if seconds is not None:
        reasons[0] += "; the limit is solver.maxMinutes, without start and last save"
    placed = _placed(
        run,
        pool,
        nodes=nodes,
        workers=nodes,
        accelerators_per_worker=per_node,
        slots=slots,
        batch_per_replica=solver.events_per_rank,
        global_batch=solver.events_per_rank * solver.ranks,
        usd_per_hour=usd_per_hour,
        control_plane_usd_per_hour=cluster_usd,
        estimate_seconds=seconds,
        estimate_usd=None if seconds is None or usd_per_hour is None else usd_of(usd_per_hour, seconds),
        reasons=tuple(reasons),
    )
    return placed.model_copy(update=requests_of(pool, 1))


def _on_more(
    run: Run, pool: Pool, catalogue: Catalogue, there: int, too_few: str | InputError
) -> Placed | str | InputError:
    """The placement on the fewest nodes beyond those that are there; where there is none, what is in the way."""
    on = partial(_known, run, pool, catalogue)
    more = range(there + 1, hardware_of(run).max_nodes + 1)
    if not isinstance(placed := on(more[-1]), Placed):
        return placed
    placed = on(more[bisect_left(more, True, key=lambda nodes: isinstance(on(nodes), Placed))])
    assert isinstance(placed, Placed)
    problem = too_few.problem if isinstance(too_few, InputError) else too_few
    return placed.model_copy(update={"reasons": (*placed.reasons, f"too few nodes are there ({there}): {problem}")})


def _known(run: Run, pool: Pool, catalogue: Catalogue, most_nodes: int) -> Placed | str | InputError:
    """The placement on at most ``most_nodes`` nodes; a plan that was made before is taken again."""
    digest = hashlib.blake2b(run.model_dump_json().encode(), digest_size=16).digest()
    key, known = (digest, replace(pool.key, name=""), most_nodes), catalogue.known
    try:
        planned = known.pop(key) if key in known else _planned(run, pool, catalogue, most_nodes)
    except InputError as error:
        planned = error
    known[key] = planned  # behind all others
    if len(known) > MOST_KNOWN:
        del known[next(iter(known))]
    return planned


def _planned(run: Run, pool: Pool, catalogue: Catalogue, most_nodes: int) -> Placed | str:
    """The placement on at most ``most_nodes`` nodes; a text when its estimate passes the budget."""
    key = pool.key
    if key.accelerator == CPU:
        problem = PriceError("training on processors of a cluster was not measured")
        placed = _unpriced(run, pool, problem, _given_nodes(run, pool) or 1)
        try:
            usd_per_hour, cluster_usd = usd_per_hour_of(run, pool, placed.nodes, catalogue)
        except InputError as error:
            return placed.model_copy(update={"reasons": (*placed.reasons, error.problem)})
        return placed.model_copy(update={"usd_per_hour": usd_per_hour, "control_plane_usd_per_hour": cluster_usd})
    narrowed = {name: value or None for name, value in kind_of(key).items()}
    narrowed |= {"cloud": cloud_of(key.machine_type, key.topology), "max_nodes": most_nodes}
    if narrowed["cloud"] == "none":  # nodes of an unknown region do not have the price of another
        narrowed["region"] = key.region or OWN
    try:
        narrow = run.model_copy(update={"hardware": hardware_of(run).model_copy(update=narrowed)})
        planned = plan(narrow, catalogue.prices, catalogue.measurements, catalogue.as_of, unpriced=True)
    except InputError as error:
        return _unpriced(run, pool, error, _given_nodes(run, pool))
    if planned.chosen is None:
        return _over(run, planned.nearest, planned.notes)
    best, prices = planned.chosen, planned.prices
    same = ("nodes", "workers", "accelerators_per_worker", "batch_per_replica", "region", "usd_per_hour")
    return _placed(
        run,
        pool,
        **best.values_of(*same),
        control_plane_usd_per_hour=sum(part.usd_per_hour for part in prices.parts if part.kind == "control_plane"),
        estimate_usd=best.usd,
        estimate_seconds=best.total_seconds,
        reasons=(*best.reasons, *prices.warnings),
    )


def _over(run: Run, nearest: Candidate | None, notes: Sequence[str]) -> str:
    if nearest is None:
        return "; ".join(notes) or "nothing can be planned"
    limits = [
        f"budget.maxUsd is {run.budget.max_usd:g}" if run.budget.max_usd is not None else "",
        f"budget.deadline is {run.budget.deadline}" if run.budget.deadline is not None else "",
    ]
    cost = f"{nearest.accelerator_hours:.1f} accelerator hours" if nearest.usd is None else f"{nearest.usd:.2f} USD"
    return with_remedy(
        f"the estimate is {cost} and {nearest.total_seconds / 3600:.1f} h on "
        f"{nearest.nodes} x {nearest.machine_type}, {' and '.join(filter(None, limits))}",
        "raise the limit, or ask for less",
    )


def _placed(run: AnyRun, pool: Pool, *, nodes: int, batch_per_replica: int, **fields: Any) -> Placed:
    """A placement in a pool; `plan_on` adds what the workers request."""
    replicas = replicas_of(pool.key.accelerator, nodes * pool.key.workers_per_node)
    hardware = hardware_of(run)
    values = {
        "disk_gib": hardware.disk_gib,
        "control_plane": hardware.control_plane,
        **kind_of(pool.key),
        "backend": backend_of(run, pool.key.topology),
        "pool": pool.key.name,
        "nodes": nodes,
        "planned_nodes": nodes,
        "batch_per_replica": batch_per_replica,
        "global_batch": batch_per_replica * replicas,
        **fields,
    }
    return Placed(**values)


def requests_of(pool: Pool, workers_per_node: int) -> dict[str, object]:
    """Where the workers go in a pool, and what each asks for."""
    return {
        "node_selector": dict(pool.nodes[0].selector),
        "worker_cpus": int(pool.worker_cpus / workers_per_node * 10) / 10,
        "worker_memory_gib": int(pool.worker_memory_gib / workers_per_node * 10) / 10,
    }


def _unpriced(run: Run, pool: Pool, problem: InputError, nodes: int | None) -> Placed:
    """A placement whose number of nodes the run configuration sets, without estimates of time and cost. Raises the
    problem when the number is the planner's to choose, or when it is not about prices or measurements."""
    unknown = isinstance(problem, PriceError) or problem.field in _NOT_KNOWN
    if nodes is None or not unknown or run.budget.max_usd is not None:
        raise problem
    key, hardware = pool.key, hardware_of(run)
    per_worker = hardware.accelerators_per_worker or key.workers_per_node
    workers = nodes * (key.workers_per_node // per_worker)
    if key.workers_per_node % per_worker or hardware.workers not in (None, workers):
        text = f"{hardware.workers or 'workers'} with {per_worker} accelerators each do not fill {nodes} nodes of pool "
        text += f"{key.name} with {key.workers_per_node} each"
        field = "hardware.acceleratorsPerWorker" if hardware.workers is None else "hardware.workers"
        remedy = "leave hardware.acceleratorsPerWorker and hardware.workers out, or name values that fill the nodes"
        raise InputError(text, field=field, remedy=remedy)
    try:
        batch = run.train.replica_batch(replicas_of(key.accelerator, nodes * key.workers_per_node))
    except InvalidValueError as error:
        raise InputError(error.problem, field="train.globalBatchSize", remedy=error.remedy) from None
    return _placed(
        run,
        pool,
        nodes=nodes,
        workers=workers,
        accelerators_per_worker=per_worker if key.per_node else 0,
        batch_per_replica=batch,
        reasons=(f"no estimate: {problem.sentence}",),
    )


def usd_per_hour_of(run: AnyRun, pool: Pool, nodes: int, catalogue: Catalogue) -> tuple[float, float]:
    """Price of nodes of a pool with disks and control plane, and the control plane's part, US dollars per hour.

    Raises PriceError, an InputError, where there is none.
    """
    hardware = hardware_of(run)
    kind = {**kind_of(pool.key), "disk_gib": hardware.disk_gib, "control_plane_seconds": float(hardware.control_plane)}
    node, cluster = rates_of_use(node_use(NodeTotals(**kind), 1, 0), catalogue.prices, catalogue.as_of)
    cluster_usd = cluster.usd_per_hour if cluster is not None else 0.0
    return nodes * node.usd_per_hour + cluster_usd, cluster_usd


def _given_nodes(run: AnyRun, pool: Pool) -> int | None:
    """The number of nodes that the run configuration sets; None: it is the planner's to choose."""
    hardware = hardware_of(run)
    if hardware.nodes is not None:
        return hardware.nodes
    if hardware.count is not None:
        return hardware.count // pool.key.workers_per_node
    if pool.key.topology is not None:
        try:
            chips = math.prod(map(int, pool.key.topology.split("x")))
        except ValueError:  # the label of a node may say anything
            return None
        hosts, rest = divmod(chips, pool.key.workers_per_node)
        return None if rest else hosts
    return hardware.workers if hardware.placement == "Aligned" else None
