"""The training step of the flow, and the statistics that are measured before it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from caloscale.models.families.family import GENERATOR, column, condition
from caloscale.models.families.flow.detector import Detector
from caloscale.models.families.flow.layer_flow import FARTHEST, NORMAL_KNOTS, bend
from caloscale.models.families.flow.network import REPETITIONS
from caloscale.models.families.flow.representation import (
    describe_primary,
    energies,
    expectation_terms,
    filled,
    layer_numbers,
    mirror_numbers,
    mirror_primary,
    moments,
)
from caloscale.models.families.step import Losses, MicroBatch, Step
from caloscale.models.scopes import phase_scope
from caloscale.random import EventDraws
from caloscale.spec import Data, Run

_CHUNK = 500
"""Showers that are measured at a time."""
_SMALLEST_EIGENVALUE = 1e-4
"""Of the correlation of the numbers: smaller ones, of numbers that follow from others, count as this."""
_LEAST_REST = 0.1
"""Added to the size of a rest before its logarithm, in standard deviations."""
_LEAST_DISTANCE = 1e-4
"""Of neighbouring quantiles, in standard deviations."""


def train_step(step: Step) -> Losses:
    """One update of all three networks by the sum of their losses: no weight has a part in two of them."""
    run, flow = step.run, step.networks[GENERATOR].get_layer("flow")

    def loss_of(_: int, micro: MicroBatch, random: EventDraws) -> tuple[tf.Tensor, Mapping[str, tf.Tensor]]:
        return flow.losses_of(micro.cells[..., 0], primaries_of(micro.batch, run.data), random)

    with phase_scope(GENERATOR):
        return step.finish(GENERATOR, 0, loss_of, named=lambda losses: losses)


def primaries_of(batch: Mapping[str, tf.Tensor], data: Data) -> tf.Tensor:
    """The first columns of the generator's input (B, 2 + condition)."""
    energy = column(batch["energy_gev"], tf.float32) / data.preprocessing.energy_scale_gev
    return tf.concat([energy, column(batch["angle_rad"], tf.float32), *condition(batch, data)], axis=1)


def measure_whitening(
    run: Run, generator: tf.keras.Model, showers: Mapping[str, NDArray[np.float32]]
) -> list[NDArray[np.float32]]:
    """Values of `Whitening`: coefficients of the mean and of the logarithm of the width (least squares), quantiles of
    what is left, root and inverse root of the covariance of its normal numbers (ZCA of the correlation), and the
    largest whitened numbers.

    With data.mirror the mirrored showers count, too. Empty layers get a low-discrepancy sequence, not random numbers.
    """
    detector: Detector = generator.get_layer("flow").detector
    terms, numbers = [], []
    for first in range(0, len(showers["energy_gev"]), _CHUNK):
        part = {name: values[first : first + _CHUNK] for name, values in showers.items()}
        for primary, measured in _mirrored(*_measure(part, first, run.data, detector), mirror=run.data.mirror):
            terms.append(expectation_terms(primary).numpy())
            numbers.append(measured.numpy())
    design, found = (np.concatenate(parts).astype(np.float64) for parts in (terms, numbers))
    mean = np.linalg.lstsq(design, found, rcond=None)[0]
    rest = found - design @ mean
    spread = np.maximum(rest.std(axis=0), 1e-6)
    log_width = np.linalg.lstsq(design, np.log(np.abs(rest) + _LEAST_REST * spread), rcond=None)[0]
    rest = rest * np.exp(-(design @ log_width))
    knots = np.quantile(rest, ndtr(NORMAL_KNOTS), axis=0)
    least = _LEAST_DISTANCE * np.maximum(rest.std(axis=0), 1e-3) * np.arange(len(knots))[:, None]
    knots = (np.maximum.accumulate(knots + least, axis=0)).astype(np.float32)
    normal = bend(tf.constant(rest, tf.float32), tf.constant(knots), tf.constant(NORMAL_KNOTS[:, None]))
    normal = normal.numpy().astype(np.float64).clip(-FARTHEST, FARTHEST)
    width = np.maximum(normal.std(axis=0), 1e-6)
    values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(normal / width, rowvar=False)))
    values = np.maximum(values, _SMALLEST_EIGENVALUE)
    root = (vectors * np.sqrt(values)) @ vectors.T * width
    inverse = ((vectors / np.sqrt(values)) @ vectors.T) / width[:, None]
    largest = np.abs(normal @ inverse).max(axis=0)
    return [array.astype(np.float32) for array in (mean, log_width, knots, root, inverse, largest)]


def _measure(
    part: Mapping[str, NDArray[np.float32]], first: int, data: Data, detector: Detector
) -> tuple[tf.Tensor, tf.Tensor]:
    """Primary (N, P) and numbers (N, D) of showers; first: number of the first of them."""
    cells = energies(tf.constant(part["cells"]), detector)
    energy, primary, axis = describe_primary(primaries_of(part, data), detector)
    count, depth = len(part["energy_gev"]), detector.shape[2]
    sequence = ((first * depth + np.arange(count * depth) + 0.5) * (np.sqrt(5) - 1) / 2) % 1
    fill = ndtri(sequence.clip(1e-6, 1 - 1e-6)).reshape(count, depth).astype(np.float32)
    layers = filled(tf.reduce_sum(cells, axis=(1, 2)), tf.constant(fill), detector)
    return primary, tf.concat([layer_numbers(layers, energy, detector), moments(cells, axis, detector)], axis=1)


def _mirrored(primary: tf.Tensor, numbers: tf.Tensor, *, mirror: bool) -> list[tuple[tf.Tensor, tf.Tensor]]:
    ways = [(x, y) for x in (False, True) for y in (False, True)] if mirror else [(False, False)]
    return [(mirror_primary(primary, *way), mirror_numbers(numbers, *way)) for way in ways]


def step_arithmetic(generator: tf.keras.Model) -> int:
    """Floating-point operations of a step for each of its showers: of dense layers and convolutions."""
    flow = generator.get_layer("flow")
    of_layers = flow.layer_flow.arithmetic() // (2 * flow.layer_flow.steps) * REPETITIONS
    across = flow.detector.shape[0] * flow.detector.shape[1]
    of_cells = 0 if flow.cell_flow is None else 3 * 2 * 9 * flow.cell_flow.depth * flow.cell_flow.channels * across
    return 3 * (of_layers + flow.marginals.arithmetic() + of_cells)
