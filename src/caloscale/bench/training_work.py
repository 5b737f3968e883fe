"""Work of a training: our step, the reference, the matrix product that both are compared with, the input pipeline."""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from caloscale.bench.reference_networks import build_reference
from caloscale.bench.reference_step import reference_optimizers, reference_step
from caloscale.bench.worker import Work
from caloscale.models import family_of
from caloscale.models.optimizers import Schedule
from caloscale.profiling.peak import SIZE
from caloscale.sagips.networks import Perceptron
from caloscale.sagips.optimizers import make_optimizer
from caloscale.sagips.proxy import Proxy
from caloscale.showers.primaries import draw_table
from caloscale.showers.tfrecord.manifest import read_manifest
from caloscale.spec import Run, build_run, parse_solver_run
from caloscale.training.input import TrainingShowers
from caloscale.training.processor import set_suitable_threads
from caloscale.training.state import TrainingState, compile_step

HIT_SHARE = 0.03
"""Cells with energy, about as in Geant4 showers; zeros and tiny numbers may be slower or faster than others."""

INPUT_EPOCHS = 1_000_000
"""More than are ever read."""


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


def our_step(configuration: dict[str, Any], batch: int) -> tuple[Work, dict[str, Any]]:
    """The step that trains, on one device."""
    run = build_run(configuration)
    set_suitable_threads(run, os.environ)
    state = TrainingState(run)
    step = compile_step(state, Schedule(0, "constant"))
    showers, over = synthetic_batch(run, batch), tf.constant(0.0)

    def work(units: int) -> None:
        for _ in range(units):
            losses = step(showers, over)
        # Reading a loss waits for the step where it runs on an accelerator.
        _must_be_finite(float(sum(losses.values())))

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

    def work(units: int) -> None:
        for _ in range(units):
            some_weight = step()
        _must_be_finite(float(some_weight))

    return work, {"flopPerEvent": family_of(run.model).step_flops(run, networks, folded=False)}


def large_product(precision: str, size: int = SIZE) -> tuple[Work, dict[str, Any]]:
    """A product of two square matrices."""
    dtype = tf.as_dtype(precision)
    left, right = (tf.cast(tf.random.stateless_normal((size, size), (1, seed)), dtype) for seed in (1, 2))

    @tf.function(autograph=False)
    def product() -> Any:
        return tf.matmul(left, right)

    def work(units: int) -> None:
        for _ in range(units):
            found = product()
        _must_be_finite(float(tf.cast(found[0, 0], tf.float32)))

    return work, {"flop": 2 * size**3}


def solver_epoch(configuration: dict[str, Any]) -> tuple[Work, dict[str, Any]]:
    """Epochs of one rank of the proxy application with a discriminator, without exchange.

    flop: operations in the matrix products of the discriminator.
    """
    solver = parse_solver_run(json.dumps(configuration)).solver
    optimizer, epochs = make_optimizer(solver, 0), itertools.count()

    def work(units: int) -> None:
        for epoch in itertools.islice(epochs, units):
            step = optimizer.step(epoch)
            optimizer.apply(step.gradient, step, epoch)
        _must_be_finite(step.losses["generator"])

    settings = solver.discriminator
    weights = Perceptron((len(Proxy.observables), *[settings.width] * settings.layers, 1)).weights
    # Measured and generated events pass forward and backward (2 + 4 operations a weight), then generated ones forward
    # and back to the events (2 + 2).
    return work, {"flop": (2 * 6 + 4) * weights * solver.events_per_rank}


def pipeline_work(configuration: dict[str, Any], folder: str, batch: int) -> tuple[Work, dict[str, Any]]:
    """Batches of a folder of shards; a unit is an epoch."""
    run = build_run(configuration)
    path = Path(folder)
    manifest = read_manifest(path)
    showers = TrainingShowers(path, manifest, batch, seed=run.train.seed, mirror=run.data.mirror)
    batches = iter(showers.batches(start=0, stop=INPUT_EPOCHS * showers.steps_per_epoch))
    per_unit = showers.steps_per_epoch

    def work(units: int) -> None:
        for _ in range(units * per_unit):
            next(batches)

    clock = time.perf_counter()
    work(1)
    return work, {"showers": per_unit * batch, "firstEpochSeconds": time.perf_counter() - clock}


def _must_be_finite(value: float) -> None:
    if not math.isfinite(value):
        raise FloatingPointError("the work computed something that is not finite")
