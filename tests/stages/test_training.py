"""The stage that trains, before it trains."""

import fcntl
from pathlib import Path

import pytest

from caloscale.errors import ConfigurationError, HeldError
from caloscale.spec import load_run
from caloscale.stages import new_run_folder, train
from caloscale.stages.record import recorded
from caloscale.storage.lock import LOCK_NAME
from caloscale.training.strategy import Devices


def test_one_process_writes_into_a_folder_of_checkpoints(tmp_path: Path) -> None:
    """Two runs whose checkpoint.uri is one folder would remove and select each other's."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    with (folder / LOCK_NAME).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        run = load_run(preset="compact", overrides=[f"checkpoint.uri={folder}"])
        with pytest.raises(HeldError, match=str(folder)):
            train(run, tmp_path / "run", tmp_path / "dataset")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        (
            "train.batchPerReplica=64",
            r"train: gives a global batch of 128, and .* with 64(.|\n)*globalBatchSize to 64,",
        ),
        ("train.globalBatchSize=64", None),
        ("train.epochs=80", None),
        ("checkpoint.uri=checkpoints", None),
        ("checkpoint.uri=others", r"checkpoint\.uri: has no checkpoints of the training that has ended here"),
    ],
)
def test_a_training_that_has_ended_stays_where_it_would_be_refused_or_begin_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: str, says: str | None
) -> None:
    """On two GPUs; with a folder of checkpoints that is looked for in the working directory."""

    def run(*overrides: str):
        return load_run(preset="compact", overrides=["train.batchPerReplica=32", *overrides])

    def left() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    monkeypatch.setattr("caloscale.stages.training._train_networks", lambda _: train)
    monkeypatch.setattr("caloscale.stages.training.visible_devices", lambda: Devices(gpus=2))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-000000008.safetensors").touch()
    folder = new_run_folder(run(), tmp_path / "runs", "one")
    with recorded("train", folder) as figures:
        figures["globalBatchSize"] = 64
    before = left()
    if says is None:
        assert new_run_folder(run(override), tmp_path / "runs", "one") == folder
        return
    for begin in (
        lambda: new_run_folder(run(override), tmp_path / "runs", "one"),
        lambda: train(run(override), folder, ""),
    ):
        with pytest.raises(ConfigurationError, match=says):
            begin()
    assert left() == before
