"""A whole run of a tiny configuration: the pipeline under KFP, the same by the command, and a failure in it."""

import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import jsonschema
import numpy as np
import pytest
from kfp.local.subprocess_task_handler import run_local_subprocess

from caloscale.report.blocks import Figure
from caloscale.report.drawing import Drawing
from caloscale.stages import reporting
from pipelines import local
from tests.pipelines.conftest import CELLS, ROOT, Command, run


def weights_of(saved: Path) -> dict[str, np.ndarray]:
    """The arrays in a saved Keras model, read without Keras."""
    found: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(saved) as archive, h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return found


def test_the_pipeline_ends_with_report_and_summary(home: Path, by_pipeline: subprocess.CompletedProcess[str]) -> None:
    assert by_pipeline.returncode == 0, by_pipeline.stdout[-3000:] + by_pipeline.stderr[-3000:]
    folder = home / "runs" / "pipeline"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["outcome"] == "succeeded"
    assert summary["data"]["source"] == "geant4"
    assert set(summary["stages"]) == {"simulate", "preprocess", "train", "validate"}
    simulated = json.loads((folder / "stages" / "simulate.json").read_text())
    cores = simulated["machine"]["cores"] / simulated["figures"]["processes"]  # of each process: there are four files
    assert summary["generate"]["speedupOverGeant4"] == pytest.approx(
        summary["generate"]["showersPerSecond"] / summary["simulation"]["showersPerSecond"] / cores
    )
    assert "<html" in (folder / "report.html").read_text()
    assert "report: runs/pipeline/report.html" in by_pipeline.stdout
    drawn = {path.stem for path in (folder / "figures").iterdir()}
    assert drawn == {"shower_and_profile", "training_curves"}
    for name in drawn:
        assert (folder / f"figures/{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / f"figures/{name}.pdf").read_bytes().startswith(b"%PDF")


def test_the_summary_follows_its_schema(home: Path, by_pipeline: object) -> None:
    schema = json.loads((ROOT / "docs/schema/summary.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    summary = json.loads((home / "runs/pipeline/summary.json").read_text())
    jsonschema.validate(summary, schema)
    del summary["stages"]
    with pytest.raises(jsonschema.ValidationError, match="stages"):
        jsonschema.validate(summary, schema)


def test_the_command_gives_the_same_as_the_pipeline(home: Path, by_pipeline: object, by_command: Command) -> None:
    """Whatever the environment of one of them says of Keras."""
    assert not by_command.returncode
    summaries = [json.loads((home / "runs" / name / "summary.json").read_text()) for name in ("pipeline", "command")]
    trained = (next(home.glob(f"runs/{name}/**/training/model")) for name in ("pipeline", "command"))
    weights = [weights_of(model / "generator.keras") for model in trained]
    assert weights[0].keys() == weights[1].keys() and len(weights[0]) > 10
    for name, value in weights[0].items():
        np.testing.assert_array_equal(weights[1][name], value, err_msg=name)
    histories = [(home / "runs" / name / "training" / "history.json").read_bytes() for name in ("pipeline", "command")]
    assert histories[0] == histories[1]
    assert summaries[0]["physics"] == summaries[1]["physics"] and summaries[0]["physics"]
    assert summaries[0]["train"]["steps"] == summaries[1]["train"]["steps"] == 12
    assert {summary["simulation"]["reused"] for summary in summaries} == {True, False}


def test_both_leave_the_same_run_folder(home: Path, by_pipeline: object, by_command: object) -> None:
    """Beside them the pipeline keeps its artifacts and its log, the command its showers and shards."""
    left = [{path.name for path in (home / "runs" / name).iterdir()} for name in ("pipeline", "command")]
    assert left[0] - left[1] == {"pipeline", "pipeline.log"} and left[1] - left[0] == {"showers", "dataset"}
    models = [{path.name for path in (home / "runs" / name / "model").iterdir()} for name in ("pipeline", "command")]
    assert models[0] == models[1] and "generator.keras" in models[0]


def said_by(home: Path, *words: str) -> Any:
    done = run(home, "-m", "caloscale.cli.main", *words, "--json")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "absl" not in done.stderr and "Traceback" not in done.stderr  # libraries keep their greetings to themselves
    return json.loads(done.stdout)


def test_shards_and_report_by_single_commands(
    home: Path, by_command: object, command: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All figures of the report can be drawn; their files are those of tests/report/test_figures.py."""
    folder = Path(shutil.copytree(home / "runs" / "command", tmp_path / "command"))
    made = command("preprocess", home / "run.yaml", "--showers", folder / "showers", "-o", tmp_path / "own", "--json")
    assert made.code == 0, made.err
    assert json.loads(made.out)["shards"] == json.loads((folder / "dataset" / "manifest.json").read_text())["shards"]
    drawn: list[str] = []

    def draw(_: Path, drawings: list[Callable[[], Drawing | None]]) -> list[Figure]:
        drawn.extend(made.name for one in drawings if (made := one()) is not None)
        return []

    monkeypatch.setattr(reporting, "save_figures", draw)
    before = json.loads((folder / "summary.json").read_text())
    for name in ("summary.json", "report.html"):
        (folder / name).unlink()
    reported = command("report", "-w", folder, "--json")
    assert reported.code == 0, reported.err
    assert json.loads(reported.out) == before == json.loads((folder / "summary.json").read_text())
    assert "<html" in (folder / "report.html").read_text()
    assert {*drawn} >= {"training_curves", "response", "mean_showers", "cell_spectrum"}
    assert len({*drawn}) == len(drawn) >= 13
    monkeypatch.setattr(reporting, "save_figures", lambda *_: [])
    for stage in ("simulate", "preprocess"):  # as where a pipeline's cache has their outputs, and the workspace is new
        (folder / "stages" / f"{stage}.json").unlink()
    cached = json.loads(command("report", "-w", folder, "--json").out)
    assert cached["data"] == before["data"] and cached["simulation"] == {**before["simulation"], "reused": True}


def test_a_model_that_is_not_accepted_ends_a_required_validation_with_10(
    home: Path, by_command: object, command: Callable, tmp_path: Path
) -> None:
    """Not assessed: by one gate, which twelve Monte Carlo showers cannot decide, and none on the other quantities."""
    folder = Path(shutil.copytree(home / "runs" / "command", tmp_path / "command"))
    judge = (
        "validate",
        home / "run.yaml",
        "-w",
        folder,
        "--set",
        "validation.gates=[{quantity: response, tolerance: 0.01}]",
    )
    required = command(*judge, "--require-release")
    decision = "not assessed"
    assert required.code == 10, required.err
    assert "no gate on responseSpread" in required.out and "Dropped gates of the preset: " in required.out
    assert f"**{decision.capitalize()}" in required.out and decision in required.err
    record = json.loads((folder / "stages" / "validate.json").read_text())
    assert record["outcome"] == "succeeded" and record["figures"]["decision"] == decision


@pytest.mark.long
def test_networks_and_their_validation_by_single_commands(home: Path, by_command: object) -> None:
    dataset, before = str(home / "runs/command/dataset"), json.loads((home / "runs/command/summary.json").read_text())
    trained = said_by(home, "train", "run.yaml", "-w", "own", "--dataset", dataset)
    assert trained["steps"] == before["train"]["steps"]
    judged = said_by(home, "validate", "run.yaml", "-w", "own", "--dataset", dataset)
    separations = {name: result["separation"] for name, result in judged["observables"].items()}
    assert separations == {name: before["physics"][name]["separation"] for name in separations}
    assert judged["decision"] == "not assessed" and (home / "own" / "model" / "generator.keras").is_file()


@pytest.mark.integration
def test_a_failing_step_still_leaves_a_report_and_a_bill(home: Path) -> None:
    """NaN in a cell: found by the prepare step, exit code 2, and the bill says what was used until then."""
    showers = home / "own"
    showers.mkdir()
    for number in range(2):
        with h5py.File(showers / f"{number}.h5", "w") as file:
            cells = np.full((4, *CELLS), 0.002, np.float32)
            cells[2, 3, 4, 5] = np.nan if number else 0.002
            file["ECAL"], file["energy"] = cells, np.full(4, 3.0)
            file["theta"] = np.full(4, 1.5)
    options = ("--name", "failing", "--set", f"data.source={showers}")
    done = run(home, "-m", "pipelines.train_calorimeter_gan", "run.yaml", *options)
    assert done.returncode == 2, done.stdout[-3000:] + done.stderr[-3000:]
    assert "1.h5" in done.stderr and "remedy" in done.stderr
    folder = home / "runs" / "failing"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["outcome"] == "failed" and "1.h5" in summary["error"]
    assert summary["bill"]["usd"] >= 0 and summary["train"] is None
    assert "1.h5" in (folder / "report.html").read_text()


def test_sigterm_ends_the_step_and_waits_for_what_it_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As kfp's runner starts it: a shell that passes no signal on, and the step as its child."""
    step = (
        "import pathlib, signal, sys, time\n"
        "def end(*_):\n    print('saves', flush=True); pathlib.Path('saved').touch(); sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, end); pathlib.Path('begun').touch(); time.sleep(60)"
    )
    before = signal.getsignal(signal.SIGTERM)

    def terminate() -> None:
        while not Path("begun").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    def pipeline(**_: Any) -> None:
        threading.Thread(target=terminate).start()
        run_local_subprocess(["sh", "-c", f"{shlex.join([sys.executable, '-c', step])}; true"])

    monkeypatch.chdir(tmp_path)
    assert local._run(pipeline, tmp_path, training=True) == 143
    assert Path("saved").exists() and signal.getsignal(signal.SIGTERM) is before
    assert "resumes it" in capfd.readouterr().err
