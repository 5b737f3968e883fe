"""What a training says of itself to whoever watches."""

from pathlib import Path

import pytest

from caloscale.status import PROGRESS_FILE_VARIABLE, RunProgress
from caloscale.training import progress_file
from caloscale.training.loop import train
from caloscale.training.progress_file import ProgressFile
from tests.training.conftest import small_run
from tests.training.quick_networks import QUICK


@pytest.mark.usefixtures("quickly", "eagerly")
def test_a_training_reports_its_end(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROGRESS_FILE_VARIABLE, str(tmp_path / "progress.json"))
    record = train(small_run(*QUICK), shards, tmp_path / "out")
    shown = RunProgress.model_validate_json((tmp_path / "progress.json").read_bytes())
    assert (shown.step, shown.steps, shown.checkpoint_step) == (record.steps, record.steps, record.steps)
    assert (shown.epoch, shown.epochs) == (2.0, 2) and shown.losses["generator"] > 0
    assert shown.seconds_first_step == pytest.approx(record.seconds_first_step) and shown.step_seconds is not None


def test_a_step_has_no_part_of_what_follows_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five steps of 2 s behind the first; then the release and the last upload take 300 s."""
    clock = 100.0
    monkeypatch.setattr(progress_file.time, "perf_counter", lambda: clock)
    path = tmp_path / "progress.json"
    file = ProgressFile(steps=6, steps_per_epoch=3, batch=8, environment={PROGRESS_FILE_VARIABLE: str(path)})
    file.begin(1, 7.0)
    for step in range(1, 7):
        file.step(step)
        clock += 2.0 if step < 6 else 300.0
    file.step(6, now=True)
    shown = RunProgress.model_validate_json(path.read_bytes())
    assert (shown.step, shown.step_seconds, shown.showers_per_second) == (6, 2.0, 4.0)


def test_a_loss_that_is_not_finite_is_left_out(tmp_path: Path) -> None:
    """It does not end a run of the solver, on a cluster neither."""
    path = tmp_path / "progress.json"
    file = ProgressFile(steps=2, steps_per_epoch=1, batch=None, environment={PROGRESS_FILE_VARIABLE: str(path)})
    file.losses({"generator": float("nan"), "norms": 0.5})
    file.step(1, now=True)
    assert RunProgress.model_validate_json(path.read_bytes()).losses == {"norms": 0.5}


def test_a_progress_file_that_cannot_be_written_does_not_end_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").write_text("a file is in the way")
    path = tmp_path / "folder" / "progress.json"
    warnings: list[str] = []
    monkeypatch.setattr(progress_file.log, "warning", lambda text, *values: warnings.append(text % values))
    ProgressFile(steps=1, steps_per_epoch=1, batch=1, environment={PROGRESS_FILE_VARIABLE: str(path)}).step(1, now=True)
    (warning,) = warnings
    assert warning.startswith(f"progress is not written: {path}")
    assert (tmp_path / "folder").read_text() == "a file is in the way"
