"""Why attempts end or do not start, and what follows: another attempt, the end of the run, a message."""

from __future__ import annotations

import datetime as dt
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from caloscale.cluster import names
from caloscale.cluster.accounting import COUNTED, HOUR, first_usage, settle, with_cost, with_steps
from caloscale.cluster.capacity.placement import shortage
from caloscale.cluster.capacity.pods import ENDED, IMAGE_REASONS, Diagnostic, Job, Pod
from caloscale.errors import PeerLostError, with_remedy
from caloscale.operator.context import Delete, Draft, Snapshot
from caloscale.spec import AnyRun, seconds_of
from caloscale.status import AttemptStatus, Phase, Placed, Reason, RunStatus

PATIENCE_SECONDS = 10.0
"""Workers have so long to start before anybody asks for warnings, and again between two questions, s."""
MOST_CHARACTERS = 500
"""Longest message in a condition."""
NO_RUNTIME = re.compile(r"spec\.runtimeref: |runtime '\S+' not found", re.IGNORECASE)
"""How Kubeflow Trainer and Kueue refuse a TrainJob without its runtime; the webhook that answers first is reported."""
MOUNT_REASONS = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")
"""Reasons of warnings about a bound pod that cannot start; its status does not have them."""
FRESH_SECONDS = 300.0
"""A warning that was not repeated for so long may be over: kubelets mount again every two minutes at least, s."""
REFUSED, NAME_TAKEN = REFUSALS = ("Refused", "NameTaken")
"""The API server refused an object, or another object has its name."""
CONDITION = "Blocked"
"""Type of the condition with the reason why workers do not start."""


def diagnostics_of(warnings: Iterable[Diagnostic], live: AttemptStatus, now: dt.datetime) -> list[Diagnostic]:
    """Of warnings those about the job of an attempt that takes long to start, its pods and what is between them.

    The newest comes first.
    """
    if live.running is not None or (now - live.launched).total_seconds() < PATIENCE_SECONDS:
        return []
    # a run by the name of our job has jobs and pods that begin with it, too: after ours comes a letter
    ours = re.compile(rf"{re.escape(live.job)}(-[a-z].*)?")
    found = [
        (each.last, each)
        for each in warnings
        if ours.fullmatch(each.where) and each.last is not None and each.last >= live.launched
    ]
    return [diagnostic for _, diagnostic in sorted(found, key=lambda pair: pair[0], reverse=True)]


def worst(pods: Sequence[Pod], warnings: Sequence[Diagnostic]) -> Diagnostic | None:
    """The most useful diagnostic: the state of a pod, then the newest warning."""
    own = [pod.diagnostic for pod in pods if pod.diagnostic is not None]
    return next(iter([*own, *warnings]), None)


def blocking(pods: Sequence[Pod], warnings: Sequence[Diagnostic], now: dt.datetime) -> Diagnostic | None:
    """What keeps a worker that has its node from starting, an image or a mount; None: it only takes its time."""
    own = next((pod.diagnostic for pod in pods if pod.diagnostic is not None), None)
    waiting = {pod.name for pod in pods if pod.node and pod.alive and not pod.ready and not pod.mounted}
    mounts = (
        each
        for each in warnings
        if each.reason in MOUNT_REASONS
        and each.where in waiting
        and (each.last is None or (now - each.last).total_seconds() < FRESH_SECONDS)
    )
    return own or next(mounts, None)


def sentence(diagnostic: Diagnostic) -> str:
    """The diagnostic with its remedy."""
    message = diagnostic.message[:MOST_CHARACTERS] or diagnostic.reason
    return with_remedy(f"{diagnostic.where}: {message}", _remedy(diagnostic))


def _remedy(diagnostic: Diagnostic) -> str:
    if diagnostic.reason in IMAGE_REASONS:
        return (
            "check that the image exists under this name and that the nodes may pull it (cluster.image; private: "
            "imagePullSecrets of cluster.serviceAccount)"
        )
    if "exceeded quota" in diagnostic.message:
        return "raise the quota of the namespace (kubectl describe quota), or ask for less in hardware"
    if diagnostic.reason == NAME_TAKEN:
        return "delete or rename that object, or delete this run and submit it under another name"
    if "serviceaccount" in diagnostic.message and "not found" in diagnostic.message:
        return (
            "kubectl apply --server-side -k manifests/run-namespace in this namespace, or name cluster.serviceAccount"
        )
    if diagnostic.reason == REFUSED and NO_RUNTIME.search(diagnostic.message):
        return "an administrator adds the runtime of TrainJobs: kubectl apply --server-side -k manifests/trainer"
    if diagnostic.reason == REFUSED:
        return (
            "create what is missing; an unknown kind comes with its operator "
            "(kubectl apply --server-side -k manifests/third-party/training-operator, jobset, trainer or mpi-operator)"
        )
    if diagnostic.reason in ("FailedMount", "CreateContainerConfigError"):
        missing = "make what is missing in the run's namespace (the Secret of cluster.credentialsSecret with key.json)"
        return f"{missing}, or correct its name in the TrainingRun"
    if diagnostic.reason == "FailedScheduling":
        return "free or add nodes; the message lists what each node lacks"
    return f"see kubectl describe of {diagnostic.where}"


RETRYABLE_FROM = 128
"""Exit codes from here on are the machine's (signals, lost peers, devices); below, the user's."""
CULPRIT_SECONDS = 5.0
"""When a worker left because another was lost, that one's end is reported so long after, s."""
OUT_OF_MEMORY = "was out of memory (OOMKilled; a smaller train.maxBatchPerReplica takes less) and ended"
LOG_CHARACTERS = 600
"""Longest end of a log in a condition."""


@dataclass(frozen=True)
class Outcome:
    """Why an attempt has ended."""

    reason: Reason
    """In one word."""
    message: str
    """For people."""
    exit_code: int | None = None
    """Exit code of the worker that ended first, where there is one."""


def judge(
    attempt: AttemptStatus,
    pods: Sequence[Pod],
    job: Job | None,
    nodes: Mapping[str, bool],
    gone: Mapping[str, Pod] | None = None,
) -> Outcome | None:
    """Whether an attempt has ended and why; None: it has not.

    gone: by uid, pods that are no more, as they were last.

    A synchronous training fails as one: the first worker that is lost ends the attempt for all. A user's error goes
    before what followed from it, and success before all.
    """
    if job is not None and job.state == "succeeded":
        return Outcome("Completed", "all steps are done")
    # What followed from a worker without memory may be known before that itself.
    went = [gone[usage.uid] for usage in attempt.node_usage if gone and usage.uid in gone]
    failed = sorted(
        (pod for pod in (*pods, *went) if pod.phase == "Failed"),
        key=lambda pod: (not pod.out_of_memory, pod.ended is None, pod.ended or 0),
    )
    for pod in failed:
        if not pod.disrupted and pod.exit_code is not None and 0 < pod.exit_code < RETRYABLE_FROM:
            return Outcome("UserError", f"{pod.name} ended with exit code {pod.exit_code}{_log(pod)}", pod.exit_code)
    lost = _lost_node(attempt, nodes)
    if lost is not None:
        return Outcome("NodeLost", lost)
    if job is not None and job.state == "suspended" and attempt.node_usage:
        return Outcome("Preempted", f"{job.kind} {job.name} was suspended by its queue, or by somebody")
    for pod in failed:
        said = f"{pod.name} on {pod.node or 'no node'} {OUT_OF_MEMORY if pod.out_of_memory else 'ended'}"
        code = "" if pod.exit_code is None else f" with exit code {pod.exit_code}"
        reason: Reason = "WorkerLost" if pod.disrupted else "WorkerFailed"
        return Outcome(reason, f"{said}{code}{_log(pod)}", pod.exit_code)
    if job is not None and job.deleting:
        return Outcome("JobLost", f"{job.kind} {job.name} was deleted by somebody")
    for pod in pods:
        if pod.deleting is not None and pod.alive:
            return Outcome("WorkerLost", f"{pod.name} on {pod.node or 'no node'} is being ended{_log(pod)}")
    there = {pod.uid for pod in pods}
    for usage in attempt.node_usage:
        if usage.uid not in there and not usage.done:
            return Outcome("WorkerLost", f"{usage.pod} on {usage.node} is gone")
    if job is not None and job.state == "failed":
        return Outcome("WorkerFailed", f"{job.kind} {job.name} failed: {job.message or 'no message'}")
    if job is None and attempt.node_usage:
        return Outcome("JobLost", f"{attempt.job} was deleted by somebody")
    return None


def job_in_doubt(seen: Snapshot, status: RunStatus) -> Job | None:
    """The job whose newest state has to be read before its attempt ends as lost or queued anew; None: none.

    When a job has succeeded, its controller deletes the workers that still run (cleanPodPolicy). Pods and jobs have
    a watch each, and that of the pods may be the quicker one. A queue may just have admitted what is to be queued anew.
    """
    live = seen.status.live
    in_doubt = (*COUNTED, "Requeued")
    if live is None or not any(each.number == live.number and each.reason in in_doubt for each in status.attempts):
        return None
    return next((job for job in seen.jobs if job.attempt == live.number), None)


def awaited_until(pods: Sequence[Pod], now: dt.datetime) -> dt.datetime | None:
    """Until when the worker is waited for whose end made others leave; None: nobody is waited for.

    The kubelets of two nodes report in any order, and only that worker has the reason.
    """
    failed = [pod for pod in pods if pod.phase == "Failed"]
    if not failed or all(pod.phase in ENDED for pod in pods):
        return None
    if any(pod.disrupted or pod.exit_code != PeerLostError.exit_code or pod.ended is None for pod in failed):
        return None
    until = min(pod.ended for pod in failed if pod.ended is not None) + dt.timedelta(seconds=CULPRIT_SECONDS)
    return until if now < until else None


def _lost_node(attempt: AttemptStatus, nodes: Mapping[str, bool]) -> str | None:
    gone = sorted({usage.node for usage in attempt.node_usage if usage.node not in nodes and not usage.done})
    return f"node {', '.join(gone)} is gone" if gone else None


def _log(pod: Pod) -> str:
    return f": {pod.message[-LOG_CHARACTERS:]}" if pod.message else ""


LOOK_AGAIN_SECONDS = 60.0
"""Money whose rate is not known is looked at so often, s."""


def limit_reached(draft: Draft, run: AnyRun) -> Outcome | None:
    """The limit that is reached; None: none, and the draft's times say when to look again."""
    return _deadline_passed(draft, run) or _money_spent(draft, run)


def _deadline_passed(draft: Draft, run: AnyRun) -> Outcome | None:
    seconds, begun = run.budget.deadline_seconds, _begun(draft)
    if seconds is None or begun is None:
        return None
    end = begun + dt.timedelta(seconds=seconds)
    if draft.now >= end:
        return Outcome("Deadline", f"budget.deadline of {run.budget.deadline} has passed")
    draft.times.append(end)
    return None


def _begun(draft: Draft) -> dt.datetime | None:
    """When the run used its first node: the time in a queue does not count."""
    return next(
        (first_usage(attempt) for attempt in draft.status.attempts if attempt.node_usage or attempt.node_totals), None
    )


def _money_spent(draft: Draft, run: AnyRun) -> Outcome | None:
    limit, live = run.budget.max_usd, draft.status.live
    if limit is None:
        return None
    usd = _usd(draft)
    if usd is not None and usd >= limit:
        return Outcome("Budget", f"{usd:.2f} USD of budget.maxUsd {limit:g} are spent")
    if live is not None and live.node_usage:
        placed = draft.status.placement
        rate = placed.usd_per_hour if placed is not None else None
        draft.later(max((limit - usd) / rate * HOUR, 1.0) if usd is not None and rate else LOOK_AGAIN_SECONDS)
    return None


def affordable(draft: Draft, run: AnyRun, placed: Placed) -> bool:
    """Whether what is left of the training, by the estimate, keeps within budget.maxUsd on a placement."""
    limit = run.budget.max_usd
    if limit is None:
        return True
    spent = _usd(draft)
    if spent is None or placed.usd_per_hour is None or placed.estimate_seconds is None:
        return False
    return spent + placed.usd_per_hour * placed.estimate_seconds / HOUR * _left(draft) <= limit


def in_time(draft: Draft, run: AnyRun, placed: Placed) -> bool:
    """Whether what is left of the training, by the estimate, ends within budget.deadline on a placement.

    The estimate is that of the planned nodes; on fewer the time is at most inversely proportional to their number.
    """
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
    if cost is None or cost.usd is not None:
        return cost.usd if cost is not None else None
    if placed is None or placed.usd_per_hour is None:
        return None
    return cost.node_hours * placed.usd_per_hour / placed.nodes


LONGEST_BACKOFF_SECONDS = 300.0
"""Longest pause before a restart, s."""
LINGER_SECONDS = 30.0
"""Workers of a run that has failed may end by themselves for so long (logs); while objects are deleted, it is looked at
again after so long even without an event, s."""


def end(draft: Draft, run: AnyRun, live: AttemptStatus, outcome: Outcome) -> None:
    """End the attempt, and the run where there is no other attempt to make."""
    reason = outcome.reason
    ended = settle_end(draft, live, outcome)
    if reason == "Completed":
        draft.finish("Succeeded", "Completed", outcome.message)
        return
    if reason == "UserError":
        draft.finish("Failed", reason, outcome.message)
        draft.later(LINGER_SECONDS)
        return
    draft.remove_jobs()
    if reason == "StartupFailed":
        draft.finish("Failed", reason, outcome.message)
        return
    if reason in ("Budget", "Deadline"):
        give_up(draft, outcome)
        return
    _recover(draft, run, ended, outcome)


def give_up(draft: Draft, spent: Outcome) -> None:
    """End the run that has reached a limit of its run configuration."""
    remedy = "raise it in the TrainingRun, and the run resumes"
    draft.finish("Failed", spent.reason, with_remedy(spent.message, remedy))


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
    pause = _backoff_seconds(draft, run) if counts else 0.0
    draft.put(
        phase="Recovering",
        message=outcome.message,
        restarts=restarts,
        waiting_since=None,
        capacity_since=None,
        not_before=draft.now + dt.timedelta(seconds=pause),
    )
    lost = f", {ended.steps_lost} steps lost" if ended.steps_lost else ""
    kind = "Warning" if counts else "Normal"
    draft.event(kind, outcome.reason, f"attempt {ended.number} ended: {outcome.message}{lost}")


def _contradicted(draft: Draft, run: AnyRun, outcome: Outcome) -> bool:
    """Whether the scheduler found too few nodes although by our count there are enough, and none are to be added.

    What it knows (a volume's zone, say) we do not, so another attempt may pay for some of the nodes in vain, too.
    """
    placed = draft.status.placement
    if outcome.reason != "Unschedulable" or run.cluster.add_nodes or placed is None:
        return False
    return shortage(placed, draft.seen.pools()[0]) is None


def _backoff_seconds(draft: Draft, run: AnyRun) -> float:
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


_SAVING = "its workers save a checkpoint and end"


def suspend(draft: Draft, why: str, remedy: str) -> None:
    """Stop after a checkpoint, and say why and what resumes it; it is suspended when its workers have ended."""
    live = draft.status.live
    if live is not None:
        settle_end(draft, live, Outcome("Suspended", why))
    ending = is_left_over(draft, draft.seen.pods)
    phase: Phase = "Suspending" if ending else "Suspended"
    if draft.status.phase not in (phase, "Suspended"):
        placed = draft.status.placement
        last = "its ranks end, and resume from their newest save" if placed and placed.slots else _SAVING
        message = f"{why}; {last if ending else remedy}"
        draft.put(phase=phase, message=message, waiting_since=None, not_before=None)
        draft.condition("Suspended", "False" if ending else "True", phase, message)
        draft.event("Normal", phase, message)


def is_left_over(draft: Draft, pods: Iterable[Pod]) -> bool:
    """Whether a job of the run, or one of the pods, is still there; jobs are deleted, and it is looked at again later.

    Two attempts must not write one checkpoint.
    """
    draft.remove_jobs()
    there = bool(draft.seen.jobs) or any(pod.alive and not _is_dead(draft, pod) for pod in pods)
    if there:
        draft.later(LINGER_SECONDS)
    return there


def _is_dead(draft: Draft, pod: Pod) -> bool:
    """A pod whose node is gone, or has not been well beyond the pod's grace, runs no more."""
    ready = draft.seen.nodes.get(pod.node) if pod.node else True
    return ready is None or (not ready and pod.deleting is not None and pod.deleting <= draft.now)


def clear(draft: Draft) -> None:
    """After the end: nothing that runs on is left behind."""
    linger = (draft.status.finished or draft.now) + dt.timedelta(seconds=LINGER_SECONDS)
    if any(job.state in ("active", "suspended") for job in draft.seen.jobs):
        if draft.now >= linger:
            draft.remove_jobs()
        else:
            draft.times.append(linger)


def expire(draft: Draft, run: AnyRun) -> None:
    """Remove the run itself when it has been kept long enough after its end."""
    if run.cluster.ttl_seconds_after_finished is not None:
        end = (draft.status.finished or draft.now) + dt.timedelta(seconds=run.cluster.ttl_seconds_after_finished)
        if draft.now >= end:
            draft.actions.append(Delete(names.KIND, draft.seen.run.name, draft.seen.run.uid))
        else:
            draft.times.append(end)
