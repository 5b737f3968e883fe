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

import itertools
import math
from collections.abc import Sequence

import tensorflow as tf

KNOTS = (-1.2, 0.0, 0.8, 1.8)
"""Ends of the pieces of the spline. Eight pieces were worse (docs/flow.md)."""
PARAMETERS = 3 + len(KNOTS)
"""Of each cell: logit of a hit, value of the spline at 0, logarithms of the slopes of its pieces."""
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


def _pieces() -> list[tuple[float, float]]:
    """Ends of the pieces; 0 is one of them, and none crosses it."""
    ends = (-_FARTHEST, *KNOTS, _FARTHEST)
    return list(itertools.pairwise(ends))


def _slopes(parameters: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Logarithms of the slopes, bounded."""
    return [tf.clip_by_value(one, _FLATTEST, _STEEPEST) for one in parameters[2:PARAMETERS]]


def hit_energies(y: tf.Tensor, parameters: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Logistic scores (...) and all parameters (...) -> distance from the point of a hit, above 0 for a hit, and
    the logarithm of the energy over that of the faintest cell, if it is one."""
    point = -parameters[0]
    beyond = y - point
    rho = y - tf.nn.softplus(point) + tf.math.log(1 - tf.exp(-tf.maximum(beyond, 1e-4)))
    position = _position(rho)
    value = parameters[1]
    for (low, high), slope in zip(_pieces(), _slopes(parameters)):
        start = low if low >= 0 else high
        value = value + tf.exp(slope) * (tf.clip_by_value(position, low, high) - start)
    return beyond, tf.minimum(tf.nn.softplus(value), _LARGEST)


def rho_of_energies(logarithm: tf.Tensor, parameters: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Of hits, from the logarithms of their energy over that of the faintest cell (N,): rho (N,), and the logarithm of
    the probability density of the logarithm among all cells, hit or not."""
    logarithm = tf.maximum(logarithm, _SMALLEST)
    value = logarithm + tf.math.log(1 - tf.exp(-logarithm))
    logs = _slopes(parameters)
    distance = value - parameters[1]
    position, slope, upwards, downwards = tf.zeros_like(distance), tf.zeros_like(distance), 0.0, 0.0
    pieces = [(low, high, log) for (low, high), log in zip(_pieces(), logs)]
    for low, high, log in (piece for piece in pieces if piece[0] >= 0):
        reach = (high - low) * tf.exp(log)
        position = position + tf.clip_by_value(distance - upwards, 0.0, reach) / tf.exp(log)
        slope = tf.where(distance >= upwards, log, slope)
        upwards = upwards + reach
    for low, high, log in (piece for piece in reversed(pieces) if piece[1] <= 0):
        reach = (high - low) * tf.exp(log)
        position = position + tf.clip_by_value(distance + downwards, -reach, 0.0) / tf.exp(log)
        slope = tf.where(distance < -downwards, log, slope)
        downwards = downwards + reach
    position = tf.clip_by_value(position, -_FARTHEST, _FARTHEST)
    rho = _logistic(position)
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
