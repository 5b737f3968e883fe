"""Nodes that a run used, and what they cost: the same figures for the status, the bill, the report and the planner."""

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from caloscale.cluster.capacity.nodes import kind_of, node_use
from caloscale.cluster.capacity.pods import Pod
from caloscale.cluster.names import CPU
from caloscale.errors import InputError, PeerLostError, Terminated
from caloscale.planning.billing.bill import SMALL_BILL_USD, rates_of_use, usd_of_use
from caloscale.planning.catalogue.prices import CENT, SECONDS_PER_HOUR, SMALL_UNIT, Prices, split_exactly, usd_of
from caloscale.status import AttemptStatus, NodeTotals, NodeUsage, Placed, RunCost, RunProgress, RunStatus

KEPT_ATTEMPTS = 20
"""Number of the newest attempts that are kept one by one."""
COUNTED: tuple[str, ...] = ("WorkerLost", "WorkerFailed", "NodeLost", "JobLost")
"""Reasons of an end that count against recovery.maxRestarts."""
PARTS = ("waiting_seconds", "start_up_seconds", "training_seconds", "lost_seconds")
"""Parts of the time of an attempt."""


def track(
    before: Sequence[NodeUsage],
    pods: Iterable[Pod],
    gone_nodes: frozenset[str],
    now: dt.datetime,
    gone_pods: Mapping[str, Pod],
    counted: dt.datetime | None,
) -> tuple[NodeUsage, ...]:
    """The node usage of an attempt, updated by the state of its pods.

    The usage of a node begins when a pod is bound to it, and ends when the worker ends or the pod or the node is gone.
    ``gone_pods``: by uid, pods of the attempt that were seen to go, as they were last: one that was never noted has
    used its node all the same. What ended while nobody watched has ended now. The clock of a kubelet may be ahead or
    behind: nothing ended later than now, or before the time ``counted`` up to which it was in the cost as in use.
    The launcher of an MPIJob has no node of the plan.
    """

    def until_of(pod: Pod | None, least: dt.datetime) -> dt.datetime:
        ended = pod.ended if pod is not None else None
        return max(min(ended or now, now), least)

    by_uid = {pod.uid: pod for pod in pods}
    noted = {usage.uid for usage in before}
    unnoted = [pod for uid, pod in gone_pods.items() if uid not in noted and uid not in by_uid]
    followed = []
    for usage in before:
        pod = by_uid.pop(usage.uid, None)
        if usage.until is None:
            gone = pod is None or usage.node in gone_nodes
            if gone:
                pod = gone_pods.get(usage.uid)
            if gone or (pod is not None and not pod.alive):
                done = pod is not None and pod.phase == "Succeeded"
                least = max(usage.since, min(counted or usage.since, now))
                usage = usage.model_copy(update={"until": until_of(pod, least), "done": done})
        followed.append(usage)
    for pod in sorted((*by_uid.values(), *unnoted), key=lambda pod: pod.name):
        if pod.works and pod.node and pod.bound is not None and (pod.node not in gone_nodes or pod.uid not in by_uid):
            until = None if pod.alive and pod.uid in by_uid else until_of(pod, pod.bound)
            known = {"pod": pod.name, "uid": pod.uid, "node": pod.node, "since": pod.bound}
            followed.append(NodeUsage(**known, until=until, done=pod.phase == "Succeeded"))
    return tuple(followed)


def node_totals(attempt: AttemptStatus, placed: Placed | None, now: dt.datetime) -> tuple[NodeTotals, ...]:
    """Nodes of an attempt by kind; two workers on a node count once."""
    if attempt.node_totals or placed is None or not attempt.node_usage:
        return attempt.node_totals
    seconds = _seconds_by_node(attempt, now)
    totals = NodeTotals(
        **(kind_of(placed) | {"accelerator": "" if placed.accelerator == CPU else placed.accelerator}),
        nodes=len(seconds),
        node_seconds=sum(seconds),
        disk_gib=placed.disk_gib,
        control_plane_seconds=_covered(attempt.node_usage, now) if placed.control_plane else 0.0,
    )
    return (totals,)


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
        field: round(sum(getattr(one, field) * one.nodes for one in (first, second)) / nodes, 3) for field in PARTS
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
    """How often the loss of a machine ended an attempt, or those that it sums up: the rate of spot nodes rests on it.

    A worker that fails by itself (out of memory, a crash) does not count; one that lost a peer or got SIGTERM does.
    """
    if attempt.count > 1:
        return attempt.interruptions
    by_exit = attempt.reason == "WorkerFailed" and attempt.exit_code in (PeerLostError.exit_code, Terminated.exit_code)
    return int(attempt.reason in ("WorkerLost", "NodeLost") or by_exit)


def is_report_of(attempt: AttemptStatus, progress: RunProgress) -> bool:
    """Whether worker 0 of an attempt has made a report. Where a report of an older image names no attempt, its time
    decides, by the worker's clock, which may differ from the operator's."""
    if progress.attempt is not None:
        return progress.attempt == attempt.number
    return progress.updated is not None and progress.updated >= attempt.launched


def with_steps(attempt: AttemptStatus, progress: RunProgress | None, now: dt.datetime) -> AttemptStatus:
    """An attempt that has ended with its steps, and where its time went, as worker 0 reported last.

    Where the last report is another attempt's no step is known to have been made.
    """
    if progress is None or not is_report_of(attempt, progress):
        return attempt
    reached = max(progress.step, attempt.first_step)
    saved = min(max(progress.checkpoint_step, attempt.first_step), reached)
    if attempt.reason == "Completed":
        saved = reached
    by_node = _seconds_by_node(attempt, now)
    whole = sum(by_node) / max(len(by_node), 1)
    first = min((usage.since for usage in attempt.node_usage), default=attempt.launched)
    waiting = max(((attempt.running or attempt.launched) - first).total_seconds(), 0.0)
    step = progress.step_seconds or 0.0
    kept, lost = saved - attempt.first_step, reached - saved
    parts = (waiting, progress.seconds_first_step or 0.0, step * kept, step * lost)
    scale = min(1.0, whole / sum(parts)) if sum(parts) > 0 else 1.0
    seconds = dict(zip(PARTS, (round(part * scale, 3) for part in parts)))
    return attempt.model_copy(update={"steps_kept": kept, "steps_lost": lost, **seconds})


def with_cost(status: RunStatus, prices: Prices, now: dt.datetime) -> tuple[RunStatus, str | None]:
    """The status with the money so far, and why there is none.

    Attempts add up to the total to the cent; the total is what `caloscale bill` makes of the run.
    """
    if not status.attempts:
        return status, None
    totals = [node_totals(attempt, status.placement, now) for attempt in status.attempts]
    used = [one for kinds in totals for one in kinds]
    hours = [sum(one.node_seconds for one in kinds) / SECONDS_PER_HOUR for kinds in totals]
    day, problem = first_day(status, now), None
    total: float | None = None
    parts: list[float | None] = [None] * len(totals)
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
        eviction_usd=eviction_usd(status, now),
        node_hours=round(sum(hours), 6),
        accelerator_hours=round(sum(one.node_seconds * one.per_node for one in used) / SECONDS_PER_HOUR, 6),
        nodes=_kinds(used),
        as_of=day,
        updated=now,
    )
    return status.model_copy(update={"attempts": attempts, "cost": cost}), problem


def _to_the_end(status: RunStatus, usd: float | None, now: dt.datetime) -> float | None:
    placed, progress = status.placement, status.progress
    if status.finished is not None or usd is None or placed is None:
        return usd
    if progress is None or progress.eta is None or placed.usd_per_hour is None:
        return placed.estimate_usd
    if status.phase == "Running":  # the clock of worker 0 may be ahead
        left = (progress.eta - max(progress.updated or now, now)).total_seconds()
    else:  # the end is put off for as long as it does not run
        left = (progress.steps - progress.checkpoint_step) * (progress.step_seconds or 0.0)
    return round(usd + usd_of(placed.usd_per_hour, max(left, 0.0)), 2)


def eviction_usd(status: RunStatus, now: dt.datetime) -> float | None:
    """What an eviction would cost now, US dollars: the steps that no checkpoint has, and another start.

    An upper bound: workers that are ended in time save a checkpoint. None: no node is in use, or there is no price.
    """
    live, placed = status.live, status.placement
    if live is None or not live.node_usage or placed is None or placed.usd_per_hour is None:
        return None
    seen = with_steps(live, status.progress, now)
    seconds = seen.waiting_seconds + seen.start_up_seconds + seen.lost_seconds
    if seen is live:  # it has reported no step yet: all that it used is lost
        seconds = max((now - min(usage.since for usage in live.node_usage)).total_seconds(), 0.0)
    return round(usd_of(placed.usd_per_hour, seconds), 4)


def preempted_usd(status: RunStatus) -> float:
    """What preemptions have cost so far, US dollars: steps that no checkpoint had, and starts; 0 without a price."""
    placed = status.placement
    if placed is None or placed.usd_per_hour is None:
        return 0.0
    ended = [attempt for attempt in status.attempts if attempt.reason == "Preempted"]
    seconds = sum(one.waiting_seconds + one.start_up_seconds + one.lost_seconds for one in ended)
    return usd_of(placed.usd_per_hour, seconds)


def _kinds(totals: Iterable[NodeTotals]) -> tuple[NodeTotals, ...]:
    summed: dict[tuple[object, ...], NodeTotals] = {}
    for one in totals:
        key = (*kind_of(one).values(), one.disk_gib)
        if (there := summed.get(key)) is not None:
            changes = {
                "nodes": max(there.nodes, one.nodes),
                "node_seconds": there.node_seconds + one.node_seconds,
                "control_plane_seconds": there.control_plane_seconds + one.control_plane_seconds,
            }
            one = there.model_copy(update=changes)
        summed[key] = one
    return tuple(summed.values())


def _usd(totals: NodeTotals, prices: Prices, day: dt.date) -> float:
    if not totals.nodes:
        return 0.0
    use = node_use(totals, totals.nodes, totals.node_seconds / totals.nodes)
    return usd_of_use(use, rates_of_use(use, prices, day))


def _covered(usages: Sequence[NodeUsage], now: dt.datetime) -> float:
    """Seconds in which at least one of the usages lasts."""
    total, end = 0.0, dt.datetime.min.replace(tzinfo=dt.UTC)
    for since, until in sorted((usage.since, usage.until or now) for usage in usages):
        total += max((until - max(since, end)).total_seconds(), 0.0)
        end = max(end, until)
    return total


def _seconds_by_node(attempt: AttemptStatus, now: dt.datetime) -> list[float]:
    """Of each node that the attempt uses: seconds in which at least one worker does."""
    usages = defaultdict[str, list[NodeUsage]](list)
    for usage in attempt.node_usage:
        usages[usage.node].append(usage)
    return [_covered(usages[node], now) for node in sorted(usages)]


def first_day(status: RunStatus, now: dt.datetime) -> dt.date:
    """The day of the first launch, whose prices count; without one, today."""
    return status.attempts[0].launched.date() if status.attempts else now.date()
