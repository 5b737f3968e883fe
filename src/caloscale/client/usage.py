"""What a run on a cluster used, and the estimate that it was placed with, as the bill reads both."""

import datetime as dt
import math
from collections.abc import Sequence
from typing import NamedTuple

from caloscale.client.runs import RunOnCluster
from caloscale.cluster.accounting import PARTS, first_day, interruptions, is_report_of, node_totals, with_cost
from caloscale.cluster.capacity.nodes import node_use
from caloscale.cluster.capacity.pool_plan import cloud_of
from caloscale.cluster.capacity.resizing import worker_configuration
from caloscale.errors import ConfigurationError, InputError
from caloscale.planning.billing.usage import Attempt, MeasuredTraining, RunUse
from caloscale.planning.catalogue.hardware import load_accelerators, network_of, network_of_preset
from caloscale.planning.catalogue.measurements import load_measurements
from caloscale.planning.catalogue.prices import load_prices
from caloscale.planning.search.plan import Plan, plan
from caloscale.spec import AnyRun, Run, SolverRun, build_run
from caloscale.spec.block import parse_block
from caloscale.spec.workspace_layout import PLAN_FILE, USAGE_FILE
from caloscale.status import AttemptStatus, Placed, RunStatus
from caloscale.storage.objects import delete_object, read_object, write_object

ROUNDING = 1e-6
"""Relative: the status is written as text."""


def _estimate_of(run: AnyRun, status: RunStatus) -> Plan | str:
    """The plan of the placement at the prices of the first launch, or why there is none. The status holds only time and
    money of the estimate. The rest is what the planner says of the same machines; where it comes to another sum (the
    operator had prices or measurements of its own), nothing is put beside the bill."""
    placed = status.placement
    if placed is None or not status.attempts:
        return "it was not placed yet: there is no estimate"
    if placed.estimate_usd is None or placed.estimate_seconds is None or isinstance(run, SolverRun):
        return "it was placed without an estimate" + "".join(f"; {reason}" for reason in placed.reasons)
    placed_run = build_run(worker_configuration(run.as_values(), placed))
    cloud = cloud_of(placed.machine_type, placed.topology)
    hardware = placed_run.hardware and placed_run.hardware.model_copy(update={"cloud": cloud})
    day = status.attempts[0].launched.date()
    try:
        planned = plan(placed_run.model_copy(update={"hardware": hardware}), load_prices(), load_measurements(), day)
    except InputError as problem:
        return f"the estimate of {placed.estimate_usd:.2f} USD cannot be made here: {problem.problem}"
    if (known := planned.chosen or planned.nearest) is not None and known.usd is not None:
        same_usd = math.isclose(known.usd, placed.estimate_usd, rel_tol=ROUNDING)
        if same_usd and math.isclose(known.total_seconds, placed.estimate_seconds, rel_tol=ROUNDING):
            return planned
    return (
        f"the operator estimated {placed.estimate_usd:.2f} USD, which the prices and measurements of this package "
        "do not give: there is no estimate beside the bill"
    )


class StageTime(NamedTuple):
    """When a stage began, how long it took, and the run and attempt whose worker did it, ``uid/number``, if known."""

    stage: str
    started: dt.datetime
    seconds: float
    attempt: str | None = None


def keep_use(run: RunOnCluster, configured: AnyRun, folder: str, stages: Sequence[StageTime] = ()) -> list[str]:
    """Write what a run used so far, and the plan of its placement, into a folder or a prefix of a bucket, for its bill.

    What other runs used in the same folder stays. stages: see `use_of`. Returns what could not be written, and whether
    a bill by the prices of this package is another than the operator's, a sentence each. Raises InputError where the
    file of what was used is damaged; StorageError.
    """
    planned, cost = _estimate_of(configured, run.status), run.status.cost
    # the bill ends when the status counted the cost last: the clock of this machine may differ from the operator's
    now = (cost.updated if cost is not None else None) or dt.datetime.now(dt.UTC)
    plan = None if isinstance(planned, str) else planned
    used = use_of(run.name, run.status, now, configured, uid=run.uid, stages=stages, plan=plan)
    if used is not None and (before := kept_use(folder)) is not None:
        used = _with_others(used, before, run.uid)
    used_or_reason = "it held no node yet: there is no bill" if used is None else used
    files = [(planned, PLAN_FILE), (used_or_reason, USAGE_FILE)]
    if used is not None and used.attempts[-1].run != run.uid:
        files = files[1:]  # the plan there is that of a newer run
    for block, name in files:
        if not isinstance(block, str):
            write_object(f"{block.as_json()}\n".encode(), f"{folder.rstrip('/')}/{name}")
        elif used is not None:  # an older plan, such as that of a pipeline before the placement, is not its estimate
            delete_object(f"{folder.rstrip('/')}/{name}")
    problems = [block for block, _ in files if isinstance(block, str)]
    priced = with_cost(run.status, load_prices(), now)[0].cost
    if cost is not None and priced is not None and cost.usd is not None and cost.usd != priced.usd:
        here = "none" if priced.usd is None else f"{priced.usd:.2f}"
        prices = f"the operator's prices, by which the bill is {cost.usd:.2f} USD (by those of this package: {here}): "
        return [*problems, f"{prices}give its rows to caloscale bill with --prices"]
    return problems


def kept_use(folder: str) -> RunUse | None:
    """What runs used in a folder so far; None: nothing is noted. Raises InputError where the file is damaged."""
    file = f"{folder.rstrip('/')}/{USAGE_FILE}"
    content = read_object(file)
    remedy = "delete it: what earlier runs used is then not in the bill"
    return None if content is None else parse_block(RunUse, content, file, remedy=remedy)


def _with_others(used: RunUse, before: RunUse, uid: str) -> RunUse:
    """The use of a folder: what a run used there, and what runs before it and, after its end, those that continued it.

    The newest of them gives name and figures. An older version noted no run with an attempt: there the name decides.
    """
    if before.own_machine:
        return used
    own = uid if before.name != used.name or any(attempt.run for attempt in before.attempts) else ""
    first = next((n for n, attempt in enumerate(before.attempts) if attempt.run == own), len(before.attempts))
    later = [attempt for attempt in before.attempts[first:] if attempt.run != own]
    attempts, day = (*before.attempts[:first], *used.attempts, *later), min(before.day, used.day)
    return (before if later else used).model_copy(update={"day": day, "attempts": attempts})


def use_of(
    name: str,
    status: RunStatus,
    now: dt.datetime,
    run: AnyRun | None = None,
    *,
    uid: str = "",
    stages: Sequence[StageTime] = (),
    plan: Plan | None = None,
) -> RunUse | None:
    """What a run used so far, as `caloscale.planning.billing.bill` reads it; None when it used no node yet.

    ``run``: its run configuration; without that of a training measurements are absent. ``uid``: as stages name it.
    ``stages``: what worker 0 (or a step of a pipeline) did beside the training; where their records name no attempt,
    those that began while one ran were done by its worker 0.
    ``plan``: that of the placement, for how much slower its layout is than the aligned one.
    """
    attempts, before = [], 0
    for attempt in status.attempts:
        kinds = [kind for kind in node_totals(attempt, status.placement, now) if kind.nodes]
        nodes = tuple(node_use(kind, kind.nodes, kind.node_seconds / kind.nodes) for kind in kinds)
        if nodes:
            timed = attempt.values_of(*PARTS, "count")
            share, ends = _used_share(attempt, status.placement), interruptions(attempt)
            trained = Attempt(run=uid, nodes=nodes, used_share=share, interruptions=ends, **timed)
            own = {f"{uid}/{number}" for number in range(before + 1, attempt.number + 1)}
            end = attempt.ended or now
            during = [s for s in stages if s.attempt in own or (not s.attempt and attempt.launched <= s.started <= end)]
            attempts.append(_with_stages(trained, during))
        before = attempt.number
    if not attempts:
        return None
    progress = status.progress
    return RunUse(
        name=name,
        day=first_day(status, now),
        attempts=tuple(attempts),
        epochs=progress.epoch if progress is not None else 0.0,
        slower_than_aligned=_slower_than_aligned(plan),
        observed=_observed(run, status, attempts[-1]) if isinstance(run, Run) else None,
    )


def _with_stages(attempt: Attempt, stages: Sequence[StageTime]) -> Attempt:
    """The attempt with what its worker 0 did beside the training, bounded by the time for which it had nodes."""
    for field, names in (("shower_seconds", ("simulate", "preprocess")), ("validation_seconds", ("validate",))):
        left = max(attempt.held_seconds - attempt.active_seconds, 0.0)
        seconds = min(sum(stage.seconds for stage in stages if stage.stage in names), left)
        attempt = attempt.model_copy(update={field: seconds})
    return attempt


def _slower_than_aligned(plan: Plan | None) -> float:
    """Predicted for the layout of the plan; 0 where it is the aligned one, or has none to be compared with."""
    best = None if plan is None else plan.chosen or plan.nearest
    if plan is None or best is None:
        return 0.0
    alike = [one for one in plan.layouts if one.nodes == best.nodes]
    aligned = next((one.epoch_seconds for one in alike if one.aligned), None)
    return max(best.epoch_seconds / aligned - 1, 0.0) if aligned else 0.0


def _used_share(attempt: AttemptStatus, placed: Placed | None) -> float:
    """Part of the nodes' accelerators that belonged to workers; all of them where there are none, or none is known."""
    if placed is None or not (placed.per_node and placed.accelerators_per_worker and attempt.nodes and attempt.workers):
        return 1.0
    return min(attempt.workers * placed.accelerators_per_worker / (attempt.nodes * placed.per_node), 1.0)


def _is_of_its_preset(run: Run) -> bool:
    """Whether a step has the arithmetic of the preset, which names a measurement: other cells or settings change it.
    Presets train in float32 where there is hardware."""
    if run.train.precision == "bfloat16" or run.train.deterministic or run.train.convolutions != "auto":
        return False
    try:
        own, usual = network_of(run), network_of_preset(run.model.network)
    except ConfigurationError:
        return False
    return usual is not None and own.has_step_of(usual)


def _observed(run: Run, status: RunStatus, last: Attempt) -> MeasuredTraining | None:
    """What worker 0 measured in the last attempt; None where that is no measurement of the preset's step."""
    placed, progress, attempt = status.placement, status.progress, status.attempts[-1]
    if placed is None or progress is None or not is_report_of(attempt, progress):
        return None
    per_epoch = progress.steps // progress.epochs if progress.epochs else 0
    whole = (progress.step - attempt.first_step - 1) // per_epoch if per_epoch else 0
    comparable = placed.accelerator in load_accelerators() and placed.accumulate == 1 and _is_of_its_preset(run)
    comparable &= sum(kind.nodes for kind in last.nodes) == placed.nodes == attempt.nodes
    showers = run.data.showers or 0
    comparable &= showers // placed.global_batch == per_epoch
    if whole < 1 or not progress.step_seconds or not comparable:
        return None
    return MeasuredTraining(
        network=run.model.network,
        workers=placed.workers,
        batch_per_replica=placed.batch_per_replica,
        showers=showers,
        epochs=whole,
        step_seconds=progress.step_seconds,
        first_step_seconds=progress.seconds_first_step or None,
    )
