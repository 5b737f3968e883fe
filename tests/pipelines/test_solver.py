"""The pipeline of an inverse problem: compiled, and run here by Kubeflow's local runner on one rank."""

import argparse
import json
from pathlib import Path

import pytest
import yaml

from caloscale.spec import load_solver_run
from caloscale.stages.record import read_records, recorded
from pipelines import local
from pipelines.solve_inverse_problem import main

TINY = [
    "solver.ranks=1",
    "solver.epochs=4",
    "solver.objective=energy-distance",
    "solver.dataSets=[{environment: tests.sagips.toy.Normal, events: 500}]",
    "solver.generator={width: 8, layers: 2, noise: 2}",
    "solver.parameterSamples=4",
    "solver.eventsPerSample=8",
    "solver.threads=1",
]


def test_the_chain_and_what_runs_at_exit(tmp_path: Path) -> None:
    assert main(["--compile", str(tmp_path / "p.yaml")]) == 0
    compiled = next(yaml.safe_load_all((tmp_path / "p.yaml").read_text()))
    inner = compiled["components"]["comp-exit-handler-1"]["dag"]["tasks"]
    assert {name: set(task.get("dependentTasks", [])) for name, task in inner.items()} == {
        "solve": set(),
        "validate-solution": {"solve"},
    }
    assert not any(task["cachingOptions"].get("enableCache", False) for task in inner.values())
    assert all(task["retryPolicy"]["maxRetryCount"] >= 1 for task in inner.values())
    last = compiled["root"]["dag"]["tasks"]["cost-report"]
    assert last["triggerPolicy"]["strategy"] == "ALL_UPSTREAM_TASKS_COMPLETED"


@pytest.mark.integration
def test_the_pipeline_runs_here_and_leaves_summary_report_and_bill(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [word for override in TINY for word in ("--set", override)]
    assert main(["--preset", "proxy", *words, "--runs", str(tmp_path), "--name", "one"]) == 0
    folder = tmp_path / "one"
    assert {stage: record.outcome for stage, record in read_records(folder).items()} == {
        "solve": "succeeded",
        "validate": "succeeded",
        "report": "succeeded",
    }
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["epochs"] == 4 and len(summary["residuals"]["mean"]) == 2
    bill = json.loads((folder / "bill.json").read_text())
    assert {part["purpose"] for part in bill["parts"] if part["usd"]} <= {"training", "evaluation", "idle"}
    assert "Residuals" in (folder / "report.html").read_text()
    kept = load_solver_run(folder / "run.yaml")
    assert kept == load_solver_run(preset="proxy", overrides=TINY)
    assert "report:" in capfd.readouterr().out


@pytest.mark.parametrize("stages", [[], ["solve", "report"]])
def test_a_step_that_was_killed_without_a_record_fails_the_run(
    stages: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def killed(_: object, folder: Path, **__: object) -> int:
        for stage in stages:
            with recorded(stage, folder):
                pass
        return 0

    monkeypatch.setattr(local, "_run", killed)
    monkeypatch.setattr("caloscale.stages.solving.print_solution", lambda _: None)
    given = argparse.Namespace(configuration=None, preset="proxy", overrides=[], name="one", runs=tmp_path)
    assert local.solve_here(given, lambda **_: None) == 1
    assert "has no record" in capsys.readouterr().err


def test_ctrl_c_before_the_first_step_leaves_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """During the check whether a finished run would resume."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("caloscale.stages.solving.refuse_another_problem", interrupt)
    assert main(["--preset", "proxy", "--name", "one", "--runs", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "stopped\n" and not list(tmp_path.iterdir())


def test_a_record_that_is_damaged_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def damage(_: object, folder: Path, **__: object) -> int:
        (folder / "stages").mkdir()
        (folder / "stages" / "solve.json").write_text("[")
        return 0

    monkeypatch.setattr(local, "_run", damage)
    assert main(["--preset", "proxy", "--name", "one", "--runs", str(tmp_path)]) == 2
    assert "solve.json" in capsys.readouterr().err
