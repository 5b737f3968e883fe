"""What this machine can do: the rate of a large matrix product."""

import logging
import os
import time
from collections.abc import Callable

import tensorflow as tf

from caloscale.models import family_of
from caloscale.models.layers.convolution import has_bfloat16
from caloscale.processor import cores
from caloscale.spec import Run

log = logging.getLogger(__name__)

SIZE = 2048
ROUNDS = 7

PAYS_FROM = 1.5
"""Ratio of the rates of matrix products from which on a training in bfloat16 is faster than in float32: its other
operations are slower (docs/benchmarks.md)."""


def measure_peak(precision: str = "float32", *, size: int = SIZE, rounds: int = ROUNDS) -> float:
    """GFLOP/s of products of matrices of ``size`` rows and columns: the fastest of ``rounds``, about a second on two
    cores. A multiply-add counts 2.

    Where an operation has only some of the cores, several products are computed at the same time.
    """
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    threads = threads or int(os.environ.get("TF_NUM_INTRAOP_THREADS") or 0)
    number = max(1, cores() // threads) if threads else 1
    product = products(precision, size, number)
    float(product())
    seconds = []
    for _ in range(rounds):
        clock = time.perf_counter()
        float(product())
        seconds.append(time.perf_counter() - clock)
    return 2e-9 * number * size**3 / min(seconds)


def products(precision: str, size: int, number: int = 1) -> Callable[[], tf.Tensor]:
    """A function that computes this number of products of square matrices. It returns one number: on an accelerator
    reading it waits for them."""
    shape, dtype = (size, size), tf.as_dtype(precision)
    left, *right = (tf.cast(tf.random.stateless_normal(shape, (1, seed)), dtype) for seed in range(1, 2 + number))

    @tf.function(autograph=False)
    def compute() -> tf.Tensor:
        return tf.add_n([tf.reduce_sum(tf.cast(tf.matmul(left, one)[0, :8], tf.float32)) for one in right])

    return compute


def with_measured_precision(run: Run, workers: int = 1) -> Run:
    """The run with the precision that ``train.precision: auto`` finds faster here; any other run as it is.

    Two products of matrices in each precision, a second on two cores. Float32 without a measurement with hardware, with
    several workers, where the training is deterministic, where bfloat16 is wrong (`has_bfloat16`), and for families
    that do not use train.precision.
    """
    train = run.train
    if train.precision != "auto":
        return run
    chosen = "float32"
    if "train.precision" not in family_of(run.model).fields:
        log.info("precision float32: the family %s has no other", run.model.family)
    elif run.hardware is not None or workers > 1 or train.deterministic:
        log.info("precision float32: train.precision auto measures for one worker of this machine alone")
    elif not has_bfloat16():
        log.info("precision float32: bfloat16 would be wrong here, without oneDNN and instructions for it")
    else:
        rates = [measure_peak(precision, size=1024, rounds=5) for precision in ("float32", "bfloat16")]
        chosen = "bfloat16" if rates[1] >= PAYS_FROM * rates[0] else "float32"
        log.info(
            "precision %s: %.0f GFLOP/s of a matrix product in float32, %.0f in bfloat16; it pays from %.1f times on",
            *(chosen, *rates, PAYS_FROM),
        )
    return run.model_copy(update={"train": train.model_copy(update={"precision": chosen})})
