"""Why attempts end, judged by their pods, job and nodes; and why workers do not start, a sentence with its remedy."""

import datetime as dt
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from caloscale.cluster.accounting import COUNTED
from caloscale.cluster.capacity.pods import ENDED, IMAGE_REASONS, Diagnostic, Job, Pod
from caloscale.errors import PeerLostError, with_remedy
from caloscale.operator.context import Snapshot
from caloscale.status import AttemptStatus, Reason, RunStatus

RETRYABLE_FROM = 128
"""Exit codes from here on are the machine's (signals, lost peers, devices); below, the user's."""
CULPRIT_SECONDS = 5.0
"""Longest wait for the end of the worker whose loss made another leave, s: its end has the reason."""
OUT_OF_MEMORY = "was out of memory (OOMKilled; a smaller train.maxBatchPerReplica takes less) and ended"
LOG_CHARACTERS = 600
"""Longest end of a log in a condition."""


@dataclass(frozen=True)
class Outcome:
    """Why an attempt has ended."""

    reason: Reason
    message: str
    exit_code: int | None = None
    """Exit code of the worker that ended first."""


def judge(
    attempt: AttemptStatus,
    pods: Sequence[Pod],
    job: Job | None,
    nodes: Mapping[str, bool],
    gone: Mapping[str, Pod] = {},
) -> Outcome | None:
    """Why an attempt has ended; None: it has not. gone: by uid, pods that are no more, as they were last.

    The first worker that is lost ends the attempt for all. A user's error goes before what followed from it, and
    success before all.
    """
    if job is not None and job.state == "succeeded":
        return Outcome("Completed", "all steps are done")
    # What followed from a worker without memory may be known before that itself.
    went = [gone[usage.uid] for usage in attempt.node_usage if usage.uid in gone]
    failed = sorted(
        (pod for pod in (*pods, *went) if pod.phase == "Failed"),
        key=lambda pod: (not pod.out_of_memory, pod.ended is None, pod.ended or 0),
    )
    for pod in failed:
        if not pod.disrupted and pod.exit_code is not None and 0 < pod.exit_code < RETRYABLE_FROM:
            return Outcome("UserError", f"{pod.name} ended with exit code {pod.exit_code}{_log(pod)}", pod.exit_code)
    if lost := sorted({usage.node for usage in attempt.node_usage if usage.node not in nodes and not usage.done}):
        return Outcome("NodeLost", f"node {', '.join(lost)} is gone")
    if job is not None and job.state == "suspended" and attempt.node_usage:
        return Outcome("Preempted", f"{job.kind} {job.name} was suspended by its queue, or by somebody")
    if failed:
        pod = failed[0]
        said = f"{pod.name} on {pod.node or 'no node'} {OUT_OF_MEMORY if pod.out_of_memory else 'ended'}"
        code = "" if pod.exit_code is None else f" with exit code {pod.exit_code}"
        return Outcome("WorkerLost" if pod.disrupted else "WorkerFailed", f"{said}{code}{_log(pod)}", pod.exit_code)
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
    """The job whose newest state has to be read before its attempt ends as lost or is queued again; None: none.

    Its success, after which its controller deletes workers, or its admission may be known later than its pods' end.
    """
    live, in_doubt = seen.status.live, (*COUNTED, "Requeued")
    if live is None or not any(each.number == live.number and each.reason in in_doubt for each in status.attempts):
        return None
    return seen.job_of(live)


def awaited_until(pods: Sequence[Pod], now: dt.datetime) -> dt.datetime | None:
    """Until when the worker whose end made others leave, and which has the reason, is waited for; None: not at all."""
    failed = [pod for pod in pods if pod.phase == "Failed"]
    if not failed or all(pod.phase in ENDED for pod in pods):
        return None
    if any(pod.disrupted or pod.exit_code != PeerLostError.exit_code or pod.ended is None for pod in failed):
        return None
    ended, pause = min(pod.ended for pod in failed if pod.ended is not None), dt.timedelta(seconds=CULPRIT_SECONDS)
    return ended + pause if abs(now - ended) < pause else None  # the clock of a kubelet may be far ahead


def _log(pod: Pod) -> str:
    return f": {pod.message[-LOG_CHARACTERS:]}" if pod.message else ""


PATIENCE_SECONDS = 10.0
"""Time that workers have to start before warnings are reported, and time between two looks, s."""
MOST_CHARACTERS = 500
"""Longest message in a condition."""
NO_RUNTIME = re.compile(r"spec\.runtimeref: |runtime '\S+' not found", re.IGNORECASE)
"""How Kubeflow Trainer and Kueue refuse a TrainJob without its runtime; the webhook that answers first is reported."""
MOUNT_REASONS = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")
"""Reasons of warnings about a bound pod that cannot start; its status does not have them."""
FRESH_SECONDS = 300.0
"""Time without a repetition after which a warning may be over, s: kubelets mount again every two minutes at least."""
REFUSED, NAME_TAKEN = REFUSALS = ("Refused", "NameTaken")
"""The API server refused an object, or another object has its name."""
CONDITION = "Blocked"
"""Type of the condition with the reason why workers do not start."""


def diagnostics_of(warnings: Iterable[Diagnostic], live: AttemptStatus, now: dt.datetime) -> list[Diagnostic]:
    """Of warnings those about the job of an attempt that takes long to start, and its pods; the newest first."""
    if live.running is not None or (now - live.launched).total_seconds() < PATIENCE_SECONDS:
        return []
    # a run by the name of our job has jobs and pods that begin with it, too: after ours comes a letter
    ours = re.compile(rf"{re.escape(live.job)}(-[a-z].*)?")
    about = [each for each in warnings if ours.fullmatch(each.where) and each.last and each.last >= live.launched]
    return sorted(about, key=lambda each: each.last or live.launched, reverse=True)


def worst(pods: Sequence[Pod], warnings: Sequence[Diagnostic]) -> Diagnostic | None:
    """The most useful diagnostic: the state of a pod, then the newest warning."""
    return next(filter(None, (*(pod.diagnostic for pod in pods), *warnings)), None)


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
    if "failed quota" in diagnostic.message:  # "must specify limits.cpu": workers have requests alone
        return "add a LimitRange with default limits that a worker keeps within, or take the limits out of the quota"
    if "must be less than or equal to" in diagnostic.message or "usage per" in diagnostic.message:
        return "change the LimitRange of the namespace: a worker asks for more (kubectl describe limitrange)"
    if "persistentvolumeclaim" in diagnostic.message.lower():
        return "make the claim and have it bound (kubectl get pvc), or submit another run that names another"
    if "PriorityClass" in diagnostic.message:
        return "an administrator makes it, or correct cluster.priorityClassName (kubectl get priorityclasses)"
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
