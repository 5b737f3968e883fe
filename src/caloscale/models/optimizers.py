"""Optimisers and the schedule of their learning rates.

RMSprop and Adam work on one vector: the gradients of a network are packed for their all-reduce anyway.

They compute as Keras' optimisers, with a few operations for a network instead of a few for each of its weights. The
slots do not depend on the version of Keras.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

EPSILON = 1e-7
"""As in Keras."""
RMSPROP_DECAY = 0.9
ADAM_DECAYS = (0.5, 0.99)
LAST_FACTOR = 0.01
"""Factor on the learning rate at the end of a cosine decay."""


class PackedOptimizer(tf.Module):  # type: ignore[misc]
    """An optimiser of some variables, all float32.

    kind: rmsprop (decay of the squares 0.9) or adam (0.5, 0.99).
    """

    def __init__(self, kind: Literal["rmsprop", "adam"], variables: Sequence[tf.Variable]) -> None:
        super().__init__(name=kind)
        self._targets = list(variables)
        size = sum(variable.shape.num_elements() for variable in map(unwrap, variables))
        self.square = tf.Variable(tf.zeros(size), trainable=False, name="square")
        self.mean = tf.Variable(tf.zeros(size), trainable=False, name="mean") if kind == "adam" else None

    def slots(self) -> dict[str, tf.Variable]:
        """Averages of the gradients and of their squares, by name."""
        return {"square": self.square} | ({} if self.mean is None else {"mean": self.mean})

    def apply(self, gradient: tf.Tensor, rate: float | tf.Tensor, number: int | tf.Tensor) -> None:
        """Move the variables. gradient: packed, of all replicas together; number: of this update, from 1."""
        if self.mean is None:
            squares = RMSPROP_DECAY * self.square + (1 - RMSPROP_DECAY) * gradient * gradient
            change = rate * gradient * tf.math.rsqrt(squares + EPSILON)
        else:
            first, second = ADAM_DECAYS
            number = tf.cast(number, tf.float32)
            mean = first * self.mean + (1 - first) * gradient
            squares = second * self.square + (1 - second) * gradient * gradient
            bias = tf.sqrt(1 - tf.pow(second, number)) / (1 - tf.pow(first, number))
            change = rate * bias * mean / (tf.sqrt(squares) + EPSILON)
            self.mean.assign(mean)
        self.square.assign(squares)
        for variable, part in zip(self._targets, unpack(change, self._targets)):
            unwrap(variable).assign_sub(part)


class AveragingOptimizer(PackedOptimizer):
    """Moves the variables by what a function on the host makes of each gradient, such as its mean over processes.

    average: from a packed gradient (size,), float32, and the number of its update, from 1, to one like it.
    """

    def __init__(
        self,
        kind: Literal["rmsprop", "adam"],
        variables: Sequence[tf.Variable],
        average: Callable[[NDArray[np.float32], int], NDArray[np.float32]],
    ) -> None:
        super().__init__(kind, variables)
        self._average = average

    def apply(self, gradient: tf.Tensor, rate: float | tf.Tensor, number: int | tf.Tensor) -> None:
        """As of `PackedOptimizer`, after the function has returned."""
        averaged = tf.numpy_function(
            lambda values, update: self._average(values, int(update)), (gradient, number), gradient.dtype
        )
        super().apply(tf.ensure_shape(averaged, gradient.shape), rate, number)


def pack(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Tensors as one float32 vector."""
    return tf.concat([tf.reshape(tf.cast(value, tf.float32), (-1,)) for value in values], axis=0)


def unpack(packed: tf.Tensor, like: Sequence[tf.Tensor | tf.Variable]) -> list[tf.Tensor]:
    """The vector of `pack` as tensors of the shapes of ``like``."""
    shapes = [unwrap(value).shape for value in like]
    parts = tf.split(packed, [shape.num_elements() for shape in shapes])
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes)]


def unwrap(variable: tf.Tensor) -> tf.Tensor:
    """The tf.Variable (mirrored or not) of a Keras variable; tf.Variables and tensors are returned as they are."""
    return variable if isinstance(variable, tf.Variable) else getattr(variable, "value", variable)


@dataclass(frozen=True)
class Schedule:
    """A factor on the learning rates: linear warm-up, then constant or a cosine down to a hundredth.

    warmup_steps: steps over which the factor grows; step s (from 0) has (s + 1) / warmup_steps.
    """

    warmup_steps: float
    decay: Literal["constant", "cosine"]

    def factor(self, step: int | tf.Tensor, progress: float | tf.Tensor) -> tf.Tensor:
        """The factor, a float32 scalar.

        step: number of this step, from 0. progress: finished fraction of the training, 0 to 1: of its steps, or of
        its minutes where those end it earlier.
        """
        factor = tf.constant(1.0)
        if self.decay == "cosine":
            over = tf.clip_by_value(tf.cast(progress, tf.float32), 0.0, 1.0)
            factor = LAST_FACTOR + (1 - LAST_FACTOR) * 0.5 * (1 + tf.cos(math.pi * over))
        if self.warmup_steps > 0:
            factor = factor * tf.minimum(1.0, (tf.cast(step, tf.float32) + 1) / self.warmup_steps)
        return factor
