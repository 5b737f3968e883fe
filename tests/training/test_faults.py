"""Faults within one process: a shard that breaks, a loss that is not finite, a disk and a bucket that fail."""

import json
import logging
import os
import shutil
import signal
import threading
from contextlib import contextmanager

import numpy as np
import pytest

from caloscale.errors import ShowerFileError, StorageError, Terminated, TrainingError
from caloscale.models.card import CARD
from caloscale.spec import load_run
from caloscale.stages import train as train_stage
from caloscale.storage.objects import download, read_object
from caloscale.training import input as showers_input
from caloscale.training import loop
from caloscale.training.checkpoint.format import decode
from caloscale.training.checkpoint.store import POINTER, Pointer
from caloscale.training.loop import train

from .conftest import small_run
from .processes import newest_step
from .quick_networks import QUICK

pytestmark = pytest.mark.usefixtures("quickly", "eagerly")


@pytest.fixture
def fragile(shards, tmp_path, monkeypatch):
    """A copy of the shards that is read again in every epoch."""
    monkeypatch.setattr(showers_input, "CACHED_BYTES", 0)
    shutil.copytree(shards, tmp_path / "shards")
    return tmp_path / "shards"


def tear(shards):
    """Overwrite the middle of the first training shard; returns what was there."""
    victim = min(shards.glob("train-*"))
    content = victim.read_bytes()
    victim.write_bytes(content[: len(content) // 2] + b"torn" * 10)
    return victim, content


def test_a_shard_that_breaks_in_the_middle_stops_with_a_checkpoint(fragile, tmp_path, monkeypatch, behind_checkpoint):
    """Lost: nothing; with the shard mended the training resumes from the step before."""
    monkeypatch.setattr(loop, "PAUSES_SECONDS", (0.01, 0.01))
    output = tmp_path / "out"
    run = small_run(*QUICK, "train.epochs=30")
    torn = []
    behind_checkpoint(2, lambda: torn.append(tear(fragile)))
    with pytest.raises(ShowerFileError) as error:
        train(run, fragile, output)
    victim, content = torn[0]
    assert error.value.file == str(victim) and error.value.exit_code == 2
    reached = newest_step(output)
    assert 2 <= reached < 150
    assert not (output / "model").exists()
    victim.write_bytes(content)
    record = train(
        run.model_copy(update={"train": run.train.model_copy(update={"epochs": 1 + reached // 5})}), fragile, output
    )
    assert record.resumed_from_step == reached
    assert (record.restarts, record.steps_lost) == (1, 0)


@contextmanager
def at_unreadable_showers(action):
    """Act as soon as the training says that showers cannot be read."""
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: "showers cannot be read" in record.getMessage() and action()
    logger = logging.getLogger("caloscale")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@pytest.mark.integration
def test_a_shard_that_cannot_be_read_for_a_moment_is_read_again(
    fragile, tmp_path, monkeypatch, caplog, behind_checkpoint
):
    """Lost: nothing, and the training does not stop."""
    monkeypatch.setattr(loop, "PAUSES_SECONDS", (0.01, 0.01))
    torn = []
    behind_checkpoint(2, lambda: torn.append(tear(fragile)))

    def mend():
        victim, content = torn[0]
        victim.write_bytes(content)

    with at_unreadable_showers(mend):
        record = train(small_run(*QUICK, "train.epochs=4"), fragile, tmp_path / "out")
    assert "showers cannot be read" in caplog.text
    assert (record.steps, record.resumed_from_step) == (20, None)


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_while_showers_cannot_be_read_does_not_wait(
    fragile, tmp_path, monkeypatch, caplog, behind_checkpoint, number, raised
):
    """Lost: nothing; the pause before another attempt ends, and the steps before it are saved."""
    monkeypatch.setattr(loop, "PAUSES_SECONDS", (1000.0,))
    output = tmp_path / "out"
    behind_checkpoint(2, lambda: tear(fragile))
    with at_unreadable_showers(lambda: os.kill(os.getpid(), number)), pytest.raises(raised):
        train(small_run(*QUICK, "train.epochs=30", "cluster.terminationGracePeriodSeconds=600"), fragile, output)
    assert newest_step(output) >= 2
    assert f"step {newest_step(output) + 1}: showers cannot be read" in caplog.text


def test_a_loss_that_is_not_finite(shards, tmp_path):
    """Lost: the steps since the last checkpoint, which is of before."""
    run = small_run(*QUICK, "train.learningRate=1e30", "train.epochs=1")
    with pytest.raises(TrainingError, match=r"not finite .* at step \d\b") as error:
        train(run, shards, tmp_path)
    assert error.value.exit_code == 5
    bad = int(str(error.value).partition("at step ")[2][0])
    assert newest_step(tmp_path) == bad - 1
    for path in (tmp_path / "checkpoints").glob("step-*.safetensors"):
        assert all(np.isfinite(value).all() for value in decode(path.read_bytes())[0].values())
    assert not (tmp_path / "model").exists()


@pytest.mark.integration
def test_a_training_that_ended_is_prolonged_in_its_workspace(shards, tmp_path):
    """Nothing of it is made again."""
    first = train_stage(small_run(*QUICK, "train.epochs=1"), tmp_path, shards)
    longer = small_run(*QUICK, "train.epochs=2", "validation.showers=50")
    second = train_stage(longer, tmp_path, shards)
    assert (first.steps, second.resumed_from_step, second.steps) == (5, 5, 10)
    assert load_run(tmp_path / "run.yaml") == longer


DISK_BYTES = 3 * 2**20
"""Room for one checkpoint."""


def test_a_full_disk_stops_with_the_checkpoint_before(shards, tmp_path, small_disk):
    """Lost: the steps since the last checkpoint that fitted."""
    with pytest.raises(StorageError, match=r"cannot be written: No space left[\s\S]*free space") as error:
        train(small_run(*QUICK, "train.epochs=30"), shards, small_disk / "out")
    assert error.value.exit_code == 2
    assert 1 <= newest_step(small_disk / "out") <= 3
    assert not list((small_disk / "out" / "checkpoints").glob(".partial*"))
    shutil.copytree(small_disk / "out", tmp_path / "larger")
    record = train(small_run(*QUICK, "train.epochs=1"), shards, tmp_path / "larger")
    assert record.resumed_from_step == newest_step(small_disk / "out")
    assert record.steps_lost >= 1


@pytest.mark.integration
def test_a_machine_that_is_gone_with_its_disk(shards, tmp_path, bucket_server):
    """checkpoint.uri: another machine resumes. Lost: nothing here, as the first training ended by itself."""
    uri = f"{bucket_server}/gone/checkpoints"
    first = train(small_run(*QUICK, "train.epochs=1", f"checkpoint.uri={uri}"), shards, tmp_path / "first")
    shutil.rmtree(tmp_path / "first")
    second = train(small_run(*QUICK, "train.epochs=2", f"checkpoint.uri={uri}"), shards, tmp_path / "second")
    assert (first.steps, second.resumed_from_step, second.steps) == (5, 5, 10)
    assert second.restarts == 1
    names = {path.name for path in download(uri, tmp_path / "all")}
    assert names == {POINTER} | Pointer.model_validate_json(read_object(f"{uri}/{POINTER}")).objects
    assert pointed(uri)[0] == 10


def pointed(uri):
    """Steps of the checkpoints that a bucket's pointer names, newest first."""
    content = read_object(f"{uri}/{POINTER}")
    return [int(entry["name"][5:14]) for entry in json.loads(content)["checkpoints"]] if content else []


def test_checkpoints_reach_a_bucket_while_the_stage_runs(shards, tmp_path, bucket_server):
    workspace = f"{bucket_server}/run"
    seen, ended = [], threading.Event()

    def watch():
        while not ended.wait(0.1):
            seen.extend(pointed(f"{workspace}/training/checkpoints")[:1])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        train_stage(small_run(*QUICK, "train.epochs=1"), workspace, shards, tmp_path / "model")
    finally:
        ended.set()
        thread.join()
    assert min(seen) < 5
    names = {str(path.relative_to(tmp_path / "all")) for path in download(workspace, tmp_path / "all")}
    assert {"run.yaml", "stages/train.json", f"training/model/{CARD}", "training/history.json"} <= names
    assert f"training/checkpoints/{POINTER}" in names
    assert not any(name.endswith("/progress-marker") for name in names), "the stage's folder is not uploaded, too"
