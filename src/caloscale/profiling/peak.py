"""What this machine can do: the rate of a large matrix product, and the bandwidth of its memory."""

from __future__ import annotations

import statistics
import time

import tensorflow as tf

from caloscale.spec.block import Block

SIZE = 2048
BANDWIDTH_BYTES = 2**28
"""Of the array by which the bandwidth is measured: larger than caches."""
ROUNDS = 7


class Peak(Block):
    """A measured peak."""

    precision: str
    """float32 or bfloat16."""
    gflops: float
    """The fastest round, GFLOP/s; a multiply-add counts 2."""
    median_gflops: float
    """The median of the rounds."""


def measure_peak(precision: str = "float32", *, size: int = SIZE, rounds: int = ROUNDS) -> Peak:
    """Multiply two matrices of ``size`` rows and columns ``rounds`` times, about a second on two cores."""
    dtype = tf.as_dtype(precision)
    left, right = (tf.cast(tf.random.stateless_normal((size, size), (1, seed)), dtype) for seed in (1, 2))

    @tf.function(autograph=False)
    def product() -> tf.Tensor:
        # One number comes back: on an accelerator reading it waits for the product.
        return tf.reduce_sum(tf.cast(tf.matmul(left, right)[0, :8], tf.float32))

    float(product())
    seconds = []
    for _ in range(rounds):
        clock = time.perf_counter()
        float(product())
        seconds.append(time.perf_counter() - clock)
    work = 2e-9 * size**3
    return Peak(precision=precision, gflops=work / min(seconds), median_gflops=work / statistics.median(seconds))


def measure_bandwidth(*, size: int = BANDWIDTH_BYTES, rounds: int = ROUNDS) -> float:
    """GB/s of adding a number to an array of ``size`` bytes, which is read and written once; the fastest round."""
    array = tf.zeros(size // 4)

    @tf.function(autograph=False)
    def add(number: tf.Tensor) -> tf.Tensor:
        return array + number

    seconds = []
    for turn in range(rounds + 1):
        clock = time.perf_counter()
        float(add(tf.constant(float(turn)))[0])
        seconds.append(time.perf_counter() - clock)
    return 2e-9 * size / min(seconds[1:])
