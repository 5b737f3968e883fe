"""Sums of layers are exact, moments nearly; the number of hits stays; for all cells and for those that are hit."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from caloscale.models.families.flow.cells import AllCells, SomeCells
from caloscale.models.families.flow.detector import Detector
from caloscale.models.families.flow.representation import moments
from caloscale.models.families.flow.targets import hold_moments, hold_sums
from caloscale.spec import load_run


@pytest.fixture(scope="module")
def detector():
    return Detector.of(load_run(preset="flow").data)


@pytest.fixture(scope="module")
def showers(detector):
    """40 showers of many cells with a falling mean about their axis: energies above the faintest cell, and hits."""
    rng = np.random.default_rng(0)
    x, y, z = np.indices(detector.shape) - np.array([8, 8, 10])[:, None, None, None]
    mean = 300 * np.exp(-np.hypot(x - rng.normal(0, 0.2, (40, 1, 1, 1)), y) - (z / 6) ** 2)
    hits = (rng.random(mean.shape) < mean / (1 + mean)).astype(np.float32)
    cells = hits * rng.exponential(mean).astype(np.float32)
    return tuple(tf.constant(value.transpose(0, 3, 1, 2)) for value in (cells, hits))


EVERY = [AllCells, lambda cells: SomeCells(cells > 0)]


@pytest.mark.parametrize("choose", EVERY)
def test_layers_get_their_sums_and_the_largest_cells_change_most(choose):
    cells = tf.constant([[[[1.0, 10, 100]]], [[[1.0, 10, 100]]], [[[0.0, 0, 0]]]])
    wanted = tf.constant([[150.0], [70.0], [5.0]])
    chosen = choose(cells)
    found = tf.transpose(chosen.whole(hold_sums(chosen.of(cells), wanted, chosen)), (0, 3, 1, 2)).numpy()
    np.testing.assert_allclose(found.sum(axis=(1, 2, 3)), [150, 70, 0], rtol=1e-5)
    factors = found[:2] / cells[:2]
    assert (np.diff(factors[0]) > 0).all() and (np.diff(factors[1]) < 0).all()
    assert abs(factors[0, 0, 0, 0] - 1) < 0.1 < abs(factors[0, 0, 0, 2] - 1)


@pytest.mark.parametrize("choose", EVERY)
def test_moments_come_near_to_those_that_are_wanted(detector, showers, choose):
    """The errors of barycentre, slope and width along x and y fall to less than a third; layers keep their sums."""
    cells, hits = showers
    axis = tf.zeros((40, 2, detector.shape[2]))

    def measured(above):
        energy = tf.transpose(hits + above, (0, 2, 3, 1)) * detector.floor_gev
        return moments(energy, axis, detector).numpy()

    wanted = measured(cells)
    columns = [0, 1, 2, 4, 5, 6]
    wanted[:, columns] += np.random.default_rng(1).normal(0, 0.04, (40, 6))
    sums = tf.reduce_sum(cells, axis=(2, 3))
    chosen = choose(cells)
    of_chosen = hold_moments(chosen.of(cells), chosen.of(hits), sums, tf.constant(wanted), axis, chosen, detector)
    found = tf.transpose(chosen.whole(of_chosen), (0, 3, 1, 2))
    before, after = (np.abs(measured(one) - wanted)[:, columns].mean(axis=0) for one in (cells, found))
    assert (after < before / 3).all(), (before, after)
    np.testing.assert_allclose(tf.reduce_sum(found, axis=(2, 3)), sums, rtol=1e-4, atol=1e-3)
    assert ((found.numpy() > 0) == (cells.numpy() > 0)).all()


def test_an_empty_shower_stays_empty(detector):
    none = tf.zeros((1, detector.shape[2], *detector.shape[:2]))
    sums = tf.zeros((1, detector.shape[2]))
    for choose in EVERY:
        cells = choose(none)
        above, axis = hold_sums(cells.of(none), sums, cells), tf.zeros((1, 2, 25))
        found = hold_moments(above, cells.of(none), sums, tf.zeros((1, 12)), axis, cells, detector)
        assert cells.whole(found).shape == (1, *detector.shape) and not found.numpy().any()
