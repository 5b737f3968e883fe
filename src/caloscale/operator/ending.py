"""How attempts and runs end, and what is left to do then."""

from __future__ import annotations

import datetime as dt
import itertools

from caloscale.cluster import names
from caloscale.cluster.accounting import COUNTED, settle, with_steps
from caloscale.cluster.placement import shortage
from caloscale.operator.draft import Draft
from caloscale.operator.observation import Delete
from caloscale.operator.verdict import Verdict
from caloscale.spec import Run, seconds_of
from caloscale.status import AttemptStatus, Reason, RunStatus

LONGEST_BACKOFF_SECONDS = 300.0
"""Longest pause before a restart, s."""
LINGER_SECONDS = 30.0
"""Workers of a run that has failed may end by themselves for so long (logs), s."""


def end(draft: Draft, run: Run, live: AttemptStatus, verdict: Verdict) -> None:
    """End the attempt, and the run where there is no other attempt to make."""
    reason = verdict.reason
    ended = settle_end(draft, live, reason, verdict.message, verdict.exit_code)
    if reason == "Completed":
        draft.finish("Succeeded", "Completed", verdict.message)
        return
    if reason == "UserError":
        draft.finish("Failed", reason, verdict.message)
        draft.later(LINGER_SECONDS)
        return
    draft.remove_jobs()
    if reason == "StartupFailed":
        draft.finish("Failed", reason, verdict.message)
        return
    if reason in ("Budget", "Deadline"):
        give_up(draft, verdict)
        return
    _recover(draft, run, ended, verdict)


def give_up(draft: Draft, spent: Verdict) -> None:
    """End the run that has reached a limit of its run configuration."""
    draft.finish("Failed", spent.reason, f"{spent.message}; remedy: raise it in the TrainingRun, and the run resumes")


def settle_end(
    draft: Draft, live: AttemptStatus, reason: Reason, message: str, exit_code: int | None = None
) -> AttemptStatus:
    """The attempt as one that has ended now, with its steps and, once nothing is held, its sum."""
    ended = live.model_copy(update={"ended": draft.now, "reason": reason, "message": message, "exit_code": exit_code})
    ended = settle(with_steps(ended, draft.status.progress, draft.now), draft.status.placement, draft.now)
    draft.replace(ended)
    return ended


def _recover(draft: Draft, run: Run, ended: AttemptStatus, verdict: Verdict) -> None:
    counts = verdict.reason in COUNTED or _contradicted(draft, run, verdict)
    restarts = draft.status.restarts + counts
    if counts and restarts > run.recovery.max_restarts:
        draft.finish(
            "Failed",
            "RestartBudget",
            f"recovery.maxRestarts {run.recovery.max_restarts} are used up; last: {verdict.message}",
        )
        return
    pause = _backoff_seconds(draft, run) if counts else 0.0
    draft.put(
        phase="Recovering",
        message=verdict.message,
        restarts=restarts,
        waiting_since=None,
        room_since=None,
        not_before=draft.now + dt.timedelta(seconds=pause),
    )
    lost = f", {ended.steps_lost} steps lost" if ended.steps_lost else ""
    kind = "Warning" if counts else "Normal"
    draft.event(kind, verdict.reason, f"attempt {ended.number} ended: {verdict.message}{lost}")


def _contradicted(draft: Draft, run: Run, verdict: Verdict) -> bool:
    """Whether the scheduler found no room where by our count there is some, and nobody is to add any.

    What it knows (a volume's zone, say) we do not, so another attempt may hold and pay some of the nodes in vain, too.
    """
    placed = draft.status.placement
    if verdict.reason != "Unschedulable" or run.cluster.add_nodes or placed is None:
        return False
    return shortage(placed, draft.seen.pools()[0]) is None


def _backoff_seconds(draft: Draft, run: Run) -> float:
    """Doubles with each restart in a row that kept no step."""
    pause = seconds_of(run.recovery.backoff) * 2 ** max(attempts_in_vain(draft.status) - 1, 0)
    return float(min(pause, LONGEST_BACKOFF_SECONDS))


def attempts_in_vain(status: RunStatus) -> int:
    """How many attempts in a row, the last ones, ended without a step that was kept."""
    ended = itertools.takewhile(
        lambda attempt: attempt.reason in (*COUNTED, "Unschedulable") and attempt.steps_kept == 0,
        reversed(status.attempts),
    )
    return sum(1 for _ in ended)


def suspend(draft: Draft, why: str, remedy: str) -> None:
    """Stop after a checkpoint, and say why and what resumes it."""
    live = draft.status.live
    if live is not None:
        settle_end(draft, live, "Suspended", why)
    draft.remove_jobs()
    if draft.status.phase != "Suspended":
        draft.put(phase="Suspended", message=f"{why}; {remedy}", waiting_since=None, not_before=None)
        draft.event("Normal", "Suspended", f"stopped: {why}; {remedy}")


def clear(draft: Draft) -> None:
    """After the end: nothing that runs on is left behind."""
    linger = (draft.status.finished or draft.now) + dt.timedelta(seconds=LINGER_SECONDS)
    if any(job.state in ("active", "suspended") for job in draft.seen.jobs):
        if draft.now >= linger:
            draft.remove_jobs()
        else:
            draft.times.append(linger)


def expire(draft: Draft, run: Run) -> None:
    """Remove the run itself when it has been kept long enough after its end."""
    if run.cluster.keep_finished is not None:
        end = (draft.status.finished or draft.now) + dt.timedelta(seconds=seconds_of(run.cluster.keep_finished))
        if draft.now >= end:
            draft.actions.append(Delete(names.KIND, draft.seen.owner.name, draft.seen.owner.uid))
        else:
            draft.times.append(end)
