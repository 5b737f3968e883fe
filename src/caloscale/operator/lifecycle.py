"""What follows from the end of an attempt, a wish to stop or a limit of money and time: another attempt, or the end."""

import datetime as dt
import itertools
from collections.abc import Iterable
from dataclasses import asdict

from caloscale.cluster import names
from caloscale.cluster.accounting import COUNTED, first_usage, settle, with_cost, with_steps
from caloscale.cluster.capacity.placement import shortage
from caloscale.cluster.capacity.pods import Pod
from caloscale.errors import with_remedy
from caloscale.operator.context import Delete, Draft
from caloscale.operator.outcomes import Outcome
from caloscale.planning.catalogue.prices import SECONDS_PER_HOUR, usd_of
from caloscale.spec import AnyRun, seconds_of
from caloscale.status import AttemptStatus, Phase, Placed, RunStatus

LOOK_AGAIN_SECONDS = 60.0
"""Time between two looks at money whose rate is not known, s."""


def limit_reached(draft: Draft, run: AnyRun) -> Outcome | None:
    """The limit that is reached; None: none, and the draft's times say when to look again."""
    seconds, begun = run.budget.deadline_seconds, _begun(draft)
    if seconds is not None and begun is not None and not draft.waits(begun, seconds):
        return Outcome("Deadline", f"budget.deadline of {run.budget.deadline} has passed")
    limit, live = run.budget.max_usd, draft.status.live
    if limit is None:
        return None
    usd = _usd(draft)
    if usd is not None and usd >= limit:
        return Outcome("Budget", f"{usd:.2f} USD of budget.maxUsd {limit:g} are spent")
    if live is not None and live.node_usage:
        rate = draft.status.placement.usd_per_hour if draft.status.placement is not None else None
        if usd is not None and rate:
            draft.later(max((limit - usd) / rate * SECONDS_PER_HOUR, 1.0))
        else:
            draft.later(LOOK_AGAIN_SECONDS)
    return None


def _begun(draft: Draft) -> dt.datetime | None:
    """When the run used its first node: the time in a queue does not count."""
    return next(
        (first_usage(attempt) for attempt in draft.status.attempts if attempt.node_usage or attempt.node_totals), None
    )


def affordable(draft: Draft, run: AnyRun, placed: Placed) -> bool:
    """Whether what is left of the training, by the estimate, keeps within budget.maxUsd on a placement."""
    limit = run.budget.max_usd
    if limit is None:
        return True
    spent = _usd(draft)
    if spent is None or placed.usd_per_hour is None or placed.estimate_seconds is None:
        return False
    seconds = placed.estimate_seconds * placed.planned_nodes / placed.nodes
    return spent + usd_of(placed.usd_per_hour, seconds) * _left(draft) <= limit


def in_time(draft: Draft, run: AnyRun, placed: Placed) -> bool:
    """Whether the rest of the training ends within budget.deadline: half of the planned nodes take twice as long."""
    seconds, begun = run.budget.deadline_seconds, _begun(draft)
    if seconds is None or placed.estimate_seconds is None:
        return True
    passed_s = (draft.now - begun).total_seconds() if begun is not None else 0.0
    return passed_s + placed.estimate_seconds * placed.planned_nodes / placed.nodes * _left(draft) <= seconds


def _left(draft: Draft) -> float:
    """The fraction of the steps that no checkpoint has."""
    progress = draft.status.progress
    return 1 - progress.checkpoint_step / progress.steps if progress is not None and progress.steps else 1.0


def _usd(draft: Draft) -> float | None:
    """Dollars so far; where the price has gone since the launch, by the price of then."""
    if not draft.status.attempts:
        return 0.0
    priced, _ = with_cost(draft.status, draft.seen.catalogue.prices, draft.now)
    placed, cost = draft.status.placement, priced.cost
    assert cost is not None
    if cost.usd is None and placed is not None and placed.usd_per_hour is not None:
        return cost.node_hours * placed.usd_per_hour / placed.nodes
    return cost.usd


LONGEST_BACKOFF_SECONDS = 300.0
"""Longest pause before a restart, s."""
LINGER_SECONDS = 30.0
"""Time in which the workers of a failed run may end by themselves, for their logs, s; and time between two looks at
objects that are being deleted."""
STUCK_SECONDS = 300.0
"""Time after the end of an attempt from which a job that is still being deleted is named, s."""


def end(draft: Draft, run: AnyRun, live: AttemptStatus, outcome: Outcome) -> None:
    """End the attempt, and the run where there is no other attempt to make."""
    reason = outcome.reason
    ended = settle_end(draft, live, outcome)
    if reason not in ("Completed", "UserError"):  # their workers end by themselves
        draft.remove_jobs()
    if reason == "Completed":
        draft.finish("Succeeded", "Completed", outcome.message)
    elif reason in ("UserError", "StartupFailed"):
        draft.finish("Failed", reason, outcome.message)
        draft.later(LINGER_SECONDS)
    elif reason in ("Budget", "Deadline"):
        give_up(draft, outcome)
    else:
        _recover(draft, run, ended, outcome)


def give_up(draft: Draft, spent: Outcome) -> None:
    """End the run that has reached a limit of its run configuration."""
    draft.finish("Failed", spent.reason, with_remedy(spent.message, "raise it in the TrainingRun, and the run resumes"))


def settle_end(draft: Draft, live: AttemptStatus, outcome: Outcome) -> AttemptStatus:
    """The attempt as one that has ended now, with its steps and, once it uses no node any more, its totals."""
    ended = live.model_copy(update={"ended": draft.now, **asdict(outcome)})
    ended = settle(with_steps(ended, draft.status.progress, draft.now), draft.status.placement, draft.now)
    draft.replace(ended)
    return ended


def _recover(draft: Draft, run: AnyRun, ended: AttemptStatus, outcome: Outcome) -> None:
    counts = outcome.reason in COUNTED or _contradicted(draft, run, outcome)
    restarts = draft.status.restarts + counts
    if counts and restarts > run.recovery.max_restarts:
        spent = f"recovery.maxRestarts {run.recovery.max_restarts} are used up; last: {outcome.message}"
        draft.finish("Failed", "RestartBudget", spent)
        return
    # the pause doubles with each restart in a row that kept no step
    pause = seconds_of(run.recovery.backoff) * 2 ** max(attempts_in_vain(draft.status) - 1, 0) if counts else 0.0
    draft.put(
        phase="Recovering",
        message=outcome.message,
        restarts=restarts,
        waiting_since=None,
        capacity_since=None,
        not_before=draft.now + dt.timedelta(seconds=min(pause, LONGEST_BACKOFF_SECONDS)),
    )
    lost = f", {ended.steps_lost} steps lost" if ended.steps_lost else ""
    message = f"attempt {ended.number} ended: {outcome.message}{lost}"
    draft.event("Warning" if counts else "Normal", outcome.reason, message)


def _contradicted(draft: Draft, run: AnyRun, outcome: Outcome) -> bool:
    """Whether the scheduler found too few nodes although by our count there are enough, as with a volume's zone."""
    placed = draft.status.placement
    if outcome.reason != "Unschedulable" or run.cluster.add_nodes or placed is None:
        return False
    return shortage(placed, draft.seen.pools()[0]) is None


def attempts_in_vain(status: RunStatus) -> int:
    """How many attempts in a row, the last ones, ended without a step that was kept."""
    ended = itertools.takewhile(
        lambda attempt: attempt.reason in (*COUNTED, "Unschedulable") and attempt.steps_kept == 0,
        reversed(status.attempts),
    )
    return sum(1 for _ in ended)


def suspend(draft: Draft, why: str, remedy: str) -> None:
    """Stop after a checkpoint, and say why and what resumes it; it is suspended when its workers have ended."""
    live = draft.status.live
    if live is not None:
        settle_end(draft, live, Outcome("Suspended", why))
    ending = is_left_over(draft, draft.seen.pods)
    phase: Phase = "Suspending" if ending else "Suspended"
    if draft.status.phase not in (phase, "Suspended"):
        placed, last = draft.status.placement, "its workers save a checkpoint and end"
        if placed is not None and placed.slots:
            last = "its ranks end, and resume from their newest save"
        message = f"{why}; {last if ending else remedy}"
        draft.put(phase=phase, message=message, waiting_since=None, not_before=None)
        draft.condition("Suspended", "False" if ending else "True", phase, message)
        draft.event("Normal", phase, message)


def is_left_over(draft: Draft, pods: Iterable[Pod]) -> bool:
    """Whether a job of the run, which is deleted then, or one of the pods is there: two attempts must not write one
    checkpoint."""
    draft.remove_jobs()
    there = bool(draft.seen.jobs) or any(pod.alive and not _is_dead(draft, pod) for pod in pods)
    if there:
        draft.later(LINGER_SECONDS)
        stuck = [f"{job.kind} {job.name}" for job in draft.seen.jobs if job.deleting]
        last = draft.status.attempt
        if stuck and last and last.ended and (draft.now - last.ended).total_seconds() >= STUCK_SECONDS:
            remedy = "look at its finalizers and at the controller that is to remove them"
            draft.put(message=with_remedy(f"waits until {stuck[0]} is gone, which is being deleted", remedy))
    return there


def _is_dead(draft: Draft, pod: Pod) -> bool:
    """A pod whose node is gone, or has not been well beyond the pod's grace, runs no more."""
    ready = draft.seen.nodes.get(pod.node) if pod.node else True
    return ready is None or (not ready and pod.deleting is not None and pod.deleting <= draft.now)


def clear(draft: Draft, run: AnyRun) -> None:
    """After the end: nothing runs on, and the run itself is removed when it was kept long enough."""
    ended, kept_s = draft.status.finished or draft.now, run.cluster.ttl_seconds_after_finished
    run_on = any(job.state in ("active", "suspended") for job in draft.seen.jobs)
    if run_on and not draft.waits(ended, LINGER_SECONDS):
        draft.remove_jobs()
    if kept_s is not None and not draft.waits(ended, kept_s):
        draft.actions.append(Delete(names.KIND, draft.seen.run.name, draft.seen.run.uid))
