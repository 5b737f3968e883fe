from collections import Counter
from contextlib import nullcontext

import numpy as np
import pytest
import tensorflow as tf
from scipy.stats import binom, chi2, chisquare, hypergeom

from caloscale.detector.angle import direction_of, measured_angle_rad
from caloscale.errors import ShowerFileError
from caloscale.showers.tfrecord.manifest import read_manifest
from caloscale.showers.tfrecord.records import member, read_batches
from caloscale.training import input as showers_input
from caloscale.training.coordination.failures import is_of_input
from caloscale.training.input import TrainingShowers, check_manifest, epoch_order, mirrored, turned

from .conftest import random_showers, small_run


def showers_of(folder, **options):
    options = {"batch": 8, "seed": 3, "mirror": False, **options}
    return TrainingShowers(folder, read_manifest(folder), **options)


def energies(showers, start, stop):
    return [batch["energy_gev"] for batch in showers.batches(start=start, stop=stop).as_numpy_iterator()]


@pytest.mark.parametrize("workers", [2, 8])
def test_workers_share_the_batches_of_one(shards, workers):
    """Every shower once per epoch over all workers, in the batches (and mirrored as) one worker alone would have."""
    alone = showers_of(shards, mirror=True)
    expected = list(alone.batches(start=0, stop=alone.steps_per_epoch + 1).as_numpy_iterator())
    shares = []
    for index in range(workers):
        mine = showers_of(shards, mirror=True, workers=workers, worker_index=index)
        assert (mine.left_out, mine.steps_per_epoch) == (0, alone.steps_per_epoch)
        shares.append(list(mine.batches(start=0, stop=mine.steps_per_epoch + 1).as_numpy_iterator()))
    for number, whole in enumerate(expected):
        for name, value in whole.items():
            np.testing.assert_array_equal(np.concatenate([share[number][name] for share in shares]), value)
    seen = np.concatenate([whole["energy_gev"] for whole in expected[:-1]])
    assert len(set(seen)) == len(seen) == 40


def stored(shards):
    """Energies (shard, place in the shard) as the shards hold them, read from beginning to end."""
    files = [shard.file for shard in showers_of(shards).shards]
    return np.array(
        [[e for batch in read_batches(shards / file, (7, 6, 4)) for e in batch["energy_gev"]] for file in files]
    )


def test_a_batch_is_a_uniform_sample_of_all_shards_and_records(shards):
    """The first batches of 500 epochs, which are independent, against sampling without replacement."""
    showers, epochs = showers_of(shards, mirror=False), 500
    by_shard = stored(shards)
    assert by_shard.shape == (8, 5)
    number = {energy: index for index, energy in enumerate(by_shard.ravel())}
    steps = energies(showers, 0, epochs * showers.steps_per_epoch)
    batches = np.array([[number[e] for e in batch] for batch in steps[:: showers.steps_per_epoch]])

    # Showers of a shard in a batch: hypergeometric.
    seen = np.bincount((batches // 5 == 3).sum(axis=1), minlength=6)
    expected = epochs * hypergeom(40, 5, 8).pmf(np.arange(6))
    assert chisquare([*seen[:3], seen[3:].sum()], [*expected[:3], expected[3:].sum()]).pvalue > 0.001
    # Each shower at each place of the batch: 1 of 40.
    places = np.zeros((40, 8))
    for place, column in enumerate(batches.T):
        places[:, place] = np.bincount(column, minlength=40)
    statistic = ((places - epochs / 40) ** 2 / (epochs / 40)).sum()
    assert 0.001 < chi2(39 * 8).cdf(statistic) < 0.999
    # Neighbours in a shard, and the same records of two shards, are no more often in one batch than any other pair.
    together = binom(epochs, 8 / 40 * 7 / 39)
    for one, other in ((0, 1), (17, 18), (4, 5), (0, 35)):
        pairs = int(((batches == one).any(axis=1) & (batches == other).any(axis=1)).sum())
        assert together.ppf(0.0005) <= pairs <= together.ppf(0.9995), (one, other)


@pytest.mark.parametrize("cached_bytes", [0, 2**30])
def test_the_order_of_an_epoch_does_not_depend_on_memory(shards, monkeypatch, cached_bytes):
    """Showers that are read again in each epoch and showers that are kept come in the order of `epoch_order`."""
    monkeypatch.setattr(showers_input, "CACHED_BYTES", cached_bytes)
    found = np.concatenate(energies(showers_of(shards), 0, 10))
    flat = stored(shards).ravel()
    expected = [flat[number] for epoch in (0, 1) for number in epoch_order(3, epoch, 40)]
    np.testing.assert_array_equal(found, np.array(expected, np.float32))


@pytest.mark.parametrize("slices", [1, 2])
def test_a_resumed_pipeline_gives_the_same_batches_and_replicas_consecutive_slices(shards, slices):
    showers = showers_of(shards, mirror=True)
    whole = list(showers.batches(start=0, stop=12).as_numpy_iterator())
    rest = list(showers.batches(start=7, stop=12, slices=slices).as_numpy_iterator())
    assert len(whole) == 12 and len(rest) == 5 * slices
    for number, batch in enumerate(whole[7:]):
        for name, value in batch.items():
            parts = [part[name] for part in rest[slices * number : slices * (number + 1)]]
            np.testing.assert_array_equal(np.concatenate(parts), value)


def test_an_epoch_has_every_shower_once_in_an_order_of_its_own():
    orders = [list(epoch_order(seed, epoch, 40)) for seed, epoch in ((3, 0), (3, 1), (4, 0), (3, 0))]
    assert all(sorted(order) == list(range(40)) for order in orders)
    assert len({*map(tuple, orders)}) == 3 and orders[3] == orders[0]


def as_tensorflow_reads(path):
    """The serialised showers of a shard, by TensorFlow alone."""
    return tf.data.TFRecordDataset([str(path)], compression_type="GZIP").as_numpy_iterator()


def unequal_shards(shards, folder, counts):
    """A folder whose training shards have the first ``counts`` of their showers."""
    manifest = read_manifest(shards)
    kept = []
    for shard, count in zip(manifest.shards_of("train"), counts):
        records = list(as_tensorflow_reads(shards / shard.file))[:count]
        (folder / shard.file).write_bytes(b"".join(map(member, records)))
        kept.append(shard.model_copy(update={"showers": count}))
    return manifest.model_copy(update={"shards": tuple(kept), "splits": {"train": sum(counts), "validation": 0}})


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("counts", [(5, 5, 4, 4, 4, 4, 4, 4), (5, 1, 1, 1, 5, 5, 5, 5)])
def test_unequal_shards_neither_hang_nor_drop_silently(shards, tmp_path, counts, workers):
    """All workers make equally many steps; what an epoch leaves out is less than a batch, and counted."""
    manifest = unequal_shards(shards, tmp_path, counts)
    seen = Counter()
    for index in range(workers):
        mine = TrainingShowers(tmp_path, manifest, 4, 3, False, workers, index)
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


def test_a_cylinder_is_turned_and_mirrored_as_the_positions_of_its_cells():
    """Against angles: cell energies are moved to the cells at azimuth a + 2 pi k / n, of -a where mirrored."""
    azimuth = (np.arange(8) + 0.5) * np.pi / 4 - np.pi
    values = np.exp(1j * azimuth)
    steps, flip = np.array([0, 3, 5, 7], np.int32), np.array([False, False, True, True])
    cells = np.tile(values.real[None, :, None, None], (4, 1, 2, 3)).astype(np.float32)
    imaginary = np.tile(values.imag[None, :, None, None], (4, 1, 2, 3)).astype(np.float32)
    real, imaginary = (turned({"cells": c}, tf.constant(steps), tf.constant(flip))["cells"] for c in (cells, imaginary))
    came_from = np.asarray(real) + 1j * np.asarray(imaginary)
    for k, (step, mirror) in enumerate(zip(steps, flip)):
        source = np.conj(came_from[k]) if mirror else came_from[k]
        expected = source * np.exp(1j * np.pi / 4 * step)
        np.testing.assert_allclose(expected, np.broadcast_to(values[:, None, None], (8, 2, 3)), atol=1e-6)


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


def copied(shards, folder):
    for path in shards.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder / showers_of(folder).shards[-1].file


@pytest.mark.parametrize("fault", ["cut", "overwritten"])
def test_a_shard_that_breaks_names_itself(shards, tmp_path, fault):
    """Broken before the training: at once. While it runs: the batch fails, then the shard is found."""
    path = copied(shards, tmp_path)
    content = path.read_bytes()
    half = content[: len(content) // 2]
    broken = half if fault == "cut" else half + b"torn" * 30 + content[len(half) + 120 :]
    showers = showers_of(tmp_path)
    batches = iter(showers.batches(start=0, stop=5))
    path.write_bytes(broken)
    with pytest.raises(tf.errors.OpError) as error:
        list(batches)
    assert is_of_input(error.value)
    assert path.name in str(showers.broken_shard())
    with pytest.raises(ShowerFileError, match=path.name) if fault == "cut" else nullcontext():
        showers_of(tmp_path).batches(start=0, stop=5)


def test_shards_that_are_compressed_as_a_whole_are_refused(shards, tmp_path):
    """Compressed as a whole, as TensorFlow does: no record can be read without those before it."""
    path = copied(shards, tmp_path)
    records = list(as_tensorflow_reads(path))
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type="GZIP")) as writer:
        for record in records:
            writer.write(record)
    with pytest.raises(ShowerFileError, match=r"is damaged at byte 0") as error:
        showers_of(tmp_path).batches(start=0, stop=5)
    assert "caloscale preprocess" in error.value.remedy


def test_fewer_showers_than_a_batch(shards):
    with pytest.raises(ShowerFileError, match=r"splits.train.*fewer training showers than one batch of 41"):
        showers_of(shards, batch=41)


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("data.geometry.cells=[7, 8, 4]", "geometry"),
        ("data.preprocessing.power=0.8", "preprocessing"),
        ("data.geometry.cellMm=6", "geometry"),
        ("data.energyGev=[100, 200]", "energyGev"),
        ("data.angleDeg=[80, 100]", "angleDeg"),
    ],
)
def test_shards_of_another_configuration(shards, override, field):
    with pytest.raises(ShowerFileError, match=f"{field}: the shards were made for another run configuration"):
        check_manifest(shards, read_manifest(shards), small_run(override).data)


def test_shards_of_another_beam_line(shards):
    """An older manifest does not state it."""
    manifest, pairs = read_manifest(shards), small_run().data.model_copy(update={"pair_distance_mm": 5.0})
    with pytest.raises(ShowerFileError, match="pairDistanceMm: the shards were made for another run configuration"):
        check_manifest(shards, manifest, pairs)
    check_manifest(shards, manifest.model_copy(update={"front": None}), pairs)


@pytest.mark.parametrize(("across_x", "across_y"), [(True, False), (False, True), (True, True)])
def test_mirrored_copies_have_the_mirrored_direction_and_entry(across_x, across_y):
    """The direction as a vector, with the signs of its components changed."""
    random = np.random.default_rng(1)
    batch = {
        "cells": random.random((6, 3, 4, 2), np.float32),
        "angle_rad": random.uniform(1.0, 2.1, 6).astype(np.float32),
        "azimuth_rad": random.uniform(-3, 3, 6).astype(np.float32),
        "entry_x_mm": random.uniform(-5, 5, 6).astype(np.float32),
        "entry_y_mm": random.uniform(-5, 5, 6).astype(np.float32),
        "measured_angle_rad": np.ones(6, np.float32),
        "pdg": np.full(6, 22, np.float32),
    }
    found = mirrored(batch, tf.fill([6], across_x), tf.fill([6], across_y))
    found = {name: np.asarray(value) for name, value in found.items()}
    signs = np.array([-1 if across_x else 1, -1 if across_y else 1])
    before, after = direction_of(batch), direction_of(found)
    np.testing.assert_allclose(after, before * [*signs, 1], atol=1e-6)
    for axis, name in enumerate(("entry_x_mm", "entry_y_mm")):
        np.testing.assert_array_equal(found[name], batch[name] * signs[axis])
    np.testing.assert_array_equal(found["cells"], batch["cells"][:, :: signs[0], :: signs[1]])
    np.testing.assert_array_equal(found["pdg"], batch["pdg"])
