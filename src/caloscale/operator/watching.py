"""An attempt that is on its way: how far, where, and whether it has to end."""

from __future__ import annotations

import datetime as dt

from caloscale.cluster.placement import shortage, verify_placement
from caloscale.cluster.pods import Job, Pod
from caloscale.cluster.resizing import resize
from caloscale.operator.draft import Draft
from caloscale.operator.ending import end
from caloscale.operator.limits import limit_reached
from caloscale.operator.starting import make_objects, make_progress
from caloscale.operator.troubles import CONDITION, PATIENCE_SECONDS, REFUSALS, blocking, sentence, worst
from caloscale.operator.verdict import Verdict, awaited_until, judge
from caloscale.spec import Run, seconds_of
from caloscale.status import AttemptStatus, Placed

LEAST_WAIT_SECONDS = 60.0
"""Pods have so long to be made and bound, whatever recovery.waitForCapacity says, s."""


def watch(draft: Draft, run: Run, live: AttemptStatus) -> None:
    """Look after the live attempt."""
    pods = draft.pods_of(live)
    job = next((job for job in draft.seen.jobs if job.attempt == live.number), None)
    if (until := awaited_until(pods, draft.now)) is not None:
        draft.times.append(until)
        return
    verdict = judge(live, pods, job, draft.seen.nodes, draft.seen.gone_pods)
    verdict = verdict or limit_reached(draft, run) or _growth(draft, run, live) or _stuck(draft, run, live, job, pods)
    if verdict is not None:
        end(draft, run, live, verdict)
        return
    if job is None:  # launched, but the operator ended before the job was made, it is on its way, or was refused
        draft.put(phase="Starting", message=f"attempt {live.number} is launched")
        _report_trouble(draft, pods)
        make_objects(draft, run, live)
    elif job.state == "suspended":
        queued = f"queue {draft.queue(run)} has not admitted it yet"
        draft.put(phase="Waiting", message=queued)
        draft.condition("Launched", "False", "Queued", queued)
    else:
        if _is_queued(draft):
            draft.condition("Launched", "True", "Admitted", f"queue {draft.queue(run)} has admitted it")
        make_progress(draft, run, live)
        _follow(draft, live, pods)


def _follow(draft: Draft, live: AttemptStatus, pods: list[Pod]) -> None:
    """Starting, until all workers run; then their placement is compared with the plan."""
    placed = draft.status.placement
    running = [pod for pod in pods if pod.ready]
    if placed is None or len(running) < placed.workers:
        if live.running is None:
            draft.put(phase="Starting", message=f"{len(running)} of {live.workers} workers run")
            _report_trouble(draft, pods)
        return
    if live.running is None:
        draft.replace(live.model_copy(update={"running": draft.now}))
        draft.put(phase="Running", message=f"{live.workers} workers on {live.nodes} nodes")
        draft.event("Normal", "Running", f"attempt {live.number}: {live.workers} workers on {live.nodes} nodes")
        if draft.status.condition(CONDITION) is not None:
            draft.condition(CONDITION, "False", "Running", "all workers run")
        _verify(draft, placed, running)


def _report_trouble(draft: Draft, pods: list[Pod]) -> None:
    """Say why workers do not start, and look again for it."""
    draft.later(PATIENCE_SECONDS)
    trouble = worst(pods, draft.seen.warnings)
    if trouble is None:
        return
    told = sentence(trouble)
    known = draft.status.condition(CONDITION)
    if known is None or known.status != "True":
        draft.event("Warning", trouble.reason, told)
    draft.condition(CONDITION, "True", trouble.reason, told)
    draft.put(message=f"{draft.status.message}; {told}")


def _verify(draft: Draft, placed: Placed, pods: list[Pod]) -> None:
    problems = verify_placement(placed, [(pod.name, pod.node, pod.accelerators) for pod in pods])
    if problems:
        draft.condition("PlacementVerified", "False", "Mismatch", "; ".join(problems))
        draft.event("Warning", "PlacementMismatch", "; ".join(problems))
    else:
        each = "a node each, with all its accelerators" if placed.workers == placed.nodes else "as planned"
        draft.condition("PlacementVerified", "True", "AsPlanned", f"{placed.workers} workers, {each}")


def _growth(draft: Draft, run: Run, live: AttemptStatus) -> Verdict | None:
    """Whether a run on fewer nodes goes back to the planned ones."""
    placed = draft.status.placement
    if placed is None or placed.nodes >= placed.planned_nodes or not run.recovery.grow_back or draft.problem:
        return None
    if draft.status.phase != "Running" or not _pays(draft, live, placed):
        return None
    full = resize(run, placed, placed.planned_nodes)
    if full is None or shortage(full, draft.seen.pools()[0]) is not None:
        draft.put(room_since=None)
        return None
    since = draft.status.room_since or draft.now
    draft.put(room_since=since)
    due = since + dt.timedelta(seconds=seconds_of(run.recovery.grow_after))
    if draft.now < due:
        draft.times.append(due)
        return None
    draft.put(placement=full, room_since=None)
    return Verdict("ScaledUp", f"{full.nodes} nodes can be had again")


def _is_queued(draft: Draft) -> bool:
    """Whether a queue had not admitted the job when it was seen last."""
    launched = draft.status.condition("Launched")
    return launched is not None and launched.status == "False"


def _pays(draft: Draft, live: AttemptStatus, placed: Placed) -> bool:
    """Whether all planned nodes would save more time than a restart costs; not while results are validated."""
    if any(hold.done for hold in live.holds):
        return False
    progress = draft.status.progress
    if progress is None or progress.eta is None:
        return True
    left_s = (progress.eta - draft.now).total_seconds()
    start_s = (live.running - live.launched).total_seconds() if live.running is not None else 0.0
    return left_s * (1 - placed.nodes / placed.planned_nodes) > start_s + (progress.seconds_first_step or 0.0)


def _stuck(draft: Draft, run: Run, live: AttemptStatus, job: Job | None, pods: list[Pod]) -> Verdict | None:
    """Workers that did not start in time: no node after all, no image, no quota. What they hold costs money."""
    bound = sum(bool(pod.node) for pod in pods) >= live.workers
    blocked = blocking(pods, draft.seen.warnings, draft.now)
    trouble = worst(pods, draft.seen.warnings)
    refused = trouble is not None and trouble.reason in REFUSALS
    if (job is None and not refused) or (bound and blocked is None):
        return None
    if job is not None and (job.state == "suspended" or _is_queued(draft)):
        return None
    # the operator may have ended between launching and making the job, and a queue takes its time
    launched = draft.status.condition("Launched")
    admitted = launched.last_transition_time if launched is not None else live.launched
    begun = max(live.launched, (job.created if job is not None else None) or live.launched, admitted)
    waited_s = max(seconds_of(run.recovery.wait_for_capacity), LEAST_WAIT_SECONDS)
    due = begun + dt.timedelta(seconds=waited_s)
    if live.running is not None or draft.now < due:
        draft.times += [due] if live.running is None else []
        return None
    if bound and blocked is not None:
        return Verdict("StartupFailed", sentence(blocked))
    if refused and trouble is not None:
        return Verdict("JobLost", sentence(trouble))
    if not pods:  # a quota, an admission policy, a missing claim or account
        kind = draft.status.placement.backend if draft.status.placement else "job"
        why = sentence(trouble) if trouble is not None else "kubectl describe says why"
        return Verdict("JobLost", f"{kind} {live.job} made no pods; {why}")
    why = f"; {sentence(trouble)}" if trouble is not None else ""
    return Verdict("Unschedulable", f"{live.workers} workers did not find a node each in {waited_s:g} s{why}")
