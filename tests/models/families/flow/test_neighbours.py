"""The correlation of neighbouring cells: what the filter makes, and how it is measured."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from caloscale.models.families.flow.neighbours import COEFFICIENTS, correlate, correlations

SHAPE = (5, 4, 6)
"""Cells along x and y, layers."""
BESIDE, BEHIND = 0.1, (0.12, 0.07, 0.03)


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
    made = correlate(one, logits_of(logit, size), tf.constant([BESIDE, *BEHIND]), cylinder=cylinder).numpy()
    for number, (x, y, z) in enumerate(itertools.product(*map(range, SHAPE))):
        within = np.zeros((cells_x, cells_y))
        for i, j in itertools.product(range(cells_x), range(cells_y)):
            within[i, j] = {0: 1.0, 1: BESIDE}.get(steps(i - x, cylinder) + abs(j - y), 0.0)
        along = [1.0 if k == z else gate**2 * (0.0, *BEHIND, 0.0, 0.0)[abs(k - z)] for k in range(depth)]
        truth = np.array(along)[:, None, None] * within / np.sqrt(1 + 4 * BESIDE**2)
        np.testing.assert_allclose(made[number], truth, atol=1e-6)


def steps(difference, cylinder):
    """Cells between two along the first axis."""
    size = abs(difference)
    return min(size, SHAPE[0] - size) if cylinder else size


def test_without_coefficients_the_scores_stay_as_they_are():
    normal = np.random.default_rng(1).standard_normal((3, *SHAPE)).astype(np.float32)
    made = correlate(tf.constant(normal), logits_of(0.0, 3), tf.zeros(COEFFICIENTS))
    np.testing.assert_array_equal(made, normal.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("cylinder", [False, True])
def test_correlations_are_sums_over_all_pairs(cylinder):
    """Pair by pair, with the probability of a hit p: the weight is its root beside, its square behind."""
    rng = np.random.default_rng(2)
    cells_x, cells_y, depth = SHAPE
    scores, logits = rng.normal(size=(2, 2, depth, cells_x, cells_y)).astype(np.float32)
    probability = 1 / (1 + np.exp(-logits))
    truth = np.zeros((2, COEFFICIENTS))
    cells = list(itertools.product(range(2), range(depth), range(cells_x), range(cells_y)))
    for first, second in itertools.combinations(cells, 2):
        shower, layer, x, y = np.abs(np.subtract(first, second))
        x = steps(x, cylinder)
        if shower or (layer and (x or y)) or layer > 3 or x + y > 1:
            continue
        power = 2.0 if layer else 0.5
        weight = (probability[first] * probability[second]) ** power
        truth[:, layer] += weight * scores[first] * scores[second], weight
    np.testing.assert_allclose(
        correlations(tf.constant(scores), tf.constant(logits), cylinder=cylinder), truth, rtol=1e-4
    )
