"""Folders of runs."""

from pathlib import Path

import pytest

from caloscale import spec, stages
from caloscale.errors import CheckpointError, ConfigurationError, InputError, ShowerFileError, StorageError
from caloscale.stages.record import recorded
from caloscale.stages.sequence import print_outcome
from caloscale.stages.summary import Summary
from caloscale.training.record import TrainSummary

COMPACT = spec.load_run(preset="compact")
TINY = ("data.geometry.cells=[6, 6, 5]", "data.geometry.layers=[{count: 5, absorberMm: 4}]", "data.geometry.depthMm=50")


def prepared(folder: Path) -> Path:
    """A run folder whose stages have succeeded."""
    for stage in ("preprocess", "train", "validate"):
        with recorded(stage, folder):
            pass
    return folder


def test_a_run_that_starts_from_no_model_makes_nothing_but_one_that_has_started_resumes(tmp_path: Path) -> None:
    run = spec.load_run(preset="compact", overrides=[f"train.startFrom={tmp_path / 'nowhere'}"])
    with pytest.raises(CheckpointError, match="cannot be read"):
        stages.new_run_folder(run, tmp_path / "runs", "mine")
    with pytest.raises(CheckpointError, match="cannot be read"):
        stages.train(run, tmp_path / "runs" / "mine", tmp_path / "dataset")
    assert not (tmp_path / "runs").exists()
    (tmp_path / "runs" / "mine" / "training").mkdir(parents=True)
    assert stages.new_run_folder(run, tmp_path / "runs", "mine") == tmp_path / "runs" / "mine"


def test_a_training_in_bfloat16_that_would_be_wrong_is_refused_before_anything_is_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = spec.load_run(preset="compact", overrides=["train.precision=bfloat16", *TINY])
    folder = stages.new_run_folder(run, tmp_path, "mine")
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    with pytest.raises(InputError, match=r"train\.precision"):
        stages.run_all(run, folder)
    assert not (folder / "showers").exists()


def test_shards_are_made_again_for_a_run_that_is_repeated(tmp_path: Path) -> None:
    """The record of the simulation lies beside the shards, and is no file of others."""
    run = spec.load_run(preset="compact", overrides=["data.simulation.engine=parametrised", "data.showers=60", *TINY])
    folder = stages.new_run_folder(run, tmp_path, "mine")
    showers, dataset = folder / "showers", folder / "dataset"
    stages.simulate(run.data, folder, showers)
    first = stages.preprocess(run.data, folder, showers, dataset)
    assert (dataset / "simulation.json").is_file()
    assert stages.preprocess(run.data, folder, showers, dataset).shards == first.shards
    assert (dataset / "simulation.json").read_bytes() == (showers / "simulation.json").read_bytes()
    (dataset / "notes.txt").touch()
    with pytest.raises(StorageError, match=r"other files than shards.*notes\.txt"):
        stages.preprocess(run.data, folder, showers, dataset)


def test_latest_points_at_the_last_run_that_has_ended_well(tmp_path: Path) -> None:
    first = prepared(stages.new_run_folder(COMPACT, tmp_path, "first"))
    assert spec.load_run(first / "run.yaml") == COMPACT
    stages.point_latest(first)
    assert (tmp_path / "latest").resolve() == first.resolve()

    second = stages.new_run_folder(COMPACT, tmp_path, "second")
    stages.point_latest(second)
    with recorded("preprocess", second), recorded("train", second):
        stages.point_latest(second)
    stages.point_latest(second)
    with pytest.raises(InputError), recorded("validate", second):
        raise InputError("holds NaN")
    stages.point_latest(second)
    assert (tmp_path / "latest").resolve() == first.resolve()

    stages.point_latest(prepared(second))
    assert (tmp_path / "latest").resolve() == second.resolve()
    assert stages.new_run_folder(COMPACT, tmp_path, "first") == first


def test_a_run_whose_showers_are_refused_leaves_latest_at_the_run_before(tmp_path: Path) -> None:
    stages.point_latest(prepared(stages.new_run_folder(COMPACT, tmp_path, "good")))
    (tmp_path / "empty.h5").touch()
    run = spec.load_run(preset="compact", overrides=[f"data.source={tmp_path / 'empty.h5'}"])
    folder = stages.new_run_folder(run, tmp_path, "bad")
    with pytest.raises(InputError, match=r"empty\.h5"):
        stages.run_all(run, folder)
    assert (folder / "report.html").is_file()
    assert (tmp_path / "latest").resolve() == (tmp_path / "good").resolve()


def test_a_finished_run_stays_so_where_its_showers_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command in another folder, where the relative path of the showers leads to nothing."""
    (tmp_path / "showers").mkdir()
    (tmp_path / "showers" / "mine.h5").touch()
    monkeypatch.chdir(tmp_path)
    run = spec.load_run(preset="compact", overrides=["data.source=showers"])
    folder = prepared(stages.new_run_folder(run, tmp_path / "runs", "mine"))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    monkeypatch.chdir(folder)
    for name in ("mine", "other"):
        with pytest.raises(ShowerFileError, match=rf"showers: data\.source: no showers found(.|\n)*begins at {folder}"):
            stages.new_run_folder(run, tmp_path / "runs", name)
    assert {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()} == before


def test_a_folder_of_runs_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """A file in the way: a folder without the right to write would not stop root, as whom tests may run."""
    (tmp_path / "runs").write_text("")
    with pytest.raises(StorageError, match=r"runs/mine: cannot be written(.|\n)*remedy: "):
        stages.new_run_folder(COMPACT, tmp_path / "runs", "mine")


@pytest.mark.parametrize("name", ["latest", "../up", "a/b", ".hidden", "x" * 64, "sp ace"])
def test_names_that_are_no_folder_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="not a name for a run"):
        stages.new_run_folder(COMPACT, tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_cannot_be_planned_leaves_nothing_and_latest_where_it_is(tmp_path: Path) -> None:
    first = prepared(stages.new_run_folder(COMPACT, tmp_path, "first"))
    stages.point_latest(first)
    before = (first / "run.yaml").read_text(encoding="utf-8")
    for override in ("hardware.accelerator=nvidia-tesla-v10", "budget.pricedAs.machineType=n1-standard-3"):
        bad = spec.load_run(preset="compact", overrides=[override])
        for name in ("second", "first"):
            with pytest.raises(InputError, match="did you mean"):
                stages.new_run_folder(bad, tmp_path, name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "latest"]
    assert (tmp_path / "latest").resolve() == first.resolve()
    assert (first / "run.yaml").read_text(encoding="utf-8") == before


@pytest.mark.parametrize(("stopped", "shown"), [("epochs", False), ("maxMinutes", True)])
def test_a_training_that_its_time_ended_says_so(
    stopped: str, shown: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = TrainSummary(
        steps=90, showers_per_second=50.0, seconds=300.0, epochs=41, stopped=stopped, selected_epoch=40
    )
    made = Summary(run="one", outcome="succeeded", train=train, stages={}, bill=None, no_price="no row")
    with recorded("report", tmp_path):
        (tmp_path / "summary.json").write_text(made.as_json())
    assert print_outcome(tmp_path) == 0
    assert ("41 epochs; ended by train.maxMinutes" in capsys.readouterr().out) is shown


def test_a_run_whose_step_was_killed_without_a_record_has_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Summary(run="one", outcome="failed", error="a step failed", stages={}, bill=None, no_price="no row")
    with recorded("report", tmp_path):
        (tmp_path / "summary.json").write_text(made.as_json())
    assert print_outcome(tmp_path) == 1
    assert "error: a step failed" in capsys.readouterr().err
    with recorded("validate", tmp_path):  # again, and then the step of the report is killed
        pass
    assert print_outcome(tmp_path) == 1
    said = capsys.readouterr()
    assert "stage report has no record" in said.err and not said.out
