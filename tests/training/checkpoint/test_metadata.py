"""What a checkpoint says beside the weights."""

import json

import pytest

from caloscale.errors import CheckpointError
from caloscale.showers.tfrecord.manifest import read_manifest
from caloscale.training.checkpoint.metadata import (
    AttemptMark,
    Progress,
    ProgressMarker,
    identity_of,
    next_attempt,
    read_marker,
)
from caloscale.training.checkpoint.store import CheckpointFolder
from tests.training.conftest import small_run
from tests.training.processes import start_python

BATCH = 8


def test_what_a_checkpoint_depends_on(shards):
    manifest = read_manifest(shards)
    same = identity_of(small_run(), manifest, BATCH)
    changeable = ["epochs=9", "maxMinutes=1", "loop=builtin", "strategy=mirrored", "globalBatchSize=8", "accumulate=2"]
    elsewhere = ("checkpoint.keep=1", "checkpoint.uri=gs://bucket/run", "data.simulation.processes=1")
    for override in (*(f"train.{each}" for each in changeable), *elsewhere):
        assert identity_of(small_run(override), manifest, BATCH) == same, override
    for override in ("train.seed=9", "train.energyScoreWeight=0.5", "model.latentSize=7", "data.mirror=false"):
        assert identity_of(small_run(override), manifest, BATCH) != same, override
    assert identity_of(small_run(), manifest, 16) != same
    fewer = manifest.model_copy(update={"shards": manifest.shards[1:]})
    assert identity_of(small_run(), fewer, BATCH) != same
    assert json.loads(json.dumps(same)) == same


def test_another_global_batch_is_refused_with_what_is_possible(shards, tmp_path):
    manifest = read_manifest(shards)
    folder = CheckpointFolder(tmp_path, keep=1, identity=identity_of(small_run(), manifest, 8))
    folder.write({}, Progress(step=1, seconds=1.0, core_seconds=1.0))
    other = CheckpointFolder(tmp_path, keep=1, identity=identity_of(small_run(), manifest, 16))
    with pytest.raises(CheckpointError, match=r"another global batch than 16") as error:
        other.newest()
    assert "train.globalBatchSize=8" in error.value.remedy
    fewer = identity_of(small_run(), manifest.model_copy(update={"shards": manifest.shards[1:]}), 8)
    with pytest.raises(CheckpointError, match=r"showers: .* another run: its training showers are not those of data"):
        CheckpointFolder(tmp_path, keep=1, identity=fewer).newest()


def test_a_killed_process_leaves_its_last_step(tmp_path):
    code = (
        "import os, signal\nfrom pathlib import Path\n"
        "from caloscale.training.checkpoint.metadata import AttemptMark, ProgressMarker\n"
        f"marker = ProgressMarker(Path({str(tmp_path / 'progress-marker')!r}), AttemptMark(2, 5, 40))\n"
        "for step in range(41, 1000): marker.write(step)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    process = start_python(code)
    process.communicate()
    assert process.returncode == -9
    assert read_marker(tmp_path / "progress-marker") == AttemptMark(2, 5, 999)


def test_attempts(tmp_path):
    first = next_attempt(None, None)
    assert first == AttemptMark(0, 0, 0)
    # Killed at step 12, the last checkpoint was of step 10; then at 11, before any other checkpoint.
    second = next_attempt(AttemptMark(0, 0, 12), AttemptMark(0, 0, 10))
    assert second == AttemptMark(1, 2, 10)
    third = next_attempt(AttemptMark(1, 2, 11), AttemptMark(0, 0, 10))
    assert third == AttemptMark(2, 3, 10)
    assert next_attempt(AttemptMark(0, 0, 4), None) == AttemptMark(1, 4, 0), "killed before the first checkpoint"
    assert next_attempt(None, AttemptMark(3, 7, 20)) == AttemptMark(4, 7, 20), (
        "on another machine only the checkpoint knows"
    )


def test_no_marker_and_a_damaged_one(tmp_path):
    assert read_marker(tmp_path / "none") is None
    (tmp_path / "progress-marker").write_bytes(b"\xff\x00 1")
    assert read_marker(tmp_path / "progress-marker") is None
    marker = ProgressMarker(tmp_path / "progress-marker", AttemptMark(1, 0, 3))
    marker.close()
    assert read_marker(tmp_path / "progress-marker") == AttemptMark(1, 0, 3)
