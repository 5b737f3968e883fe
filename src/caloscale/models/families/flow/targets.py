"""Cells that are drawn one by one get the sums and moments that stage 1 has drawn for their layers and their shower.

All arrays of cells are what all cells or some have above the faintest one, in its units (`cells`). How many cells are
hit does not change.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from caloscale.models.families.flow.cells import AllCells
from caloscale.models.families.flow.detector import Detector
from caloscale.models.families.flow.representation import depth_positions
from caloscale.models.layers.plain import centred

REPETITIONS = 2
"""Corrections of the moments, each by Newton's method; after one the widths still are 10% of their spread off."""
_FARTHEST = 0.5
"""Largest logarithm of a correction's factors along an axis."""
_RIDGE = 1e-2
"""Added to the diagonal of the correlation of the three functions along an axis."""
_LEAST = 0.05
"""Added to the variance of each of them: a shower in one column of cells cannot be widened."""
_TINY = 1e-6
_DIAGONAL = np.eye(3, dtype=np.float32).reshape(1, 9)
_COFACTORS = tuple(
    [3 * ((row + a) % 3) + (column + b) % 3 for row in range(3) for column in range(3)]
    for a, b in ((1, 1), (2, 2), (1, 2), (2, 1))
)
"""Places of the elements whose products less products are the cofactors of a matrix."""


def hold_sums(above: tf.Tensor, wanted: tf.Tensor, cells: AllCells) -> tf.Tensor:
    """Cells whose layers have these sums (B, L), as far as a layer has any.

    Drawn one by one, the largest cells miss their layer by most: the others hardly change, nor do numbers of hits.
    What a cell gets in proportion to its energy's square is followed by a common factor of the layer.
    """
    missing = wanted - cells.sum_layers(above)
    change = cells.of_layers(missing / (cells.sum_layers(above * above) + _TINY)) * above
    above = tf.where(change > 0, above * (1 + change), above / (1 - tf.minimum(change, 0.0)))
    return above * cells.of_layers(wanted / (cells.sum_layers(above) + _TINY))


def hold_moments(
    above: tf.Tensor,
    hits: tf.Tensor,
    wanted: tf.Tensor,
    moments: tf.Tensor,
    axis: tf.Tensor,
    cells: AllCells,
    detector: Detector,
) -> tf.Tensor:
    """Cells whose layers have these sums (B, L), of a shower with the barycentre, slope and rms of ``moments`` (B, 12).

    hits: 1 for a cell with energy. axis (B, 2, L). Each cell is multiplied by functions of x and of y with the
    exponents a d + b d^2 + c d z, d the distance from the barycentre, z the layer.
    """
    frames = [_functions(moments, axis, at, detector) for at in (0, 1)]
    faintest = [cells.sum_along(hits, at) for at in (0, 1)]
    for _ in range(REPETITIONS):
        factors = []
        for at in (0, 1):
            goals = (moments[:, 4 * at + 1], moments[:, 4 * at + 2])
            factors.append(_tilt(cells.sum_along(above, at), faintest[at], frames[at], *goals, detector))
        above = above * cells.of_lines(factors[0], 0) * cells.of_lines(factors[1], 1)
        above = above * cells.of_layers(wanted / (cells.sum_layers(above) + _TINY))
    return above


def _functions(moments: tf.Tensor, axis: tf.Tensor, at: int, detector: Detector) -> tf.Tensor:
    """Distances from the barycentre (B, L, X) along an axis of the window."""
    positions = tf.constant(centred(detector.shape[at]))[None, None]
    # Grappler loses a new axis beside an index of a stack.
    return positions - (axis[:, at] + moments[:, 4 * at : 4 * at + 1])[..., None]


def _tilt(
    above: tf.Tensor, faintest: tf.Tensor, distance: tf.Tensor, slope: tf.Tensor, width: tf.Tensor, detector: Detector
) -> tf.Tensor:
    """Factors of the cells (B, L, X) along an axis, from energies summed over the other one."""
    energy = above + faintest
    layers, depth = tf.reduce_sum(energy, axis=2), depth_positions(detector)[:, 0]
    total = tf.reduce_sum(layers, axis=1, keepdims=True) + _TINY
    layer = depth - tf.reduce_sum(layers * depth, axis=1, keepdims=True) / total
    spread = tf.reduce_sum(layers * layer**2, axis=1) / total[:, 0] + 1e-4
    share, own = energy / total[..., None], above / total[..., None]
    mean_of = own / (tf.reduce_sum(own, axis=2, keepdims=True) + _TINY)
    functions = tf.stack([distance, distance * distance, distance * layer[..., None]], axis=1)
    goals = tf.stack([tf.zeros_like(width), tf.exp(2 * width), slope * spread], axis=1)
    missing = goals - tf.reduce_sum(share[:, None] * functions, axis=(2, 3))
    inner = functions - tf.reduce_sum(mean_of[:, None] * functions, axis=3, keepdims=True)
    flat = tf.reshape(inner, (-1, 3, inner.shape[2] * inner.shape[3]))
    products = tf.matmul(tf.reshape(own[:, None] * inner, (-1, 3, flat.shape[2])), flat, transpose_b=True)
    exponent = tf.reshape(tf.matmul(_solve(products, missing)[:, None], flat), (-1, *inner.shape[2:]))
    return tf.exp(tf.clip_by_value(exponent, -_FARTHEST, _FARTHEST))


def _solve(matrix: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Solution of three equations (B, 3) with a symmetric matrix (B, 3, 3), by its cofactors: OpenVINO has no
    inverse."""
    elements = tf.reshape(matrix, (-1, 9))
    scales = tf.math.rsqrt(tf.gather(elements, [0, 4, 8], axis=1) + _LEAST)
    scaled = tf.reshape(matrix * scales[:, None] * scales[..., None], (-1, 9))
    scaled = scaled * (1 - _DIAGONAL) + (1 + _RIDGE) * _DIAGONAL
    one, two, three, four = (tf.gather(scaled, places, axis=1) for places in _COFACTORS)
    cofactors = one * two - three * four
    determinant = tf.reduce_sum(scaled[:, :3] * cofactors[:, :3], axis=1, keepdims=True)
    solution = tf.reduce_sum(tf.reshape(cofactors, (-1, 3, 3)) * (right * scales)[:, None], axis=2)
    return solution / determinant * scales
