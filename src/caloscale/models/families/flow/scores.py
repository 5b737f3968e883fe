"""From a normal score to the energy of a cell, and back: a hurdle (hit or not), then a monotone spline.

The score z of a cell is normal. y = A z + B z^3 is then logistic to 1e-4 (Bowling et al., J. Ind. Eng. Manag. 2 (2009)
114; any other monotone function would do, as the same one is used in both directions). A cell is hit if y exceeds
minus its logit of a hit, and y beyond that point is again a logistic number rho of the energies of hits:
rho = ln((exp y - exp t) / (1 + exp t)), t the point. The logarithm of the energy over that of the faintest cell is
softplus of a piecewise linear function with positive slopes of rho / A below 0, and of the normal number that belongs
to rho above it. With rho itself the largest energies would follow a power law, and the fringe have too much energy.

No operation here lacks a counterpart in ONNX.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

PARAMETERS = 7
"""Of each cell: logit of a hit, value of the spline at 0, logarithms of the slopes of its five pieces."""
_KNOTS = (-1.2, 0.0, 0.8, 1.8)
"""Ends of the pieces."""
_A, _B = 1.5976, 0.07056
_STEEPEST, _FLATTEST = 3.0, -4.0
_LARGEST = 12.0
"""Of the logarithm of a cell over the faintest one: a diverging network saturates."""
_SMALLEST = 2e-3
"""A cell nearer to the faintest one counts as this far above."""
LARGEST_SCORE = 5.0
_FARTHEST = 7.0
"""Of a position on the spline."""


def logistic_of_normal(z: tf.Tensor) -> tf.Tensor:
    """Normal score -> logistic score."""
    return z * (_A + _B * z * z)


def normal_of_logistic(y: tf.Tensor) -> tf.Tensor:
    """The inverse of `logistic_of_normal`: the real root of a cubic by hyperbolic functions."""
    p = _A / _B
    v = tf.abs(y) * (1.5 / _B / p * math.sqrt(3 / p))
    w = tf.exp(tf.math.log(v + tf.sqrt(v * v + 1)) / 3)
    return tf.sign(y) * (w - 1 / w) * math.sqrt(p / 3)


def _position(rho: tf.Tensor) -> tf.Tensor:
    """Where on the spline a logistic number is."""
    return tf.where(rho < 0, rho / _A, normal_of_logistic(tf.maximum(rho, 0.0)))


def _logistic(position: tf.Tensor) -> tf.Tensor:
    """The inverse of `_position`."""
    return tf.where(position < 0, _A * position, logistic_of_normal(position))


def _slopes(parameters: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Logarithms of the slopes, bounded."""
    return [tf.clip_by_value(one, _FLATTEST, _STEEPEST) for one in parameters[2:PARAMETERS]]


def hit_energies(y: tf.Tensor, parameters: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Logistic scores (...) and seven parameters (...) -> distance from the point of a hit, above 0 for a hit, and
    the logarithm of the energy over that of the faintest cell, if it is one."""
    point = -parameters[0]
    beyond = y - point
    rho = y - tf.nn.softplus(point) + tf.math.log(1 - tf.exp(-tf.maximum(beyond, 1e-4)))
    position = _position(rho)
    lowest, low, middle, high, highest = (tf.exp(one) for one in _slopes(parameters))
    first, _, third, fourth = _KNOTS
    value = (
        parameters[1] + low * tf.clip_by_value(position, first, 0.0) + middle * tf.clip_by_value(position, 0.0, third)
    )
    value = value + high * tf.clip_by_value(position - third, 0.0, fourth - third)
    value = value + lowest * tf.minimum(position - first, 0.0) + highest * tf.maximum(position - fourth, 0.0)
    return beyond, tf.minimum(tf.nn.softplus(value), _LARGEST)


def rho_of_energies(logarithm: tf.Tensor, parameters: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Of hits, from the logarithms of their energy over that of the faintest cell (N,): rho (N,), and the logarithm of
    the probability density of the logarithm among all cells, hit or not."""
    logarithm = tf.maximum(logarithm, _SMALLEST)
    value = logarithm + tf.math.log(1 - tf.exp(-logarithm))
    logs = _slopes(parameters)
    lowest, low, middle, high, highest = (tf.exp(one) for one in logs)
    first, _, third, fourth = _KNOTS
    distance = value - parameters[1]
    below, above, further = first * low, third * middle, (fourth - third) * high
    position = tf.clip_by_value(distance, below, 0.0) / low + tf.clip_by_value(distance, 0.0, above) / middle
    position = position + tf.clip_by_value(distance - above, 0.0, further) / high
    position = position + tf.minimum(distance - below, 0.0) / lowest
    position = position + tf.maximum(distance - above - further, 0.0) / highest
    position = tf.clip_by_value(position, -_FARTHEST, _FARTHEST)
    rho, slope = _logistic(position), logs[0]
    for knot, one in zip(_KNOTS, logs[1:]):
        slope = tf.where(position < knot, slope, one)
    stretch = tf.where(position < 0, _A * tf.ones_like(position), _A + 3 * _B * position * position)
    density = -tf.nn.softplus(-parameters[0]) - tf.nn.softplus(rho) - tf.nn.softplus(-rho)
    density = density + tf.math.log(stretch) - slope
    return rho, density + logarithm - value


def scores_of_hits(rho: tf.Tensor, logit: tf.Tensor) -> tf.Tensor:
    """Logistic scores of hits: the inverse of what `hit_energies` makes of them."""
    point = -logit
    other = tf.nn.softplus(point) + rho
    return tf.maximum(point, other) + tf.nn.softplus(-tf.abs(point - other))


def scores_of_others(uniform: tf.Tensor, logit: tf.Tensor) -> tf.Tensor:
    """Logistic scores of cells that are not hit, drawn below their point. uniform: numbers of [0, 1)."""
    below = tf.clip_by_value(uniform * (1 - tf.sigmoid(logit)), 1e-7, 1 - 1e-6)
    return tf.minimum(tf.math.log(below) - tf.math.log(1 - below), -logit)
