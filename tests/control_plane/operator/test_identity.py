"""A name is not a run: what another object or an earlier run left under it stays theirs."""

from collections.abc import Callable

import pytest
from kubernetes import client

from caloscale.cluster import names
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
