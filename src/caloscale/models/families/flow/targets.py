"""Cells that are drawn one by one get the sums, numbers and moments that stage 1 has drawn for layers and shower.

``above`` is what all cells or some have above the faintest one, in its units (`cells`). Only `hold_cells` changes how
many cells have energy.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from caloscale.models.families.flow.cells import AllCells
from caloscale.models.families.flow.detector import Detector
from caloscale.models.families.flow.representation import ROUNDED, depth_positions, places

REPETITIONS = 3
"""Corrections of the moments, each by Newton's method: with two the spread of the skewness is a fifth too small."""
_COUNTS = 3
"""Corrections of a level that a number of cells is to exceed."""
_RAMP = 4.0
"""Number of cells, of those beyond a level, that count in part as they are near to it: a jump of the number would make
rounding visible."""
_MOST = 2.0
"""Largest change of a level."""
_STEEPNESS = 1.2
"""Relative change of the energy that a number of cells exceeds by that of the number, less than in most showers: with
larger ones the corrections oscillate."""
_FARTHEST = 1.0
"""Largest logarithm of the factors of a correction."""
_STEP = 0.5
"""Largest change of the mean of a function along an axis, in its standard deviations: an untrained network wants what
no shower has."""
_RIDGE = 0.05
"""Added to the diagonal of the correlation of the functions along an axis."""
_LEAST = 0.5
"""Added to the variance of each of them, as a shower in one column of cells cannot be widened: the slope along the
depth, whose function varies least, is corrected by a part only."""
_TINY = 1e-6


def hold_cells(
    below: tf.Tensor, point: tf.Tensor, full: tf.Tensor, moments: tf.Tensor, log_spreads: tf.Tensor
) -> tf.Tensor:
    """exp q of all cells from their `scores.odds` (B, L, X, Y), with such points that as many cells of a shower are hit
    as ``moments`` (B, 12) say.

    full (B, L): 1 for a layer with energy. log_spreads (L,): the number of hits of a layer differs from its expectation
    by a factor of so much more than that of independent cells. The odds against a hit of the cells of a layer, then of
    all cells, get a common factor: a cell that is nearly always hit stays as it is, and depths of hits remain
    exponential.
    """
    target, full = tf.maximum(tf.exp(moments[:, -2]) - 1, 1.0)[:, None, None, None], full[..., None, None]
    reached, level = 1 + below, tf.ones_like(target)
    expected = tf.reduce_sum(1 / (1 + point), axis=(2, 3), keepdims=True)
    count = tf.reduce_sum(_beyond(reached / (1 + point), target), axis=(2, 3), keepdims=True)
    goal = tf.nn.relu(expected + tf.exp(log_spreads)[:, None, None] * (count - expected))
    point = point * tf.clip_by_value((count + 1) / (goal + 1), 1 / _MOST, _MOST)
    for _ in range(_COUNTS):
        count = _beyond(reached / (1 + point * level), target) * full
        count = tf.reduce_sum(count, axis=(1, 2, 3), keepdims=True)
        level = tf.clip_by_value(level * tf.maximum(count, 1.0) / target, 1 / _MOST, _MOST)
    return reached / (1 + point * level)


def _beyond(ratio: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """1 where ratio is above 1, 0 where it is not, and a part near to 1. target: cells that should be above."""
    return tf.clip_by_value((ratio - 1) * (target / _RAMP) + 0.5, 0.0, 1.0)


def hold_hits(above: tf.Tensor, share: tf.Tensor, moments: tf.Tensor, cells: AllCells, detector: Detector) -> tf.Tensor:
    """Cells of which as many are above ``detector.hit_gev`` as ``moments`` (B, 12) say. Energies near that
    limit are multiplied by a factor that moves the energy which this number of cells exceed to the limit; it falls to 1
    on either side."""
    target, limit = tf.maximum(tf.exp(moments[:, -1:]) - 1, 1.0), detector.hit_gev / detector.floor_gev
    energy, level = share + above, tf.ones_like(target)
    for _ in range(_COUNTS):
        over = _beyond(energy / (cells.of_showers(level) * limit), cells.of_showers(target))
        count = tf.reduce_sum(cells.sum_layers(over), axis=1, keepdims=True)
        level = tf.clip_by_value(level * (count / target) ** _STEEPNESS, 1 / _MOST, _MOST)
    level = cells.of_showers(tf.math.log(level))
    distance = tf.math.log(tf.maximum(energy, _TINY) / limit) - level
    return above * tf.exp(-level / (1 + distance * distance))


def hold_moments(
    above: tf.Tensor,
    hits: tf.Tensor,
    sums: tf.Tensor,
    moments: tf.Tensor,
    axis: tf.Tensor,
    cells: AllCells,
    detector: Detector,
) -> tf.Tensor:
    """Cells whose layers have these sums (B, L), of a shower with the barycentre, slope, rms, skewness and mean radius
    of ``moments`` (B, 12).

    hits: 1 for a cell with energy. axis (B, 2, L). Each cell is multiplied by functions of x and of y with the
    exponents a d + b d^2 + c d^3 + e d z, d the distance from the barycentre, z the layer, and of the radius.
    """
    # Distances of the `places` from the barycentre (B, L, X). Grappler loses a new axis beside an index of a stack.
    centres = [(axis[:, at] + moments[:, 4 * at : 4 * at + 1])[..., None] for at in (0, 1)]
    frames = [tf.constant(places(at, detector))[None, None] - centre for at, centre in enumerate(centres)]
    faintest = [cells.sum_along(hits, at) for at in (0, 1)]
    squares = [cells.of_lines(frame * frame, at) for at, frame in enumerate(frames)]
    radius = tf.sqrt(squares[0] + squares[1] + ROUNDED)
    for _ in range(REPETITIONS):
        factors = []
        for at in (0, 1):
            goals = moments[:, 4 * at + 1 : 4 * at + 4]
            factors.append(_tilt(cells.sum_along(above, at), faintest[at], frames[at], goals, detector))
        above = above * cells.of_lines(factors[0], 0) * cells.of_lines(factors[1], 1)
        above = _widen(hold_sums(above, sums, cells), hits, radius, moments, cells)
        above = hold_sums(above, sums, cells)
    return above


def hold_sums(above: tf.Tensor, sums: tf.Tensor, cells: AllCells) -> tf.Tensor:
    """Cells whose layers have these sums (B, L)."""
    total = cells.sum_layers(above)
    # Without a cell above the faintest one the gradients of several corrections would be infinite.
    return above * cells.of_layers(tf.where(total > 0, sums / (total + _TINY), 0.0))


def _widen(above: tf.Tensor, hits: tf.Tensor, radius: tf.Tensor, moments: tf.Tensor, cells: AllCells) -> tf.Tensor:
    """Cells multiplied by a function of their distance from the barycentre, so that its mean is nearly that of
    ``moments``."""

    def total(values: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(cells.sum_layers(values), axis=1, keepdims=True)

    energy = above + hits
    own = cells.sum_layers(above * radius) / (cells.sum_layers(above) + _TINY)
    inner = radius - cells.of_layers(own)
    missing = tf.exp(moments[:, 8:9]) * total(energy) - total(energy * radius)
    exponent = missing / (total(above * inner * inner) + _LEAST * total(energy) + _TINY)
    return above * tf.exp(tf.clip_by_value(cells.of_showers(exponent) * inner, -_FARTHEST, _FARTHEST))


def _tilt(
    above: tf.Tensor, faintest: tf.Tensor, distance: tf.Tensor, wanted: tf.Tensor, detector: Detector
) -> tf.Tensor:
    """Factors of the cells (B, L, X) along an axis, from energies summed over the other one. wanted (B, 3): slope,
    width and skewness as `moments` has them."""
    slope, width, skewness = tf.unstack(wanted, axis=1)
    energy = above + faintest
    layers, depth = tf.reduce_sum(energy, axis=2), depth_positions(detector)[:, 0]
    total = tf.reduce_sum(layers, axis=1, keepdims=True) + _TINY
    layer = depth - tf.reduce_sum(layers * depth, axis=1, keepdims=True) / total
    spread = tf.reduce_sum(layers * layer**2, axis=1) / total[:, 0] + 1e-4
    if detector.cylinder:  # showers take a small part of many layers: the unit of depth is their spread
        layer, slope, spread = layer * tf.math.rsqrt(spread)[:, None], slope * tf.sqrt(spread), tf.ones_like(spread)
    share, own = energy / total[..., None], above / total[..., None]
    mean_of = own / (tf.reduce_sum(own, axis=2, keepdims=True) + _TINY)
    square, variance = distance * distance, tf.exp(2 * width)
    # d^3 alone nearly follows from d, and the equations could hardly be solved.
    cube = distance * (square - 3 * variance[:, None, None])
    functions = tf.stack([distance, square, distance * layer[..., None], cube], axis=1)
    goals = tf.stack([tf.zeros_like(width), variance, slope * spread, tf.sinh(skewness) * tf.exp(3 * width)], axis=1)
    missing = goals - tf.reduce_sum(share[:, None] * functions, axis=(2, 3))
    inner = functions - tf.reduce_sum(mean_of[:, None] * functions, axis=3, keepdims=True)
    flat = tf.reshape(inner, (-1, functions.shape[1], inner.shape[2] * inner.shape[3]))
    products = tf.matmul(tf.reshape(own[:, None] * inner, (-1, *flat.shape[1:])), flat, transpose_b=True)
    exponent = tf.reshape(tf.matmul(_solve(products, missing)[:, None], flat), (-1, *inner.shape[2:]))
    return tf.exp(tf.clip_by_value(exponent, -_FARTHEST, _FARTHEST))


def _solve(matrix: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Solution of some equations (B, N) with a symmetric matrix (B, N, N), by elimination: OpenVINO has no inverse."""
    size = matrix.shape[1]
    one = tf.constant(np.eye(size, dtype=np.float32))[None]
    scales = tf.math.rsqrt(tf.reduce_sum(matrix * one, axis=2) + _LEAST)
    scaled = matrix * scales[:, None] * scales[..., None] * (1 - one) + (1 + _RIDGE) * one
    rows = tf.concat([scaled, tf.clip_by_value(right * scales, -_STEP, _STEP)[..., None]], axis=2)
    for at in range(size):
        row = rows[:, at : at + 1] / rows[:, at : at + 1, at : at + 1]
        rows = rows - (rows[:, :, at : at + 1] - one[:, :, at : at + 1]) * row
    return rows[..., size] * scales
