"""Pods and jobs as the API server reports them."""

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from caloscale.cluster import names
from caloscale.cluster.capacity.nodes import Use, quantity_of
from caloscale.cluster.names import RunKey

ENDED = ("Succeeded", "Failed")
_DISRUPTIONS = {"Evicted", "Preempting", "Shutdown", "NodeShutdown", "Terminated", "NodeLost", "NodeAffinity"}
"""Reasons of a pod's failure that are the node's, not the worker's."""
PULL_FAILED, PULL_PUT_OFF, NO_IMAGE_NAME = "ErrImagePull", "ImagePullBackOff", "InvalidImageName"
"""Reasons of a container that waits: its image could not be pulled just now; will be pulled again later; never can."""
IMAGE_REASONS = {PULL_FAILED, PULL_PUT_OFF, NO_IMAGE_NAME, "ErrImageNeverPull"}
_WAITING_REASONS = IMAGE_REASONS | {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}


class Diagnostic(NamedTuple):
    """Why something does not start."""

    where: str
    """Pod or job."""
    reason: str
    message: str
    last: dt.datetime | None = None
    """When it was reported last; None: it applies now."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, as far as we need it."""

    name: str
    uid: str
    run: RunKey
    """Without a name: no run of ours."""
    attempt: int
    works: bool
    """Whether it is a worker, with a node of the plan; the launcher of an MPIJob is none."""
    use: Use | None
    """What it takes of its node; None: it is not bound, or has ended."""
    node: str
    """Empty: not bound."""
    phase: str
    ready: bool
    """Whether its worker runs."""
    bound: dt.datetime | None
    """When it was bound to the node."""
    ended: dt.datetime | None
    exit_code: int | None
    out_of_memory: bool
    message: str
    """Last lines of its log, or why it was ended."""
    disrupted: bool
    """Whether the cluster ended it: evicted, preempted, shut down, deleted."""
    deleting: dt.datetime | None
    """By when it is to be gone."""
    diagnostic: Diagnostic | None
    """Why its worker cannot start; None: no reason is known."""
    mounted: bool
    """Whether its volumes and network are ready (Kubernetes 1.29 and later)."""

    @property
    def alive(self) -> bool:
        """Whether it holds its node: neither ended nor on its way out."""
        return self.phase not in ENDED


def pod_of(raw: Mapping[str, Any]) -> Pod:
    """The pod of an API object."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    labels = metadata.get("labels") or {}
    phase, node, namespace = status.get("phase", "Pending"), spec.get("nodeName") or "", metadata.get("namespace", "")
    end = _terminated(status)
    ended = _moment(end.get("finishedAt")) if phase in ENDED else None
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    holding = {kind for kind, condition in conditions.items() if condition.get("status") == "True"}
    bound = conditions["PodScheduled"].get("lastTransitionTime") if "PodScheduled" in holding else None
    if node:
        bound = bound or status.get("startTime") or metadata.get("creationTimestamp")
    disruption, reason = conditions.get("DisruptionTarget", {}), status.get("reason", "")
    texts = (end.get("message"), disruption.get("message"), status.get("message"), end.get("reason"), reason)
    return Pod(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        run=RunKey(namespace, labels.get(names.RUN_LABEL, ""), labels.get(names.UID_LABEL, "")),
        attempt=_attempt_of(labels),
        works=labels.get(names.COMPONENT) != names.LAUNCHER,
        use=use_of(raw),
        node=node,
        phase=phase,
        ready=phase == "Running" and "Ready" in holding,
        bound=_moment(bound),
        ended=ended,
        exit_code=end.get("exitCode"),
        out_of_memory=end.get("reason") == "OOMKilled",
        message=next((str(text).strip() for text in texts if text), ""),
        disrupted="DisruptionTarget" in holding or reason in _DISRUPTIONS or _was_deleted(metadata, ended),
        deleting=_moment(metadata.get("deletionTimestamp")),
        diagnostic=_diagnostic(metadata["name"], status),
        mounted="PodReadyToStartContainers" in holding,
    )


def _attempt_of(labels: Mapping[str, str]) -> int:
    """0: a pod or job of somebody else, whatever its label is."""
    number = labels.get(names.ATTEMPT_LABEL, "")
    return int(number) if number.isdecimal() else 0


def use_of(raw: Mapping[str, Any]) -> Use | None:
    """What a pod takes of its node; None: it is not bound, or has ended."""
    spec = raw.get("spec") or {}
    node = spec.get("nodeName")
    if not node or (raw.get("status") or {}).get("phase") in ENDED:
        return None
    # as the scheduler of Kubernetes counts the requests (KEP-753, KEP-2837)
    total, sidecars, most = (dict.fromkeys((names.GPU, names.TPU, "cpu", "memory"), 0.0) for _ in range(3))
    for container in spec.get("containers") or ():
        _add(total, _asked(container))
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            _add(total, _asked(container))
            _add(sidecars, _asked(container))
        else:
            alone = dict(sidecars)
            _add(alone, _asked(container))
            most = {name: max(most[name], alone[name]) for name in most}
    total = {name: max(total[name], most[name]) for name in total}
    whole = (spec.get("resources") or {}).get("requests") or {}
    total |= {name: quantity_of(whole[name]) for name in {"cpu", "memory"} & whole.keys()}
    _add(total, spec.get("overhead") or {})
    return Use(node, int(total[names.GPU] + total[names.TPU]), total["cpu"], total["memory"] / 2**30)


def _was_deleted(metadata: Mapping[str, Any], ended: dt.datetime | None) -> bool:
    """Whether somebody deleted the pod before its worker ended."""
    by = _moment(metadata.get("deletionTimestamp"))
    if by is None or ended is None:
        return by is not None
    return ended > by - dt.timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0)


def _asked(container: Mapping[str, Any]) -> Mapping[str, Any]:
    resources = container.get("resources") or {}
    return {**(resources.get("limits") or {}), **(resources.get("requests") or {})}


def _add(total: dict[str, float], requests: Mapping[str, Any]) -> None:
    for name in total.keys() & requests:
        total[name] += quantity_of(requests[name])


def _terminated(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """How the worker's container ended."""
    states = status.get("containerStatuses") or ()
    for container in sorted(states, key=lambda c: c.get("name") not in names.WORKER_CONTAINERS):
        if ended := (container.get("state") or {}).get("terminated"):
            return dict(ended)
    return {}


def _diagnostic(name: str, status: Mapping[str, Any]) -> Diagnostic | None:
    """What keeps a container from starting."""
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _WAITING_REASONS:
            message, image = waiting.get("message", ""), container.get("image", "")
            if waiting["reason"] in IMAGE_REASONS and image not in message:  # of a limit of its registry, say
                message = f"image {image}: {message}"
            return Diagnostic(name, waiting["reason"], message)
    return None


def _moment(text: str | None) -> dt.datetime | None:
    return dt.datetime.fromisoformat(text) if text else None


JOB_KINDS = ("TFJob", "JobSet", "TrainJob", "MPIJob")
JobState = Literal["active", "succeeded", "failed", "suspended"]


@dataclass(frozen=True, slots=True)
class Job:
    """An object that holds the workers of an attempt."""

    kind: str
    name: str
    uid: str
    run: RunKey | None
    """None: no run owns it."""
    attempt: int
    state: JobState
    message: str
    """Message of its controller."""
    deleting: bool
    created: dt.datetime | None = None
    selector: tuple[tuple[str, str], ...] = ()
    """Labels of the nodes that its pods ask for, with those of the flavor in which a queue admitted it."""


_STATES: dict[str, JobState] = {
    **dict.fromkeys(("Succeeded", "Completed", "Complete"), "succeeded"),
    "Failed": "failed",
}
"""By condition; Succeeded is a TFJob's and an MPIJob's, Completed a JobSet's, Complete a TrainJob's."""


def owner_of(raw: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The reference to the TrainingRun that owns an API object; None: none does."""
    owners = raw["metadata"].get("ownerReferences") or ()
    return next((each for each in owners if each.get("kind") == names.KIND and each.get("controller")), None)


def job_of(raw: Mapping[str, Any]) -> Job:
    """The job of an API object of one of `JOB_KINDS`."""
    metadata, status = raw["metadata"], raw.get("status") or {}
    labels = metadata.get("labels") or {}
    owner, namespace = owner_of(raw), metadata.get("namespace", "")
    holding = {c["type"]: c for c in status.get("conditions") or () if c.get("status") == "True"}
    condition = next((each for each in _STATES if each in holding), None)
    spec = raw.get("spec") or {}
    # A queue suspends and admits by the specification; the condition Suspended follows when the pods are gone.
    suspended = bool(spec.get("runPolicy", spec).get("suspend"))
    return Job(
        kind=raw["kind"],
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        run=RunKey(namespace, owner["name"], owner["uid"]) if owner is not None else None,
        attempt=_attempt_of(labels),
        state=_STATES[condition] if condition else "suspended" if suspended else "active",
        message=holding[condition].get("message", "") if condition else "",
        deleting="deletionTimestamp" in metadata,
        created=_moment(metadata.get("creationTimestamp")),
        selector=tuple(sorted(pair for pod in _pods_of(spec) for pair in (pod.get("nodeSelector") or {}).items())),
    )


def _pods_of(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Specifications of the workers in that of a job; of a TrainJob, what it changes in those of its runtime."""
    if "mpiReplicaSpecs" in spec:
        return [spec["mpiReplicaSpecs"]["Worker"]["template"]["spec"]]
    if "tfReplicaSpecs" in spec:
        return [replica["template"]["spec"] for replica in spec["tfReplicaSpecs"].values()]
    patches = [each.get("trainingRuntimeSpec") or {} for each in spec.get("runtimePatches") or ()]
    specs = []
    for part in (spec, *((patch.get("template") or {}).get("spec") or {} for patch in patches)):
        for job in part.get("replicatedJobs") or ():
            pod = ((job.get("template") or {}).get("spec") or {}).get("template") or {}
            specs.append(pod.get("spec") or {})
    return specs


def warning_of(event: Mapping[str, Any]) -> Diagnostic | None:
    """The warning of an API object of kind Event; None: it is none."""
    series = event.get("series") or {}  # kubelet and scheduler still write the fields of the older API
    times = (series.get("lastObservedTime"), event.get("deprecatedLastTimestamp"), event.get("eventTime"))
    last = _moment(next(filter(None, times), None) or event["metadata"].get("creationTimestamp"))
    if event.get("type") != "Warning" or last is None:
        return None
    regarding = event.get("regarding") or {}
    about = str(regarding.get("name", ""))
    if regarding.get("kind") == "Workload":  # Kueue's, of a job: tfjob-gan-1-0a1b2
        about = re.sub(r"^(?:tfjob|jobset|trainjob|mpijob)-(.+)-[0-9a-f]{5}$", r"\1", about)
    return Diagnostic(about, event.get("reason", ""), event.get("note", ""), last)
