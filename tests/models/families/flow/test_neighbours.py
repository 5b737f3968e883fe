"""The correlation of neighbouring cells: what the filter makes, and how it is measured."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from caloscale.models.families.flow.neighbours import correlate, correlations

SHAPE = (5, 4, 6)
"""Cells along x and y, layers."""
BEHIND = (0.12, 0.07, 0.03)
BESIDE = {False: (0.1,), True: (0.15, 0.1, 0.07, 0.05, 0.08, 0.06, 0.04)}
"""Of a grid, and of a cylinder of four radii."""


def number_beside(first, second, cylinder):
    """Which coefficient of `BESIDE` two cells in a layer have; None if they are not beside each other."""
    (x, y), (i, j) = first, second
    steps = abs(x - i)
    steps = min(steps, SHAPE[0] - steps) if cylinder else steps
    if steps + abs(y - j) != 1:
        return None
    if not cylinder:
        return 0
    return y if y == j else SHAPE[1] + min(y, j)


def logits_of(value, count):
    cells_x, cells_y, depth = SHAPE
    return tf.fill((count, depth, cells_x, cells_y), float(value))


@pytest.mark.parametrize("cylinder", [False, True])
@pytest.mark.parametrize(("logit", "gate"), [(30.0, 1.0), (0.0, 0.25), (-30.0, 0.0)])
def test_the_filter_adds_the_cells_beside_and_behind(logit, gate, cylinder):
    """Each cell alone, by the definition: its neighbours in the layer, then those of the other layers. Azimuths repeat
    after a turn."""
    cells_x, cells_y, depth = SHAPE
    size = cells_x * cells_y * depth
    one = tf.reshape(tf.eye(size), (size, *SHAPE))
    coefficients = tf.constant([*BESIDE[cylinder], *BEHIND])
    made = correlate(one, logits_of(logit, size), coefficients, cylinder=cylinder).numpy()
    places = list(itertools.product(range(cells_x), range(cells_y)))
    parts = np.eye(len(places))
    for (m, first), (n, second) in itertools.product(enumerate(places), repeat=2):
        if (at := number_beside(first, second, cylinder)) is not None:
            parts[m, n] = BESIDE[cylinder][at]
    parts /= np.sqrt((parts**2).sum(axis=0) if cylinder else 1 + 4 * BESIDE[False][0] ** 2)
    for number, (place, z) in enumerate(itertools.product(range(len(places)), range(depth))):
        along = [1.0 if k == z else gate**2 * (0.0, *BEHIND, 0.0, 0.0)[abs(k - z)] for k in range(depth)]
        truth = np.array(along)[:, None, None] * parts[place].reshape(cells_x, cells_y)
        np.testing.assert_allclose(made[number], truth, atol=1e-6)


def test_without_coefficients_the_scores_stay_as_they_are():
    normal = np.random.default_rng(1).standard_normal((3, *SHAPE)).astype(np.float32)
    made = correlate(tf.constant(normal), logits_of(0.0, 3), tf.zeros(4))
    np.testing.assert_array_equal(made, normal.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("cylinder", [False, True])
def test_correlations_are_sums_over_all_pairs(cylinder):
    """Pair by pair, with the probability of a hit p: the weight is its root beside, its square behind."""
    rng = np.random.default_rng(2)
    cells_x, cells_y, depth = SHAPE
    scores, logits = rng.normal(size=(2, 2, depth, cells_x, cells_y)).astype(np.float32)
    probability = 1 / (1 + np.exp(-logits))
    beside = len(BESIDE[cylinder])
    truth = np.zeros((2, beside + 3))
    cells = list(itertools.product(range(2), range(depth), range(cells_x), range(cells_y)))
    for first, second in itertools.combinations(cells, 2):
        shower, layer, x, y = np.abs(np.subtract(first, second))
        if shower or (layer and (x or y)) or layer > 3:
            continue
        number = beside + layer - 1 if layer else number_beside(first[2:], second[2:], cylinder)
        if number is None:
            continue
        power = 2.0 if layer else 0.5
        weight = (probability[first] * probability[second]) ** power
        truth[:, number] += weight * scores[first] * scores[second], weight
    np.testing.assert_allclose(
        correlations(tf.constant(scores), tf.constant(logits), cylinder=cylinder), truth, rtol=1e-4
    )
