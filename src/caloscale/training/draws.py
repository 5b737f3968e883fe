"""Random numbers that belong to a shower of the global batch, not to the process that happens to hold it.

Philox is a function from a key and a counter to random bits (Salmon et al., SC'11, doi:10.1145/2063384.2063405). The
key is the seed; the counter says step, section of the step, draw and shower. A replica computes the numbers of its
showers without drawing those of the others, so a training does not depend on how many replicas there are, and its
random state is the number of its step.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

_PHILOX = 1
_PER_COUNT = 4
"""Numbers of 32 bits that a value of the counter gives."""
_SECTIONS = 1 << 8
_DRAWS = 1 << 8
"""Most draws within a section."""

MIRROR_SECTION = _SECTIONS - 1
"""The input pipeline's section; a step has those from 0 on."""


class EventDraws:
    """The random numbers of a section of a step, for showers ``first`` up to ``first + count`` of the global batch.

    step, first: integers or int64 scalars. Each call is another draw.
    """

    def __init__(self, seed: int, step: Any, section: int, first: Any, count: int) -> None:
        if not 0 <= section < _SECTIONS:
            raise ValueError(f"section {section} of a step does not exist")
        self._key = tf.constant([seed], tf.uint64)
        self._high = (tf.cast(step, tf.int64) * _SECTIONS + section) * _DRAWS
        self._first, self._count, self._drawn = tf.cast(first, tf.int64), count, 0

    def uniform(self, shape: tuple[int, ...]) -> Any:
        """Numbers of [0, 1), float32 (count, *shape)."""
        return self._draw(tf.raw_ops.StatelessRandomUniformV2, shape)

    def normal(self, shape: tuple[int, ...]) -> Any:
        """Numbers of mean 0 and width 1, float32 (count, *shape)."""
        return self._draw(tf.raw_ops.StatelessRandomNormalV2, shape)

    def _draw(self, kind: Any, shape: tuple[int, ...]) -> Any:
        if self._drawn == _DRAWS:
            raise ValueError(f"more than {_DRAWS} draws in a section of a step")
        size = math.prod(shape)
        counts = math.ceil(size / _PER_COUNT)
        counter = tf.bitcast(tf.stack([self._first * counts, self._high + self._drawn]), tf.uint64)
        self._drawn += 1
        numbers = kind(shape=[self._count, counts * _PER_COUNT], key=self._key, counter=counter, alg=_PHILOX)
        return tf.reshape(numbers[:, :size], (self._count, *shape))
