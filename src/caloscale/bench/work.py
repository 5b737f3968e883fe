"""The work of contenders: training steps, generation, the matrix product that they are compared with."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from caloscale.bench.reference_step import build_reference, reference_optimizers, reference_step
from caloscale.bench.worker import Work
from caloscale.inference.generator import limit_threads
from caloscale.inference.runtime import open_runtime
from caloscale.models import family_of, latent, noise_size
from caloscale.models.card import GENERATOR, load_network
from caloscale.models.optimizers import Schedule
from caloscale.profiling.peak import SIZE, products
from caloscale.showers.primaries import draw_table
from caloscale.spec import Run, build_run
from caloscale.training.processor import set_suitable_threads
from caloscale.training.state import TrainingState, compile_step

HIT_SHARE = 0.03
"""Cells with energy, about as in Geant4 showers; zeros and tiny numbers may be slower or faster than others."""


def synthetic_batch(run: Run, size: int) -> dict[str, Any]:
    """A batch as the input pipeline gives it: random cells with the sums of showers of the run's energies."""
    random = np.random.default_rng(1)
    primaries = draw_table(run.data, size, random)
    cells = random.gamma(0.5, 1.0, (size, *run.data.shape)) * (random.random((size, *run.data.shape)) < HIT_SHARE)
    preprocessing = run.data.preprocessing
    ecal_sum = 0.02 * primaries["energy_gev"] * preprocessing.units_per_gev
    cells *= (ecal_sum / np.maximum(cells.sum(axis=(1, 2, 3)), 1e-9))[:, None, None, None]
    arrays = {
        "cells": cells**preprocessing.power,
        **primaries,
        "measured_angle_rad": primaries["angle_rad"],
        "ecal_sum": ecal_sum,
    }
    return {name: tf.constant(value, tf.float32) for name, value in arrays.items()}


def _repeated(compute: Callable[[], Any], number: Callable[[Any], Any] = lambda result: result) -> Work:
    """Computes as often as asked and reads a number of the last result: that waits for an accelerator."""

    def work(units: int) -> None:
        for _ in range(units):
            result = compute()
        _must_be_finite(float(number(result)))

    return work


def our_step(configuration: dict[str, Any], batch: int) -> tuple[Work, dict[str, Any]]:
    """The step that trains, on one device."""
    run = build_run(configuration)
    set_suitable_threads(run, os.environ)
    state = TrainingState(run)
    step = compile_step(state, Schedule(0, "constant"))
    showers, over = synthetic_batch(run, batch), tf.constant(0.0)

    work = _repeated(lambda: step(showers, over), lambda losses: sum(losses.values()))
    return work, {"flopPerEvent": state.family.step_flops(run, state.networks)}


def reference_step_work(configuration: dict[str, Any], batch: int) -> tuple[Work, dict[str, Any]]:
    """The published step in plain Keras, in one tf.function."""
    run = build_run(configuration)
    tf.keras.utils.set_random_seed(run.train.seed)
    networks = build_reference(run.model, run.data)
    optimizers = reference_optimizers(run, networks)
    showers = synthetic_batch(run, batch)

    @tf.function(autograph=False)
    def step() -> Any:
        reference_step(run, networks, optimizers, showers)
        return networks["generator"].trainable_variables[0][0, 0]

    return _repeated(step), {"flopPerEvent": family_of(run.model).step_flops(run, networks, folded=False)}


def large_product(precision: str, size: int = SIZE) -> tuple[Work, dict[str, Any]]:
    """A product of two square matrices."""
    return _repeated(products(precision, size)), {"flop": 2 * size**3}


def runtime_work(
    configuration: dict[str, Any],
    folder: str,
    runtime: str,
    precision: str,
    batch: int,
    streams: int,
    threads: int | None = None,
) -> tuple[Work, dict[str, Any]]:
    """Batches of a model folder in a runtime; a unit is a batch for each of ``streams`` threads.

    runtime: also keras, the layers of the network one after the other, without a graph. threads: of all streams
    together; absent: one for each core.
    """
    run = build_run(configuration)
    noise, primaries = _inputs(run, batch)
    if runtime == "keras":
        network = load_network(Path(folder) / GENERATOR, run.model)

        def generate() -> Any:
            return network(latent(noise, primaries, run.model, run.data), training=False).numpy()

    else:
        opened = open_runtime(folder, runtime, precision=precision, streams=streams, threads=threads)

        def generate() -> Any:
            return opened.generate_batch(noise, **primaries)

    def work(units: int) -> None:
        with ThreadPoolExecutor(streams) as pool:
            for cells in pool.map(lambda _: generate(), range(units * streams)):
                _must_be_finite(cells[0])

    return work, {}


def reference_work(
    configuration: dict[str, Any], batch: int, threads: int | None = None
) -> tuple[Work, dict[str, Any]]:
    """The published generator in plain Keras, in one tf.function, showers in network units."""
    if threads is not None:
        limit_threads(threads)
    run = build_run(configuration)
    generator = build_reference(run.model, run.data)["generator"]
    noise, primaries = _inputs(run, batch)

    @tf.function(autograph=False)
    def generate(noise: Any, primaries: dict[str, Any]) -> Any:
        return generator(latent(noise, primaries, run.model, run.data), training=False)

    def work(units: int) -> None:
        for _ in range(units):
            _must_be_finite(generate(noise, primaries)[0].numpy())

    return work, {}


def _inputs(run: Run, batch: int) -> tuple[Any, dict[str, Any]]:
    random = np.random.default_rng(1)
    noise = random.standard_normal((batch, noise_size(run.model, run.data)), np.float32)
    return noise, draw_table(run.data, batch, random)


def _must_be_finite(values: Any) -> None:
    if not np.isfinite(values).all():
        raise FloatingPointError("the work computed something that is not finite")
