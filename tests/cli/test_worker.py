"""What a pod of a run does, in this process: train from the environment, report, leave the model in the workspace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from caloscale.cluster.workload.mpijob import render_mpijob
from caloscale.spec import load_solver_run
from tests.client.test_reporting import Server, server
from tests.training.conftest import eagerly, quickly, shards, small_run
from tests.training.quick_networks import QUICK

__all__ = ["eagerly", "quickly", "server", "shards"]


def test_a_worker_trains_reports_and_leaves_the_model(
    server: Server,
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
    path, body = server.seen[-1]
    shown = json.loads(body["data"]["progress.json"])
    assert path.endswith("/namespaces/physics/configmaps/gan-progress")
    assert (shown["step"], shown["steps"], shown["checkpointStep"], shown["epochs"]) == (5, 5, 5, 1)


@pytest.mark.integration
def test_the_launcher_of_an_mpijob_solves_what_the_manifest_says(
    command: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank, which needs no MPI; a started launcher finds its run again."""
    toy = "solver.dataSets=[{environment: caloscale.sagips.toy.Normal, events: 500}]"
    tiny = ("solver.objective=energy-distance", "solver.epochs=6", "solver.parameterSamples=4", "solver.checkpoints=2")
    run = load_solver_run(preset="proxy", overrides=["solver.ranks=1", "cluster.volumeClaim=shared", toy, *tiny])
    job = render_mpijob(run, "inverse", "physics", "solver:1")
    (container,) = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    for variable in container["env"]:
        value = variable["value"].replace("/workspace", str(tmp_path)) if variable["name"] != "TMPDIR" else "/tmp"
        monkeypatch.setenv(variable["name"], value)
    for _ in range(2):
        done = command(*container["args"][1:])
        assert done.code == 0, done.err
        summary = json.loads((tmp_path / "runs" / "inverse" / "summary.json").read_text())
        assert (summary["ranks"], summary["epochs"]) == (1, 6)
    assert (tmp_path / "runs" / "inverse" / "report.html").is_file()


def test_outside_a_pod_it_says_what_to_do(command: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CALOSCALE_RUN", raising=False)
    done = command("worker")
    assert done.code == 2 and "caloscale train" in done.err
