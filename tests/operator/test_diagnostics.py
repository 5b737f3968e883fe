"""Why workers do not start."""

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from caloscale.cluster.capacity.pods import Diagnostic, pod_of, warning_of
from caloscale.operator.outcomes import NAME_TAKEN, PATIENCE_SECONDS, REFUSED, blocking, diagnostics_of, sentence, worst
from caloscale.status import AttemptStatus

NOW = dt.datetime(2026, 11, 21, 10, 0, tzinfo=dt.UTC)
LATER = NOW + dt.timedelta(seconds=PATIENCE_SECONDS)
LIVE = AttemptStatus(number=1, job="gan-1", nodes=1, workers=1, launched=NOW)


def event(name: str, seconds: int, kind: str = "Warning", **stamps: Any) -> dict[str, Any]:
    moment = (NOW + dt.timedelta(seconds=seconds)).isoformat()
    return {
        "metadata": {"creationTimestamp": moment},
        "regarding": {"name": name},
        "type": kind,
        "reason": "FailedMount",
        "note": f"at {seconds}",
        **stamps,
    }


def found(events: list[dict[str, Any]], live: AttemptStatus, now: dt.datetime) -> list[Diagnostic]:
    return diagnostics_of(filter(None, map(warning_of, events)), live, now)


def pod(waiting: dict[str, str]) -> dict[str, Any]:
    status = {"phase": "Pending", "containerStatuses": [{"name": "tensorflow", "state": {"waiting": waiting}}]}
    return {"metadata": {"name": "gan-1-worker-0"}, "spec": {}, "status": status}


def test_only_new_warnings_about_this_attempt_count_the_newest_first() -> None:
    events = [
        event("gan-1-worker-0", 5),
        event("gan-1", 9),
        event("gan-1-worker-1", -3),  # before the launch: another attempt of that name, long ago
        event("gan-12-worker-0", 7),
        event("gan-1-1-worker-0", 7),  # of a run by the name of our job
        event("gan-1-worker-0", 8, "Normal"),
        event("gan-1-worker-0", 6, deprecatedLastTimestamp=None, eventTime=None),
    ]
    assert [diagnostic.message for diagnostic in found(events, LIVE, LATER)] == ["at 9", "at 6", "at 5"]


def test_a_queue_s_reason_is_that_of_the_workload_of_the_job() -> None:
    def about(name: str, kind: str = "Workload") -> dict[str, Any]:
        return {**event(name, 5), "regarding": {"name": name, "kind": kind}}

    events = [about("tfjob-gan-1-0a1b2"), about("tfjob-gan-12-0a1b2"), about("tfjob-gan-1-0a1b2", "TFJob")]
    (diagnostic,) = found(events, LIVE, LATER)
    assert diagnostic.where == "gan-1" and diagnostic.message == "at 5"


def test_a_warning_blocks_a_pod_that_has_its_node_while_it_is_repeated() -> None:
    making = pod_of({**pod({"reason": "ContainerCreating"}), "spec": {"nodeName": "n0"}})
    unbound = pod_of(pod({"reason": "ContainerCreating"}))
    said = Diagnostic("gan-1-worker-0", "FailedMount", "no such secret", NOW)
    later = NOW + dt.timedelta(seconds=299)
    assert blocking([making], [said], later) == said
    assert blocking([making], [said], NOW + dt.timedelta(seconds=300)) is None  # over, and the image takes its time
    raw = {**pod({"reason": "ContainerCreating"}), "spec": {"nodeName": "n0"}}
    raw["status"]["conditions"] = [{"type": "PodReadyToStartContainers", "status": "True"}]
    assert blocking([pod_of(raw)], [said], later) is None
    assert blocking([unbound], [said], later) is None
    assert blocking([making], [said._replace(where="gan-1-worker-1")], later) is None
    assert blocking([making], [said._replace(reason="FailedScheduling")], later) is None


def test_warnings_count_when_workers_take_long() -> None:
    events = [event("gan-1-worker-0", 5)]
    assert not found(events, LIVE, NOW + dt.timedelta(seconds=9))
    assert found(events, LIVE, LATER)
    assert not found(events, LIVE.model_copy(update={"running": NOW}), LATER)


def test_what_a_pod_says_of_itself_goes_before_warnings() -> None:
    shown = pod_of(pod({"reason": "CreateContainerConfigError", "message": 'secret "key" not found'}))
    fine = pod_of(pod({"reason": "ContainerCreating"}))
    warning = Diagnostic("gan-1", "FailedScheduling", "0/3 nodes are available")
    assert worst([fine], []) is None and worst([fine], [warning]) == warning
    first = worst([fine, shown], [warning])
    assert first is not None and first.reason == "CreateContainerConfigError"
    assert sentence(first) == (
        'gan-1-worker-0: secret "key" not found; remedy: make what is missing in the run\'s namespace (the Secret of '
        "cluster.credentialsSecret with key.json), or correct its name in the TrainingRun"
    )


TRAINER = (
    'admission webhook "validator.trainjob.trainer.kubeflow.org" denied the request: spec.RuntimeRef: Invalid value: '
    '{"name":"caloscale-tensorflow"}: ClusterTrainingRuntime "caloscale-tensorflow" not found: specified '
    "clusterTrainingRuntime must be created before the TrainJob is created"
)
KUEUE = "admission webhook \"vtrainjob.kb.io\" denied the request: runtime 'caloscale-tensorflow' not found"
RUNTIME = "an administrator adds the runtime of TrainJobs: kubectl apply --server-side -k manifests/trainer"
IMAGE = "check that the image exists under this name and that the nodes may pull it (cluster.image; private: "
SECRET = (
    "make what is missing in the run's namespace (the Secret of cluster.credentialsSecret with key.json), or correct "
)
LIMITS = "change the LimitRange of the namespace: a worker asks for more (kubectl describe limitrange)"
CLAIM = "make the claim and have it bound (kubectl get pvc), or submit another run that names another"
OTHER_NAME = "delete or rename that object, or delete this run and submit it under another name"


@pytest.mark.parametrize(
    ("reason", "message", "remedy"),
    [
        ("ErrImagePull", "m", IMAGE),
        ("ErrImageNeverPull", "m", IMAGE),
        (
            REFUSED,
            "exceeded quota: small",
            "raise the quota of the namespace (kubectl describe quota), or ask for less",
        ),
        (
            "FailedCreatePod",
            "failed quota: lim: must specify limits.cpu for: tensorflow; limits.memory for: tensorflow",
            "add a LimitRange with default limits that a worker keeps within, or take the limits out of the quota",
        ),
        ("FailedCreatePod", 'Invalid value: "144Gi": must be less than or equal to memory limit of 1Gi', LIMITS),
        ("FailedCreatePod", "maximum cpu usage per Pod is 4, but request is 38400m", LIMITS),
        ("FailedScheduling", '0/5 nodes are available: persistentvolumeclaim "c" not found', CLAIM),
        ("FailedScheduling", "pod has unbound immediate PersistentVolumeClaims", CLAIM),
        ("FailedCreatePod", "no PriorityClass with name p was found", "an administrator makes it, or correct cluster"),
        (NAME_TAKEN, "is there already", OTHER_NAME),
        ("FailedCreate", 'serviceaccount "w" not found', "kubectl apply --server-side -k manifests/run-namespace in"),
        (REFUSED, 'serviceaccount "w" may not', "create what is missing; an unknown kind comes with its operator"),
        (REFUSED, TRAINER, RUNTIME),
        (REFUSED, KUEUE, RUNTIME),
        (REFUSED, "no matches for kind", "create what is missing; an unknown kind comes with its operator"),
        ("FailedCreate", 'spec.RuntimeRef: "r" not found', "see kubectl describe of gan-1"),
        ("FailedMount", 'secret "key" not found', SECRET),
        ("CreateContainerConfigError", "m", SECRET),
        ("FailedScheduling", "m", "free or add nodes; the message lists what each node lacks"),
        ("FailedCreatePodSandBox", "m", "see kubectl describe of gan-1"),
    ],
)
def test_every_reason_has_a_remedy(reason: str, message: str, remedy: str) -> None:
    assert sentence(Diagnostic("gan-1", reason, message)).startswith(f"gan-1: {message}; remedy: {remedy}")


def test_a_long_message_is_cut_and_without_one_the_reason_stands_there() -> None:
    said = sentence(Diagnostic("gan-1", "FailedScheduling", "x" * 600)).partition("; remedy: ")[0]
    assert said == "gan-1: " + "x" * 500
    assert sentence(Diagnostic("gan-1", "FailedScheduling", "")).startswith("gan-1: FailedScheduling; remedy: ")


@pytest.mark.parametrize("reason", ["FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox"])
def test_what_keeps_a_bound_pod_from_starting(reason: str) -> None:
    making = pod_of({**pod({"reason": "ContainerCreating"}), "spec": {"nodeName": "n0"}})
    said = Diagnostic("gan-1-worker-0", reason, "m")  # without a time: it applies now
    assert blocking([making], [said._replace(where="other"), said], NOW) == said
    for gone_on in (replace(making, ready=True), replace(making, phase="Failed"), replace(making, mounted=True)):
        assert blocking([gone_on], [said], NOW) is None
    refused = pod_of(pod({"reason": "ErrImagePull", "message": "m"}))
    assert blocking([making, refused], [said], NOW) == refused.diagnostic
