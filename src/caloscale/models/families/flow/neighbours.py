"""Stage 2, second part: scores of neighbouring cells are correlated, by a linear filter of independent ones.

Given layers, moments and marginals, the scores of two cells of a shower still have a correlation of some per cent:
beside each other in a layer everywhere, behind each other where nearly all showers have a hit. In all pairs of a shower
together that is what a network sees, so four coefficients are measured (`training.calibrate`) instead of trained.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

REACH = 3
"""Layers in front and behind that have a coefficient."""
COEFFICIENTS = 1 + REACH
"""Of the four cells beside a cell, and of those one, two, three layers in front and behind."""


def correlate(normal: tf.Tensor, logits: tf.Tensor, coefficients: tf.Tensor, *, cylinder: bool = False) -> tf.Tensor:
    """Independent scores (B, X, Y, L) and logits of a hit (B, L, X, Y) -> scores (B, L, X, Y); coefficients (4,).

    Their variance stays 1 but for some per cent where cells are hit always.
    """
    depth = normal.shape[3]
    beside, none = coefficients[0], tf.zeros_like(coefficients[0])
    edge = tf.stack([none, beside, none])
    kernel = tf.stack([edge, tf.stack([beside, none + 1, beside]), edge]) * tf.math.rsqrt(1 + 4 * beside * beside)
    kernel = tf.tile(kernel[:, :, None, None], (1, 1, depth, 1))
    if cylinder:  # the first azimuth is beside the last one
        normal = tf.pad(tf.concat([normal[:, -1:], normal, normal[:, :1]], axis=1), ((0, 0), (0, 0), (1, 1), (0, 0)))
    within = tf.nn.depthwise_conv2d(normal, kernel, (1, 1, 1, 1), "VALID" if cylinder else "SAME")
    within = tf.transpose(within, (0, 3, 1, 2))
    band = tf.tensordot(coefficients[1:], tf.constant(_bands(depth)), 1)
    gate = _gate(logits)
    along = tf.matmul(band[None], tf.reshape(within * gate, (-1, depth, within.shape[2] * within.shape[3])))
    return within + gate * tf.reshape(along, (-1, *within.shape[1:]))


def correlations(scores: tf.Tensor, logits: tf.Tensor, *, cylinder: bool = False) -> NDArray[np.float64]:
    """Sums over pairs of cells (2, 4) of the product of their scores, and of the weight of a pair, for each
    coefficient of `correlate`. scores, logits (B, L, X, Y)."""
    sums = []
    for number, offsets in enumerate(_offsets()):
        weight = _gate(logits) if number else tf.sqrt(tf.sigmoid(logits))
        both = (weight * scores, weight)
        sums.append([sum(float(_pairs(values, each, cylinder)) for each in offsets) for values in both])
    return np.array(sums).T


def _pairs(values: tf.Tensor, offset: tuple[int, int, int], cylinder: bool) -> tf.Tensor:
    """Sum of the products of the values (B, L, X, Y) of two cells with this offset."""
    if cylinder and offset[1]:
        return tf.reduce_sum(values * tf.roll(values, offset[1], axis=2))
    first, second = [slice(None)], [slice(None)]
    for step in offset:
        first.append(slice(max(step, 0), min(step, 0) or None))
        second.append(slice(max(-step, 0), min(-step, 0) or None))
    return tf.reduce_sum(values[tuple(first)] * values[tuple(second)])


def _offsets() -> list[list[tuple[int, int, int]]]:
    """Of the pairs of each coefficient: layers, cells along x and along y."""
    return [[(0, 1, 0), (0, 0, 1)], *([(step, 0, 0)] for step in range(1, REACH + 1))]


def _gate(logits: tf.Tensor) -> tf.Tensor:
    return tf.sigmoid(logits) ** 2


def _bands(depth: int) -> NDArray[np.float32]:
    """Matrices (3, L, L) that add the layers one, two, three in front and behind."""
    return np.stack([np.eye(depth, k=step) + np.eye(depth, k=-step) for step in range(1, REACH + 1)]).astype(np.float32)
