"""Sums of layers are exact, moments and numbers of cells nearly; for all cells and for those that are hit."""

import numpy as np
import pytest
import tensorflow as tf

from caloscale.models.families.flow.cells import AllCells, SomeCells
from caloscale.models.families.flow.detector import Detector
from caloscale.models.families.flow.representation import moments
from caloscale.models.families.flow.scores import odds
from caloscale.models.families.flow.targets import hold_cells, hold_hits, hold_moments, hold_sums
from caloscale.spec import load_run


@pytest.fixture(scope="module", params=["flow", "flow-par04"])
def detector(request):
    return Detector.of(load_run(preset=request.param).data)


@pytest.fixture(scope="module")
def showers(detector):
    """40 showers of many cells with a falling mean about their axis: energies above the faintest cell, and hits."""
    rng = np.random.default_rng(0)
    x, y, z = np.indices(detector.shape) - np.array([8, 8, 10])[:, None, None, None]
    if detector.cylinder:
        azimuth, radius = (x + 8.5) * 2 * np.pi / detector.shape[0] - np.pi, y + 8.5
        x, y = radius * np.cos(azimuth), radius * np.sin(azimuth)
    mean = 300 * np.exp(-np.hypot(x - rng.normal(0, 0.2, (40, 1, 1, 1)), y) - (z / 6) ** 2)
    hits = (rng.random(mean.shape) < mean / (1 + mean)).astype(np.float32)
    cells = hits * rng.exponential(mean).astype(np.float32)
    return tuple(tf.constant(value.transpose(0, 3, 1, 2)) for value in (cells, hits))


def some_cells(cells, **options):
    return SomeCells(cells > 0, **options)


EVERY = [AllCells, some_cells]


@pytest.mark.parametrize("choose", EVERY)
def test_layers_get_their_sums_by_one_factor(choose):
    """As far as a layer has any energy."""
    cells = tf.constant([[[[1.0, 10, 30, 31]]], [[[1.0, 10, 30, 31]]], [[[0.0, 0, 0, 0]]]])
    chosen = choose(cells)
    above = hold_sums(chosen.of(cells), tf.constant([[80.0], [65.0], [5.0]]), chosen)
    found = tf.transpose(chosen.whole(above), (0, 3, 1, 2)).numpy()
    np.testing.assert_allclose(found, cells.numpy() * np.array([80, 65, 0])[:, None, None, None] / 72, rtol=1e-5)


@pytest.mark.parametrize("choose", EVERY)
def test_moments_come_near_to_those_that_are_wanted(detector, showers, choose):
    """The errors of barycentre, width and skewness along x and y and of the mean radius fall to less than a third,
    those of the slopes to two; layers keep their sums."""
    cells, hits = showers
    axis = tf.zeros((40, 2, detector.shape[2]))

    def measured(above):
        energy = tf.transpose(hits + above, (0, 2, 3, 1)) * detector.floor_gev
        return moments(energy, axis, detector).numpy()

    wanted = measured(cells)
    columns = [*range(9)]
    changes = np.random.default_rng(1).normal(0, [0.04, 0.04, 0.04, 0.3] * 2 + [0.01], (40, 9))
    changes[:, 8] += changes[:, [2, 6]].mean(axis=1)  # the widths nearly decide on the radius
    wanted[:, columns] += changes
    sums = tf.reduce_sum(cells, axis=(2, 3))
    chosen = choose(cells, cylinder=detector.cylinder)
    of_chosen = hold_moments(chosen.of(cells), chosen.of(hits), sums, tf.constant(wanted), axis, chosen, detector)
    found = tf.transpose(chosen.whole(of_chosen), (0, 3, 1, 2))
    before, after = (np.abs(measured(one) - wanted)[:, columns].mean(axis=0) for one in (cells, found))
    most = np.array([1, 2, 1, 1, 1, 2, 1, 1, 1]) / 3
    assert (after < most * before).all(), (before, after)
    np.testing.assert_allclose(tf.reduce_sum(found, axis=(2, 3)), sums, rtol=1e-4, atol=1e-3)
    assert ((found.numpy() > 0) == (cells.numpy() > 0)).all()


def test_as_many_cells_are_hit_as_stage_1_says_and_depths_stay_exponential():
    """20 showers with a quarter of the cells hit, and one cell of each layer always; a layer without energy does not
    count."""
    rng = np.random.default_rng(2)
    logits = np.full((20, 5, 20, 20), -np.log(3), np.float32)
    logits[:, :, 10, 10] = 7
    below, point = odds(tf.constant(rng.logistic(size=logits.shape), tf.float32), tf.constant(logits))
    wanted = 400 * rng.uniform(0.7, 1.3, 20)
    moments = np.zeros((20, 12), np.float32)
    moments[:, 10] = np.log1p(wanted)
    full = tf.constant([[1.0, 1, 1, 1, 0]] * 20)
    found = np.log(hold_cells(below, point, full, tf.constant(moments), tf.zeros(5)).numpy()[:, :4])
    plain = np.log((1 + below) / (1 + point))[:, :4]
    before, after = ((depths > 0).sum(axis=(1, 2, 3)) for depths in (plain, found))
    assert np.abs(before - wanted).mean() > 50 and np.abs(after - wanted).mean() < 6
    np.testing.assert_allclose(found[found > 0].mean(), 1, atol=0.04)
    np.testing.assert_allclose(found[:, :, 10, 10], plain[:, :, 10, 10], atol=1e-3)


@pytest.mark.parametrize("factor", [0.6, 1.5])
def test_numbers_of_hits_of_a_layer_differ_more_or_less_from_their_expectation(factor):
    """2000 showers of six layers with 30 hits expected in each, in one of which the spread is to be another: that comes
    near, as the number of the shower is held."""
    rng = np.random.default_rng(4)
    logits = np.full((2000, 6, 10, 10), np.log(0.3 / 0.7), np.float32)
    below, point = odds(tf.constant(rng.logistic(size=logits.shape), tf.float32), tf.constant(logits))
    moments = np.zeros((2000, 12), np.float32)
    moments[:, 10] = np.log1p(180)
    log_spreads = np.zeros((2, 6), np.float32)
    log_spreads[1, 2] = np.log(factor)
    full = tf.ones((2000, 6))
    plain, found = (
        (hold_cells(below, point, full, tf.constant(moments), tf.constant(given)).numpy() > 1).sum(axis=(2, 3))
        for given in log_spreads
    )
    np.testing.assert_allclose(found.mean(axis=0), 30, atol=0.4)
    change = found.std(axis=0) / plain.std(axis=0)
    assert change[2] == pytest.approx(factor, rel=0.3)
    assert np.log(change[2]) / np.log(factor) > 0.4
    np.testing.assert_allclose(np.delete(change, 2), 1, atol=0.1)


@pytest.mark.parametrize("choose", EVERY)
def test_as_many_cells_are_hits_as_stage_1_says_and_cells_far_from_the_threshold_hardly_change(
    detector, showers, choose
):
    cells, hits = showers
    limit = detector.hit_gev / detector.floor_gev
    energy = (cells + hits).numpy()
    before = (energy > limit).sum(axis=(1, 2, 3))
    wanted = before * np.random.default_rng(3).uniform(0.85, 1.15, 40)
    moments = np.zeros((40, 12), np.float32)
    moments[:, 11] = np.log1p(wanted)
    chosen = choose(cells)
    above = hold_hits(chosen.of(cells), chosen.of(hits), tf.constant(moments), chosen, detector)
    found = tf.transpose(chosen.whole(above), (0, 3, 1, 2)).numpy()
    after = (found + hits.numpy() > limit).sum(axis=(1, 2, 3))
    assert np.abs(after - wanted).mean() < np.abs(before - wanted).mean() / 4
    far = energy > 30 * limit
    np.testing.assert_allclose(found[far], cells.numpy()[far], rtol=0.07)
    assert ((found > 0) == (cells.numpy() > 0)).all()


def test_an_empty_shower_stays_empty(detector):
    none = tf.zeros((1, detector.shape[2], *detector.shape[:2]))
    sums = tf.zeros((1, detector.shape[2]))
    for choose in EVERY:
        cells = choose(none, cylinder=detector.cylinder)
        above, axis = hold_sums(cells.of(none), sums, cells), tf.zeros((1, 2, detector.shape[2]))
        found = hold_moments(above, cells.of(none), sums, tf.zeros((1, 12)), axis, cells, detector)
        found = hold_hits(found, cells.of(none), tf.zeros((1, 12)), cells, detector)
        assert cells.whole(found).shape == (1, *detector.shape) and not found.numpy().any()


def test_a_layer_with_nothing_above_its_faintest_cell_has_a_finite_gradient():
    """As of the layers behind a shower, through all corrections: inverse problems follow gradients."""
    above, sums = tf.zeros((1, 1, 2, 2)), tf.constant([[3.0]])
    cells = AllCells(above)
    with tf.GradientTape() as tape:
        tape.watch(sums)
        for _ in range(7):
            above = hold_sums(above, sums, cells)
        total = tf.reduce_sum(above)
    assert np.isfinite(tape.gradient(total, sums).numpy()).all()
