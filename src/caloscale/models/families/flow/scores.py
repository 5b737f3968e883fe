"""From a normal score to the energy of a cell, and back: hit or not, then constant hazards in bins of the energy.

The score z of a cell is normal, and the odds of what is below it are exp y, y = `logistic_of_normal` (any other
monotone function would do, as it is the one of both directions). A cell is hit if y exceeds minus its logit of a hit.
Its depth q = softplus y - softplus -logit is then exponential with mean 1 among hits, and is filled into bins of the
energy one after the other: bin k takes at most its hazard h[k]. Within a bin the energy is linear in q, its density
exponential; the last bin has no end. What a cell's neighbourhood deposits has nearly the same hazard at each energy
wherever the cell is, so few parameters of a cell deviate from those of its layer.

The edges of the bins follow the energy of the cell's layer: a core cell has a share of it, a cell of the fringe one
particle's energy.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import tensorflow as tf

EDGES_MIP = (0, 0.25, 0.45, 0.65, 1, 1.6, 3.6, 7, 10, 12, *[13] * 8)
"""Lower edges of the bins above the faintest cell: this number of minimum-ionising particles ..."""
EDGES_LAYER = (0, 0, 0, 0, 0, 0, 0.005, 0.02, 0.05, 0.1, 0.17, 0.26, 0.36, 0.47, 0.58, 0.69, 0.8, 0.92)
"""... and this share of the layer's energy."""
FAINT_BINS = 5
"""Bins below the energy from which a cell counts as a hit; what is in others is decided by the sums of layers."""
BINS = len(EDGES_MIP)
PARAMETERS = 1 + BINS
"""Of each cell: logit of a hit, logarithms of the hazards."""
_LOGIT_OF_NORMAL = (1.592483, 0.07583550, -9.821306e-4, 8.738645e-6)
"""Coefficients of z, z^3, ...: least squares from 0 to 4.5, where the largest error is 0.0015."""
_SMALLEST, _LARGEST = -7.0, 4.0
"""Of the logarithm of a hazard."""
LARGEST_SCORE = 5.0
_SELDOM = 60.0
"""A logit of a hit below minus this counts as this: exp has an end."""


def logistic_of_normal(z: tf.Tensor) -> tf.Tensor:
    """Normal score -> logistic score, the logit of the normal distribution's integral."""
    square = z * z
    value = _LOGIT_OF_NORMAL[-1] * square
    for coefficient in _LOGIT_OF_NORMAL[-2:0:-1]:
        value = (value + coefficient) * square
    return z * (value + _LOGIT_OF_NORMAL[0])


def normal_of_logistic(y: tf.Tensor) -> tf.Tensor:
    """The inverse of `logistic_of_normal`; for training showers and calibration."""
    size = tf.abs(y)
    return tf.sign(y) * -tf.math.ndtri(tf.exp(-tf.nn.softplus(size)))


def edges(layers: tf.Tensor, mip: float, floor: float) -> tf.Tensor:
    """Energies of the layers (B, L) -> lower edges of the bins in units of the faintest cell (B, L, K). mip, floor: of
    the same unit as the energies."""
    return (tf.constant(EDGES_MIP, tf.float32) * mip + tf.constant(EDGES_LAYER) * layers[..., None]) / floor + 1


def widths(edges: tf.Tensor) -> tf.Tensor:
    """Of the bins (..., K); the last one, which has no end, counts as wide as the one before."""
    inner = edges[..., 1:] - edges[..., :-1]
    return tf.concat([inner, inner[..., -1:]], axis=-1)


def odds(y: tf.Tensor, logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Odds of what is below the logistic scores of cells, and below their points, from logits of a hit: 1 and the first
    over 1 and the second is exp q, above 1 for a hit."""
    return tf.exp(y), tf.exp(tf.minimum(-logits, _SELDOM))


def hit_energies(depth: tf.Tensor, logarithms: tf.Tensor, widths: tf.Tensor) -> tf.Tensor:
    """Depths of cells (..., N), logarithms of their hazards and widths of their bins (..., K, N) or (..., K, 1) ->
    energies over that of the faintest cell, of those that are hit (..., N)."""
    hazards = tf.exp(tf.clip_by_value(logarithms, _SMALLEST, _LARGEST))
    share = tf.nn.relu((tf.nn.relu(depth)[..., None, :] - _before(hazards)) / hazards)
    share = tf.minimum(share, tf.constant([*[1.0] * (BINS - 1), math.inf])[:, None])
    return 1 + tf.reduce_sum(widths * share, axis=-2)


def _before(hazards: tf.Tensor) -> tf.Tensor:
    """Sums of the hazards of the bins before each (..., K, N)."""
    if len(hazards.shape) > 2:  # quicker than cumsum in ONNX Runtime and OpenVINO, and one operation
        return tf.matmul(tf.constant(np.tri(BINS, k=-1, dtype=np.float32)), hazards)
    rows = tf.unstack(hazards)
    return tf.stack(list(itertools.accumulate(rows[:-1], initial=tf.zeros_like(rows[0]))))


@tf.custom_gradient
def softplus(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """ln(1 + exp x), error 6e-8, in a fifth of the time of TensorFlow's."""
    return tf.nn.relu(x) + tf.math.log(1 + tf.exp(-tf.abs(x))), lambda upstream: upstream * tf.sigmoid(x)


def fill_bins(energy: tf.Tensor, logarithms: tf.Tensor, edges: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Of hits, from their energy over that of the faintest cell (N,), logarithms of the hazards (N, K) and edges
    (N, K): the part of their depth that each bin takes (N, K), whose sum it is, and 1 in the bin of the energy."""
    share = tf.maximum((energy[:, None] - edges) / widths(edges), 0.0)
    share = tf.concat([tf.minimum(share[:, :-1], 1.0), share[:, -1:]], axis=1)
    number = tf.reduce_sum(tf.cast(energy[:, None] >= edges[:, 1:], tf.int32), axis=1)
    return tf.exp(tf.clip_by_value(logarithms, _SMALLEST, _LARGEST)) * share, tf.one_hot(number, BINS)


def log_density(energy: tf.Tensor, logarithms: tf.Tensor, edges: tf.Tensor) -> tf.Tensor:
    """Logarithm of the probability density of the energy among hits (N,); the arguments of `fill_bins`."""
    filled, bins = fill_bins(energy, logarithms, edges)
    logarithms = tf.clip_by_value(logarithms, _SMALLEST, _LARGEST)
    return tf.reduce_sum(bins * (logarithms - tf.math.log(widths(edges))) - filled, axis=1)


def scores_of_hits(depth: tf.Tensor, logit: tf.Tensor) -> tf.Tensor:
    """Logistic scores of hits: the inverse of what `hit_energies` makes of them."""
    total = tf.maximum(depth + tf.nn.softplus(-logit), 1e-6)
    return total + tf.math.log(-tf.math.expm1(-total))


def scores_of_others(uniform: tf.Tensor, logit: tf.Tensor) -> tf.Tensor:
    """Logistic scores of cells that are not hit, drawn below their point. uniform: numbers of [0, 1)."""
    below = tf.clip_by_value(uniform * (1 - tf.sigmoid(logit)), 1e-7, 1 - 1e-6)
    return tf.minimum(tf.math.log(below) - tf.math.log(1 - below), -logit)
