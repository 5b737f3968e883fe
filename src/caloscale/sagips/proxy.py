"""The one-dimensional proxy application of arXiv 2407.00051: two densities of six parameters.

Constants as in the public code of its authors (github.com/zhenyu-daniel/scaling).
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from caloscale.random import EventDraws
from caloscale.sagips.environment import EVENTS, NORMS, PARAMETERS, Chain, Values
from caloscale.sagips.sampler import LARGEST_UNIFORM, sample_by_inverse

POINTS = 1000
LOWEST, HIGHEST = 0.1, 0.99999
STEP = (HIGHEST - LOWEST) / POINTS
MINIMUM = (0.0, -1.0, 0.0, 0.0, -1.0, 0.0)
MAXIMUM = (3.0, 1.0, 5.0, 3.0, 1.0, 5.0)
TRUTH = (0.72916667, 0.25, 0.6, 0.36458333, 0.25, 0.8)


class Densities:
    """sigma1 = 4u + d and sigma2 = 4d + u on the grid, for u = p0 x^p1 (1-x)^p2 and d = p3 x^p4 (1-x)^p5; norms."""

    def __init__(self) -> None:
        x = LOWEST + STEP * np.arange(POINTS)
        self.grid = tf.constant(x, tf.float32)
        self._logarithms = tf.constant(np.stack([np.log(x), np.log1p(-x)]), tf.float32)  # (2, points)

    def __call__(self, values: Values, draws: EventDraws) -> Values:
        """Densities (samples, 2, points) and norms (samples, 2): the sum of all points but the last, times dx."""
        normalised = values[PARAMETERS]
        minimum, maximum = tf.constant(MINIMUM), tf.constant(MAXIMUM)
        p = minimum + normalised * (maximum - minimum)
        u = p[:, 0:1] * tf.exp(p[:, 1:3] @ self._logarithms)
        d = p[:, 3:4] * tf.exp(p[:, 4:6] @ self._logarithms)
        sigma = tf.stack([4 * u + d, 4 * d + u], axis=1)
        return {"densities": sigma, NORMS: tf.reduce_sum(sigma[:, :, :-1], axis=2) * STEP}


class InverseSampler:
    """An event for each random number, per density: events (samples, events, densities)."""

    def __init__(self, grid: tf.Tensor, events_per_sample: int) -> None:
        self._grid, self._events = grid, events_per_sample

    def __call__(self, values: Values, draws: EventDraws) -> Values:
        """Events from the tensor ``densities`` (samples, densities, points)."""
        densities = values["densities"]
        count, points = densities.shape[1], densities.shape[2]
        uniform = draws.uniform((count, self._events)) * LARGEST_UNIFORM
        flat = sample_by_inverse(
            tf.reshape(densities, (-1, points)), self._grid, tf.reshape(uniform, (-1, self._events))
        )
        return {EVENTS: tf.transpose(tf.reshape(flat, (-1, count, self._events)), (0, 2, 1))}


class Proxy(Chain):
    """The environment of the proxy application: two observables, six normalised parameters."""

    parameters = ("p0", "p1", "p2", "p3", "p4", "p5")
    observables = ("x1", "x2")
    truth = TRUTH

    def __init__(self, events_per_sample: int) -> None:
        densities = Densities()
        super().__init__(densities, InverseSampler(densities.grid, events_per_sample))
