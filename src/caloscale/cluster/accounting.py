"""Nodes that a run used, and what they cost: the same figures for the status, the bill, the report and the planner."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from caloscale.cluster.capacity.nodes import CPU
from caloscale.cluster.capacity.pods import Pod
from caloscale.errors import InputError
from caloscale.planning.accelerators import load_accelerators
from caloscale.planning.bill import SMALL_BILL_USD, rate_of_use
from caloscale.planning.money import CENT, SMALL_UNIT, split_exactly, usd_of
from caloscale.planning.plan import Plan
from caloscale.planning.prices import Prices
from caloscale.planning.usage import Attempt, NodeUse, Observed, RunUse
from caloscale.spec import Run
from caloscale.status import AttemptStatus, NodeTotals, NodeUsage, Placed, RunCost, RunProgress, RunStatus

HOUR = 3600.0
KEPT_ATTEMPTS = 20
"""So many attempts are kept one by one."""
COUNTED: tuple[str, ...] = ("WorkerLost", "WorkerFailed", "NodeLost", "JobLost")
"""Reasons of an end that are interruptions and count against recovery.maxRestarts."""


def track(
    before: Sequence[NodeUsage],
    pods: Iterable[Pod],
    gone_nodes: frozenset[str],
    now: dt.datetime,
    gone_pods: Mapping[str, Pod] | None = None,
) -> tuple[NodeUsage, ...]:
    """The node usage of an attempt, updated by the state of its pods.

    The usage of a node begins when a pod is bound to it, and ends when the worker ends or the pod or the node is gone.
    ``gone_pods``: by uid, pods that were seen to go, as they were last; what ended while nobody watched has ended now.
    """
    by_uid = {pod.uid: pod for pod in pods}
    followed = []
    for usage in before:
        pod = by_uid.pop(usage.uid, None)
        if usage.until is None:
            if pod is None or usage.node in gone_nodes:
                last = (gone_pods or {}).get(usage.uid)
                went = last.ended if last is not None and last.ended is not None else now
                done = last is not None and last.phase == "Succeeded"
                usage = usage.model_copy(update={"until": max(_second(went), usage.since), "done": done})
            elif not pod.alive:
                ended = max(pod.ended or _second(now), usage.since)
                usage = usage.model_copy(update={"until": ended, "done": pod.phase == "Succeeded"})
        followed.append(usage)
    for pod in sorted(by_uid.values(), key=lambda pod: pod.name):
        if pod.node and pod.bound is not None and pod.node not in gone_nodes:
            until = None if pod.alive else max(pod.ended or _second(now), pod.bound)
            done = pod.phase == "Succeeded"
            followed.append(
                NodeUsage(pod=pod.name, uid=pod.uid, node=pod.node, since=pod.bound, until=until, done=done)
            )
    return tuple(followed)


def node_totals(attempt: AttemptStatus, placed: Placed | None, now: dt.datetime) -> tuple[NodeTotals, ...]:
    """Nodes of an attempt by kind; two workers on a node count once."""
    if attempt.node_totals or placed is None or not attempt.node_usage:
        return attempt.node_totals
    seconds = sum(
        _covered([usage for usage in attempt.node_usage if usage.node == node], now) for node in _nodes(attempt)
    )
    return (
        NodeTotals(
            machine_type=placed.machine_type,
            accelerator="" if placed.accelerator == CPU else placed.accelerator,
            per_node=placed.per_node,
            topology=placed.topology,
            region=placed.region,
            capacity_type=placed.capacity_type,
            nodes=len(_nodes(attempt)),
            node_seconds=seconds,
        ),
    )


def settle(attempt: AttemptStatus, placed: Placed | None, now: dt.datetime) -> AttemptStatus:
    """The totals of an attempt that has ended and uses no node any more; another attempt is returned unchanged."""
    if attempt.ended is None or not attempt.node_usage or any(usage.until is None for usage in attempt.node_usage):
        return attempt
    return attempt.model_copy(update={"node_totals": node_totals(attempt, placed, now), "node_usage": ()})


def summed(attempts: Sequence[AttemptStatus]) -> tuple[AttemptStatus, ...]:
    """The newest attempts, and before them the sums of older ones on equal machines: a status has an end."""
    older, newest = list(attempts[:-KEPT_ATTEMPTS]), attempts[-KEPT_ATTEMPTS:]
    sums: list[AttemptStatus] = []
    for attempt in older:
        if sums and (one := _sum(sums[-1], attempt)) is not None:
            sums[-1] = one
        else:
            sums.append(attempt)
    return (*sums, *newest)


def _sum(first: AttemptStatus, second: AttemptStatus) -> AttemptStatus | None:
    """Two attempts as one; None where they cannot be: on other machines or in another layout, or not settled yet."""
    if first.node_usage or second.node_usage or (second.node_totals and not first.node_totals):
        return None
    if first.workers * second.nodes != second.workers * first.nodes:
        return None
    totals = _kinds((*first.node_totals, *second.node_totals))
    if len(totals) > 1:
        return None
    nodes = max(first.nodes, second.nodes)
    seconds = {
        field: round(sum(getattr(one, field) * one.nodes for one in (first, second)) / nodes, 3)
        for field in ("waiting_seconds", "start_up_seconds", "training_seconds", "lost_seconds")
    }
    return second.model_copy(
        update={
            "nodes": nodes,
            "workers": max(first.workers, second.workers),
            "launched": first.launched,
            "running": first.running,
            "first_step": first.first_step,
            "steps_kept": first.steps_kept + second.steps_kept,
            "steps_lost": first.steps_lost + second.steps_lost,
            "first_used": first_usage(first),
            "node_totals": tuple(one.model_copy(update={"nodes": nodes}) for one in totals),
            "count": first.count + second.count,
            "interruptions": interruptions(first) + interruptions(second),
            "message": "sum of older attempts",
            "exit_code": None,
            **seconds,
        }
    )


def first_usage(attempt: AttemptStatus) -> dt.datetime:
    """When an attempt, or the first of those that it sums up, used its first node."""
    if attempt.first_used is not None:
        return attempt.first_used
    if attempt.node_usage:
        return min(usage.since for usage in attempt.node_usage)
    if attempt.running is None:
        return attempt.launched
    return attempt.running - dt.timedelta(seconds=attempt.waiting_seconds)


def interruptions(attempt: AttemptStatus) -> int:
    """How many interruptions ended an attempt, or those that it sums up."""
    return attempt.interruptions if attempt.count > 1 else int(attempt.reason in COUNTED)


def with_steps(attempt: AttemptStatus, progress: RunProgress | None, now: dt.datetime) -> AttemptStatus:
    """An attempt that has ended with its steps, and where its time went, as worker 0 reported last.

    A report that is older than the attempt is another attempt's: then no step is known to have been made.
    """
    if progress is None or progress.updated is None or progress.updated < attempt.launched:
        return attempt
    reached = max(progress.step, attempt.first_step)
    saved = min(max(progress.checkpoint_step, attempt.first_step), reached)
    if attempt.reason == "Completed":
        saved = reached
    nodes = _nodes(attempt)
    whole = sum(_covered([h for h in attempt.node_usage if h.node == node], now) for node in nodes) / max(len(nodes), 1)
    first = min((h.since for h in attempt.node_usage), default=attempt.launched)
    waiting = max(((attempt.running or attempt.launched) - first).total_seconds(), 0.0)
    step = progress.step_seconds or 0.0
    kept, lost = saved - attempt.first_step, reached - saved
    wanted = (waiting, progress.seconds_first_step or 0.0, step * kept, step * lost)
    scale = min(1.0, whole / sum(wanted)) if sum(wanted) > 0 else 1.0
    seconds = [round(part * scale, 3) for part in wanted]
    return attempt.model_copy(
        update={
            "steps_kept": kept,
            "steps_lost": lost,
            **dict(zip(("waiting_seconds", "start_up_seconds", "training_seconds", "lost_seconds"), seconds)),
        }
    )


def with_cost(status: RunStatus, prices: Prices, now: dt.datetime) -> tuple[RunStatus, str | None]:
    """The status with the money so far, and why there is none.

    Attempts add up to the total to the cent; the total is what `caloscale bill` makes of `use.use_of`.
    """
    if not status.attempts:
        return status, None
    totals = [node_totals(attempt, status.placement, now) for attempt in status.attempts]
    hours = [sum(one.node_seconds for one in kinds) / HOUR for kinds in totals]
    day, problem = first_day(status, now), None
    parts: list[float | None] = [None] * len(totals)
    total: float | None = None
    try:
        amounts = [sum(_usd(one, prices, day) for one in kinds) for kinds in totals]
        unit = SMALL_UNIT if sum(amounts) < SMALL_BILL_USD else CENT
        whole, split = split_exactly(amounts, unit)
        total, parts = float(whole), [float(part) for part in split]
    except InputError as error:
        problem = error.sentence
    attempts = tuple(
        attempt.model_copy(update={"node_hours": round(hour, 6), "usd": usd})
        for attempt, hour, usd in zip(status.attempts, hours, parts)
    )
    cost = RunCost(
        usd=total,
        estimate_usd=_to_the_end(status, total, now),
        node_hours=round(sum(hours), 6),
        nodes=_kinds([one for kinds in totals for one in kinds]),
        as_of=day,
        updated=_second(now),
    )
    return status.model_copy(update={"attempts": attempts, "cost": cost}), problem


def _to_the_end(status: RunStatus, usd: float | None, now: dt.datetime) -> float | None:
    placed, progress = status.placement, status.progress
    if status.finished is not None or usd is None or placed is None:
        return usd
    if progress is None or progress.eta is None or placed.usd_per_hour is None:
        return placed.estimate_usd
    left = max((progress.eta - now).total_seconds(), 0.0)
    return round(usd + placed.usd_per_hour * left / HOUR, 2)


def _kinds(totals: Iterable[NodeTotals]) -> tuple[NodeTotals, ...]:
    summed: dict[tuple[object, ...], NodeTotals] = {}
    for one in totals:
        key = (one.machine_type, one.accelerator, one.per_node, one.topology, one.region, one.capacity_type)
        there = summed.get(key)
        summed[key] = (
            one
            if there is None
            else there.model_copy(
                update={
                    "nodes": max(there.nodes, one.nodes),
                    "node_seconds": there.node_seconds + one.node_seconds,
                }
            )
        )
    return tuple(summed.values())


def node_use(totals: NodeTotals) -> NodeUse:
    """The same for a bill."""
    return NodeUse(
        machine_type=totals.machine_type or "unknown",
        accelerator=totals.accelerator,
        per_node=totals.per_node,
        topology=totals.topology,
        region=totals.region or "unknown",
        capacity_type=totals.capacity_type,
        nodes=totals.nodes,
        seconds=totals.node_seconds / totals.nodes,
    )


def _usd(totals: NodeTotals, prices: Prices, day: dt.date) -> float:
    if not totals.nodes:
        return 0.0
    use = node_use(totals)
    return usd_of(rate_of_use(use, prices, day).usd_per_hour, use.nodes * use.seconds)


def _covered(usages: Sequence[NodeUsage], now: dt.datetime) -> float:
    """Seconds in which at least one worker uses the node."""
    total, end = 0.0, None
    for since, until in sorted((usage.since, usage.until or now) for usage in usages):
        begin = since if end is None else max(since, end)
        total += max((until - begin).total_seconds(), 0.0)
        end = until if end is None else max(end, until)
    return total


def _nodes(attempt: AttemptStatus) -> list[str]:
    return sorted({usage.node for usage in attempt.node_usage})


def first_day(status: RunStatus, now: dt.datetime) -> dt.date:
    """That of its prices: on which it first used nodes."""
    return status.attempts[0].launched.date() if status.attempts else now.date()


def _second(now: dt.datetime) -> dt.datetime:
    return now.replace(microsecond=0)


class StageTime(NamedTuple):
    """When a stage began, and how long it took."""

    stage: str
    started: dt.datetime
    seconds: float


def use_of(
    name: str,
    status: RunStatus,
    now: dt.datetime,
    run: Run | None = None,
    *,
    stages: Sequence[StageTime] = (),
    plan: Plan | None = None,
) -> RunUse | None:
    """What a run used so far, as `caloscale.planning.bill` reads it; None when it used no node yet.

    ``run``: its run configuration; without it measurements are absent. ``stages``: what worker 0 (or a
    step of a pipeline) did beside the training; those that began while an attempt ran were done by its worker 0.
    ``plan``: that of the placement, for how much slower its layout is than the aligned one.
    """
    attempts = []
    for attempt in status.attempts:
        nodes = tuple(node_use(kind) for kind in node_totals(attempt, status.placement, now) if kind.nodes)
        if nodes:
            trained = Attempt(
                nodes=nodes,
                training_seconds=attempt.training_seconds,
                start_up_seconds=attempt.start_up_seconds,
                waiting_seconds=attempt.waiting_seconds,
                lost_seconds=attempt.lost_seconds,
                used_share=_used_share(attempt, status.placement),
                count=attempt.count,
                interruptions=interruptions(attempt),
            )
            during = [s for s in stages if attempt.launched <= s.started <= (attempt.ended or now)]
            attempts.append(_with_stages(trained, during))
    if not attempts:
        return None
    progress = status.progress
    return RunUse(
        name=name,
        day=first_day(status, now),
        attempts=tuple(attempts),
        epochs=progress.epoch if progress is not None else 0.0,
        slower_than_aligned=_slower_than_aligned(plan),
        observed=None if run is None else _observed(run, status, attempts[-1]),
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


def _observed(run: Run, status: RunStatus, last: Attempt) -> Observed | None:
    """What worker 0 measured in the last attempt; None where its report and the placement do not say everything.

    A step of several micro-batches is not that of a larger batch, and where other showers than the configured ones
    were read their number is not known: then the result is None.
    """
    placed, progress, attempt = status.placement, status.progress, status.attempts[-1]
    if placed is None or progress is None or progress.updated is None or progress.updated < attempt.launched:
        return None
    per_epoch = progress.steps // progress.epochs if progress.epochs else 0
    whole = (progress.step - attempt.first_step - 1) // per_epoch if per_epoch else 0
    comparable = placed.accelerator in load_accelerators() and placed.accumulate == 1
    as_placed = sum(kind.nodes for kind in last.nodes) == placed.nodes == attempt.nodes
    showers = run.data.showers or 0
    if whole < 1 or not progress.step_seconds or not comparable or not as_placed:
        return None
    if showers // placed.global_batch != per_epoch:
        return None
    return Observed(
        network=run.model.preset,
        workers=placed.workers,
        batch_per_replica=placed.batch_per_replica,
        showers=showers,
        epochs=whole,
        step_seconds=progress.step_seconds,
        first_step_seconds=progress.seconds_first_step or None,
    )
