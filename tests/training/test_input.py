from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from caloscale.detector.angle import measured_angle_rad
from caloscale.errors import ShowerFileError
from caloscale.showers.tfrecord.manifest import read_manifest
from caloscale.showers.tfrecord.records import read_dataset, shard_writer
from caloscale.training.input import TrainingShowers, check_manifest, mirrored

from .conftest import random_showers, small_run


def showers_of(folder, **options):
    options = {"batch": 8, "seed": 3, "mirror": False, **options}
    return TrainingShowers(folder, read_manifest(folder), **options)


def energies(showers, start, stop):
    return [batch["energy_gev"] for batch in showers.batches(start=start, stop=stop).as_numpy_iterator()]


@pytest.mark.parametrize(("workers", "own"), [(1, True), (2, True), (4, True), (8, True), (5, False), (10, False)])
def test_workers_share_the_batches_of_one(shards, workers, own):
    """Every shower once per epoch over all workers, in the batches (and mirrored as) one worker alone would have."""
    batch = 40 if workers in (5, 10) else 8
    alone = showers_of(shards, batch=batch, mirror=True)
    expected = list(alone.batches(start=0, stop=alone.steps_per_epoch + 1).as_numpy_iterator())
    parts, files = [], []
    for index in range(workers):
        mine = showers_of(shards, batch=batch, mirror=True, workers=workers, worker_index=index)
        assert mine.reads_only_its_own == own
        assert (mine.left_out, mine.steps_per_epoch) == (0, alone.steps_per_epoch)
        files += mine.own_lanes
        parts.append(list(mine.batches(start=0, stop=mine.steps_per_epoch + 1).as_numpy_iterator()))
    assert (len(files) == len(set(files))) == own
    for number, whole in enumerate(expected):
        for name, value in whole.items():
            np.testing.assert_array_equal(np.concatenate([part[number][name] for part in parts]), value)
    seen = np.concatenate([whole["energy_gev"] for whole in expected[:-1]])
    assert len(set(seen)) == len(seen) == 40


def test_replicas_have_consecutive_parts(shards):
    showers = showers_of(shards, mirror=True)
    whole = list(showers.batches(start=3, stop=7).as_numpy_iterator())
    pieces = list(showers.batches(start=3, stop=7, pieces=2).as_numpy_iterator())
    for number, batch in enumerate(whole):
        for name, value in batch.items():
            both = np.concatenate([pieces[2 * number][name], pieces[2 * number + 1][name]])
            np.testing.assert_array_equal(both, value)


def test_an_epoch_has_every_shower_once_in_an_order_of_its_own(shards):
    showers = showers_of(shards)
    first, second = (np.concatenate(energies(showers, *steps)) for steps in ((0, 5), (5, 10)))
    assert len(set(first)) == 40
    assert set(first) == set(second)
    assert list(first) != list(second)
    assert list(first) == list(np.concatenate(energies(showers_of(shards), 0, 5)))
    assert list(first) != list(np.concatenate(energies(showers_of(shards, seed=4), 0, 5)))


def unequal_shards(shards, folder, counts):
    """A folder whose training shards have the first ``counts`` of their showers."""
    manifest = read_manifest(shards)
    kept = []
    for shard, count in zip(manifest.shards_of("train"), counts):
        records = list(read_dataset([shards / shard.file]).take(count).as_numpy_iterator())
        with shard_writer(folder / shard.file) as write:
            for record in records:
                write(record)
        kept.append(shard.model_copy(update={"showers": count}))
    return manifest.model_copy(update={"shards": tuple(kept), "parts": {"train": sum(counts), "validation": 0}})


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize(("counts", "lanes"), [((5, 5, 4, 4, 4, 4, 4, 4), 4), ((5, 1, 1, 1, 5, 5, 5, 5), 1)])
def test_unequal_shards_neither_hang_nor_drop_silently(shards, tmp_path, counts, lanes, workers):
    """All workers make equally many steps; what an epoch leaves out is less than a batch, and counted."""
    manifest = unequal_shards(shards, tmp_path, counts)
    seen = Counter()
    for index in range(workers):
        mine = TrainingShowers(tmp_path, manifest, 4, 3, False, workers, index)
        assert mine.lanes == lanes
        assert mine.steps_per_epoch == sum(counts) // 4
        assert mine.left_out == sum(counts) % 4
        batches = energies(mine, 0, 2 * mine.steps_per_epoch)
        assert len(batches) == 2 * mine.steps_per_epoch
        seen.update(float(e) for e in np.concatenate(batches[: mine.steps_per_epoch]))
    assert set(seen.values()) == {1}
    assert len(seen) == sum(counts) - sum(counts) % 4


def test_each_epoch_leaves_out_others(shards, tmp_path):
    manifest = unequal_shards(shards, tmp_path, (5, 5, 4, 4, 4, 4, 4, 4))
    showers = TrainingShowers(tmp_path, manifest, 16, 3, False)
    assert (showers.steps_per_epoch, showers.left_out) == (2, 2)
    used = [frozenset(np.concatenate(energies(showers, epoch * 2, epoch * 2 + 2))) for epoch in range(5)]
    assert {len(epoch) for epoch in used} == {32}
    assert len(set(used)) > 1


def test_a_resumed_pipeline_goes_on_with_the_same_batches(shards):
    showers = showers_of(shards, mirror=True)
    whole = list(showers.batches(start=0, stop=12).as_numpy_iterator())
    rest = list(showers.batches(start=7, stop=12).as_numpy_iterator())
    assert len(whole) == 12
    for one, other in zip(whole[7:], rest):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_batches_have_what_the_shards_hold(shards):
    batch = next(iter(showers_of(shards).batches(start=0, stop=1)))
    assert {name: tuple(value.shape) for name, value in batch.items()} == {
        "cells": (8, 7, 6, 4),
        "energy_gev": (8,),
        "angle_rad": (8,),
        "measured_angle_rad": (8,),
        "ecal_sum": (8,),
    }
    sums = (batch["cells"].numpy() ** (1 / 0.85)).sum(axis=(1, 2, 3))
    np.testing.assert_allclose(sums, batch["ecal_sum"], rtol=1e-4)


def test_mirroring_is_the_symmetry_of_the_detector():
    """A mirrored shower has the mirrored angle, by the measure of the showers themselves."""
    run = small_run()
    showers = random_showers(64, 5)
    measured = measured_angle_rad(showers.cells_gev, run.data.geometry)
    batch = {
        "cells": tf.constant(showers.cells_gev),
        "angle_rad": tf.constant(showers.angle_rad),
        "measured_angle_rad": tf.constant(measured),
    }
    across_x, across_y = np.arange(64) % 2 == 0, np.arange(64) % 3 == 0
    result = mirrored(batch, tf.constant(across_x), tf.constant(across_y))
    again = measured_angle_rad(result["cells"].numpy(), run.data.geometry)
    np.testing.assert_allclose(result["measured_angle_rad"], again, atol=2e-5)
    np.testing.assert_allclose(again[across_x], np.pi - measured[across_x], atol=2e-5)
    np.testing.assert_allclose(again[~across_x], measured[~across_x], atol=2e-5)
    np.testing.assert_allclose(result["angle_rad"].numpy()[across_x], np.pi - showers.angle_rad[across_x], rtol=1e-6)
    np.testing.assert_array_equal(
        result["cells"].numpy()[across_y & ~across_x], showers.cells_gev[across_y & ~across_x][:, :, ::-1]
    )


def test_mirrored_copies_are_drawn_anew(shards):
    plain, mirror = showers_of(shards), showers_of(shards, mirror=True)
    turned = []
    for epoch in range(2):
        steps = {"start": 5 * epoch, "stop": 5 * epoch + 5}
        pairs = zip(plain.batches(**steps), mirror.batches(**steps))
        angles = [(a["angle_rad"].numpy(), b["angle_rad"].numpy()) for a, b in pairs]
        before, after = (np.concatenate(side) for side in zip(*angles))
        energy = np.concatenate(energies(plain, steps["start"], steps["stop"]))
        turned.append({e: not np.isclose(a, b) for e, a, b in zip(energy, before, after)})
    share = np.mean([*turned[0].values(), *turned[1].values()])
    assert 0.3 < share < 0.7
    assert turned[0] != turned[1]


def test_a_broken_record_names_its_shard(shards, tmp_path):
    for path in shards.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    broken = showers_of(tmp_path).shards[-1].file
    content = (tmp_path / broken).read_bytes()
    (tmp_path / broken).write_bytes(content[: len(content) // 2])
    showers = showers_of(tmp_path)
    with pytest.raises(tf.errors.DataLossError):
        energies(showers, 0, 5)
    assert broken in str(showers.broken_shard())


def test_fewer_showers_than_a_batch(shards):
    with pytest.raises(ShowerFileError, match=r"parts.train.*fewer training showers than one batch of 41"):
        showers_of(shards, batch=41)


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("data.geometry.cells=[7, 8, 4]", "shape"),
        ("data.preprocessing.power=0.8", "preprocessing"),
        ("data.geometry.cellMm=6", "geometry"),
    ],
)
def test_shards_of_another_document(shards, override, field):
    with pytest.raises(ShowerFileError, match=f"{field}: the shards were made for another document"):
        check_manifest(shards, read_manifest(shards), small_run(override).data)
