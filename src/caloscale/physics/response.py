"""Response to energy: linearity, resolution, shower maximum. All take weights (B, N), one row per bootstrap."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from caloscale.detector.axes import Floats

FEWEST = 8
"""Fewest showers of a sample, or of its part in a range of energy, for a mean, a width or a separation."""
GAUSSIAN = float(np.sqrt(np.pi / 2))
"""Standard deviation over mean absolute deviation, of Gaussian numbers."""


def bin_of_energy(energy_gev: Floats, edges_gev: Floats) -> Floats:
    """Membership (N, K) as 0 or 1 of energies in ranges [edge, next edge); the outer ranges are open, so that
    rounding at an edge loses no shower."""
    index = np.searchsorted(edges_gev[1:-1], energy_gev, side="right")
    return np.asarray(index[:, None] == np.arange(len(edges_gev) - 1), dtype=np.float64)


@dataclass(frozen=True)
class BinnedMoments:
    """Mean and standard deviation of a quantity in bins of energy, (B, K); NaN where fewer than FEWEST showers."""

    mean: Floats
    sigma: Floats
    count: Floats


def binned_moments(weights: Floats, values: Floats, bins: Floats) -> BinnedMoments:
    """Moments of values (N,) in bins (N, K) for each row of weights (B, N)."""
    enough = bins.sum(axis=0) >= FEWEST
    count = weights @ bins
    centre = values.mean() if len(values) else 0.0
    shifted = bins * (values - centre)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = weights @ shifted / count
        square = weights @ (shifted * (values - centre)[:, None]) / count
        variance = (square - mean**2).clip(min=0) * count / (count - 1)
    filled = enough & (count > 1)
    return BinnedMoments(np.where(filled, mean + centre, np.nan), np.where(filled, np.sqrt(variance), np.nan), count)


def widths(weights: Floats, values: Floats, bins: Floats) -> Floats:
    """Widths of values (N,) in bins (N, K) for each row of weights (B, N): (B, K). NaN where a bin has fewer showers
    than FEWEST.

    The mean absolute deviation from the mean times `GAUSSIAN`. Its relative error is .84 / sqrt(N) for the response of
    Geant4 showers, that of half of the central 68% interval 1.0 / sqrt(N), that of the standard deviation, which
    follows the tails, up to 1.5 / sqrt(N).
    """
    found = np.full((len(weights), bins.shape[1]), np.nan)
    order = np.argsort(values, kind="stable")
    for k in range(bins.shape[1]):
        inside = order[bins[order, k] > 0]
        if len(inside) < FEWEST:
            continue
        drawn, shifted = weights[:, inside], values[inside] - values[inside].mean()
        count = drawn.sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = drawn @ shifted / count
            below = shifted < mean[:, None]
            # The deviations of both sides have the same sum.
            deviation = 2 * ((drawn * below) @ -shifted + mean * (drawn * below).sum(axis=1)) / count
            found[:, k] = np.where(count > 1, GAUSSIAN * deviation * np.sqrt(count / (count - 1)), np.nan)
    return found


def relative_widths(weights: Floats, values: Floats, bins: Floats) -> Floats:
    """`widths` over the mean, with the same arguments and result."""
    mean = binned_moments(weights, values, bins).mean
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(mean > 0, widths(weights, values, bins) / mean, np.nan)


def fit_line(weights: Floats, energy: Floats, sums: Floats, bins: Floats) -> tuple[Floats, Floats, Floats]:
    """Least squares of sum = offset + slope E with variance proportional to E (as of a sampling calorimeter).

    Returns: offset, slope and deviation (B,). The deviation is the largest over the bins (N, K) of |mean sum / line at
    the mean energy - 1|, of bins with FEWEST showers or more. NaN where fewer than three bins are left or all energies
    are equal.
    """
    columns = (1 / energy, np.ones_like(energy), energy, sums / energy, sums)
    inverse, one, linear, y_inverse, y = (weights @ column for column in columns)
    with np.errstate(divide="ignore", invalid="ignore"):
        determinant = inverse * linear - one**2
        determinant = np.where(determinant > 1e-9 * one**2, determinant, np.nan)
        offset = (linear * y_inverse - one * y) / determinant
        slope = (inverse * y - one * y_inverse) / determinant
        count = np.where(bins.sum(axis=0) >= FEWEST, weights @ bins, np.nan)
        mean_energy = weights @ (bins * energy[:, None]) / count
        mean_sum = weights @ (bins * sums[:, None]) / count
        residual = np.abs(mean_sum / (offset[:, None] + slope[:, None] * mean_energy) - 1)
    usable = np.isfinite(residual).sum(axis=1) >= 3
    largest = np.max(np.where(np.isfinite(residual), residual, -np.inf), axis=1, initial=-np.inf)
    return offset, slope, np.where(usable, largest, np.nan)


def fit_resolution(relative: Floats, mean_inverse_energy: Floats, count: Floats) -> tuple[Floats, Floats]:
    """a and c of (sigma/E)^2 = a^2/E + c^2, from sigma/E (B, K) at <1/E> (K,) in bins of count (K,) showers.

    Linear least squares; a bin weighs as its count times E^2, the inverse variance of (sigma/E)^2 where a^2/E
    dominates. A negative c^2 or a^2 is set to zero and the other fitted again.
    """
    x, weight = mean_inverse_energy, count / mean_inverse_energy**2
    y = relative**2
    weight = np.where(np.isfinite(y), weight, 0.0)
    y = np.where(np.isfinite(y), y, 0.0)
    s0, s1, s2 = weight.sum(axis=1), weight @ x, weight @ x**2
    t0, t1 = (weight * y).sum(axis=1), (weight * y) @ x
    with np.errstate(divide="ignore", invalid="ignore"):
        determinant = s0 * s2 - s1**2
        usable = (weight > 0).sum(axis=1) >= 3
        slope = np.where(usable, (s0 * t1 - s1 * t0) / determinant, np.nan)
        constant = np.where(usable, (s2 * t0 - s1 * t1) / determinant, np.nan)
        slope, constant = (
            np.where(constant < 0, t1 / s2, np.where(slope < 0, 0.0, slope)),
            np.where(constant < 0, 0.0, np.where(slope < 0, t0 / s0, constant)),
        )
    return np.sqrt(slope), np.sqrt(constant)


def gamma_maximum(profiles: Floats, depth_x0: Floats) -> Floats:
    """Depth of the maximum (a - 1)/b of a gamma distribution t^(a-1) exp(-b t) fitted to profiles (..., Z), X0.

    The longitudinal profile of electromagnetic showers (Longo and Sestili 1975; PDG, Passage of particles through
    matter, eq. 34.36). Linear least squares of the logarithm, weighted with the square of the energy, which is the
    first order of least squares of the energy itself. The signal of thin sensors samples dE/dt whatever the
    absorber before them. NaN where fewer than four layers have energy or the profile has no maximum.
    """
    filled = profiles > 0
    with np.errstate(divide="ignore"):
        logarithm = np.where(filled, np.log(np.where(filled, profiles, 1.0)), 0.0)
    peak = profiles.max(axis=-1, keepdims=True)
    weight = np.where(filled, (profiles / np.where(peak > 0, peak, 1.0)) ** 2, 0.0)
    terms = np.stack([np.ones_like(depth_x0), np.log(depth_x0), -depth_x0])
    normal = np.einsum("...z,iz,jz->...ij", weight, terms, terms)
    right = np.einsum("...z,iz->...i", weight * logarithm, terms)
    usable = (filled.sum(axis=-1) >= 4) & (np.linalg.cond(normal) < 1e12)
    normal = np.where(usable[..., None, None], normal, np.eye(3))
    _, power, rate = np.moveaxis(np.linalg.solve(normal, right[..., None])[..., 0], -1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(usable & (power > 0) & (rate > 0), power / rate, np.nan)


def range_edges(energy_gev: Sequence[float], count: int) -> Floats:
    """Edges of ranges of equal width (R + 1,); a single energy has one range."""
    low, high = energy_gev
    return np.linspace(low, high, count + 1) if high > low else np.array([low, high])
