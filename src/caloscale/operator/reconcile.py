"""What to do next with a run: from what is observed to a status and actions. Pure.

The status is the memory. Every step first goes into it and then happens (`Decision`), and every action may happen
twice without harm, so the operator may end between any two lines.
"""

import datetime as dt
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from caloscale.cluster.accounting import preempted_usd, settle, track, with_cost, with_steps
from caloscale.cluster.capacity.pool_plan import cloud_of
from caloscale.operator.attempts import start, watch
from caloscale.operator.context import Boost, Decision, Draft, Snapshot
from caloscale.operator.lifecycle import clear, give_up, limit_reached, suspend
from caloscale.operator.outcomes import REFUSED
from caloscale.spec import AnyRun
from caloscale.status import FINISHED, MENDABLE, WRITTEN, Phase, RunProgress, RunStatus

REFRESH_SECONDS, REFRESHED_PER_SECOND = 60.0, 20.0
"""Least time between two statuses of a run in which only money or steps are new, s. With many runs it grows, so that
all together make no more of these writes in a second than the second number."""
HEARTBEAT_SECONDS = 60.0
"""Time in which a pipeline's step that has ended may be tried again before its run stops, s."""


def reconcile(seen: Snapshot, now: dt.datetime) -> Decision:
    """The decision on a run. Never raises for what a user or a cluster can do."""
    draft = Draft(seen, now.replace(microsecond=0))
    run = draft.run
    draft.put(conditions=tuple(each for each in draft.status.conditions if each.type != WRITTEN))
    _reopen(draft, run)
    _observe(draft)
    if draft.status.phase not in FINISHED:
        if run.cluster.suspend:
            suspend(draft, "cluster.suspend is set", "caloscale stop --resume, or cluster.suspend: false, resumes it")
        elif _is_left(draft):
            name = draft.seen.run.name
            remedy = f"the step tried again resumes it, and so does caloscale stop {name} --resume"
            suspend(draft, f"the pipeline step that waits for it, pod {draft.seen.lost_client}, has ended", remedy)
        else:
            _proceed(draft, run)
            if not draft.may_launch and draft.status.phase not in FINISHED:
                draft.put(message=draft.problem)
    # also of a run that has finished just now: no event may come any more that would have it looked at again
    if draft.status.phase in FINISHED:
        clear(draft, run)
    if draft.status.phase == "Failed" and draft.status.failed_spec is None:
        draft.put(failed_spec=_digest(seen.spec))
    draft.put(observed_generation=draft.seen.generation)
    known, report = seen.status.progress, draft.status.progress
    is_alone = draft.status.model_copy(update={"progress": known}) == seen.status
    if is_alone and known and report and not brings_news(known, report, seen.refresh_seconds):
        draft.put(progress=known)
    is_routine = is_alone and not draft.actions and (known == report or not _is_news(known, report))
    _account(draft, run)
    return Decision(draft.status, tuple(draft.actions), min(draft.times, default=None), draft.awaits, is_routine)


def unwritten(seen: Snapshot, now: dt.datetime, problem: str) -> RunStatus:
    """The status as it was, which the server took, with the reason why a newer one was refused."""
    draft = Draft(seen, now.replace(microsecond=0))
    draft.condition(WRITTEN, "False", REFUSED, problem)
    return draft.status


def _is_left(draft: Draft) -> bool:
    """Whether the pod of the run's client, which cannot end its run itself, has been gone for a while."""
    if draft.seen.lost_client is None:
        draft.put(client_gone_since=None)
        return False
    since = draft.status.client_gone_since or draft.now
    draft.put(client_gone_since=since)
    return not draft.waits(since, HEARTBEAT_SECONDS)


def _reopen(draft: Draft, run: AnyRun) -> None:
    """A failure by a limit of the run configuration, or of its start, may be mended by an edit of it."""
    failed = draft.status.condition("Failed")
    if (
        draft.status.phase == "Failed"
        and failed is not None
        and failed.reason in MENDABLE
        and draft.seen.generation > draft.status.observed_generation
        and draft.status.failed_spec != _digest(draft.seen.spec)
        and (failed.reason != "RestartBudget" or draft.status.restarts < run.recovery.max_restarts)
        and (failed.reason not in ("Budget", "Deadline") or limit_reached(draft, run) is None)
        and not run.cluster.suspend  # to stop what has ended is no wish to resume it
    ):
        phase: Phase = "Recovering" if draft.status.attempts else "Pending"
        draft.put(phase=phase, message="the spec was changed", finished=None, failed_spec=None)
        draft.condition("Failed", "False", "Reopened", "the spec was changed")


def _digest(spec: Mapping[str, Any]) -> str:
    """Digest of a spec without its time to live, by which a failed run is removed and not resumed."""
    cluster = {key: value for key, value in (spec.get("cluster") or {}).items() if key != "ttlSecondsAfterFinished"}
    return hashlib.sha256(json.dumps({**spec, "cluster": cluster}, sort_keys=True).encode()).hexdigest()[:16]


def _observe(draft: Draft) -> None:
    """Progress, nodes and steps of the attempts, ended ones until they use no node any more."""
    report, known = draft.seen.progress, draft.status.progress
    if report is not None and (known is None or known.updated is None or report.updated != known.updated):
        draft.put(progress=report)
    gone = frozenset({h.node for a in draft.status.attempts for h in a.node_usage if h.node not in draft.seen.nodes})
    counted = draft.status.cost.updated if draft.status.cost is not None else None
    attempts = []
    for attempt in draft.status.attempts:
        if attempt.ended is None or attempt.node_usage:
            went = {uid: pod for uid, pod in draft.seen.gone_pods.items() if pod.attempt == attempt.number}
            usage = track(attempt.node_usage, draft.pods_of(attempt), gone, draft.now, went, counted)
            attempt = attempt.model_copy(update={"node_usage": usage})
            if attempt.ended is not None:
                if attempt.number == draft.status.attempts[-1].number:  # a later report is the next one's
                    attempt = with_steps(attempt, draft.status.progress, draft.now)
                attempt = settle(attempt, draft.status.placement, draft.now)
        attempts.append(attempt)
    draft.put(attempts=tuple(attempts))


def _proceed(draft: Draft, run: AnyRun) -> None:
    if draft.status.phase in ("Suspending", "Suspended"):
        draft.put(phase="Recovering" if draft.status.attempts else "Pending", message="resumed")
        draft.condition("Suspended", "False", "Resumed", "resumes from the last checkpoint")
        draft.event("Normal", "Resumed", "resumes from the last checkpoint")
    live = draft.status.live
    if live is not None:
        watch(draft, run, live)
    # what has just ended for a smaller or larger layout, or is not begun, is (re)started when nothing is left over
    if draft.status.live is None and draft.status.phase not in FINISHED:
        spent = limit_reached(draft, run)
        if spent is not None:
            draft.remove_jobs()
            give_up(draft, spent)
        else:
            start(draft, run)


def brings_news(known: RunProgress, report: RunProgress, refresh_seconds: float) -> bool:
    """Whether a report alone is written: an epoch, a checkpoint or a hundredth of the steps is new, or it is time."""
    if known.updated is None or report.updated is None or _is_news(known, report):
        return True
    return (report.updated - known.updated).total_seconds() >= refresh_seconds


def _is_news(known: RunProgress | None, report: RunProgress | None) -> bool:
    if known is None or report is None:
        return True
    before, after = ((int(one.epoch), one.checkpoint_step, one.attempt) for one in (known, report))
    return before != after or (report.step - known.step) * 100 >= report.steps


def _account(draft: Draft, run: AnyRun) -> None:
    """Money: with every other change, and once a minute while nodes are used."""
    before = draft.seen.status
    in_use = any(usage.until is None for attempt in draft.status.attempts for usage in attempt.node_usage)
    known = draft.status.cost.updated if draft.status.cost is not None else None
    # the clock of an earlier leader may have been ahead
    stale = known is None or not 0 <= (draft.now - known).total_seconds() < draft.seen.refresh_seconds
    if draft.status.attempts and (draft.status != before or (in_use and stale)):
        draft.status, problem = with_cost(draft.status, draft.seen.catalogue.prices, draft.now)
        placed = draft.status.placement
        own = placed is not None and cloud_of(placed.machine_type, placed.topology) == "none"
        limited = run.budget.max_usd is not None
        if problem is not None and own and not limited:
            message = "the machines have no price: node hours and accelerator hours are counted"
            draft.condition("Priced", "False", "OwnMachines", message)
        elif problem is not None:
            unkept = "; budget.maxUsd is not kept until there is one" if limited else ""
            draft.condition("Priced", "False", "NoPrice", f"{problem}{unkept}")
        else:
            message = "; ".join(filter(None, ("all machines have a price", draft.seen.catalogue.problem)))
            draft.condition("Priced", "True", "Priced", message)
        live, cost = draft.status.live, draft.status.cost
        job = draft.seen.job_of(live) if live is not None and draft.queue(run) is not None else None
        if cost is not None and cost.eviction_usd is not None and job is not None and job.state == "active":
            # with what preemptions have cost before, or Kueue would preempt who has resumed just now
            draft.actions.append(Boost(job.uid, boost_of(cost.eviction_usd + preempted_usd(draft.status))))
    if in_use:
        draft.later(draft.seen.refresh_seconds)


MOST_BOOST = 99
"""Priority classes that differ by more than this are never mixed up."""


def boost_of(usd: float) -> int:
    """The priority boost of a run whose evictions cost so much: 20 log10(1 + cents), an integer as Kueue demands."""
    return min(round(20 * math.log10(1 + 100 * usd)), MOST_BOOST)
