"""Why workers do not start, in words that say what to do. Pure."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from caloscale.cluster.pods import IMAGE_TROUBLES, Pod, Trouble
from caloscale.status import RunStatus

PATIENCE_SECONDS = 10.0
"""Workers have so long to start before anybody asks for warnings, and again between two questions, s."""
MOST_CHARACTERS = 500
"""So much of a message fits into a condition that a person reads."""
MOUNT_TROUBLES = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")
"""Warnings about a pod that has its node and waits for what it cannot do without; the pod itself says nothing."""
FRESH_SECONDS = 300.0
"""A warning that was not repeated for so long may be over: kubelets mount again every two minutes at least, s."""
REFUSED, NAME_TAKEN = REFUSALS = ("Refused", "NameTaken")
"""Reasons of a trouble that is the API server's answer to us: it may not be, or another object has its name."""
CONDITION = "Blocked"
"""Type of the condition that says it."""


def wants_warnings(status: RunStatus, now: dt.datetime) -> bool:
    """Whether a live attempt takes so long to start that the cluster's warnings should be read."""
    live = status.live
    if live is None or live.running is not None:
        return False
    return (now - live.launched).total_seconds() >= PATIENCE_SECONDS


def troubles_of(events: Iterable[Mapping[str, Any]], job: str, since: dt.datetime) -> list[Trouble]:
    """Warnings about a job, its pods and what is between them, newest first; ``events``: API objects."""
    found = []
    # a run by the name of our job has jobs and pods that begin with it, too: after ours comes a letter
    ours = re.compile(rf"{re.escape(job)}(-[a-z].*)?")
    for event in events:
        name = event["involvedObject"].get("name", "")
        moment = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp")
        last = dt.datetime.fromisoformat(moment) if moment else None
        if event.get("type") == "Warning" and ours.fullmatch(name) and last is not None and last >= since:
            found.append((last, Trouble(name, event.get("reason", ""), event.get("message", ""), last)))
    return [trouble for _, trouble in sorted(found, key=lambda pair: pair[0], reverse=True)]


def worst(pods: Sequence[Pod], warnings: Sequence[Trouble]) -> Trouble | None:
    """What a person should hear first: what a pod says of itself, then the newest warning."""
    own = [pod.trouble for pod in pods if pod.trouble is not None]
    return next(iter([*own, *warnings]), None)


def blocking(pods: Sequence[Pod], warnings: Sequence[Trouble], now: dt.datetime) -> Trouble | None:
    """What keeps a worker that has its node from starting, an image or a mount; None: it only takes its time."""
    own = next((pod.trouble for pod in pods if pod.trouble is not None), None)
    waiting = {pod.name for pod in pods if pod.node and pod.alive and not pod.ready and not pod.mounted}
    mounts = (
        each
        for each in warnings
        if each.reason in MOUNT_TROUBLES
        and each.where in waiting
        and (each.last is None or (now - each.last).total_seconds() < FRESH_SECONDS)
    )
    return own or next(mounts, None)


def sentence(trouble: Trouble) -> str:
    """The trouble with its remedy."""
    return f"{trouble.where}: {trouble.message[:MOST_CHARACTERS] or trouble.reason}; remedy: {_remedy(trouble)}"


def _remedy(trouble: Trouble) -> str:
    if trouble.reason in IMAGE_TROUBLES:
        return (
            "see that the image exists under this name and that the nodes may pull it (cluster.image; private: "
            "imagePullSecrets of cluster.serviceAccount)"
        )
    if "exceeded quota" in trouble.message:
        return "raise the quota of the namespace (kubectl describe quota), or ask for less in hardware"
    if trouble.reason == NAME_TAKEN:
        return "delete or rename that object, or delete this run and submit it under another name"
    if "serviceaccount" in trouble.message and "not found" in trouble.message:
        return (
            "kubectl apply --server-side -k manifests/run-namespace in this namespace, or name cluster.serviceAccount"
        )
    if trouble.reason == REFUSED:
        return (
            "give what is said to be missing; a kind that is not known comes with its operator "
            "(kubectl apply --server-side -k manifests/third-party/training-operator or jobset)"
        )
    if trouble.reason in ("FailedMount", "CreateContainerConfigError"):
        missing = "make what is missing in the run's namespace (the Secret of cluster.credentialsSecret with key.json)"
        return f"{missing}, or correct its name in the TrainingRun"
    if trouble.reason == "FailedScheduling":
        return "free or add nodes; what each node lacks is said above"
    return f"kubectl describe says more of {trouble.where}"
