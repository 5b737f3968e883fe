"""Pearson correlations of per-shower observables."""

import numpy as np

from caloscale.detector.axes import Floats
from caloscale.physics.comparison import Weighted
from caloscale.physics.observables import Observed
from caloscale.physics.resampling import summarise
from caloscale.physics.response import FEWEST
from caloscale.physics.result import Correlation, number

NAMES = (*(f"{axis}{order}" for axis in "xyz" for order in (1, 2, 3)), "sum", "E", "hits", "R1", "R2", "R3", "angle")


def correlation_features(observed: Observed) -> Floats:
    """Moments 1 to 3 in x, y, z, ECAL sum, energy, hits, R1-R3, measured angle: (N, 16), NaN in empty showers."""
    moments = [observed.moments_x, observed.moments_y, observed.moments_z]
    sizes = [observed.ecal_sum_gev, observed.energy_gev, observed.hits, observed.fractions]
    return np.column_stack([*moments, *sizes, observed.angle_rad + observed.angle_error_rad])


def weighted_correlation(features: Floats, weights: Floats) -> Floats:
    """Pearson correlations (B, D, D) of features (N, D) for weights (B, N); 0 for a feature without variance."""
    centred = features - features.mean(axis=0)
    scale = centred.std(axis=0)
    constant = scale <= 1e-9 * np.maximum(np.abs(features).max(axis=0), 1e-30)
    centred = np.where(constant, 0.0, centred / np.where(constant, 1.0, scale))
    total = weights.sum(axis=1)[:, None, None]
    products = np.stack([centred.T @ (row[:, None] * centred) for row in weights]) / total
    mean = weights @ centred / total[:, 0]
    covariance = products - mean[:, :, None] * mean[:, None, :]
    variance = np.einsum("bii->bi", covariance).clip(min=0)
    norm = np.sqrt(variance[:, :, None] * variance[:, None, :])
    return np.where(norm > 1e-12, covariance / np.where(norm > 1e-12, norm, 1.0), 0.0)


def compare_correlations(reference: Weighted, generated: Weighted, halves: Floats) -> Correlation:
    """Mean |difference| over the pairs, its uncertainty, the same between halves. Empty showers are left out."""
    keep = [~sample.observed.empty for sample in (reference, generated)]
    if min(k.sum() for k in keep) < FEWEST:
        return Correlation(reason=f"needs {FEWEST} showers of each kind that are not empty")
    features = [correlation_features(s.observed)[k] for s, k in zip((reference, generated), keep)]
    matrices = [weighted_correlation(f, s.weights[:, k]) for f, s, k in zip(features, (reference, generated), keep)]
    pairs = np.triu_indices(len(NAMES), 1)

    def difference(first: Floats, second: Floats) -> Floats:
        return np.asarray(np.abs(first - second)[:, pairs[0], pairs[1]].mean(axis=1))

    value, uncertainty = summarise(difference(*matrices))
    kept = halves[:, keep[0]]
    between_halves = difference(*(weighted_correlation(features[0], half) for half in (kept, 1 - kept)))
    return Correlation(
        mean_difference=number(value),
        uncertainty=number(uncertainty),
        self_difference=number(np.nanmean(between_halves)),
    )
