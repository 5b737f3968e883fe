"""A name is not a run: what another object or an earlier run left under it stays theirs."""

from collections.abc import Callable

import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from caloscale.cluster import names
from caloscale.connection import Connection
from tests.control_plane import faults
from tests.control_plane.operator.conftest import Runs

Add = Callable[..., list[str]]


def test_a_name_that_is_taken_is_reported_and_left_alone(runs: Runs, add_nodes: Add) -> None:
    add_nodes(pool="v100", count=2)
    runs.fake_pods("1s")
    metadata = {"name": "gan-progress", "namespace": runs.namespace}
    mine = runs.server.create(
        {"apiVersion": names.API_VERSION, "kind": "TrainingProgress", "metadata": metadata, "progress": {"step": 3}}
    )
    runs.create("gan")

    def taken(status: dict) -> bool:
        return any(c["type"] == "Blocked" and c["reason"] == "NameTaken" for c in status.get("conditions", []))

    blocked = runs.until("gan", taken, "the name is taken", seconds=60)
    assert "TrainingProgress gan-progress: is there already" in blocked[
        "message"
    ] and "remedy: delete or rename" in str(blocked)
    assert runs.server.get("TrainingProgress", runs.namespace, "gan-progress") == mine and not runs.pods("gan")
    runs.server.delete("TrainingProgress", runs.namespace, "gan-progress")
    assert len(runs.phase("gan", "Succeeded")["attempts"]) == 1


@pytest.mark.integration
@pytest.mark.parametrize("times", [3, pytest.param(20, marks=pytest.mark.long)])
def test_runs_that_get_the_name_of_one_that_ends(times: int, runs: Runs, add_nodes: Add, api: client.ApiClient) -> None:
    """Each one reports, is deleted while it runs, and another gets its name at once; none inherits anything."""
    add_nodes(pool="v100", count=2)
    runs.fake_pods(None)
    seen = set()
    report = {"epoch": 1.0, "epochs": 60, "step": 120, "steps": 3600, "checkpointStep": 100}
    for number in range(times + 1):
        runs.create("gan")
        status = runs.until("gan", lambda s: s.get("phase") == "Running", f"run {number} runs")
        (attempt,) = status["attempts"]
        assert attempt.get("firstStep", 0) == 0 and attempt["number"] == 1
        workers = {pod["metadata"]["uid"] for pod in runs.pods("gan")}
        assert len(workers) == 2 and not workers & seen
        seen |= workers
        if number == times:
            break
        change = {"progress": {**report, "updated": "2030-01-01T00:00:00Z"}}
        runs.server.merge("TrainingProgress", runs.namespace, "gan-progress", change)
        runs.until("gan", lambda s: s.get("progress", {}).get("checkpointStep") == 100, "the report")
        runs.server.delete(names.KIND, runs.namespace, "gan")
    faults.end_pods(api, runs.namespace)
    status = runs.phase("gan", "Succeeded")
    run = runs.server.get(names.KIND, runs.namespace, "gan")
    (job,) = runs.plane.get("tfjobs", "-n", runs.namespace)["items"]
    assert run is not None and job["metadata"]["ownerReferences"][0]["uid"] == run["metadata"]["uid"]
    assert len(status["attempts"]) == 1 and status.get("restarts", 0) == 0


STEP = {"progress": {"step": 1, "steps": 2}}


def report(runs: Runs, pod: dict, run: str) -> None:
    """As a pod reports for a run."""
    worker = Connection(runs.plane.client(runs.plane.kubeconfig_of(names.WORKER_ACCOUNT, runs.namespace, pod)))
    worker.merge("TrainingProgress", runs.namespace, names.progress_name(run), STEP)


@pytest.mark.parametrize("backend", ["TFJob", "JobSet"])
def test_a_worker_reports_for_its_run_and_not_for_one_whose_name_begins_like_it(
    backend: str, runs: Runs, add_nodes: Add
) -> None:
    add_nodes(pool="v100", count=2)
    runs.fake_pods(None)
    runs.create("scan-1-b", cluster={"backend": backend})
    runs.phase("scan-1-b", "Running")
    make_progress(runs, "scan")
    for pod in runs.pods("scan-1-b"):
        report(runs, pod, "scan-1-b")
        with pytest.raises(ApiException, match="only a pod of a run"):
            report(runs, pod, "scan")


def make_progress(runs: Runs, run: str) -> None:
    metadata = {"name": names.progress_name(run), "namespace": runs.namespace, "labels": {names.RUN_LABEL: run}}
    account = runs.server.get("ServiceAccount", runs.namespace, names.WORKER_ACCOUNT)
    assert account is not None
    owner = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "name": names.WORKER_ACCOUNT,
        "uid": account["metadata"]["uid"],
    }
    owned = {**metadata, "ownerReferences": [owner]}
    runs.server.create({"apiVersion": names.API_VERSION, "kind": "TrainingProgress", "metadata": owned})


def test_a_pod_of_a_run_is_known_by_what_its_controller_appends(runs: Runs) -> None:
    """Kubeflow Trainer, whose JobSet has the set of pods node, is not installed here."""
    make_progress(runs, "scan")
    container = {"name": "main", "image": "none"}
    for name, own in {
        "scan-12-worker-10": True,
        "scan-1-workers-0-1-x2b7k": True,
        "scan-1-node-0-11-x2b7k": True,
        "scan-1-launcher-x2b7k": True,
        "scan-1-worker-0-1-worker-0": False,
        "scan-1-launcher-1-launcher-x2b7k": False,
        "scan-1-node-0-1-workers-0-0-x2b7k": False,
        "scan-1-web-0": False,
        "scan-worker-0": False,
    }.items():
        metadata = {"name": name, "namespace": runs.namespace}
        spec = {"serviceAccountName": names.WORKER_ACCOUNT, "containers": [container]}
        pod = runs.server.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        if own:
            report(runs, pod, "scan")
        else:
            with pytest.raises(ApiException, match="only a pod of a run"):
                report(runs, pod, "scan")
