"""The product on real nodes: workers in containers, gradients over the pod network, a bucket; and what disturbs it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.control_plane.kueue.conftest import URGENT, queue_objects
from tests.processes import running
from tests.smoke.conftest import ROOT
from tests.smoke.runs import BUCKET, EVERY_SECONDS, NAMESPACE, RealCluster, Runs
from tools.cluster.access import kubectl_program
from tools.cluster.errors import ClusterError
from tools.cluster.native import NativeCluster
from tools.cluster.programs import is_built

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

DISTURBED_AT = 20
"""Steps that are saved before something happens."""
ARRIVES_SECONDS = 2.0
"""So long a checkpoint may take from the step that it is of into the bucket, on a machine that trains meanwhile."""


@pytest.fixture(scope="session")
def undisturbed(
    cluster: RealCluster,
    storage_address: str,
    showers: str,
    timings: dict[str, float],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, np.ndarray]:
    """The last weights of a run that nothing disturbs; what a person sees of it is tested on the way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", storage_address)
        return _undisturbed(Runs(cluster, BUCKET, showers), timings, tmp_path_factory.mktemp("undisturbed"))


def _undisturbed(runs: Runs, timings: dict[str, float], folder: Path) -> dict[str, np.ndarray]:
    name, cluster = "undisturbed", runs.cluster
    begun = time.monotonic()
    runs.create(name)
    with _watched(runs, name, folder / "rows") as rows:
        runs.until(name, lambda s: s.get("progress", {}).get("step", 0) >= 1, "the first step", 600)
        timings["applyToFirstStepSeconds"] = time.monotonic() - begun
        pods = runs.pods(name)
        assert len({pod["spec"]["nodeName"] for pod in pods}) == len(pods) == 2, "a node for each worker"
        for pod in pods:
            (container,) = pod["spec"]["containers"]
            offered = cluster.get("node", pod["spec"]["nodeName"])["status"]["allocatable"].get("nvidia.com/gpu")
            asked = container["resources"].get("limits", {}).get("nvidia.com/gpu")
            assert asked == offered, "all accelerators of its node"
        status = runs.ends(name)
        cluster.wait_until(lambda: "Succeeded" in rows.read_text(encoding="utf-8"), "the watch shows success")
    shown = rows.read_text(encoding="utf-8")
    assert all(phase in shown for phase in ("Starting", "Running", "Succeeded")), shown
    assert len(status["attempts"]) == 1 and status["layout"] == "2x1"
    assert {c["type"]: c["status"] for c in status["conditions"]}["PlacementVerified"] == "True"
    _fetched(runs, name, folder / "fetched")
    return runs.weights(name, folder / "weights")


@contextmanager
def _watched(runs: Runs, name: str, rows: Path) -> Iterator[Path]:
    """What `kubectl get trun -w` shows meanwhile."""
    command = [kubectl_program(), "get", "trun", name, "-n", NAMESPACE, "--watch"]
    environment = {**os.environ, "KUBECONFIG": str(runs.cluster.kubeconfig)}
    with rows.open("w", encoding="utf-8") as file, running(command, env=environment, stdout=file):
        yield rows


def _fetched(runs: Runs, name: str, folder: Path) -> None:
    """Report, model and bill, as `caloscale fetch` brings them."""
    options = ["--namespace", NAMESPACE, "--context", runs.cluster.context, "--to", str(folder)]
    for command in (["fetch", name, *options], ["bill", str(folder), "--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "caloscale.cli.main", *command],
            env={**os.environ, "KUBECONFIG": str(runs.cluster.kubeconfig)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    bill = json.loads(done.stdout)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert (folder / "report.html").stat().st_size > 10_000
    assert summary["outcome"] == "succeeded" and summary["physics"] is not None
    record = json.loads((folder / "stages" / "train.json").read_text(encoding="utf-8"))
    assert record["figures"]["workers"] == 2 and record["figures"]["steps"] == summary["train"]["steps"]
    status = runs.status(name)
    assert bill["usd"] == pytest.approx(float(status["cost"]["usd"]), abs=1e-4) and float(status["cost"]["usd"]) > 0
    assert list(folder.rglob("*.keras"))


def test_a_run_from_apply_to_report(undisturbed: dict[str, np.ndarray]) -> None:
    """All of it is in the fixture, on which the others lean."""
    assert all(np.isfinite(array).all() for array in undisturbed.values())


def lose_a_node(runs: Runs, name: str) -> None:
    """Kubelet and containers are killed without notice; the machine is back once the cluster misses it."""
    node = runs.pods(name)[1]["spec"]["nodeName"]

    def is_missed() -> bool:
        conditions = runs.cluster.get("node", node)["status"]["conditions"]
        return any(each["type"] == "Ready" and each["status"] == "Unknown" for each in conditions)

    runs.cluster.lose_node(node)
    runs.cluster.wait_until(is_missed, "the node is missed")
    runs.cluster.return_node(node)


def drain_a_node(runs: Runs, name: str) -> None:
    """The disruption budget holds the drain up, until somebody takes the budget away."""
    node = runs.pods(name)[1]["spec"]["nodeName"]
    with pytest.raises(ClusterError, match="disruption budget"):
        runs.cluster.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=5s")
    kept = runs.cluster.get("pdb", "caloscale-workers", "-n", NAMESPACE)
    runs.cluster.kubectl("delete", "pdb", "caloscale-workers", "-n", NAMESPACE)
    runs.cluster.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s")
    runs.cluster.kubectl("uncordon", node)
    runs.cluster.apply([{**kept, "metadata": {"name": "caloscale-workers", "namespace": NAMESPACE}, "status": None}])


def run_out_of_memory(runs: Runs, name: str) -> None:
    """The kernel ends a worker that asks for more than its container may have."""
    pod = runs.pods(name)[1]
    (container,) = pod["status"]["containerStatuses"]
    identity = container["containerID"].rpartition("/")[2]
    limit = (
        f"for d in $(find /sys/fs/cgroup -type d -name '*{identity}*'); do "
        "if [ -e $d/memory.usage_in_bytes ]; then "
        "echo $(($(cat $d/memory.usage_in_bytes) + 100000000)) > $d/memory.limit_in_bytes; "
        "elif [ -e $d/memory.current ]; then echo $(($(cat $d/memory.current) + 100000000)) > $d/memory.max; fi; done"
    )
    runs.cluster.inside(pod["spec"]["nodeName"], "sh", "-c", limit)
    # Somebody asks for what is left: the kernel then ends who has most.
    greedy = ["/opt/caloscale/bin/python", "-c", "x = bytearray(10**9); import time; time.sleep(600)"]
    with pytest.raises(ClusterError):
        runs.cluster.kubectl("exec", pod["metadata"]["name"], "-n", NAMESPACE, "--", *greedy)
    status = runs.until(name, lambda s: len(s["attempts"]) == 2, "the worker is out of memory")
    assert "OOMKilled" in status["attempts"][0]["message"]


def take_the_bucket_away(runs: Runs, name: str) -> None:
    """For 30 s nobody answers behind its name."""
    service = ["service", "caloscale-storage", "-n", NAMESPACE]
    for selector, seconds in (("nobody", 30), ("caloscale-storage", 0)):
        patch = {"spec": {"selector": {"app.kubernetes.io/name": selector}}}
        runs.cluster.kubectl("patch", *service, f"--patch={json.dumps(patch)}")
        time.sleep(seconds)


def delete_the_operator(runs: Runs, name: str) -> None:
    """Its pods go; others come."""
    where = ["-n", "caloscale-system"]
    runs.cluster.kubectl("delete", "pod", *where, "-l", "app.kubernetes.io/name=caloscale-operator")
    runs.cluster.kubectl("rollout", "status", "deployment/caloscale-operator", *where, "--timeout=180s")


@pytest.mark.parametrize(
    ("disturb", "attempts"),
    [(lose_a_node, 2), (drain_a_node, 2), (run_out_of_memory, 2), (take_the_bucket_away, 1), (delete_the_operator, 1)],
)
def test_a_run_recovers_by_itself(
    disturb: Callable[[Runs, str], None],
    attempts: int,
    runs: Runs,
    undisturbed: dict[str, np.ndarray],
    timings: dict[str, float],
    tmp_path: Path,
) -> None:
    """Work lost: at most that of one checkpoint interval. The last weights: bit for bit the undisturbed ones."""
    if disturb in (lose_a_node, run_out_of_memory) and not isinstance(runs.cluster, NativeCluster):
        pytest.skip("nodes of another's cluster are left alone")
    name = disturb.__name__.replace("_", "-")
    runs.create(name)
    runs.trains(name, DISTURBED_AT)
    begun = time.monotonic()
    disturb(runs, name)
    if attempts > 1:
        runs.until(name, lambda s: len(s["attempts"]) > 1 and _goes_on(s), "the next attempt makes steps", 600)
        timings[f"{disturb.__name__}ToNextStepSeconds"] = time.monotonic() - begun
    _ends_as_undisturbed(runs, name, attempts, undisturbed, tmp_path)


def _ends_as_undisturbed(
    runs: Runs, name: str, attempts: int, undisturbed: dict[str, np.ndarray], folder: Path
) -> dict[str, Any]:
    status = runs.ends(name)
    assert len(status["attempts"]) == attempts, [attempt.get("message") for attempt in status["attempts"]]
    first = status["attempts"][0]
    assert first.get("lostSeconds", 0) <= EVERY_SECONDS + ARRIVES_SECONDS, first
    assert sum(float(attempt["usd"]) for attempt in status["attempts"]) == pytest.approx(
        float(status["cost"]["usd"]), abs=2e-4
    )
    found = runs.weights(name, folder)
    assert found.keys() == undisturbed.keys()
    for key, array in undisturbed.items():
        np.testing.assert_array_equal(found[key], array, err_msg=key)
    return status


def _install(runs: Runs, name: str, *manifests: str) -> None:
    """Objects of ours that go with an addition; skips where the cluster does not have it."""
    if not is_built(additions=[name]) or not isinstance(runs.cluster, NativeCluster):
        pytest.skip(f"no {name}: python -m tools.cluster build --{name} builds it once, for nodes of our own")
    for manifest in manifests:
        runs.cluster.apply((ROOT / "manifests" / manifest).read_text(encoding="utf-8"))


def test_a_train_job_recovers_by_itself(runs: Runs, undisturbed: dict[str, np.ndarray], tmp_path: Path) -> None:
    """Kubeflow Trainer's workers find each other, lose a node, and end with the weights of a TFJob."""
    _install(runs, "trainer", "trainer/runtime.yaml")
    runs.create("train-job", cluster={"backend": "TrainJob"})
    runs.trains("train-job", DISTURBED_AT)
    (job,) = runs.cluster.get("trainjobs", "-n", NAMESPACE)["items"]
    assert job["metadata"]["ownerReferences"][0]["name"] == "train-job"
    lose_a_node(runs, "train-job")
    _ends_as_undisturbed(runs, "train-job", 2, undisturbed, tmp_path)


def test_a_preempted_run_goes_on_after_the_urgent_one(
    runs: Runs, undisturbed: dict[str, np.ndarray], tmp_path: Path
) -> None:
    """A queue with a quota of two nodes: the urgent run takes them, the other one saves, waits and resumes."""
    _install(runs, "kueue", "kueue/rights.yaml")
    queue = queue_objects("physics", NAMESPACE, {"v100-1-spot": 2}, withinClusterQueue="LowerPriority")
    runs.cluster.apply([URGENT, *queue])
    runs.create("preempted", hardware={"queue": "physics"})
    runs.trains("preempted", DISTURBED_AT)
    runs.create("urgent", epochs=4, hardware={"queue": "physics"}, cluster={"priorityClassName": "urgent"})
    status = runs.until("preempted", lambda s: s["attempts"][0].get("reason") == "Preempted", "it is preempted", 120)
    assert status["restarts"] == 0, "a preemption is not a failure"
    assert runs.ends("urgent")["attempts"][0]["reason"] == "Completed"
    status = _ends_as_undisturbed(runs, "preempted", 2, undisturbed, tmp_path)
    assert status["attempts"][1]["firstStep"] >= DISTURBED_AT


def _goes_on(status: dict[str, Any]) -> bool:
    """Whether the newest attempt has made a step behind the one from which it went on."""
    newest, progress = status["attempts"][-1], status.get("progress", {})
    # What the attempt before has reported stays until there is something newer.
    return progress.get("updated", "") > newest["launched"] and progress["step"] > newest.get("firstStep", 0)


def blocked(status: dict[str, Any]) -> str:
    return next((c["message"] for c in status.get("conditions", []) if c["type"] == "Blocked"), "")


def failed(status: dict[str, Any]) -> str:
    found = [c["message"] for c in status.get("conditions", []) if c["type"] == "Failed" and c["status"] == "True"]
    return found[0] if found else ""


def test_a_fault_is_reported_within_a_minute(runs: Runs) -> None:
    """An image that does not exist, a secret, a bucket."""
    one = {"hardware": {"count": 1}}
    runs.create("bad-image", cluster={"image": "caloscale/trainer:9.9.9"}, **one)
    shown = blocked(runs.until("bad-image", blocked, "the image is named", 60))
    assert "caloscale/trainer:9.9.9" in shown and "remedy: check that the image exists" in shown

    impatient = {"recovery": {"waitForCapacity": "1m"}}
    runs.create("bad-secret", cluster={"credentialsSecret": "no-such-key"}, **one, **impatient)
    shown = blocked(runs.until("bad-secret", blocked, "the secret is named", 60))
    assert 'secret "no-such-key" not found' in shown and "remedy: make what is missing" in shown
    shown = failed(runs.until("bad-secret", failed, "Failed, as its node costs money", 120))
    assert 'secret "no-such-key" not found' in shown
    runs.delete_all()

    runs.create("bad-bucket", data={"source": "gs://no-such-bucket/showers"}, **one)
    shown = failed(runs.until("bad-bucket", failed, "Failed with the bucket", 90))
    assert "gs://no-such-bucket/showers" in shown and "exit code 2" in shown and "remedy" in shown


def test_a_small_quota_is_reported_within_a_minute(runs: Runs) -> None:
    metadata = {"name": "gpus", "namespace": NAMESPACE}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata}
    runs.cluster.apply([{**quota, "spec": {"hard": {"requests.nvidia.com/gpu": "1"}}}])
    try:
        runs.create("small-quota")
        shown = blocked(runs.until("small-quota", blocked, "the quota is named", 60))
        assert "exceeded quota: gpus" in shown and "remedy: raise the quota" in shown
    finally:
        runs.cluster.kubectl("delete", "resourcequota", "gpus", "-n", NAMESPACE)
