"""The whole way on a tiny document: the pipeline under KFP, the same by the command, and a failure in it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import h5py
import jsonschema
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
CELLS = (15, 15, 6)
# The clock steers nothing: where maxMinutes is set, the time that has passed is part of the learning rate.
TINY = f"""
model: {{preset: compact, latentSize: 8}}
data:
  showers: 48
  energyGev: [2, 4]
  geometry: {{cells: {list(CELLS)}, layers: [{{count: 6, absorberMm: 8}}], depthMm: 60}}
  preprocessing: {{rebin: [3, 3, 1], minimumSumGev: 0.005}}
  validationFraction: 0.25
  simulation: {{showersPerFile: 16}}
train: {{epochs: 2, batchPerReplica: 8, generatorUpdates: 1, deterministic: true, maxMinutes: null}}
validation: {{showers: 64, energyBins: 1, bootstraps: 20, gates: []}}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    (home / "tiny.yaml").write_text(TINY)
    return home


def run(home: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CALOSCALE_CACHE": str(home / "cache"), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *command], cwd=home, env=environment, capture_output=True, text=True, check=False
    )


def weights_of(saved: Path) -> dict[str, np.ndarray]:
    """The arrays in a saved Keras model, read without Keras."""
    found: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(saved) as archive, h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return found


@pytest.fixture(scope="module")
def by_pipeline(home: Path) -> subprocess.CompletedProcess[str]:
    return run(home, "-m", "pipelines.train_calorimeter_gan", "tiny.yaml", "--name", "pipeline")


@pytest.fixture(scope="module")
def by_command(home: Path, by_pipeline: object) -> subprocess.CompletedProcess[str]:
    return run(home, "-m", "caloscale.cli.main", "run", "tiny.yaml", "--name", "command")


def test_the_pipeline_ends_with_report_and_summary(home: Path, by_pipeline: subprocess.CompletedProcess[str]) -> None:
    assert by_pipeline.returncode == 0, by_pipeline.stdout[-3000:] + by_pipeline.stderr[-3000:]
    folder = home / "runs" / "pipeline"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["outcome"] == "succeeded"
    assert summary["data"]["source"] == "geant4"
    assert set(summary["stages"]) == {"simulate", "preprocess", "train", "validate"}
    assert summary["generate"]["speedupOverGeant4"] == pytest.approx(
        summary["generate"]["showersPerSecond"] / summary["simulation"]["showersPerSecond"]
    )
    assert "<html" in (folder / "report.html").read_text()
    assert str(folder.relative_to(home) / "report.html") in by_pipeline.stdout
    assert (home / "runs" / "latest").resolve() == folder.resolve()


def test_the_summary_follows_its_schema(home: Path, by_pipeline: object) -> None:
    schema = json.loads((ROOT / "docs/schema/summary.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    summary = json.loads((home / "runs/pipeline/summary.json").read_text())
    jsonschema.validate(summary, schema)
    del summary["stages"]
    with pytest.raises(jsonschema.ValidationError, match="stages"):
        jsonschema.validate(summary, schema)


def test_the_command_gives_the_same_as_the_pipeline(home: Path, by_command: subprocess.CompletedProcess[str]) -> None:
    assert by_command.returncode == 0, by_command.stdout[-3000:] + by_command.stderr[-3000:]
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
    assert summaries[1]["simulation"]["reused"] and not summaries[0]["simulation"]["reused"]


def test_both_leave_the_same_run_folder(home: Path, by_pipeline: object, by_command: object) -> None:
    """Beside them the pipeline keeps its artifacts and its log, the command its showers and shards."""
    left = [{path.name for path in (home / "runs" / name).iterdir()} for name in ("pipeline", "command")]
    assert left[0] - left[1] == {"pipeline", "pipeline.log"} and left[1] - left[0] == {"showers", "dataset"}
    models = [{path.name for path in (home / "runs" / name / "model").iterdir()} for name in ("pipeline", "command")]
    assert models[0] == models[1] and "generator.keras" in models[0]


def said_by(home: Path, *verb: str) -> Any:
    done = run(home, "-m", "caloscale.cli.main", *verb, "--json")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "absl" not in done.stderr and "Traceback" not in done.stderr  # libraries keep their greetings to themselves
    return json.loads(done.stdout)


def test_shards_and_report_by_single_commands(home: Path, by_command: object) -> None:
    folder = home / "runs" / "command"
    made = said_by(home, "preprocess", "tiny.yaml", "--showers", str(folder / "showers"), "-o", "own-dataset")
    assert made["shards"] == json.loads((folder / "dataset" / "manifest.json").read_text())["shards"]
    before = json.loads((folder / "summary.json").read_text())
    assert said_by(home, "report", "-w", str(folder)) == before == json.loads((folder / "summary.json").read_text())


@pytest.mark.long
def test_networks_and_their_validation_by_single_commands(home: Path, by_command: object) -> None:
    dataset, before = str(home / "runs/command/dataset"), json.loads((home / "runs/command/summary.json").read_text())
    trained = said_by(home, "train", "tiny.yaml", "-w", "own", "--dataset", dataset)
    assert trained["steps"] == before["train"]["steps"]
    judged = said_by(home, "validate", "tiny.yaml", "-w", "own", "--dataset", dataset)
    separations = {name: result["separation"] for name, result in judged["observables"].items()}
    assert separations == {name: before["physics"][name]["separation"] for name in separations}
    assert judged["decision"] == "not assessed" and (home / "own" / "model" / "generator.keras").is_file()


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
    done = run(
        home,
        "-m",
        "pipelines.train_calorimeter_gan",
        "tiny.yaml",
        "--name",
        "failing",
        "--set",
        f"data.source={showers}",
    )
    assert done.returncode == 2, done.stdout[-3000:] + done.stderr[-3000:]
    assert "1.h5" in done.stderr and "remedy" in done.stderr
    folder = home / "runs" / "failing"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["outcome"] == "failed" and "1.h5" in summary["error"]
    assert summary["cost"]["usd"] >= 0 and summary["train"] is None
    assert "1.h5" in (folder / "report.html").read_text()
