"""The stage that trains, before it trains."""

import fcntl
from pathlib import Path

import pytest

from caloscale.errors import HeldError
from caloscale.spec import load_run
from caloscale.stages import train
from caloscale.storage.lock import LOCK_NAME


def test_one_process_writes_into_a_folder_of_checkpoints(tmp_path: Path) -> None:
    """Two runs whose checkpoint.uri is one folder would remove and select each other's."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    with (folder / LOCK_NAME).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        run = load_run(preset="compact", overrides=[f"checkpoint.uri={folder}"])
        with pytest.raises(HeldError, match=str(folder)):
            train(run, tmp_path / "run", tmp_path / "dataset")
