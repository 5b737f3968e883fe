"""Dropout whose masks belong to the showers, not to the processes that happen to hold them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import tensorflow as tf

register = tf.keras.utils.register_keras_serializable(package="caloscale")


class ShowerRandom(Protocol):
    """Where random numbers for each shower come from."""

    def uniform(self, shape: tuple[int, ...]) -> tf.Tensor:
        """Numbers of [0, 1) for each shower, (B, *shape)."""


# Strategies trace a step in a thread for each replica.
_active = threading.local()


@contextmanager
def drawing_from(random: ShowerRandom) -> Iterator[None]:
    """Within, EventDropout takes its masks from ``random``."""
    before = getattr(_active, "random", None)
    _active.random = random
    try:
        yield
    finally:
        _active.random = before


@register
class EventDropout(tf.keras.layers.Dropout):  # type: ignore[misc]
    """Keras' dropout outside of `drawing_from`; within it, the mask of a shower is that of its position in the global
    batch, whichever replica has it.
    """

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Inputs of any shape (B, ...); the same shape."""
        random = getattr(_active, "random", None)
        if random is None or not training or self.rate == 0:
            return super().call(inputs, training=training)
        kept = random.uniform(tuple(inputs.shape[1:])) >= self.rate
        return tf.where(kept, inputs * (1 / (1 - self.rate)), tf.zeros_like(inputs))
