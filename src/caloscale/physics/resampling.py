"""Bootstraps and halves: where the uncertainties and the floors come from."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from caloscale.detector.axes import Floats
from caloscale.physics.distances import separation
from caloscale.physics.result import Measured, Separation, number

DIVISIONS = 40
"""Random divisions of the Monte Carlo showers into halves behind each floor."""
FEWEST = 8
"""Fewest showers of a sample (or of its part in a range of energy) for a separation: halves of four."""


@dataclass(frozen=True)
class Resampling:
    """Weights of the showers: row 0 all ones, then one row per bootstrap.

    reference (1 + B, n), generated (1 + B, m), untrained (1 + B, u or 0): times each shower is drawn.
    halves (D, n): 1 for the first half of a division, 0 for the second; equal numbers.
    """

    reference: Floats
    generated: Floats
    untrained: Floats
    halves: Floats


def draw_resampling(reference: int, generated: int, untrained: int, bootstraps: int, seed: int) -> Resampling:
    """Draw the weights, the same for the same seed. With an odd number the first half is one larger."""
    rng = np.random.default_rng(seed)
    order = rng.permuted(np.tile(np.arange(reference), (DIVISIONS, 1)), axis=1)
    return Resampling(
        reference=_weights(reference, bootstraps, rng),
        generated=_weights(generated, bootstraps, rng),
        untrained=_weights(untrained, bootstraps, rng),
        halves=(order < (reference + 1) // 2).astype(np.float64),
    )


def _weights(count: int, bootstraps: int, rng: np.random.Generator) -> Floats:
    if not count:
        return np.ones((1 + bootstraps, 0))
    drawn = rng.multinomial(count, np.full(count, 1 / count), size=bootstraps)
    return np.concatenate([np.ones((1, count)), drawn])


@dataclass(frozen=True)
class Sample:
    """Histograms per shower (N, K, B) and the weights (1 + bootstraps, N) of a sample, or of a part of it."""

    histograms: Floats
    weights: Floats

    def __len__(self) -> int:
        return len(self.histograms)

    def total(self) -> Floats:
        """Histograms of the whole sample in each bootstrap (1 + B, K, B)."""
        return np.asarray(np.einsum("wn,nkb->wkb", self.weights, self.histograms, optimize=True))


def separate(
    reference: Sample, halves: Floats, generated: Sample, untrained: Sample | None, baseline: Sample | None
) -> Separation:
    """The separation of samples from the reference, with uncertainties and floor.

    generated and baseline share weights, so that their difference is one of pairs. halves (D, n) are the
    divisions of the reference. A sample with too few showers gives the reason instead of numbers.
    """
    if len(reference) < FEWEST or len(generated) < FEWEST:
        return Separation(
            reason=f"needs {FEWEST} showers of each kind, there are {len(reference)} Monte Carlo "
            f"and {len(generated)} generated"
        )
    monte_carlo = reference.total()

    def to_monte_carlo(sample: Sample | None) -> Floats | None:
        return None if sample is None or len(sample) < FEWEST else _mean_separation(monte_carlo, sample.total())

    values, from_untrained, from_baseline = (to_monte_carlo(s) for s in (generated, untrained, baseline))
    assert values is not None
    floor, floor_scatter, perfect = _floor(reference.histograms, halves, len(generated))
    value, uncertainty = summarise(values)
    untrained_value, untrained_uncertainty = summarise(from_untrained)
    baseline_value, baseline_uncertainty = summarise(from_baseline)
    gain = None if from_baseline is None else from_baseline - values
    reason = None
    if not np.isfinite(value):
        reason = "neither sample has an entry"
    elif not floor > 0:
        reason = "the floor is zero or undefined: too few showers, or all Monte Carlo showers in one bin"
    return Separation(
        separation=number(value),
        uncertainty=number(uncertainty),
        floor=number(floor),
        floor_uncertainty=number(floor_scatter),
        perfect=number(perfect),
        in_floors=number(value / floor) if floor > 0 else None,
        in_floors_uncertainty=number(uncertainty / floor) if floor > 0 else None,
        untrained=number(untrained_value),
        untrained_uncertainty=number(untrained_uncertainty),
        baseline=number(baseline_value),
        baseline_uncertainty=number(baseline_uncertainty),
        sigmas_better_than_baseline=sigmas(gain),
        reason=reason,
    )


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


def sigmas(gain: Floats | None) -> float | None:
    """A difference (row 0) in standard deviations of its bootstraps."""
    value, uncertainty = summarise(gain)
    return number(value / uncertainty) if uncertainty > 0 else None


def over_halves(halves: Floats, distance: Callable[[Floats, Floats], Floats]) -> tuple[float, float]:
    """Mean and scatter over the divisions of distance(weights of one half, weights of the other)."""
    values = distance(halves, 1 - halves)
    values = values[np.isfinite(values)]
    return (float(values.mean()), float(values.std())) if len(values) else (float("nan"), float("nan"))


def _mean_separation(first: Floats, second: Floats) -> Floats:
    """Mean over the K histograms of the separation: (W, K, B), (W, K, B) -> (W,)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmean(separation(first, second), axis=-1))


def _floor(histograms: Floats, halves: Floats, generated: int) -> tuple[float, float, float]:
    """Mean and scatter of the separation of halves, and the mean scaled to the sizes that are compared.

    Fluctuations enter a separation squared, so its mean for one distribution goes as 1/n + 1/m: halves of a
    small sample lie farther apart than the whole from a large one.
    """
    first, second = Sample(histograms, halves), Sample(histograms, 1 - halves)
    values = _mean_separation(first.total(), second.total())
    sizes1, sizes2 = halves.sum(axis=1), (1 - halves).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = (1 / len(histograms) + 1 / generated) / (1 / sizes1 + 1 / sizes2)
    usable = np.isfinite(values) & (sizes1 > 0) & (sizes2 > 0)
    if not usable.any():
        return float("nan"), float("nan"), float("nan")
    values = values[usable]
    return float(values.mean()), float(values.std()), float((values * scale[usable]).mean())
