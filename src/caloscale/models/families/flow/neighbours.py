"""Stage 2, second part: scores of neighbouring cells are correlated, by a linear filter of independent ones.

Given layers, moments and marginals, the scores of two cells of a shower still have a correlation of some per cent:
beside each other in a layer everywhere, behind each other where nearly all showers have a hit, and more so in the core,
whose scores are narrower, too, than those of single cells. In all pairs of a shower together that is what a network
sees, so few coefficients are measured (`training.calibrate`) instead of trained.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from caloscale.models.families.flow.detector import Detector

REACH = 3
"""Layers in front and behind that have a coefficient."""


def coefficient_count(detector: Detector) -> int:
    """Of a grid: one of the four cells beside a cell, then of those one, two, three layers in front and behind, and of
    these in the core. Of a cylinder, whose cells are the wider along the azimuth the farther out: for each radius one
    of the two cells beside a cell, for each but the outermost one of the cell outwards, then those of the layers."""
    return (2 * detector.shape[1] - 1 if detector.cylinder else 1) + 2 * REACH


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
    within = _within_cylinder(normal, coefficients) if cylinder else _within_grid(normal, coefficients[0])
    within = tf.transpose(within, (0, 3, 1, 2))
    scores = within
    for gate, of_gate in zip(_gates(logits, core), tf.split(coefficients[-2 * REACH :], 2)):
        band = tf.tensordot(of_gate, tf.constant(_bands(depth)), 1)
        along = tf.matmul(band[None], tf.reshape(within * gate, (-1, depth, normal.shape[1] * normal.shape[2])))
        scores = scores + gate * tf.reshape(along, (-1, *within.shape[1:]))
    return scores * (1 + tf.sigmoid(logits) * core * (tf.exp(log_spreads) - 1)[:, None, None])


def _within_grid(normal: tf.Tensor, beside: tf.Tensor) -> tf.Tensor:
    """Scores (B, X, Y, L) with a part of the four neighbours in their layer."""
    depth, none = normal.shape[3], tf.zeros_like(beside)
    edge = tf.stack([none, beside, none])
    kernel = tf.stack([edge, tf.stack([beside, none + 1, beside]), edge]) * tf.math.rsqrt(1 + 4 * beside * beside)
    kernel = tf.tile(kernel[:, :, None, None], (1, 1, depth, 1))
    return tf.nn.depthwise_conv2d(normal, kernel, (1, 1, 1, 1), "SAME")


def _within_cylinder(normal: tf.Tensor, coefficients: tf.Tensor) -> tf.Tensor:
    """The same with coefficients for each radius; the first azimuth is beside the last one."""
    radii = normal.shape[2]
    beside, outwards = coefficients[:radii], coefficients[radii : 2 * radii - 1]
    inner, outer = tf.pad(outwards, ((1, 0),)), tf.pad(outwards, ((0, 1),))
    around = tf.concat([normal[:, 1:], normal[:, :1]], axis=1) + tf.concat([normal[:, -1:], normal[:, :-1]], axis=1)
    padded = tf.pad(normal, ((0, 0), (0, 0), (1, 1), (0, 0)))
    parts = (normal, beside[:, None] * around, inner[:, None] * padded[:, :, :-2], outer[:, None] * padded[:, :, 2:])
    return tf.add_n(parts) * tf.math.rsqrt(1 + 2 * beside**2 + inner**2 + outer**2)[:, None]


def correlations(
    scores: tf.Tensor, logits: tf.Tensor, core: tf.Tensor, *, cylinder: bool = False
) -> NDArray[np.float64]:
    """Sums over pairs of cells (2, C) of the product of their scores, and of the weight of a pair, for each
    coefficient of `correlate`. scores, logits, core (B, L, X, Y)."""
    sums = []
    weights = [(tf.sqrt(tf.sigmoid(logits)), _beside), *((gate, _behind) for gate in _gates(logits, core))]
    for weight, of_pairs in weights:
        sums.append([of_pairs(values, cylinder) for values in (weight * scores, weight)])
    return np.concatenate(sums, axis=1)


def _beside(values: tf.Tensor, cylinder: bool) -> NDArray[np.float64]:
    """Sums of the products of the values (B, L, X, Y) of two neighbours in a layer, for each coefficient of these."""
    if not cylinder:
        pairs = (values[:, :, 1:] * values[:, :, :-1], values[..., 1:] * values[..., :-1])
        return np.array([sum(float(tf.reduce_sum(each)) for each in pairs)])
    around = tf.reduce_sum(values * tf.roll(values, 1, axis=2), axis=(0, 1, 2))
    outwards = tf.reduce_sum(values[..., 1:] * values[..., :-1], axis=(0, 1, 2))
    return tf.concat([around, outwards], axis=0).numpy().astype(np.float64)


def _behind(values: tf.Tensor, _: bool) -> NDArray[np.float64]:
    """The same of two cells one, two, three layers behind each other."""
    return np.array([float(tf.reduce_sum(values[:, step:] * values[:, :-step])) for step in range(1, REACH + 1)])


def _gates(logits: tf.Tensor, core: tf.Tensor) -> list[tf.Tensor]:
    """How much a cell counts among those that nearly always have a hit, outside of the core and in it."""
    gate = tf.sigmoid(logits) ** 2
    return [gate * (1 - core), gate * core]


def _bands(depth: int) -> NDArray[np.float32]:
    """Matrices (3, L, L) that add the layers one, two, three in front and behind."""
    return np.stack([np.eye(depth, k=step) + np.eye(depth, k=-step) for step in range(1, REACH + 1)]).astype(np.float32)
