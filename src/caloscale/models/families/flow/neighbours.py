"""Stage 2, second part: scores of neighbouring cells are correlated, by a linear filter of independent ones.

Given layers, moments and marginals, the scores of two cells of a shower still have a correlation: beside each other in
a layer of some per cent where most showers have a hit, of a third where few have, as a particle there often crosses two
cells; of some per cent behind each other where nearly all showers have a hit, and more so in the core, whose scores are
narrower, too, than those of single cells. In all pairs of a shower together that is what a network sees, so few
coefficients are measured (`training.calibrate`) instead of trained.
"""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from caloscale.models.families.flow.detector import Detector
from caloscale.models.families.flow.scores import normal_of_logistic

REACH = 3
"""Layers in front and behind that have a coefficient."""
_GATES = 3
"""Kinds of cells that have such coefficients of their own (`_gates`)."""
_KNOTS, _STEP = (-5.5, -4.25, -3.0, -1.75, -0.5, 0.75), 1.25
"""Logits of a hit between which the coefficients within a layer of a grid are interpolated, and their distance."""
_KERNELS = (((0, 1, 0), (1, 0, 1), (0, 1, 0)), ((1, 0, 1), (0, 0, 0), (1, 0, 1)))
"""The cells beside a cell, and its diagonal neighbours."""
_SMALLEST_VARIANCE = 1e-6
_FARTHEST_LOGIT = 60.0
"""Logits of a hit beyond this count as this: the points of farther ones are infinite."""


def coefficient_count(detector: Detector) -> int:
    """Of a grid: for each knot of the logit of a hit one of the four cells beside a cell, then of its four diagonal
    neighbours; of those one, two, three layers in front and behind, of these in the core, and where few showers have a
    hit. Of a cylinder, whose cells are the wider along the azimuth the farther out: for each radius one of two cells
    beside a cell, for each but the outermost one of the cell outwards, then those of the layers."""
    return (2 * detector.shape[1] - 1 if detector.cylinder else 2 * len(_KNOTS)) + _GATES * REACH


def correlate(
    normal: tf.Tensor,
    logits: tf.Tensor,
    core: tf.Tensor,
    coefficients: tf.Tensor,
    log_spreads: tf.Tensor,
    *,
    cylinder: bool = False,
) -> tf.Tensor:
    """Independent scores (B, X, Y, L) -> scores (B, L, X, Y). logits: of a hit (B, L, X, Y); core: 1 on the axis of the
    shower, 0 far from it (B, L, X, Y); coefficients: of `coefficient_count`; log_spreads (L,): of the scores of the
    core.

    Their variance stays 1 but for some per cent where cells are hit always, and for the core.
    """
    depth = normal.shape[3]
    within = _within_cylinder(normal, coefficients) if cylinder else _within_grid(normal, logits, coefficients)
    scores = within
    # Matrices (3, L, L) that add the layers one, two, three in front and behind.
    bands = np.stack([np.eye(depth, k=step) + np.eye(depth, k=-step) for step in range(1, REACH + 1)])
    for gate, of_gate in zip(_gates(logits, core), tf.split(coefficients[-_GATES * REACH :], _GATES)):
        band = tf.tensordot(of_gate, tf.constant(bands, tf.float32), 1)
        along = tf.matmul(band[None], tf.reshape(within * gate, (-1, depth, normal.shape[1] * normal.shape[2])))
        scores = scores + gate * tf.reshape(along, (-1, *within.shape[1:]))
    return scores * (1 + tf.sigmoid(logits) * core * (tf.exp(log_spreads) - 1)[:, None, None])


def _within_grid(normal: tf.Tensor, logits: tf.Tensor, coefficients: tf.Tensor) -> tf.Tensor:
    """Scores (B, L, X, Y) plus half a coefficient times the sum of the neighbours beside, and of the diagonal ones."""
    parts, squares = [tf.transpose(normal, (0, 3, 1, 2))], [tf.ones_like(logits)]
    # The coefficients are interpolated as by `_near_knots`, with half as many operations.
    logits = tf.minimum(logits, _KNOTS[-1])
    beyond = [tf.nn.relu(logits - knot) for knot in _KNOTS[:-1]]
    for kernel, of_knots in zip(_KERNELS, tf.split(coefficients[: 2 * len(_KNOTS)] / 2, 2)):
        weights = tf.constant(np.tile(np.array(kernel, np.float32)[:, :, None, None], (1, 1, normal.shape[3], 1)))
        sums = tf.transpose(tf.nn.depthwise_conv2d(normal, weights, (1, 1, 1, 1), "SAME"), (0, 3, 1, 2))
        slopes = (of_knots[1:] - of_knots[:-1]) / _STEP
        bends = tf.concat([slopes[:1], slopes[1:] - slopes[:-1]], axis=0)
        half = tf.add_n([bend * part for bend, part in zip(tf.unstack(bends), beyond)]) + of_knots[0]
        parts.append(half * sums)
        squares.append(4 * half * half)
    return tf.add_n(parts) * tf.math.rsqrt(tf.add_n(squares))


def _near_knots(logits: tf.Tensor) -> list[tf.Tensor]:
    """Weights of the knots at these logits, whose sum is 1."""
    logits = tf.clip_by_value(logits, _KNOTS[0], _KNOTS[-1])
    return [tf.nn.relu(1 - tf.abs(logits - knot) / _STEP) for knot in _KNOTS]


def _within_cylinder(normal: tf.Tensor, coefficients: tf.Tensor) -> tf.Tensor:
    """The same with coefficients for each radius; the first azimuth is beside the last one."""
    radii = normal.shape[2]
    beside, outwards = coefficients[:radii], coefficients[radii : 2 * radii - 1]
    inner, outer = tf.pad(outwards, ((1, 0),)), tf.pad(outwards, ((0, 1),))
    around = tf.concat([normal[:, 1:], normal[:, :1]], axis=1) + tf.concat([normal[:, -1:], normal[:, :-1]], axis=1)
    padded = tf.pad(normal, ((0, 0), (0, 0), (1, 1), (0, 0)))
    parts = (normal, beside[:, None] * around, inner[:, None] * padded[:, :, :-2], outer[:, None] * padded[:, :, 2:])
    scores = tf.add_n(parts) * tf.math.rsqrt(1 + 2 * beside**2 + inner**2 + outer**2)[:, None]
    return tf.transpose(scores, (0, 3, 1, 2))


def correlations(
    scores: tf.Tensor, logits: tf.Tensor, core: tf.Tensor, *, cylinder: bool = False
) -> NDArray[np.float64]:
    """Sums over pairs of cells (2, C), for each coefficient of `correlate`: of the products of their expected scores,
    and of what a correlation of 1 would make of these to first order. scores, logits, core (B, L, X, Y).

    A cell that is hit has its score, others have the mean of the scores without a hit.
    """
    point = normal_of_logistic(-tf.clip_by_value(logits, -_FARTHEST_LOGIT, _FARTHEST_LOGIT))
    density, hit = tf.exp(-point * point / 2) / math.sqrt(2 * math.pi), tf.sigmoid(logits)
    others = density / tf.maximum(1 - hit, _SMALLEST_VARIANCE)
    expected = tf.where(scores > point, scores, -others)
    variance = tf.maximum(hit + point * density + density * others, _SMALLEST_VARIANCE)
    sums = []
    if cylinder:
        weights = [(tf.ones_like(logits), _beside_cylinder)]
    else:
        weights = [(part, of_pairs) for of_pairs in (_beside, _diagonal) for part in _near_knots(logits)]
    for weight, of_pairs in [*weights, *((gate, _behind) for gate in _gates(logits, core))]:
        sums.append([of_pairs(weight * values) for values in (expected, variance)])
    return np.concatenate(sums, axis=1)


def _beside(values: tf.Tensor) -> NDArray[np.float64]:
    """Sum of the products of the values (B, L, X, Y) of two cells beside each other in a layer (1,)."""
    pairs = (values[:, :, 1:] * values[:, :, :-1], values[..., 1:] * values[..., :-1])
    return np.array([sum(float(tf.reduce_sum(each)) for each in pairs)])


def _diagonal(values: tf.Tensor) -> NDArray[np.float64]:
    """The same of diagonal neighbours."""
    pairs = (values[:, :, 1:, 1:] * values[:, :, :-1, :-1], values[:, :, 1:, :-1] * values[:, :, :-1, 1:])
    return np.array([sum(float(tf.reduce_sum(each)) for each in pairs)])


def _beside_cylinder(values: tf.Tensor) -> NDArray[np.float64]:
    """The same of cells beside each other in a layer of a cylinder, for each coefficient."""
    around = tf.reduce_sum(values * tf.roll(values, 1, axis=2), axis=(0, 1, 2))
    outwards = tf.reduce_sum(values[..., 1:] * values[..., :-1], axis=(0, 1, 2))
    return tf.concat([around, outwards], axis=0).numpy().astype(np.float64)


def _behind(values: tf.Tensor) -> NDArray[np.float64]:
    """The same of two cells one, two, three layers behind each other."""
    return np.array([float(tf.reduce_sum(values[:, step:] * values[:, :-step])) for step in range(1, REACH + 1)])


def _gates(logits: tf.Tensor, core: tf.Tensor) -> list[tf.Tensor]:
    """How much a cell counts among those that nearly always have a hit, outside of the core and in it, and others."""
    hit = tf.sigmoid(logits)
    gate = hit * hit
    return [gate * (1 - core), gate * core, (1 - hit) * (1 - core)]
