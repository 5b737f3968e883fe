"""The training step of the flow, and the statistics that are measured before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from caloscale.models.families.family import GENERATOR, Table, Weights, first_columns
from caloscale.models.families.flow.detector import CONCENTRATION, MOMENTS, Detector
from caloscale.models.families.flow.layer_flow import FARTHEST, NORMAL_KNOTS, bend, unchanged_layers
from caloscale.models.families.flow.neighbours import coefficient_count, correlations
from caloscale.models.families.flow.network import Finish, ShowerFlow
from caloscale.models.families.flow.representation import (
    describe_primary,
    energies,
    expectation_terms,
    filled,
    layer_numbers,
    layers_of_numbers,
    mirror_numbers,
    mirror_primary,
    moments,
)
from caloscale.models.families.flow.scores import BINS, FAINT_BINS, logistic_of_normal
from caloscale.models.families.step import Losses, MicroBatch, Step, phase_scope
from caloscale.progress import bar
from caloscale.random import EventDraws
from caloscale.spec import Data, Run

Doubles = NDArray[np.float64]
CellsOf = Callable[[tf.Tensor, tf.Tensor, tf.Tensor, Finish], tf.Tensor]

_CHUNK = 500
"""Showers that are measured at a time."""
_SMALLEST_EIGENVALUE = 1e-4
"""Of the correlation of the numbers: smaller ones, of numbers that follow from others, count as this."""
_LEAST_REST = 0.1
"""Added to the size of a rest before its logarithm, in standard deviations."""
_LEAST_DISTANCE = 1e-4
"""Of neighbouring quantiles, in standard deviations."""
_DRAWS = 8
"""Showers that the trained flow makes of each primary for `calibrate`."""
_BATCH = 2000
"""Of them at a time."""
_FINISHED = 1500
"""Showers that are finished, as the numbers, correlations and spreads of their cells are wanted."""
_EXAMINED = 2
"""Showers of each primary that are finished, as their moments are wanted."""
_CELLS = 4_000_000
"""Cells of the showers that are finished at a time."""
_ROUNDS = 4
"""Times that showers are finished: each time coefficients change by what is missing over their effect."""
_RELAXATION = 1.5
"""Part of the missing moments by which stage 1 changes each time: the width and the mean radius follow by a third."""
_WIDTH_TERMS = (0, 1, 4)
"""Terms of `expectation_terms` on which the missing widths of finished showers depend, a constant, ln E and the
inclination: others, of some hundred showers near the ends of the energies, grew from round to round."""
_WIDTHS = (2, 6)
"""Moments that are the logarithms of the rms along x and y."""
_LEAST_MOVED, _LARGEST_GAIN = 0.01, 8.0
"""Change of a coefficient from which its effect on finished showers is known, and largest ratio of both."""
_LARGEST = Finish(neighbours=0.7, core=0.7, counts=0.7, hazards=0.5)
"""Of the correlation of neighbours, and of the corrections of the logarithms of spreads and of hazards."""
_FIRST_GAINS = Finish(neighbours=2.5, core=1.0, counts=1.0, hazards=1.0)
"""Change of what is measured on finished showers over that of a coefficient, where `_gain` does not know it yet."""
_LEAST_GAINS = {"neighbours": 1.0, "core": 0.25, "counts": 0.25}
"""Coefficients that `_gain` follows, and its smallest value: rare pairs of hits fluctuate."""
_LEAST_VARIANCE = 0.01
"""Of the scores of the core and of the number of hits of a layer: an empty one has none."""
_KERNEL = (0.25, 0.5, 0.25)
"""Weights of the layer in front, a layer and that behind it in its spreads."""
_MOST_CALIBRATED = 0.2
"""Largest correction of a coefficient: of a mean in widths, of the logarithm of a width."""
_FAINT_MIP = (10.0, 40.0)
"""Layers with the energy of fewer minimum-ionising particles are faint, of more than the second not at all."""
_FEWEST_FILLED = 100
"""Showers with energy in a layer that `FaintLayers` follows."""
_MOST_BENT, _MOST_EMPTY = 1.5, 8.0
"""Largest change of the logarithm of the energy of a layer, and energy below which layers may be empty."""
_FIT_STEPS, _FIT_RATE = 8, 0.7
"""Steps of the fit of a width, and the part of the excess by which each changes its logarithm."""
_LARGEST_DEVIATION = 5.0
"""Deviations in widths count at most so much in that fit."""
_GAUSSIAN = math.sqrt(math.pi / 2)
"""Standard deviation over mean absolute deviation, of Gaussian numbers."""


def train_step(step: Step) -> Losses:
    """One update of both networks by the sum of their losses: no weight has a part in two of them."""
    run, flow = step.run, step.networks[GENERATOR].get_layer("flow")

    def loss_of(_: int, micro: MicroBatch, random: EventDraws) -> tuple[tf.Tensor, Mapping[str, tf.Tensor]]:
        return flow.losses_of(micro.cells[..., 0], primaries_of(micro.batch, run.data), random)

    with phase_scope(GENERATOR):
        return step.finish(GENERATOR, 0, loss_of, named=lambda losses: losses)


def primaries_of(batch: Mapping[str, tf.Tensor], data: Data) -> tf.Tensor:
    """The first columns of the generator's input (B, 2 + condition)."""
    return tf.concat(first_columns(batch, data), axis=1)


def measure_whitening(run: Run, generator: tf.keras.Model, showers: Table) -> Weights:
    """Values of `Whitening`, and of `Finish` and `FaintLayers` that change nothing: coefficients of the mean and of the
    logarithm of the width (least squares), quantiles of what is left, root and inverse root of the covariance of its
    normal numbers (ZCA of the correlation), and the largest whitened numbers.

    With data.mirror the mirrored showers count, too. Empty layers get a low-discrepancy sequence, not random numbers.
    """
    flow = generator.get_layer("flow")
    primaries, numbers = _numbers_of(run, flow.detector, showers)
    design = _design(primaries)
    mean = np.linalg.lstsq(design, numbers, rcond=None)[0]
    rest = numbers - design @ mean
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
    arrays = (mean, log_width, knots, root, inverse, largest, *(np.zeros(weight.shape) for weight in flow.finish))
    return [*(array.astype(np.float32) for array in arrays), *unchanged_layers(flow.detector.shape[2])]


def calibrate(run: Run, generator: tf.keras.Model, showers: Table) -> Weights:
    """Weights as `measure_whitening`: coefficients of the mean and of the logarithm of the width with which the numbers
    that the trained flow makes of the primaries of these showers have the mean and the width of theirs, the further
    ones of `Whitening` as they are; `Finish`, with which its cells have their correlations, spreads and faint energies;
    and those of `FaintLayers`.

    The velocity is a mean over few showers that dropout blurs, so the flow makes most numbers too narrow. Widths are
    mean absolute deviations, as in `physics.response.widths`: standard deviations follow the tails, which are heavier
    than those of the training showers, so that most showers stayed 1% too near to the mean. The moments of finished
    showers differ from their numbers, as `targets` holds them nearly and its last correction of the layers' energies
    takes hits away: this is added, in some rounds, as a shower follows its numbers in part. No correction exceeds
    `_MOST_CALIBRATED`: an untrained flow remains one.
    """
    flow = generator.get_layer("flow")
    primaries, real = _numbers_of(run, flow.detector, showers)
    random = np.random.default_rng(run.train.seed)
    repeated, parts = np.tile(primaries, (_DRAWS, 1)), []
    for first in range(0, len(repeated), _BATCH):
        primary = tf.constant(repeated[first : first + _BATCH])
        noise = tf.constant(random.standard_normal((len(primary), flow.numbers), np.float32))
        parts.append(flow.make_numbers(noise, primary)[1].numpy())
    made = np.concatenate(parts).astype(np.float64)
    designs = [_design(primaries), np.tile(_design(primaries), (_DRAWS, 1))]
    means, log_widths = zip(*(_fit(design, numbers) for design, numbers in zip(designs, (real, made))))
    missing = np.array([means[0] - means[1], log_widths[0] - log_widths[1]])
    most = _MOST_CALIBRATED * np.stack([np.exp(log_widths[0][:1]), np.ones_like(means[0][:1])])
    cells_of = _graph_of_cells(flow)
    finished = {name: values[:_FINISHED] for name, values in showers.items()}
    finish = _measure_finish(run, generator, finished, random, cells_of)
    examined = {name: np.tile(values, _EXAMINED) for name, values in showers.items() if name != "cells"}
    correction, excess = missing.clip(-most, most), np.zeros((*missing.shape[:2], MOMENTS))
    made_with, tilt = _as_tensors(finish), _measure_tilt(run, flow, showers)
    for _ in bar("calibrate moments", _ROUNDS, "rounds", iterable=range(_ROUNDS)):
        excess += _RELAXATION * (
            _excess(run, generator, examined, cells_of, made_with, correction, tilt, random) - excess
        )
        correction = (missing - np.pad(excess, ((0, 0), (0, 0), (flow.numbers - MOMENTS, 0)))).clip(-most, most)
    made = _corrected(flow, made, designs[1], correction)
    mean, log_width = np.array([flow.whitening.mean, flow.whitening.log_width]) + correction
    truth = _layers(primaries, real, flow.detector)
    found = _layers(repeated, made, flow.detector)
    calibrated = [mean.astype(np.float32), log_width.astype(np.float32)]
    kept = [weight.numpy() for weight in flow.whitening.weights[len(calibrated) :]]
    return [*calibrated, *kept, *finish, *_fit_faint(truth, found, flow.detector)]


def _layers(primaries: NDArray[np.float32], numbers: Doubles, detector: Detector) -> Doubles:
    """Logarithms of the energies of layers (N, L), in units of the faintest cell, from numbers (N, D)."""
    energy = np.exp(primaries[:, 0] * detector.width + detector.centre)
    depth = detector.shape[2]
    layers = layers_of_numbers(tf.constant(numbers[:, :depth], tf.float32), tf.constant(energy, tf.float32), detector)
    return np.log(np.maximum(layers.numpy().astype(np.float64) / detector.floor_gev, 1e-6))


def _fit_faint(real: Doubles, made: Doubles, detector: Detector) -> Weights:
    """Weights of `FaintLayers` with which as many layers are empty as in training showers, and the quantiles of others
    are the same where few particles reach them. real, made: what `_layers` gives."""
    least, knots, images = (np.array(one) for one in unchanged_layers(detector.shape[2]))
    limits = np.log(np.array(_FAINT_MIP) * detector.mip_gev / detector.floor_gev)
    for layer, (truth, found) in enumerate(zip(real.T, made.T)):
        filled = truth[truth >= np.log(1 - 1e-3)]
        if len(filled) < _FEWEST_FILLED:
            continue
        if len(filled) < len(truth):
            least[layer] = min(np.quantile(found, 1 - len(filled) / len(truth)), np.log(_MOST_EMPTY))
        knot, image = (np.quantile(values, ndtr(NORMAL_KNOTS)) for values in (found[found >= least[layer]], filled))
        knot += 1e-4 * np.arange(len(knot))
        part = np.clip((limits[1] - knot) / (limits[1] - limits[0]), 0, 1)
        image = knot + part * np.clip(image - knot, -_MOST_BENT, _MOST_BENT)
        image = np.maximum.accumulate(image)
        knots[:, layer], images[:, layer] = (np.append(values, values[-1] + 1) for values in (knot, image))
    return [values.astype(np.float32) for values in (least, knots, images)]


def _graph_of_cells(flow: ShowerFlow) -> CellsOf:
    """Cells in GeV (B, X, Y, L) from the generator's input (B, N), whitened numbers, numbers (B, D) and a finish."""

    def compute(latent: tf.Tensor, whitened: tf.Tensor, numbers: tf.Tensor, finish: Finish) -> tf.Tensor:
        return flow.cells_gev(latent, sparse=True, finish=finish, numbers=(whitened, numbers))

    return tf.function(compute, autograph=False, reduce_retracing=True)  # type: ignore[no-any-return]


def _as_tensors(finish: Finish) -> Finish:
    return Finish(*(tf.constant(values, tf.float32) for values in finish))


def _measure_finish(
    run: Run, generator: tf.keras.Model, showers: Table, random: np.random.Generator, graph: CellsOf
) -> Finish:
    """With which generated showers of these primaries have the correlations and spreads of these showers, and such
    parts of their faint cells in each bin: each follows from its own coefficient."""
    flow = generator.get_layer("flow")
    depth = flow.detector.shape[2]
    scores_of = tf.function(flow.measure_scores, autograph=False, reduce_retracing=True)
    faint = np.arange(BINS) < FAINT_BINS

    def measured(cells_of: Callable[[slice, tf.Tensor], tf.Tensor]) -> tuple[Finish, Doubles]:
        """Correlations (C,), logarithms of the spreads of the core and of the numbers of hits (L,) and of what hazards
        should be over what they are (K,), and hits in each bin (K,)."""
        pairs, bins = np.zeros((2, coefficient_count(flow.detector))), np.zeros((2, BINS))
        core, hits = np.zeros((3, depth)), np.zeros((3, depth))
        for part, columns in _parts(run, flow, showers):
            cells = cells_of(part, columns)
            _, numbers = _numbers_of_cells(cells, columns, part.start, flow.detector)
            uniform = random.random((len(columns), depth, *flow.detector.shape[:2]), np.float32)
            normal, logits, near, of_bins = scores_of(cells, numbers, columns, tf.constant(uniform))
            hit = tf.cast(logistic_of_normal(normal) > -logits, tf.float32)
            pairs += correlations(normal, logits, near, cylinder=flow.detector.cylinder)
            core += _powers(normal, tf.sigmoid(logits) * near)
            of_layers = tf.reduce_sum(hit - tf.sigmoid(logits), axis=(2, 3), keepdims=True)
            hits += _powers(of_layers, tf.ones_like(of_layers))
            bins += of_bins
        correlated, hazards = pairs[0] / np.maximum(pairs[1], 1.0), np.log((bins[0] + 1) / (bins[1] + 1))
        return Finish(correlated, _log_spreads(core), _log_spreads(hits), hazards), bins[0]

    def finished(_: slice, columns: tf.Tensor) -> tf.Tensor:
        latent, _, _, whitened, numbers = _draw(generator, columns, random)
        return graph(latent, whitened, numbers, _as_tensors(finish))

    wanted, counts = measured(lambda part, _: energies(tf.constant(showers["cells"][part]), flow.detector))
    finish = Finish(*(np.zeros(weight.shape) for weight in flow.finish))
    gains, before = _FIRST_GAINS, (finish, wanted)
    for _ in bar("calibrate cells", _ROUNDS, "rounds", iterable=range(_ROUNDS)):
        made, _ = measured(finished)
        change = Finish(*(np.subtract(*values) for values in zip(wanted, made)))
        # As many cells are hits as before: `targets.hold_hits` has what their number should be.
        # Showers without faint hits have no such number.
        mean = np.average(change.hazards, weights=faint * counts) if np.any(faint * counts) else change.hazards
        change = change._replace(hazards=faint * (change.hazards - mean))
        rounds = (gains, finish, before[0], made, before[1])
        gains = gains._replace(
            **{
                name: _gain(least, *(getattr(values, name) for values in rounds))
                for name, least in _LEAST_GAINS.items()
            }
        )
        before = finish, made
        steps = zip(finish, change, gains, _LARGEST)
        finish = Finish(*((old + new / gain).clip(-most, most) for old, new, gain, most in steps))
    return Finish(*(values.astype(np.float32) for values in finish))


def _gain(
    least: float, gain: Doubles, coefficients: Doubles, before: Doubles, made: Doubles, made_before: Doubles
) -> Doubles:
    """Change of what is measured on finished showers over that of a coefficient; as it was where that hardly moved.
    Neighbours in the core of a cylinder have twice their coefficient, cells with few hits more, the core of a grid half
    its spread."""
    moved = coefficients - before
    known = np.abs(moved) > _LEAST_MOVED
    return np.where(known, ((made - made_before) / np.where(known, moved, 1.0)).clip(least, _LARGEST_GAIN), gain)


def _powers(values: tf.Tensor, weight: tf.Tensor) -> Doubles:
    """Sums for each layer (3, L) of weights (B, L, X, Y), of them times values, and times their squares."""
    return np.array([tf.reduce_sum(weight * values**power, axis=(0, 2, 3)) for power in range(3)], np.float64)


def _log_spreads(sums: Doubles) -> Doubles:
    """Logarithms of standard deviations (L,) from `_powers` (3, L), each of a layer and of those beside it."""
    weight, mean, square = (np.convolve(np.pad(row, len(_KERNEL) // 2), _KERNEL, "valid") for row in sums)
    mean, square = mean / np.maximum(weight, 1.0), square / np.maximum(weight, 1.0)
    return np.log(np.maximum(square - mean**2, _LEAST_VARIANCE)) / 2


def _parts(run: Run, flow: ShowerFlow, showers: Table) -> Iterator[tuple[slice, tf.Tensor]]:
    """Showers that are finished at a time, and the first columns of the generator's input (B, 2 + condition)."""
    size, count = max(1, _CELLS // math.prod(flow.detector.shape)), len(showers["energy_gev"])
    for first in range(0, count, size):
        part = slice(first, min(first + size, count))
        yield part, primaries_of({name: values[part] for name, values in showers.items()}, run.data)


def _draw(generator: tf.keras.Model, columns: tf.Tensor, random: np.random.Generator) -> tuple[tf.Tensor, ...]:
    """The generator's input (B, N): its first columns and normal numbers; the primary (B, P) and axis of it, and what
    stage 1 makes of it: whitened numbers and numbers (B, D)."""
    flow, first = generator.get_layer("flow"), columns.shape[1]
    noise = random.standard_normal((len(columns), generator.input_shape[1] - first), np.float32)
    latent = tf.concat([columns, noise], axis=1)
    _, primary, axis = describe_primary(latent, flow.detector)
    return latent, primary, axis, *flow.make_numbers(latent[:, first : first + flow.numbers], primary)


def _describe(cells: tf.Tensor, axis: tf.Tensor, detector: Detector) -> tf.Tensor:
    """`moments` and the rms along x and y about the axis of the window (B, 14), as the observable is."""
    upright = tf.exp(tf.gather(moments(cells, tf.zeros_like(axis), detector), _WIDTHS, axis=1))
    return tf.concat([moments(cells, axis, detector), upright], axis=1)


def _tilt_of(log_widths: Doubles) -> Doubles:
    """Coefficients (T, 2) of the widths of the rms about the axis of the window over those of `_WIDTHS`, from all
    (T, 14)."""
    return log_widths[:, MOMENTS:] - log_widths[:, _WIDTHS]


def _measure_tilt(run: Run, flow: ShowerFlow, showers: Table) -> Doubles:
    """`_tilt_of` these showers."""
    primaries, parts = [], []
    for part, columns in _parts(run, flow, showers):
        _, primary, axis = describe_primary(columns, flow.detector)
        primaries.append(primary.numpy())
        cells = energies(tf.constant(showers["cells"][part]), flow.detector)
        parts.append(_describe(cells, axis, flow.detector).numpy().astype(np.float64))
    return _tilt_of(_fit(_design(np.concatenate(primaries)), np.concatenate(parts), _WIDTH_TERMS)[1])


def _excess(
    run: Run,
    generator: tf.keras.Model,
    showers: Table,
    graph: CellsOf,
    finish: Finish,
    correction: Doubles,
    tilt: Doubles,
    random: np.random.Generator,
) -> Doubles:
    """Coefficients (2, T, 12) of what the `moments` of finished showers exceed those by that stage 1 gave them with
    this correction (2, T, D), in mean and logarithm of the width; 0 for the concentration, which no part of `targets`
    holds. The widths of an rms are those about the axis of the window, tilt: as `_measure_tilt`, which depend on
    correlations, too. The random numbers are others each time: the rounds average them."""
    flow = generator.get_layer("flow")
    primaries, parts = [], []
    for _, columns in _parts(run, flow, showers):
        latent, primary, axis, whitened, numbers = _draw(generator, columns, random)
        numbers = _corrected(flow, numbers.numpy(), _design(primary.numpy()), correction).astype(np.float32)
        primaries.append(primary.numpy())
        cells = graph(latent, whitened, tf.constant(numbers), finish)
        parts.append((numbers[:, -MOMENTS:], _describe(cells, axis, flow.detector).numpy()))
    design = _design(np.concatenate(primaries))
    of_numbers, of_finished = (
        np.array(_fit(design, np.concatenate(values).astype(np.float64), _WIDTH_TERMS)) for values in zip(*parts)
    )
    of_numbers[1][:, _WIDTHS] += tilt - _tilt_of(of_finished[1])
    return (of_finished[..., :MOMENTS] - of_numbers) * (np.arange(MOMENTS) != CONCENTRATION)


def _corrected(flow: ShowerFlow, numbers: Doubles, design: Doubles, correction: Doubles) -> Doubles:
    """What `Whitening` makes with corrected coefficients of its mean and logarithm of the width (2, T, D) instead of
    these numbers (N, D); design (N, T)."""
    mean, (shift, change) = flow.whitening.mean.numpy(), correction
    return (numbers - design @ mean) * np.exp(design @ change) + design @ (mean + shift)


def _fit(design: Doubles, numbers: Doubles, width_terms: Sequence[int] | None = None) -> tuple[Doubles, Doubles]:
    """Coefficients (T, D) of the mean and of the logarithm of the width of numbers (N, D) in a design (N, T).
    width_terms: those on which the width depends; absent: all."""
    mean = np.asarray(np.linalg.lstsq(design, numbers, rcond=None)[0], np.float64)
    rest = numbers - design @ mean
    log_width = np.zeros_like(mean)
    log_width[0] = np.log(np.maximum(rest.std(axis=0), 1e-6))
    terms = list(range(design.shape[1]) if width_terms is None else width_terms)
    of_width = design[:, terms]
    for _ in range(_FIT_STEPS):
        deviation = np.minimum(_GAUSSIAN * np.abs(rest) * np.exp(-design @ log_width), _LARGEST_DEVIATION)
        log_width[terms] += np.linalg.lstsq(of_width, deviation - 1, rcond=None)[0] * _FIT_RATE
    return mean, log_width


def _design(primaries: NDArray[np.float32]) -> Doubles:
    return np.asarray(expectation_terms(tf.constant(primaries)).numpy(), np.float64)


def _numbers_of(run: Run, detector: Detector, showers: Table) -> tuple[NDArray[np.float32], Doubles]:
    """Primaries (N, P) and numbers (N, D) of showers, with data.mirror of the mirrored ones, too."""
    primaries, numbers = [], []
    for first in range(0, len(showers["energy_gev"]), _CHUNK):
        part = {name: values[first : first + _CHUNK] for name, values in showers.items()}
        for primary, measured in _mirrored(*_measure(part, first, run.data, detector), mirror=run.data.mirror):
            primaries.append(primary.numpy())
            numbers.append(measured.numpy())
    return np.concatenate(primaries), np.concatenate(numbers).astype(np.float64)


def _measure(part: Table, first: int, data: Data, detector: Detector) -> tuple[tf.Tensor, tf.Tensor]:
    """Primary (N, P) and numbers (N, D) of showers; first: number of the first of them."""
    return _numbers_of_cells(energies(tf.constant(part["cells"]), detector), primaries_of(part, data), first, detector)


def _numbers_of_cells(
    cells: tf.Tensor, columns: tf.Tensor, first: int, detector: Detector
) -> tuple[tf.Tensor, tf.Tensor]:
    """The same. cells (N, X, Y, L) in GeV, columns: of their primaries (N, 2 + condition)."""
    energy, primary, axis = describe_primary(columns, detector)
    count, depth = len(cells), detector.shape[2]
    sequence = ((first * depth + np.arange(count * depth) + 0.5) * (np.sqrt(5) - 1) / 2) % 1
    fill = ndtri(sequence.clip(1e-6, 1 - 1e-6)).reshape(count, depth).astype(np.float32)
    layers = filled(tf.reduce_sum(cells, axis=(1, 2)), tf.constant(fill), detector)
    return primary, tf.concat([layer_numbers(layers, energy, detector), moments(cells, axis, detector)], axis=1)


def _mirrored(primary: tf.Tensor, numbers: tf.Tensor, *, mirror: bool) -> list[tuple[tf.Tensor, tf.Tensor]]:
    ways = [(x, y) for x in (False, True) for y in (False, True)] if mirror else [(False, False)]
    return [(mirror_primary(primary, *way), mirror_numbers(numbers, *way)) for way in ways]
