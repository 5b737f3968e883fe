"""What a pod of a run does, in this process: train from the environment, report, leave the model in the workspace."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from caloscale.cluster.workload.backends import render
from tests.client.server import ApiServer
from tests.client.test_reporting import server
from tests.cluster import examples as ex
from tests.training.conftest import eagerly, quickly, shards, small_run
from tests.training.quick_networks import QUICK

__all__ = ["eagerly", "quickly", "server", "shards"]


def test_a_worker_trains_reports_and_leaves_the_model(
    server: ApiServer,
    shards: Path,
    quickly: None,
    eagerly: None,
    command: Callable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = {
        "CALOSCALE_RUN": small_run(*QUICK, "train.epochs=1").model_dump_json(by_alias=True),
        "CALOSCALE_WORKSPACE": tmp_path / "workspace",
        "CALOSCALE_DATASET": shards,
        "CALOSCALE_SCRATCH": tmp_path / "scratch",
        "CALOSCALE_PROGRESS": "physics/gan-progress",
    }
    (tmp_path / "scratch").mkdir()
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("CALOSCALE_PROGRESS_FILE", "")  # the worker names its own; undone behind the test
    done = command("worker")
    assert done.code == 0, done.err
    assert (tmp_path / "workspace" / "training" / "model" / "generator.keras").is_file()
    assert not (tmp_path / "workspace" / "report.html").exists()  # with a dataset it is a step of a longer chain
    _, path, _, _, body = server.asked[-1]
    shown = body["progress"]
    assert path.endswith("/namespaces/physics/trainingprogresses/gan-progress")
    assert (shown["step"], shown["steps"], shown["checkpointStep"], shown["epochs"]) == (5, 5, 5, 1)


@pytest.mark.integration
def test_the_launcher_of_an_mpijob_solves_what_the_manifest_says_and_reports(
    server: ApiServer, command: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank, which needs no MPI; a started launcher finds its run again, in a folder that is no name of a run."""
    toy = "solver.dataSets=[{environment: tests.sagips.toy.Normal, events: 500}]"
    tiny = ("solver.objective=energy-distance", "solver.epochs=6", "solver.parameterSamples=4", "solver.checkpoints=2")
    launch = ex.launch_of(
        ex.solver_of("solver.ranks=1", "cluster.workspace=/workspace/a+b", toy, *tiny), ex.cpu_node("c0")
    )
    job = render(launch)
    (container,) = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    for variable in container["env"]:
        if variable["name"].startswith("CALOSCALE_"):
            monkeypatch.setenv(variable["name"], variable["value"].replace("/workspace", str(tmp_path)))
    monkeypatch.setenv("CALOSCALE_SCRATCH", str(tmp_path))
    monkeypatch.setenv("CALOSCALE_PROGRESS_FILE", "")  # the launcher names its own; undone behind the test
    folder = tmp_path / "a+b"
    for _ in range(2):
        done = command(*container["args"][1:])
        assert done.code == 0, done.err
        summary = json.loads((folder / "summary.json").read_text())
        assert (summary["ranks"], summary["epochs"]) == (1, 6)
    assert (folder / "report.html").is_file()
    assert "TrainingRun" in json.loads((folder / "bill.json").read_text())["noPrice"]
    shown = server.asked[-1][-1]["progress"]
    assert (shown["step"], shown["steps"], shown["checkpointStep"], shown["epoch"]) == (6, 6, 6, 6.0)
    assert shown["showersPerSecond"] is None  # null clears what an earlier report said


def test_outside_a_pod_it_says_what_to_do(command: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CALOSCALE_RUN", raising=False)
    done = command("worker")
    assert done.code == 2 and "caloscale train" in done.err
