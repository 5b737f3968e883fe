"""Dropout whose masks belong to the showers, not to the processes that happen to hold them."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import tensorflow as tf

from caloscale.models.layers.plain import Differentiable, differentiable, register
from caloscale.random import CHANCES, EventDraws

# Strategies trace a step in a thread for each replica, and each thread has another context.
_random: ContextVar[EventDraws | None] = ContextVar("random", default=None)


@contextmanager
def drawing_from(random: EventDraws) -> Iterator[None]:
    """Within, EventDropout takes its masks from ``random``."""
    token = _random.set(random)
    try:
        yield
    finally:
        _random.reset(token)


@register
class EventDropout(tf.keras.layers.Dropout):  # type: ignore[misc]
    """Keras' dropout outside of `drawing_from`; within it, the mask of a shower follows from its position in the global
    batch, whichever replica has it.
    """

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        random = _random.get()
        if random is None or not training or self.rate == 0:
            return super().call(inputs, training=training)
        chances = max(1, round((1 - self.rate) * CHANCES))
        # Without the dependency the masks of all layers are drawn at the beginning of a step, and kept until then.
        with tf.control_dependencies([inputs]):
            kept = random.chosen(chances, tuple(inputs.shape[1:]))
        return _kept(inputs, kept, CHANCES / chances)


def _kept(inputs: tf.Tensor, kept: tf.Tensor, factor: float) -> tf.Tensor:
    """Inputs times the factor where they are kept, else 0. The gradient needs the mask only, a byte for each number."""

    @differentiable
    def choose(x: tf.Tensor) -> Differentiable:
        def gradient(of_output: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies([of_output]):
                return of_output * (tf.cast(kept, of_output.dtype) * factor)

        return x * (tf.cast(kept, x.dtype) * factor), gradient

    return choose(inputs)
