"""Shower maximum, response, linearity and resolution of generated showers against Monte Carlo."""

from collections.abc import Callable, Sequence

import numpy as np

from caloscale.detector.axes import Floats
from caloscale.physics.comparison import Weighted
from caloscale.physics.observables import Observed
from caloscale.physics.resampling import compared, measured, sigmas
from caloscale.physics.response import FEWEST, binned_moments, fit_line, fit_resolution, gamma_maximum, relative_widths
from caloscale.physics.result import Compared, Linearity, Resolution, ResolutionRange, Response, ShowerMaximum


def compare_maxima(reference: Weighted, generated: Weighted, depth_x0: Floats) -> tuple[ShowerMaximum, ...]:
    """The shower maximum of the mean profile in each range of energy."""
    profiles = [_mean_profiles(sample, sample.ranges) for sample in (reference, generated)]
    layers = [np.where(one.sum(axis=-1) > 0, one.argmax(axis=-1).astype(np.float64), np.nan) for one in profiles]
    depths = [gamma_maximum(one, depth_x0) for one in profiles]
    difference = fitted_maxima(generated, depth_x0) - fitted_maxima(reference, depth_x0)
    return tuple(
        ShowerMaximum(
            layer=_compared(layers, k),
            depth_x0=_compared(depths, k),
            fitted_difference_layers=measured(difference[:, k]),
        )
        for k in range(reference.ranges.shape[1])
    )


def _compared(pair: Sequence[Floats], column: int) -> Compared:
    """A column of the bootstraps (1 + B, R) of Monte Carlo and generator."""
    return compared(pair[0][:, column], pair[1][:, column])


def fitted_maxima(sample: Weighted, depth_x0: Floats) -> Floats:
    """`maximum_depths` in the ranges of energy as layers (not rounded): (1 + B, R); NaN where it is not within them."""
    depth = maximum_depths(sample, sample.ranges, depth_x0)
    return np.interp(depth, depth_x0, np.arange(len(depth_x0)), left=np.nan, right=np.nan)


def maximum_depths(sample: Weighted, bins: Floats, depth_x0: Floats) -> Floats:
    """Depth of the fitted maximum of the mean profile in bins of energy (N, K), X0: (1 + B, K); NaN where there are
    fewer than FEWEST showers."""
    depth = gamma_maximum(_mean_profiles(sample, bins), depth_x0)
    return np.where(bins.sum(axis=0) >= FEWEST, depth, np.nan)


def compare_response(reference: Weighted, generated: Weighted) -> tuple[Response, ...]:
    """Mean of sum/E in each range of energy."""
    means = [
        1e3 * binned_moments(s.weights, s.observed.sampling_fraction, s.ranges).mean for s in (reference, generated)
    ]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = means[1] / means[0]
    return tuple(
        Response(mev_per_gev=_compared(means, k), ratio=measured(ratio[:, k])) for k in range(reference.ranges.shape[1])
    )


def compare_linearity(reference: Weighted, generated: Weighted) -> Linearity:
    """Straight lines through the sums."""
    offsets, slopes, deviations = zip(
        *(fit_line(s.weights, s.observed.energy_gev, s.observed.ecal_sum_gev, s.bins) for s in (reference, generated))
    )
    missing = not np.isfinite(deviations[1][0])
    return Linearity(
        deviation=compared(*deviations),
        line_mev=compared(*(1e3 * offset for offset in offsets)),
        slope_mev_per_gev=compared(*(1e3 * slope for slope in slopes)),
        reason="fewer than three bins of energy with eight generated showers" if missing else None,
    )


def compare_resolution(
    reference: Weighted, generated: Weighted, baseline: Weighted, fraction: Callable[[Observed], Floats]
) -> Resolution:
    """sigma/E of a visible energy, of which `fraction` is its part (N,) of the primary's."""
    monte_carlo, from_generator, from_baseline = widths = [
        relative_widths(s.weights, fraction(s.observed), s.ranges) for s in (reference, generated, baseline)
    ]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio, baseline_ratio = from_generator / monte_carlo, from_baseline / monte_carlo
    deviation, of_baseline = (np.abs(one - 1).mean(axis=1) for one in (ratio, baseline_ratio))
    stochastic, constant = zip(*(_fit(sample, fraction) for sample in (reference, generated)))
    missing = not np.isfinite(deviation[0])
    return Resolution(
        ranges=tuple(
            ResolutionRange(sigma=_compared(widths, k), ratio=measured(ratio[:, k]))
            for k in range(monte_carlo.shape[1])
        ),
        stochastic=compared(*stochastic),
        constant=compared(*constant),
        deviation=measured(deviation),
        baseline=measured(of_baseline),
        improvement_sigmas=sigmas(of_baseline - deviation),
        reason="a range of energy has fewer than eight showers, or no response" if missing else None,
    )


def mean_energy(sample: Weighted) -> Floats:
    """Mean energy of the showers in each fine bin (K,), NaN where there is none."""
    count = sample.bins.sum(axis=0)
    return (sample.observed.energy_gev @ sample.bins) / np.where(count > 0, count, np.nan)


def _fit(sample: Weighted, fraction: Callable[[Observed], Floats]) -> tuple[Floats, Floats]:
    relative = relative_widths(sample.weights, fraction(sample.observed), sample.bins)
    count = sample.bins.sum(axis=0)
    inverse = ((1 / sample.observed.energy_gev) @ sample.bins) / np.where(count > 0, count, 1)
    return fit_resolution(relative, np.where(inverse > 0, inverse, 1.0), count)


def _mean_profiles(sample: Weighted, bins: Floats) -> Floats:
    """Longitudinal profiles of bins of energy (N, K): (1 + B, K, Z)."""
    return np.stack([(sample.weights * member) @ sample.observed.longitudinal for member in bins.T], axis=1)
