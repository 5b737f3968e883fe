"""The correlation of neighbouring cells: what the filter makes, and how it is measured."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from caloscale.models.families.flow.neighbours import correlate, correlations

SHAPE = (5, 4, 6)
"""Cells along x and y, layers."""
BEHIND, OF_CORE = (0.12, 0.07, 0.03), (0.2, 0.1, 0.05)
BESIDE = {False: (0.1,), True: (0.15, 0.1, 0.07, 0.05, 0.08, 0.06, 0.04)}
"""Of a grid, and of a cylinder of four radii."""
LOG_SPREADS = np.linspace(-0.3, 0.2, SHAPE[2]).astype(np.float32)


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


@pytest.mark.parametrize(("logit", "hit"), [(30.0, 1.0), (0.0, 0.5), (-30.0, 0.0)])
@pytest.mark.parametrize(("core", "cylinder"), [(0.0, False), (0.3, True), (1.0, False)])
def test_the_filter_adds_the_cells_beside_and_behind(logit, hit, core, cylinder):
    """Each cell alone, by the definition: its neighbours in the layer, then those of the other layers. Azimuths repeat
    after a turn."""
    cells_x, cells_y, depth = SHAPE
    size = cells_x * cells_y * depth
    one = tf.reshape(tf.eye(size), (size, *SHAPE))
    logits = logits_of(logit, size)
    coefficients = tf.constant([*BESIDE[cylinder], *BEHIND, *OF_CORE])
    spreads, everywhere = tf.constant(LOG_SPREADS), core * tf.ones_like(logits)
    made = correlate(one, logits, everywhere, coefficients, spreads, cylinder=cylinder).numpy()
    behind = hit**4 * ((1 - core) ** 2 * np.array(BEHIND) + core**2 * np.array(OF_CORE))
    spread = 1 + hit * core * np.expm1(LOG_SPREADS)
    places = list(itertools.product(range(cells_x), range(cells_y)))
    parts = np.eye(len(places))
    for (m, first), (n, second) in itertools.product(enumerate(places), repeat=2):
        if (at := number_beside(first, second, cylinder)) is not None:
            parts[m, n] = BESIDE[cylinder][at]
    parts /= np.sqrt((parts**2).sum(axis=0) if cylinder else 1 + 4 * BESIDE[False][0] ** 2)
    for number, (place, z) in enumerate(itertools.product(range(len(places)), range(depth))):
        along = np.array([1.0 if k == z else (0.0, *behind, 0.0, 0.0)[abs(k - z)] for k in range(depth)])
        truth = (spread * along)[:, None, None] * parts[place].reshape(cells_x, cells_y)
        np.testing.assert_allclose(made[number], truth, atol=1e-6)


def test_without_coefficients_the_scores_stay_as_they_are():
    normal = np.random.default_rng(1).standard_normal((3, *SHAPE)).astype(np.float32)
    logits = logits_of(0.0, 3)
    made = correlate(tf.constant(normal), logits, tf.ones_like(logits), tf.zeros(7), tf.zeros(SHAPE[2]))
    np.testing.assert_array_equal(made, normal.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("cylinder", [False, True])
def test_correlations_are_sums_over_all_pairs(cylinder):
    """Pair by pair, with the probability of a hit: the weight is its root beside, its square behind, divided between
    the core and the other cells."""
    rng = np.random.default_rng(2)
    cells_x, cells_y, depth = SHAPE
    scores, logits = rng.normal(size=(2, 2, depth, cells_x, cells_y)).astype(np.float32)
    probability, core = 1 / (1 + np.exp(-logits)), rng.random(scores.shape).astype(np.float32)
    beside = len(BESIDE[cylinder])
    truth = np.zeros((2, beside + 6))
    cells = list(itertools.product(range(2), range(depth), range(cells_x), range(cells_y)))
    for first, second in itertools.combinations(cells, 2):
        shower, layer, x, y = np.abs(np.subtract(first, second))
        if shower or (layer and (x or y)) or layer > 3:
            continue
        number = beside + layer - 1 if layer else number_beside(first[2:], second[2:], cylinder)
        if number is None:
            continue
        product = scores[first] * scores[second]
        if not layer:
            weight = np.sqrt(probability[first] * probability[second])
            truth[:, number] += weight * product, weight
        for column, part in ((beside + layer - 1, 1 - core), (beside + layer + 2, core)) if layer else ():
            weight = (probability[first] * probability[second]) ** 2 * part[first] * part[second]
            truth[:, column] += weight * product, weight
    found = correlations(*(tf.constant(values) for values in (scores, logits, core)), cylinder=cylinder)
    np.testing.assert_allclose(found, truth, rtol=1e-4)
