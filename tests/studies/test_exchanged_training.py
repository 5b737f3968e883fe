"""Ranks that train with the solver's exchanges: real processes of MPI, and what each of them computes by itself."""

import json

import numpy as np
import pytest

from caloscale.errors import ConfigurationError
from caloscale.models.optimizers import AveragingOptimizer, Schedule
from caloscale.showers.tfrecord.manifest import read_manifest
from caloscale.studies.exchanged_training import share_of, train_exchanging
from caloscale.studies.whole_run import run_of
from caloscale.training.checkpoint.format import decode
from caloscale.training.input import TrainingShowers
from caloscale.training.state import TrainingState, compile_step
from tests.studies.test_recovery import TINY

ONE_STEP = {**TINY, "train.precision": "float32", "train.epochs": 1, "train.batchPerReplica": 24}
"""For each of two ranks; one rank makes two."""


def kept(folder, step):
    """Variables of a checkpoint."""
    return decode((folder / f"training/checkpoints/step-{step:09d}.safetensors").read_bytes())[0]


def own_gradient(folder, rank, generator):
    """The gradient of the generator in the first step of a rank that is alone, from these weights; packed."""
    run = run_of({**ONE_STEP, "train.seed": run_of(ONE_STEP).train.seed + rank})
    state = TrainingState(run)
    network = state.networks["generator"]
    network.set_weights(generator or network.get_weights())
    found = []
    state.optimizers["generator"] = AveragingOptimizer(
        run.train.optimizer, network.trainable_variables, lambda gradient, _: found.append(gradient.copy()) or gradient
    )
    share = folder / f"share-{rank}"
    showers = TrainingShowers(share, read_manifest(share), 24, seed=run.train.seed, mirror=run.data.mirror)
    begun = network.get_weights()
    schedule = Schedule(run.train.warmup_epochs, run.train.decay)  # an epoch has one step
    compile_step(state, schedule)(next(iter(showers.batches(start=0, stop=1))), 0.0)
    return found[0], begun


@pytest.mark.integration
def test_ranks_with_discriminators_of_their_own_move_by_the_mean_of_their_gradients(tmp_path):
    folder = tmp_path / "point"
    (folder / "training").mkdir(parents=True)
    (folder / "training" / "history.json").write_text("of a point that was interrupted")
    found = train_exchanging({**ONE_STEP, "method": "all-reduce", "ranks": 2}, folder)
    assert found["steps"] == 1 and found["betweenRanks"] == 0 and found["staleShare"] is None
    assert json.loads((folder / "training" / "history.json").read_text())["step"] == [1]
    first, generator = own_gradient(folder, 0, None)
    second, _ = own_gradient(folder, 1, generator)
    mean = (first.astype(float) + second) / 2
    assert np.abs(first - mean).max() > 0.1 * np.abs(mean).max()  # they differ
    variables, others = kept(folder, 1), kept(folder / "rank-1", 1)
    # Adam's mean after one update is half of the gradient, and its mean of squares a hundredth of the square.
    tolerance = 1e-5 * np.abs(mean).max()
    np.testing.assert_allclose(variables["generator_optimizer/mean"], mean / 2, rtol=1e-4, atol=tolerance)
    np.testing.assert_allclose(
        variables["generator_optimizer/square"], mean**2 / 100, rtol=2e-3, atol=tolerance**2 / 100
    )
    for name, value in variables.items():
        if name.startswith(("generator", "average")):
            np.testing.assert_array_equal(value, others[name], err_msg=name)
    assert any(
        not np.array_equal(value, others[name])
        for name, value in variables.items()
        if name.startswith("discriminator/")
    )


@pytest.mark.integration
def test_a_ring_of_one_rank_trains_as_no_exchange_bit_for_bit(tmp_path):
    alone, ring = (tmp_path / method for method in ("none", "ring"))
    for folder in (alone, ring):
        found = train_exchanging({**ONE_STEP, "method": folder.name, "ranks": 1}, folder)
        assert found["steps"] == 2 and found["betweenRanks"] == 0
    expected, got = kept(alone, 2), kept(ring, 2)
    assert expected.keys() == got.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


@pytest.mark.integration
def test_with_remote_memory_generators_differ_and_with_one_discriminator_none_does(tmp_path):
    found = train_exchanging({**TINY, "train.epochs": 3, "method": "grouped-rma", "ranks": 2}, tmp_path / "rma")
    assert found["steps"] == 9 and found["betweenRanks"] > 0 and found["stepSeconds"] > found["exchangeSeconds"] > 0
    assert 0 <= found["staleShare"] <= found["newShare"] <= 1 and (found["age"] > 0) == (found["staleShare"] > 0)
    shared = {**ONE_STEP, "method": "chunked-ring", "ranks": 2, "shared": True}
    assert train_exchanging(shared, tmp_path / "shared")["betweenRanks"] == 0
    ranks = [kept(tmp_path / "shared" / name, 1) for name in (".", "rank-1")]
    for name, value in ranks[0].items():
        np.testing.assert_array_equal(value, ranks[1][name], err_msg=name)


def test_each_training_shard_belongs_to_one_rank(tmp_path):
    with pytest.raises(ConfigurationError):
        train_exchanging({**TINY, "ranks": 16}, tmp_path)  # prepares the showers
    manifest = read_manifest(tmp_path / "dataset")
    shares = [share_of(manifest, rank, 3) for rank in range(3)]
    shards = [shard.file for share in shares for shard in share.shards_of("train")]
    assert sorted(shards) == sorted(shard.file for shard in manifest.shards_of("train"))
    assert sum(share.splits["train"] for share in shares) == manifest.splits["train"]
    assert all(share.shards_of("validation") == manifest.shards_of("validation") for share in shares)
    assert share_of(manifest, 0, 1) == manifest
