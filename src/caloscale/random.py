"""Random numbers that belong to a shower, not to the process, the batch or the order in which it is computed.

Philox is a function from a key and a counter to random bits (Salmon et al., SC'11, doi:10.1145/2063384.2063405). The
key is the seed, the counter names the shower and the purpose. `latent_noise` and `primary_numbers` (NumPy) count the
showers of a generation. `EventDraws` (TensorFlow, within compiled graphs) counts step, section of the step, draw and
shower of the global batch: a training does not depend on the number of replicas, and its random state is its step.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caloscale.errors import InputError

_NOISE, _PRIMARY = 0, 1
"""What a random number is for: the second word of the counter from above."""


def latent_noise(seed: int, first: int, count: int, size: int) -> NDArray[np.float32]:
    """Normal random numbers of the showers first, first + 1, ...: (count, size), mean 0, width 1."""
    key = _key(seed)
    noise = np.empty((count, size), np.float32)
    for row, shower in enumerate(range(first, first + count)):
        _random(key, _NOISE, shower).standard_normal(size, np.float32, out=noise[row])
    return noise


def primary_numbers(seed: int, first: int, count: int, columns: int = 2) -> NDArray[np.float64]:
    """Uniform random numbers in [0, 1) for energy, angle and further columns of each shower: (count, columns)."""
    key = _key(seed)
    numbers = np.empty((count, columns))
    for row, shower in enumerate(range(first, first + count)):
        _random(key, _PRIMARY, shower).random(out=numbers[row])
    return numbers


def _key(seed: int) -> NDArray[np.uint64]:
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError("must be an integer that is not negative", field="seed", value=seed, remedy="give 0 or more")
    key: NDArray[np.uint64] = np.random.SeedSequence(seed).generate_state(2, np.uint64).astype(np.uint64)
    return key


def _random(key: NDArray[np.uint64], purpose: int, shower: int) -> np.random.Generator:
    # The two lower words are left to the drawing: 2^128 numbers for each shower and purpose.
    counter = np.array([0, 0, purpose, shower], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


_PHILOX = 1
_PER_COUNT = 4
"""Numbers of 32 bits that a value of the counter gives."""
CHANCES = 1 << 16
"""Probabilities are multiples of 1 / CHANCES: a choice takes 16 random bits."""
_SECTIONS = 1 << 8
_DRAWS = 1 << 8
"""Most draws within a section."""

MIRROR_SECTION = _SECTIONS - 1
"""The section of the input pipeline; a step has those from 0 on."""


class EventDraws:
    """The random numbers of a section of a step, for showers ``first`` up to ``first + count`` of the global batch.

    step, first: integers or int64 scalars. Each call is another draw. XLA makes other numbers of the same bits.
    """

    def __init__(self, seed: int, step: Any, section: int, first: Any, count: int) -> None:
        if not 0 <= section < _SECTIONS:
            raise ValueError(f"section {section} of a step does not exist")
        import tensorflow as tf

        self._key = tf.constant([seed], tf.uint64)
        self._high = (tf.cast(step, tf.int64) * _SECTIONS + section) * _DRAWS
        self._first, self._count, self._drawn = tf.cast(first, tf.int64), count, 0

    def uniform(self, shape: tuple[int, ...]) -> Any:
        """Numbers of [0, 1), float32 (count, *shape)."""
        return self._draw("StatelessRandomUniformV2", shape)

    def normal(self, shape: tuple[int, ...]) -> Any:
        """Numbers of mean 0 and width 1, float32 (count, *shape)."""
        return self._draw("StatelessRandomNormalV2", shape)

    def chosen(self, chances: int, shape: tuple[int, ...]) -> Any:
        """True with a probability of chances / CHANCES, bool (count, *shape)."""
        import tensorflow as tf

        size = math.prod(shape)
        words = self._draw("StatelessRandomUniformFullIntV2", (math.ceil(size / 2),), dtype=tf.uint32)
        # Compared with their sign: half as many operations are known to all devices for numbers without.
        halves = tf.reshape(tf.bitcast(words, tf.int16), (self._count, -1))[:, :size]
        limit = tf.constant(min(chances, CHANCES - 1) - CHANCES // 2, tf.int16)
        return tf.reshape(halves < limit, (self._count, *shape))

    def _draw(self, operation: str, shape: tuple[int, ...], **options: Any) -> Any:
        import tensorflow as tf

        if self._drawn == _DRAWS:
            raise ValueError(f"more than {_DRAWS} draws in a section of a step")
        size = math.prod(shape)
        counts = math.ceil(size / _PER_COUNT)
        counter = tf.bitcast(tf.stack([self._first * counts, self._high + self._drawn]), tf.uint64)
        self._drawn += 1
        numbers = getattr(tf.raw_ops, operation)(
            shape=[self._count, counts * _PER_COUNT], key=self._key, counter=counter, alg=_PHILOX, **options
        )
        return tf.reshape(numbers[:, :size], (self._count, *shape))
