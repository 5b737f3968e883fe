"""Why workers do not start: the most useful warning, as a sentence with its remedy."""

import datetime as dt
import re
from collections.abc import Iterable, Sequence

from caloscale.cluster.capacity.pods import IMAGE_REASONS, Diagnostic, Pod
from caloscale.errors import with_remedy
from caloscale.status import AttemptStatus

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
