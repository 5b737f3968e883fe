"""What depends on how far a training is: the learning rate, and what is done after which step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import tensorflow as tf

LAST_FACTOR = 0.01
"""Factor on the learning rate at the end of a cosine decay."""
LOSSES_EVERY = 20
"""Steps between two points of the training curves; between them the losses stay on the device."""
VALIDATIONS = 25
"""Approximate number of comparisons with validation showers in a training."""


@dataclass(frozen=True)
class Calendar:
    """The steps of a training, numbered from 1, and what is done after each."""

    epochs: int
    steps_per_epoch: int

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.epochs * self.steps_per_epoch

    def reads_losses(self, step: int) -> bool:
        """Whether the losses of this step are read and recorded."""
        return step % LOSSES_EVERY == 0 or step == self.steps

    def validates(self, step: int) -> bool:
        """Whether the generator after this step is compared with validation showers: at the end of some epochs."""
        return step % (self.steps_per_epoch * max(1, self.epochs // VALIDATIONS)) == 0

    def epoch(self, step: int) -> int:
        """The epoch whose end is nearest to this step."""
        return round(step / self.steps_per_epoch)


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


def progress(step: int, steps: int, seconds: float, max_minutes: float | None) -> float:
    """Finished fraction of the training: of its steps, or of its minutes, whichever is further."""
    by_steps = step / steps
    return by_steps if max_minutes is None else max(by_steps, seconds / (60 * max_minutes))
