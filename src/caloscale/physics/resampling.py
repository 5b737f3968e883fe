"""Bootstraps and halves: where the uncertainties and the expected null come from."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caloscale.detector.axes import Floats
from caloscale.physics.distances import separation
from caloscale.physics.response import FEWEST
from caloscale.physics.result import Compared, Measured, Separation, number

DIVISIONS = 200
"""Random divisions of the Monte Carlo showers into halves for each self-separation: the standard deviation over D
divisions is known within 1 / sqrt(2 D) of itself, 5%."""
FILLED = 5
"""Least number of showers of the smaller sample in a bin: with fewer the variance of the bin is not known."""


def draw_resampling(primaries: Mapping[str, Floats], bootstraps: int, seed: int) -> tuple[dict[str, Floats], Floats]:
    """Draw the weights of the showers, the same for the same seed.

    By sample (1 + B, N): times each shower is drawn; row 0 all ones, then one row per bootstrap. And halves (D, n): 1
    for the first half of a division of the Monte Carlo showers, 0 for the second; equal numbers.

    primaries: energies and angles (N, 2) by sample, the first one is Monte Carlo. What is drawn are primaries, each
    with all its showers: samples that share primaries fluctuate together, others independently. With an odd number of
    Monte Carlo showers the first half is one larger.
    """
    rng = np.random.default_rng(seed)
    names = list(primaries)
    sizes = [len(primaries[name]) for name in names]
    groups = group_by_primary([primaries[name] for name in names])
    drawn: dict[int, int] = {}
    columns = np.ones((1 + bootstraps, 0))
    weights: dict[str, Floats] = {}
    for name, group in zip(names, groups):
        new = [g for g in dict.fromkeys(group.tolist()) if g not in drawn]
        drawn |= {g: columns.shape[1] + k for k, g in enumerate(new)}
        columns = np.concatenate([columns, draw_weights(len(new), bootstraps, rng)], axis=1)
        weights[name] = columns[:, [drawn[g] for g in group.tolist()]]
    order = rng.permuted(np.tile(np.arange(sizes[0]), (DIVISIONS, 1)), axis=1)
    return weights, (order < (sizes[0] + 1) // 2).astype(np.float64)


def group_by_primary(samples: Sequence[Floats]) -> list[NDArray[np.intp]]:
    """Number of the primary of each shower, from energies and angles (N, 2) of the samples: equal ones have equal
    numbers.

    Where most showers of the first sample, Monte Carlo, share their primary with others of it (a beam of few energies),
    equal primaries are no sign of a common origin: then each shower has another number.
    """
    numbers = np.unique(np.concatenate(samples), axis=0, return_inverse=True)[1].reshape(-1)
    if 2 * len(np.unique(numbers[: len(samples[0])])) < len(samples[0]):
        numbers = np.arange(len(numbers))
    return list(np.split(numbers, np.cumsum([len(sample) for sample in samples])[:-1]))


def draw_weights(count: int, bootstraps: int, rng: np.random.Generator) -> Floats:
    """Times each of ``count`` showers is drawn (1 + B, count); row 0 all ones."""
    if not count:
        return np.ones((1 + bootstraps, 0))
    drawn = rng.integers(count, size=(bootstraps, count)) + count * np.arange(bootstraps)[:, None]
    times = np.bincount(drawn.reshape(-1), minlength=bootstraps * count).reshape(bootstraps, count)
    return np.concatenate([np.ones((1, count)), times])


@dataclass(frozen=True)
class Sample:
    """Histograms per shower (N, K, B) and the weights (1 + bootstraps, N) of a sample, or of a part of it."""

    histograms: Floats
    weights: Floats

    def __len__(self) -> int:
        return len(self.histograms)

    def total(self) -> Floats:
        """Histograms of the whole sample in each bootstrap (1 + B, K, B)."""
        total = self.weights @ self.histograms.reshape(len(self.histograms), -1)
        return np.asarray(total).reshape(len(self.weights), *self.histograms.shape[1:])


def separate(reference: Sample, halves: Floats, samples: Mapping[str, Sample]) -> tuple[Separation, dict[str, Floats]]:
    """The separation of samples from the reference with its uncertainty and expected null; and the separations of
    the samples in all bootstraps (1 + B,), by name.

    samples: generated, and untrained and baseline where they are compared. halves (D, n) are the divisions of the
    reference. A sample with too few showers gives the reason instead of numbers.
    """
    generated = samples["generated"]
    if min(len(reference), len(generated)) < FEWEST:
        found = f"there are {len(reference)} Monte Carlo and {len(generated)} generated"
        return Separation(reason=f"needs {FEWEST} showers of each kind, {found}"), {}
    monte_carlo = reference.total()
    values = {
        name: _mean_separation(monte_carlo, sample.total()) for name, sample in samples.items() if len(sample) >= FEWEST
    }
    between_halves, of_halves, null, scatter = _null(reference.histograms, halves, len(generated))
    value, uncertainty = summarise(values["generated"])
    missing = None
    if not np.isfinite(value):
        missing = "neither sample has an entry"
    elif not null > 0:
        missing = "there is no expected null: too few showers, or all Monte Carlo showers in one bin"
    excess = value - null - _of_a_difference(reference.histograms, generated.histograms)
    result = Separation(
        separation=number(value),
        uncertainty=number(uncertainty),
        self_separation=number(between_halves),
        self_separation_uncertainty=number(of_halves),
        expected_null=number(null),
        null_uncertainty=number(scatter),
        excess=number(excess),
        excess_uncertainty=number(excess_uncertainty(uncertainty, scatter)),
        excess_sigmas=number((value - null) / scatter) if scatter > 0 else None,
        untrained=number(summarise(values.get("untrained"))[0]),
        baseline=number(summarise(values.get("baseline"))[0]),
        improvement_sigmas=sigmas(values["baseline"] - values["generated"] if "baseline" in values else None),
        reason=missing,
    )
    return result, values


def _of_a_difference(first: Floats, second: Floats) -> float:
    """What fluctuations add to the separation of two samples (N, K, B), (M, K, B) beyond the null of equal
    distributions: mostly less than 0.

    With densities a and b of variances u and v the second order of the expansion is 2 (b^2 u + a^2 v) / (a + b)^3 in
    each bin, and u (1 + N/M) / (4 a) where the densities are equal. Bins that few showers fill are taken as equal.
    """
    (a, u, filled_a), (b, v, filled_b) = _density(first), _density(second)
    known = np.maximum(filled_a, filled_b) * min(len(first), len(second)) >= FILLED
    a, u = np.where(known, a, 1.0), np.where(known, u, 0.0)
    b, v = np.where(known, b, 1.0), np.where(known, v, 0.0)
    equal = np.where(a > 0, u / np.where(a > 0, a, 1.0), 0.0) * (1 + len(first) / len(second)) / 4
    return float((2 * (b**2 * u + a**2 * v) / (a + b) ** 3 - equal).sum(axis=-1).mean())


def _density(histograms: Floats) -> tuple[Floats, Floats, Floats]:
    """Shares (K, B) of the bins in the sum of histograms per shower (N, K, B), their variances, and the share of the
    showers that fill the bin: of equal ones the mean squared over the variance for one shower."""
    sizes = histograms.sum(axis=-1, keepdims=True)
    total = np.maximum(sizes.sum(axis=0), np.finfo(np.float64).tiny)
    share = histograms.sum(axis=0) / total
    variance = (((histograms - share * sizes) / total) ** 2).sum(axis=0)
    return share, variance, share**2 / np.maximum(variance, np.finfo(np.float64).tiny) / len(histograms)


def excess_uncertainty(bootstrapped: float, null: float) -> float:
    """Standard deviation of a separation, from the standard deviations of its bootstraps and of the null.

    A separation is a squared distance: with a true distance D and fluctuations of variance s^2 in each of B bins its
    variance is 4 D^2 s^2 + 2 B s^4, of which the second term is the null's. A bootstrap resamples a distance that
    holds the fluctuations once already, so that it finds 4 D^2 s^2 + 6 B s^4: the null three times.
    """
    return float(np.sqrt(max(bootstrapped**2 - 2 * null**2, null**2)))


def summarise(bootstraps: Floats | None) -> tuple[float, float]:
    """Value (row 0) and standard deviation over the bootstraps that have a value; NaN where there is none."""
    if bootstraps is None or not np.isfinite(bootstraps[0]):
        return float("nan"), float("nan")
    drawn = bootstraps[1:][np.isfinite(bootstraps[1:])]
    return float(bootstraps[0]), float(drawn.std(ddof=1)) if len(drawn) > 1 else float("nan")


def measured(bootstraps: Floats | None) -> Measured:
    """The same as a block."""
    value, uncertainty = summarise(bootstraps)
    return Measured(value=number(value), uncertainty=number(uncertainty))


def compared(reference: Floats, generated: Floats) -> Compared:
    """The same of a number of Monte Carlo and of generated showers."""
    return Compared(reference=measured(reference), generated=measured(generated))


def sigmas(gain: Floats | None) -> float | None:
    """A difference (row 0) in standard deviations of its bootstraps."""
    value, uncertainty = summarise(gain)
    return number(value / uncertainty) if uncertainty > 0 else None


def _mean_separation(first: Floats, second: Floats) -> Floats:
    """Mean over the K histograms of the separation: (W, K, B), (W, K, B) -> (W,)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmean(separation(first, second), axis=-1))


def _null(histograms: Floats, halves: Floats, generated: int) -> tuple[float, float, float, float]:
    """Mean and standard deviation of the separation of equal distributions: between halves, and at the sizes that are
    compared. Fluctuations enter a separation squared, so both go as 1/n + 1/m."""
    first, second = Sample(histograms, halves), Sample(histograms, 1 - halves)
    values = _mean_separation(first.total(), second.total())
    sizes1, sizes2 = halves.sum(axis=1), (1 - halves).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = (1 / len(histograms) + 1 / generated) / (1 / sizes1 + 1 / sizes2)
    usable = np.isfinite(values) & (sizes1 > 0) & (sizes2 > 0)
    if not usable.any():
        return math.nan, math.nan, math.nan, math.nan
    values, scaled = values[usable], (values * scale)[usable]
    return float(values.mean()), float(values.std()), float(scaled.mean()), float(scaled.std())
