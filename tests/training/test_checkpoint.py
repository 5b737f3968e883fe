import json
import logging

import numpy as np
import pytest
import tensorflow as tf

from caloscale.errors import CheckpointError
from caloscale.showers.manifest import read_manifest
from caloscale.training.checkpoint import Checkpoints, Progress, identity_of

from .conftest import small_run


class Weights(tf.Module):
    """What a checkpoint holds here: two small variables."""

    def __init__(self, value, size=3):
        self.a = tf.Variable(tf.fill((size,), float(value)))
        self.b = tf.Variable(float(value))

    def saved(self):
        return tf.train.Checkpoint(weights=self)


def progress(step):
    return Progress(step=step, seconds=1.5, core_seconds=2.0, history={"step": [step], "validation": {"epoch": []}})


@pytest.fixture
def checkpoints(tmp_path):
    made = Checkpoints(
        tmp_path / "checkpoints", keep=2, identity={"model": {"preset": "compact"}, "train": {"seed": 1}}
    )
    for step in (1, 2, 3):
        made.save(Weights(step).saved(), progress(step))
    return made


def names(checkpoints):
    return sorted(path.name for path in checkpoints.folder.iterdir())


def test_the_newest_are_kept_and_restored(checkpoints):
    assert names(checkpoints) == ["step-000000002", "step-000000003"]
    weights = Weights(0)
    restored = checkpoints.restore(weights.saved())
    assert (restored.step, restored.seconds, restored.history["step"]) == (3, 1.5, [3])
    assert weights.a.numpy().tolist() == [3, 3, 3]


def test_no_checkpoint_is_a_beginning(tmp_path):
    assert Checkpoints(tmp_path / "nothing", keep=1, identity={}).restore(Weights(0).saved()) is None


@pytest.mark.parametrize("file", ["weights.data-00000-of-00001", "weights.index", "state.json"])
@pytest.mark.parametrize("fault", ["truncated", "changed", "missing"])
def test_a_damaged_one_is_passed_over_with_a_warning(checkpoints, caplog, file, fault):
    path = checkpoints.folder / "step-000000003" / file
    content = path.read_bytes()
    if fault == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif fault == "changed":
        path.write_bytes(content[:9] + b"\xff\xfe" + content[11:])
    else:
        path.unlink()
    weights = Weights(0)
    with caplog.at_level(logging.WARNING):
        assert checkpoints.restore(weights.saved()).step == 2
    assert weights.a.numpy().tolist() == [2, 2, 2]
    assert "step-000000003" in caplog.text
    assert "the checkpoint before it" in caplog.text


def test_all_damaged(checkpoints):
    for path in checkpoints.folder.iterdir():
        (path / "state.json").write_text("{")
    with pytest.raises(CheckpointError, match="all checkpoints are damaged"):
        checkpoints.restore(Weights(0).saved())


def test_another_network(checkpoints):
    other = Checkpoints(checkpoints.folder, keep=2, identity={"model": {"preset": "fixed-angle"}, "train": {"seed": 1}})
    with pytest.raises(CheckpointError, match=r"model.preset: is a checkpoint of another network.*'compact'") as error:
        other.restore(Weights(0).saved())
    assert error.value.exit_code == 2
    assert "delete" in error.value.remedy


def test_other_shapes_behind_the_same_name(checkpoints):
    with pytest.raises(CheckpointError, match="does not fit the network"):
        checkpoints.restore(Weights(0, size=4).saved())


def test_the_best_is_kept_apart(checkpoints):
    assert checkpoints.restore_best(Weights(0)) is None
    best = progress(7).model_copy(update={"best_epoch": 4, "best_step": 7, "best_deviation": 0.25})
    checkpoints.save_best(Weights(7), best)
    checkpoints.save_best(Weights(8), best)
    checkpoints.save(Weights(9).saved(), progress(9))
    weights = Weights(0)
    assert checkpoints.restore_best(weights).best_epoch == 4
    assert weights.a.numpy().tolist() == [8, 8, 8]
    assert names(checkpoints) == ["best", "step-000000003", "step-000000009"]


def test_a_failed_save_leaves_nothing(checkpoints, monkeypatch):
    """A disk that fills up: the folder of the new checkpoint is not there, the others are whole."""
    before = names(checkpoints)
    (checkpoints.folder / "step-000000004").write_text("in the way: a folder cannot replace a file")
    with pytest.raises(Exception, match="step-000000004"):
        checkpoints.save(Weights(4).saved(), progress(4))
    (checkpoints.folder / "step-000000004").unlink()
    assert names(checkpoints) == before
    assert checkpoints.restore(Weights(0).saved()).step == 3


def test_what_a_checkpoint_depends_on(shards):
    manifest = read_manifest(shards)
    same = identity_of(small_run(), manifest)
    for override in ("train.epochs=9", "train.maxMinutes=1", "checkpoint.keep=1", "data.simulation.processes=1"):
        assert identity_of(small_run(override), manifest) == same
    for override in ("train.seed=9", "train.spread=0.5", "model.latentSize=7", "data.mirror=false"):
        assert identity_of(small_run(override), manifest) != same
    fewer = manifest.model_copy(update={"shards": manifest.shards[1:]})
    assert identity_of(small_run(), fewer) != same
    assert json.loads(json.dumps(same)) == same


def test_progress_survives_json():
    once = Progress(step=3, seconds=0.1, core_seconds=1e-3, history={"loss": [0.1, None]}, files={"a": "b"})
    again = Progress.model_validate_json(once.model_dump_json(by_alias=True), by_alias=True, by_name=False)
    assert again == once
    assert np.isfinite(again.seconds)
