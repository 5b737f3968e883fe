"""Random numbers that belong to a shower, not to the order in which showers are made.

Philox is a function of a key and a counter (Salmon et al., SC 2011): the key comes from the seed, the counter
from the number of the shower. So a shower is the same in any batch, stream, process and runtime, and a large set
can be made in pieces on several machines.
"""

from __future__ import annotations

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


def primary_numbers(seed: int, first: int, count: int) -> NDArray[np.float64]:
    """Two uniform random numbers in [0, 1) for the energy and the angle of each shower: (count, 2)."""
    key = _key(seed)
    numbers = np.empty((count, 2))
    for row, shower in enumerate(range(first, first + count)):
        _random(key, _PRIMARY, shower).random(out=numbers[row])
    return numbers


def _key(seed: int) -> NDArray[np.uint64]:
    if seed < 0:
        raise InputError("must not be negative", field="seed", value=seed, remedy="give 0 or more")
    key: NDArray[np.uint64] = np.random.SeedSequence(seed).generate_state(2, np.uint64).astype(np.uint64)
    return key


def _random(key: NDArray[np.uint64], purpose: int, shower: int) -> np.random.Generator:
    # The two lower words are left to the drawing: 2^128 numbers for each shower and purpose.
    counter = np.array([0, 0, purpose, shower], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
