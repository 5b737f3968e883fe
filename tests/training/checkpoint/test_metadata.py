"""What a checkpoint says beside the weights."""

import json

import pytest

from caloscale.errors import CheckpointError
from caloscale.showers.tfrecord.manifest import read_manifest
from caloscale.training.checkpoint.metadata import Progress, identity_of
from caloscale.training.checkpoint.store import CheckpointFolder
from tests.training.conftest import small_run

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
