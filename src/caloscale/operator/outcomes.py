"""Why attempts end: what is judged of their pods, job and nodes."""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caloscale.cluster.accounting import COUNTED
from caloscale.cluster.capacity.pods import ENDED, Job, Pod
from caloscale.errors import PeerLostError
from caloscale.operator.context import Snapshot
from caloscale.status import AttemptStatus, Reason, RunStatus

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
