"""The correlation of neighbouring cells: what the filter makes, and how it is measured."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from scipy.integrate import cumulative_trapezoid
from scipy.stats import norm

from caloscale.models.families.flow.neighbours import correlate, correlations

SHAPE = (5, 4, 6)
"""Cells along x and y, layers."""
BEHIND = (0.12, 0.07, 0.03), (0.2, 0.1, 0.05), (0.06, 0.02, 0.01)
"""Where showers nearly always have a hit, in the core, and elsewhere."""
KNOTS = np.array([-5.5, -4.25, -3.0, -1.75, -0.5, 0.75])
OF_GRID = np.array([[0.5, 0.4, 0.3, 0.2, 0.15, 0.1], [0.3, 0.2, 0.1, 0.05, -0.05, 0.02]])
"""Of the cells beside a cell, and of its diagonal neighbours, at these logits of a hit."""
OF_CYLINDER = (0.15, 0.1, 0.07, 0.05, 0.08, 0.06, 0.04)
"""Of four radii, and of the cell outwards of three."""
LOG_SPREADS = np.linspace(-0.3, 0.2, SHAPE[2]).astype(np.float32)


def steps_between(first, second, cylinder):
    """Steps along x and y between two cells of a layer."""
    x, y = np.abs(np.subtract(first, second))
    return (min(x, SHAPE[0] - x) if cylinder else x), y


def number_beside(first, second):
    """Which coefficient of `OF_CYLINDER` two cells in a layer have; None if they are not beside each other."""
    if sum(steps_between(first, second, True)) != 1:
        return None
    y, j = first[1], second[1]
    return y if y == j else SHAPE[1] + min(y, j)


def share_of_neighbour(first, second, logit, cylinder):
    """What a cell has of the score of another one in its layer, before its variance is made 1."""
    if first == second:
        return 1.0
    if cylinder:
        number = number_beside(first, second)
        return 0.0 if number is None else OF_CYLINDER[number]
    of_steps = dict(zip(((0, 1), (1, 1)), OF_GRID))
    values = of_steps.get(tuple(sorted(steps_between(first, second, False))))
    return 0.0 if values is None else np.interp(logit, KNOTS, values) / 2


def logits_of(value, count):
    cells_x, cells_y, depth = SHAPE
    return tf.fill((count, depth, cells_x, cells_y), float(value))


@pytest.mark.parametrize(("logit", "hit"), [(30.0, 1.0), (-2.0, 1 / (1 + np.exp(2))), (-30.0, 0.0)])
@pytest.mark.parametrize(("core", "cylinder"), [(0.0, False), (0.3, True), (1.0, False)])
def test_the_filter_adds_the_cells_beside_and_behind(logit, hit, core, cylinder):
    """Each cell alone, by the definition: its neighbours in the layer, then those of the other layers. Azimuths repeat
    after a turn."""
    cells_x, cells_y, depth = SHAPE
    size = cells_x * cells_y * depth
    one = tf.reshape(tf.eye(size), (size, *SHAPE))
    logits = logits_of(logit, size)
    beside = OF_CYLINDER if cylinder else OF_GRID.ravel()
    coefficients = tf.constant(np.concatenate([beside, *BEHIND]).astype(np.float32))
    spreads, everywhere = tf.constant(LOG_SPREADS), core * tf.ones_like(logits)
    made = correlate(one, logits, everywhere, coefficients, spreads, cylinder=cylinder).numpy()
    gates = hit**2 * (1 - core), hit**2 * core, (1 - hit) * (1 - core)
    behind = np.square(gates) @ np.array(BEHIND)
    spread = 1 + hit * core * np.expm1(LOG_SPREADS)
    places = list(itertools.product(range(cells_x), range(cells_y)))
    parts = np.array([[share_of_neighbour(first, second, logit, cylinder) for second in places] for first in places])
    of_grid = np.sqrt(1 + sum(np.interp(logit, KNOTS, values) ** 2 for values in OF_GRID))
    parts /= np.sqrt((parts**2).sum(axis=0)) if cylinder else of_grid
    for number, (place, z) in enumerate(itertools.product(range(len(places)), range(depth))):
        along = np.array([1.0 if k == z else (0.0, *behind, 0.0, 0.0)[abs(k - z)] for k in range(depth)])
        truth = (spread * along)[:, None, None] * parts[place].reshape(cells_x, cells_y)
        np.testing.assert_allclose(made[number], truth, atol=1e-6)


@pytest.mark.parametrize("cylinder", [False, True])
def test_correlations_are_sums_over_all_pairs(cylinder):
    """Pair by pair, with the expectation of a score and its variance by quadrature."""
    rng = np.random.default_rng(2)
    cells_x, cells_y, depth = SHAPE
    scores, logits = rng.normal(size=(2, 2, depth, cells_x, cells_y)).astype(np.float32)
    probability, core = 1 / (1 + np.exp(-logits)), rng.random(scores.shape).astype(np.float32)
    point, z = norm.isf(probability), np.linspace(-9, 9, 20_001)
    mean, square = (np.interp(point, z, cumulative_trapezoid(z**power * norm.pdf(z), z, initial=0)) for power in (1, 2))
    others = mean / norm.cdf(point)
    expected = np.where(scores > point, scores, others)
    variance = 1 - square + norm.cdf(point) * others**2
    knots = np.stack([np.interp(logits, KNOTS, one) for one in np.eye(len(KNOTS))])
    gates = np.stack([probability**2 * (1 - core), probability**2 * core, (1 - probability) * (1 - core)])
    beside = len(OF_CYLINDER) if cylinder else OF_GRID.size
    truth = np.zeros((2, beside + 9))
    cells = list(itertools.product(range(2), range(depth), range(cells_x), range(cells_y)))
    for first, second in itertools.combinations(cells, 2):
        shower, layer, x, y = np.abs(np.subtract(first, second))
        if shower or (layer and (x or y)) or layer > 3:
            continue
        product = np.array([expected[first] * expected[second], variance[first] * variance[second]])
        if layer:
            for at, gate in enumerate(gates):
                truth[:, beside + 3 * at + layer - 1] += gate[first] * gate[second] * product
        elif cylinder:
            if (number := number_beside(first[2:], second[2:])) is not None:
                truth[:, number] += product
        elif max(x, y) == 1:
            diagonal = x + y - 1
            for at, knot in enumerate(knots):
                truth[:, diagonal * len(KNOTS) + at] += knot[first] * knot[second] * product
    found = correlations(*(tf.constant(values) for values in (scores, logits, core)), cylinder=cylinder)
    np.testing.assert_allclose(found, truth, rtol=3e-3, atol=2e-3)


@pytest.mark.parametrize("logit", [-200.0, 200.0])
def test_correlations_are_finite_where_a_hit_is_certain_or_impossible(logit):
    scores, logits = tf.zeros((1, SHAPE[2], *SHAPE[:2])), logits_of(logit, 1)
    assert np.isfinite(correlations(scores, logits, tf.zeros_like(logits))).all()
