"""The one-dimensional proxy application of arXiv 2407.00051: two densities of six parameters.

Constants as in the public code of its authors (github.com/zhenyu-daniel/scaling).
"""

import numpy as np
import tensorflow as tf

from caloscale.random import EventDraws
from caloscale.sagips.environment import EVENTS, NORMS, PARAMETERS, Values

LARGEST_UNIFORM = 0.9999
"""Uniform numbers are drawn from [0, this), as in the public code: the smallest x of the grid are not reached."""
_SMALLEST = 1e-12
"""Keeps the gradient finite where two points of the survival function are equal in float32."""

_BLOCK = 40
"""Columns that are added up by one product; about the square root of the number of columns costs least."""


def sample_by_inverse(densities: tf.Tensor, grid: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Events by inversion of the survival function, shape of ``uniform``, in the units of the grid.

    densities: (rows, points), positive, need not be normalised; grid: (points,), ascending; uniform: (rows, events) in
    [0, 1). The survival function is the sum of the densities from a point to the end over the sum of all; between two
    points it is interpolated linearly, outside it is the nearest point. The intervals are found by sorted search, of
    which the gradient is zero; the gradient comes from the survival function at both ends of an interval. An event is
    a continuous function of the densities.
    """
    survival, points = _sum_to_the_end(densities), grid.shape[0]
    sought = uniform * survival[:, :1]
    above = tf.searchsorted(-survival, -sought)  # points whose sum is larger; sorted search needs ascending values
    low = tf.clip_by_value(above - 1, 0, points - 2)  # survival[low] > sought >= survival[low + 1]
    left, right = tf.split(tf.gather(survival, tf.concat([low, low + 1], axis=1), batch_dims=1), 2, axis=1)
    share = tf.clip_by_value((left - sought) / tf.maximum(left - right, _SMALLEST * survival[:, :1]), 0.0, 1.0)
    x = tf.gather(grid, low)
    return x + share * (tf.gather(grid, low + 1) - x)


def _sum_to_the_end(x: tf.Tensor) -> tf.Tensor:
    """The sum from each column to the last one; shape of x (rows, columns).

    Columns are added up in blocks, by products with triangular matrices, and so are the gradients: with 1,000 columns
    that takes less than half of the time of `tf.cumsum`.
    """
    rows, columns = x.shape
    block = min(_BLOCK, columns)
    blocks = -(-columns // block)
    padded = tf.reshape(tf.pad(x, [[0, 0], [0, blocks * block - columns]]), (-1, blocks, block))
    within = tf.reshape(tf.reshape(padded, (-1, block)) @ _from(block), (-1, blocks, block))
    after = within[:, :, 0] @ (_from(blocks) - tf.eye(blocks))
    return tf.ensure_shape(
        tf.reshape(within + after[:, :, tf.newaxis], (-1, blocks * block))[:, :columns], (rows, columns)
    )


def _from(size: int) -> tf.Tensor:
    """The matrix (size, size) whose product with a row is the sum from each column to the last one."""
    return tf.linalg.band_part(tf.ones((size, size)), -1, 0)


POINTS = 1000
LOWEST, HIGHEST = 0.1, 0.99999
STEP = (HIGHEST - LOWEST) / POINTS
MINIMUM = (0.0, -1.0, 0.0, 0.0, -1.0, 0.0)
MAXIMUM = (3.0, 1.0, 5.0, 3.0, 1.0, 5.0)
TRUTH = (0.72916667, 0.25, 0.6, 0.36458333, 0.25, 0.8)


class Proxy:
    """The environment of the proxy application: two observables, six normalised parameters.

    Its densities on the grid are sigma1 = 4u + d and sigma2 = 4d + u, for u = p0 x^p1 (1-x)^p2 and
    d = p3 x^p4 (1-x)^p5.
    """

    parameters = ("p0", "p1", "p2", "p3", "p4", "p5")
    observables = ("x1", "x2")
    truth = TRUTH

    def __init__(self, events_per_sample: int) -> None:
        self._events = events_per_sample
        x = LOWEST + STEP * np.arange(POINTS)
        self._grid = tf.constant(x, tf.float32)
        self._logarithms = tf.constant(np.stack([np.log(x), np.log1p(-x)]), tf.float32)  # (2, points)

    def __call__(self, values: Values, draws: EventDraws) -> Values:
        """Events (samples, events, 2), and norms (samples, 2): the sum of all points but the last, times dx."""
        normalised = values[PARAMETERS]
        minimum, maximum = tf.constant(MINIMUM), tf.constant(MAXIMUM)
        p = minimum + normalised * (maximum - minimum)
        u = p[:, 0:1] * tf.exp(p[:, 1:3] @ self._logarithms)
        d = p[:, 3:4] * tf.exp(p[:, 4:6] @ self._logarithms)
        sigma = tf.stack([4 * u + d, 4 * d + u], axis=1)
        return {EVENTS: self.sample(sigma, draws), NORMS: tf.reduce_sum(sigma[:, :, :-1], axis=2) * STEP}

    def sample(self, densities: tf.Tensor, draws: EventDraws) -> tf.Tensor:
        """Events (samples, events, 2) of densities (samples, 2, points), one for each random number."""
        uniform = draws.uniform((2, self._events)) * LARGEST_UNIFORM
        rows = tf.reshape(densities, (-1, POINTS)), self._grid, tf.reshape(uniform, (-1, self._events))
        return tf.transpose(tf.reshape(sample_by_inverse(*rows), (-1, 2, self._events)), (0, 2, 1))
