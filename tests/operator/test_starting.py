"""Workers that never start: no machines, no image, no mount, refused pods."""

import datetime as dt
import itertools
from typing import Any

import pytest

from caloscale.cluster.accounting import KEPT_ATTEMPTS
from caloscale.cluster.capacity.nodes import node_of
from caloscale.cluster.capacity.pods import Diagnostic
from caloscale.errors import ConfigurationError
from caloscale.spec import load_run
from caloscale.spec.hardware import MOST_NODES, MOST_WORKERS
from caloscale.status import AttemptStatus, NodeUsage, RunStatus
from tests.cluster import examples as ex
from tests.operator.world import START, World, ended, settled, world


def test_an_autoscaler_is_given_pods_to_make_nodes_for() -> None:
    w = world({"cluster": {"addNodes": True}, "recovery": {"waitForCapacity": "90s", "backoff": "1s"}}, nodes=0)
    w.until(lambda w: w.phase == "Starting")
    assert w.status["placement"]["nodeSelector"] == {
        "cloud.google.com/gke-accelerator": "nvidia-tesla-v100",
        "node.kubernetes.io/instance-type": "n1-standard-64",
        "cloud.google.com/gke-spot": "true",
    }
    for i in range(4):
        w.nodes[f"a{i}"] = ex.spot(f"a{i}")
    w.until(settled)
    assert w.phase == "Succeeded" and len(w.attempts) == 1


def test_an_autoscaler_without_machines_is_asked_less_and_less_often() -> None:
    """Each attempt holds, and pays, what it is given until the rest is given up."""
    w = world(
        {"cluster": {"addNodes": True}, "recovery": {"waitForCapacity": "60s", "elastic": {"minNodes": 4}}}, nodes=1
    )
    for _ in range(8 * 3600):
        if (w.again is not None and w.now >= w.again) or w.again is None:
            w.reconcile()
        w.tick()
    launched = [dt.datetime.fromisoformat(a["launched"]) for a in w.attempts]
    pauses = [round((b - a).total_seconds() / 60) for a, b in itertools.pairwise(launched)]
    assert w.phase in ("Recovering", "Starting") and w.status["restarts"] == 0
    assert pauses[:4] == [11, 21, 41, 61] and all(pause == 61 for pause in pauses[3:])


def test_room_that_only_the_operator_sees_is_not_paid_for_ever() -> None:
    """The scheduler knows what the operator does not, such as a volume's zone: three nodes are held each time."""
    w = world({"recovery": {"maxRestarts": 2, "backoff": "1s", "waitForCapacity": "60s"}})
    w.unschedulable = {"n3"}
    w.warnings = [Diagnostic("gan-1-worker-3", "FailedScheduling", "0/4 nodes are available: 1 volume node conflict")]
    w.until(ended)
    assert w.phase == "Failed" and [a["reason"] for a in w.attempts] == ["Unschedulable"] * 3
    assert "recovery.maxRestarts 2 are used up" in w.status["message"]
    assert "1 volume node conflict" in w.status["message"]


def test_what_cannot_be_mounted_is_reported_and_not_paid_for_ever() -> None:
    """Such a pod says nothing of itself but that its container is being made."""
    w = world({"recovery": {"waitForCapacity": "60s"}})
    w.can_mount = False
    message = 'MountVolume.SetUp failed for volume "credentials" : secret "nokey" not found'
    w.warnings = [Diagnostic("gan-1-worker-0", "FailedMount", message)]
    w.until(lambda w: w.phase == "Starting" and bool(w.condition("Blocked")))
    assert "cluster.credentialsSecret" in w.condition("Blocked")["message"]
    w.until(ended)
    assert w.phase == "Failed" and w.attempts[0]["reason"] == "StartupFailed" and "nokey" in w.status["message"]


def test_what_could_be_mounted_at_last_is_not_held_against_a_run() -> None:
    w = world({"recovery": {"waitForCapacity": "60s"}})
    w.can_mount = False
    w.warnings = [Diagnostic("gan-1-worker-0", "FailedMount", "timed out", w.now)]
    w.until(lambda w: w.phase == "Starting" and bool(w.condition("Blocked")))
    w.can_mount = True
    w.until(settled)
    assert w.phase == "Succeeded" and len(w.attempts) == 1


def test_an_image_that_does_not_come_is_not_paid_for_until_the_end_of_the_wait() -> None:
    """Also where an autoscaler still makes the last node; the message of a registry need not name the image."""
    w = world({"cluster": {"addNodes": True}, "recovery": {"waitForCapacity": "10m"}}, nodes=3)
    w.has_image = False
    w.until(ended)
    assert w.attempts[0]["reason"] == "StartupFailed" and w.node_seconds() < 3 * 200
    assert w.status["message"].startswith("gan-1-worker-0: image nowhere:1: 429: pull rate limit; remedy: check that")


@pytest.mark.parametrize(("comes", "takes"), [(10, 500), (100, 100), (160, 30)])
def test_an_image_that_comes_a_little_later_is_waited_for(comes: float, takes: float) -> None:
    """A kubelet that pulls shows why its last pull failed."""
    w = world({"recovery": {"waitForCapacity": "10m"}}, nodes=4)
    w.has_image, w.pull_seconds = False, takes
    w.until(lambda w: (w.now - START).total_seconds() >= comes)
    w.has_image = True
    w.until(settled)
    assert w.phase == "Succeeded" and len(w.attempts) == 1


@pytest.mark.parametrize("comes", [True, False])
def test_a_registry_that_fails_for_the_nodes_of_a_restart_ends_no_run_at_once(comes: bool) -> None:
    """The nodes are returned meanwhile; spot nodes that were replaced have no image yet."""
    w = world({"recovery": {"waitForCapacity": "10m"}})
    w.until(lambda w: w.step >= 130)
    w.has_image = False
    w.lose_node("n3")
    w.nodes["n4"] = ex.spot("n4")
    w.until(lambda w: len(w.attempts) == 3)
    assert w.attempts[1]["reason"] == "WorkerFailed" and w.status["restarts"] == 2
    w.has_image = comes
    w.until(settled)
    reasons = ["WorkerLost" if each["reason"] == "NodeLost" else each["reason"] for each in w.attempts]
    failed = ["WorkerFailed", "StartupFailed"]
    assert reasons == ["WorkerLost", "WorkerFailed", *(["Completed"] if comes else failed)]


@pytest.mark.parametrize("named", [{"image": "mine:2"}, {"credentialsSecret": "key"}])
def test_what_is_corrected_while_workers_cannot_start_is_taken_at_once(named: dict[str, Any]) -> None:
    """Else the run would fail by what it named before, and no edit of its configuration would be left to resume it."""
    w = world()
    w.has_image, w.can_mount = "image" not in named, "image" in named
    if not w.can_mount:
        w.warnings = [Diagnostic("gan-1-worker-0", "FailedMount", 'secret "kez" not found')]
    w.until(lambda w: bool(w.condition("Blocked")))
    w.spec["cluster"], w.generation = named, 2
    w.until(lambda w: "gan-2" in w.jobs)
    w.has_image = w.can_mount = True
    w.until(settled)
    assert w.phase == "Succeeded" and w.status["restarts"] == 0 and w.attempts[0]["message"].startswith("the spec was")


def test_what_was_corrected_in_a_queue_is_taken_when_the_workers_that_it_admits_cannot_start() -> None:
    """Their job has the image of before: the run would fail with the corrected spec, which then could not resume it."""
    w = world({"hardware": {"queue": "q"}})
    w.admits = w.has_image = False
    w.until(lambda w: w.phase == "Waiting")
    w.spec["cluster"], w.generation = {"image": "mine:2"}, 2
    w.reconcile()
    w.admits = True
    w.until(lambda w: "gan-2" in w.jobs)
    w.has_image = True
    w.until(settled)
    assert w.phase == "Succeeded" and [a["reason"] for a in w.attempts] == ["Suspended", "Completed"]


@pytest.mark.parametrize(("step", "named", "image"), [
    (130, {}, ex.IMAGE), (20, {}, "newer:2"), (130, {"image": "mine:1"}, "mine:1"),
])  # fmt: skip
def test_a_newer_operator_changes_no_trainer_in_the_middle_of_a_training(
    step: int, named: dict[str, Any], image: str
) -> None:
    """It might refuse the checkpoints of the one before, which would end the run; without one the newer is better."""
    w = world()
    w.until(lambda w: w.step >= step)
    w.image, w.spec["cluster"] = "newer:2", named
    w.lose_node("n3")
    w.nodes["n4"] = ex.spot("n4")
    w.until(lambda w: "gan-2" in w.jobs)
    assert w.jobs["gan-2"]["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["image"] == image


def test_an_image_that_a_run_names_no_more_is_not_kept() -> None:
    """It may be the one that cannot be pulled: the first checkpoint was the operator's image's."""
    w = world().until(lambda w: w.step >= 130)
    w.spec["cluster"], w.generation, w.has_image = {"image": "mine:o"}, 2, False
    w.lose_node("n3")
    w.nodes["n4"] = ex.spot("n4")
    w.until(lambda w: "mine:o" in str(w.jobs.get("gan-2")) and bool(w.condition("Blocked")))
    w.spec["cluster"], w.generation, w.image = {}, 3, "newer:2"
    w.until(lambda w: "gan-3" in w.jobs)
    assert w.jobs["gan-3"]["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["image"] == ex.IMAGE


def test_a_name_that_is_none_of_an_image_ends_a_run_at_once() -> None:
    w = world({"recovery": {"waitForCapacity": "10m"}})
    w.has_image = False
    w.until(lambda w: w.phase == "Starting" and bool(w.pods)).tick()
    waiting = {"reason": "InvalidImageName", "message": "couldn't parse image name"}
    for pod in w.pods.values():
        pod["status"]["containerStatuses"] = [{"name": "tensorflow", "image": "A:1", "state": {"waiting": waiting}}]
    w.reconcile()
    assert (w.phase, w.attempts[0]["reason"]) == ("Failed", "StartupFailed") and "image A:1" in w.status["message"]


def test_an_operator_that_ended_between_launch_and_job_makes_it_much_later() -> None:
    w = world()
    effects = iter([False])  # the status is written, and then it ends
    w.reconcile(lambda: next(effects, True))
    assert w.phase == "Starting" and not w.jobs
    w.now += dt.timedelta(hours=1)
    w.spec["cluster"], w.generation = {"image": "mine:2"}, 2
    w.until(settled)
    assert w.phase == "Succeeded" and len(w.attempts) == 1 and "mine:2" in str(w.jobs["gan-1"])


@pytest.mark.parametrize(
    ("hardware", "said"),
    [
        ({"nodes": 1, "acceleratorsPerWorker": 8}, "workers with 8 accelerators each do not fill 1 nodes of pool own"),
        ({"nodes": 1, "acceleratorsPerWorker": 3, "placement": "Free"}, "workers with 3 accelerators each do not fill"),
        ({"nodes": 2, "workers": 3, "placement": "Free"}, "3 with 4 accelerators each do not fill 2 nodes of pool own"),
    ],
)
def test_a_placement_that_cannot_be_is_a_condition_with_a_remedy(hardware: dict[str, Any], said: str) -> None:
    """On nodes with four GPUs that the catalogue does not have."""
    unknown = {"cloud.google.com/gke-accelerator": "", "nvidia.com/gpu.product": "Own-GPU-9000"}
    own = ex.node("n0", "own", 4, labels={**unknown, "node.kubernetes.io/instance-type": "own-machine"})
    w = World(own, spec={"model": {"preset": "variable-angle"}, "hardware": {"region": "europe-west4", **hardware}})
    w.spec["hardware"]["accelerator"] = ex.pools_of([node_of(own)], ())[0][0].key.accelerator
    w.reconcile()
    planned = w.condition("Planned")
    assert planned["status"] == "False" and said in planned["message"] and "leave hardware" in planned["message"]
    assert w.phase == "Waiting" and not w.jobs


def test_the_largest_status_fits_the_api_server() -> None:
    """The longest names that Kubernetes allows pods of jobs and usual nodes."""
    moment = START
    usage = [
        NodeUsage(pod=f"{'p' * 58}-{i:04d}", uid="u" * 36, node=f"{'n' * 58}-{i:04d}", since=moment, until=moment)
        for i in range(MOST_WORKERS)
    ]
    attempt = AttemptStatus(number=1, job="j", nodes=MOST_NODES, workers=MOST_WORKERS, launched=moment)
    status = RunStatus(attempts=(*[attempt] * KEPT_ATTEMPTS, attempt.model_copy(update={"node_usage": tuple(usage)})))
    assert len(status.model_dump_json(by_alias=True, exclude_none=True)) < 0.7 * 2**20
    for field, most in (("nodes", MOST_NODES), ("workers", MOST_WORKERS), ("count", 16 * MOST_NODES)):
        load_run(preset="variable-angle", overrides=[f"hardware.{field}={most}"])
        with pytest.raises(ConfigurationError, match=field):
            load_run(preset="variable-angle", overrides=[f"hardware.{field}={most + 1}"])
