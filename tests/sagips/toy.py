"""A toy problem: mean and width of a normal distribution, which needs no GAN."""

import tensorflow as tf

from caloscale.random import EventDraws
from caloscale.sagips.environment import EVENTS, PARAMETERS, Values


class Normal:
    """Events of mean 4 a - 2 and width 0.2 + 1.8 b, for parameters a, b in (0, 1)."""

    parameters = ("mean", "width")
    observables = ("x",)

    def __init__(self, events_per_sample: int, truth: tuple[float, float] = (0.65, 0.4)) -> None:
        self._events, self.truth = events_per_sample, tuple(truth)

    def __call__(self, values: Values, draws: EventDraws) -> Values:
        """Events (samples, events, 1)."""
        mean, width = tf.split(values[PARAMETERS], 2, axis=1)
        x = 4 * mean - 2 + (0.2 + 1.8 * width) * draws.normal((self._events,))
        return {EVENTS: x[:, :, tf.newaxis]}
