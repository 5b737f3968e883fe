"""The differences from Monte Carlo that gates limit: in physical units, free of the number of showers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import scipy

from caloscale.detector.axes import Floats
from caloscale.physics.classifier import distance_features
from caloscale.physics.comparison import Weighted
from caloscale.physics.energy_response import fitted_maxima
from caloscale.physics.observables import Observed
from caloscale.physics.resampling import FEWEST, summarise
from caloscale.physics.response import binned_moments
from caloscale.physics.result import Classifier, Difference, ObservableResult, QuantityResult, number
from caloscale.spec.validation import scale_of

TITLES = {
    "response": "Mean response",
    "linearity": "Non-linearity",
    "resolution": "Energy resolution",
    "responseSpread": "Spread of the response",
    "showerMaximum": "Shower maximum",
    "depthSpread": "Spread of the depth",
    "transverseWidth": "Transverse width",
    "hits": "Hits",
    "diversity": "Diversity",
    "classifierAuc": "Classifier AUC",
}
BY_PARTICLE = ("response", "resolution", "showerMaximum", "hits")
"""Quantities that are also measured for each primary of a list: a generator must not make one of them for all."""
NEIGHBOURS_AMONG = 2000
"""Showers among which nearest neighbours are searched, at most: seconds."""


def measure_quantities(
    reference: Weighted,
    generated: Weighted,
    labels: Sequence[str],
    depth_x0: Floats,
    observables: Mapping[str, ObservableResult],
    classifier: Classifier,
) -> dict[str, QuantityResult]:
    """All quantities by name, each as differences of generated from Monte Carlo showers with their uncertainty.

    labels: of the ranges of energy.
    """
    pair = reference, generated
    differences = measure_differences(reference, generated, depth_x0)
    named = names_of_differences(differences, labels, tuple(reference.particles))
    results = {
        name: _result(name, [_difference(values[:, k], where) for k, where in enumerate(named[name])], pair)
        for name, values in differences.items()
    }
    results["diversity"] = _result("diversity", [_diversity(reference.observed, generated.observed)], pair)
    results["classifierAuc"] = QuantityResult(
        title=TITLES["classifierAuc"],
        unit="",
        differences=tuple(
            Difference(
                where=f"{point.showers} showers of each kind",
                value=point.value,
                uncertainty=point.uncertainty,
                sigmas=number((point.value - 0.5) / point.uncertainty) if point.uncertainty else None,
            )
            for point in classifier.learning_curve
        ),
        reason=classifier.reason,
    )
    return results | {f"{name}Separation": _of_separation(result) for name, result in observables.items()}


def measure_differences(reference: Weighted, generated: Weighted, depth_x0: Floats) -> dict[str, Floats]:
    """Differences of generated from Monte Carlo showers by quantity, in its unit: (1 + B, K), row 0 the value.

    K: the ranges of energy, x and y, or 1; of the mean response the ranges and all energies. Of `BY_PARTICLE`, each
    primary over all energies comes last where there are several.
    """
    pair = reference, generated
    sampled = [s.observed.sampling_fraction for s in pair]
    widths = [binned_moments(s.weights, f, s.ranges) for s, f in zip(pair, sampled)]
    response = _ratio(*(w.mean for w in widths))
    with np.errstate(invalid="ignore"):
        linearity = response / response.mean(axis=1, keepdims=True)
    found = {
        "response": _per_cent(np.concatenate([response, _pooled(reference, *(w.mean for w in widths))], axis=1)),
        "linearity": _per_cent(linearity),
        "resolution": _per_cent(_ratio(*(w.relative for w in widths))),
        "responseSpread": _per_cent(_pooled(reference, *(w.relative for w in widths))),
        "showerMaximum": fitted_maxima(generated, depth_x0) - fitted_maxima(reference, depth_x0),
        "depthSpread": _per_cent(_spread_of_depth(*pair)),
        "transverseWidth": _per_cent(_transverse_widths(*pair)),
        "hits": _per_cent(_ratio(*(binned_moments(s.weights, s.observed.hits, s.ranges).mean for s in pair))),
    }
    if reference.particles:
        of_each = measure_differences(reference.by_particle(), generated.by_particle(), depth_x0)
        count = len(reference.particles)
        found |= {name: np.concatenate([found[name], of_each[name][:, :count]], axis=1) for name in BY_PARTICLE}
    return found


def names_of_differences(
    differences: Mapping[str, Floats], labels: Sequence[str], particles: Sequence[str] = ()
) -> dict[str, Sequence[str]]:
    """What the columns of `measure_differences` are called, by quantity.

    labels: of the ranges of energy; particles: names of the primaries where there are several.
    """
    one = {"responseSpread": ("",), "depthSpread": ("",), "transverseWidth": ("x", "y")}
    named = {name: one.get(name, tuple(labels)) for name in differences} | {"response": (*labels, "all energies")}
    return {name: (*wheres, *particles) if name in BY_PARTICLE else wheres for name, wheres in named.items()}


def _result(name: str, differences: Sequence[Difference], pair: tuple[Weighted, Weighted]) -> QuantityResult:
    missing = any(d.value is None or d.uncertainty is None for d in differences)
    counts = " and ".join(str(len(sample.observed)) for sample in pair)
    reason = (
        f"a range of energy has fewer than {FEWEST} showers, or no response: there are {counts} Monte Carlo and "
        "generated showers"
    )
    return QuantityResult(
        title=TITLES[name],
        unit=scale_of(name).unit,
        differences=tuple(differences),
        reason=reason if missing else None,
    )


def _of_separation(result: ObservableResult) -> QuantityResult:
    """The excess over the expected null; overall and in the ranges of energy it is one number each: overall counts."""
    return QuantityResult(
        title=f"Separation: {result.title}",
        unit="",
        differences=(
            Difference(
                where="", value=result.excess, uncertainty=result.excess_uncertainty, sigmas=result.excess_sigmas
            ),
        ),
        reason=result.reason,
    )


def _difference(bootstraps: Floats, where: str) -> Difference:
    value, uncertainty = summarise(bootstraps)
    return Difference(
        where=where,
        value=number(value),
        uncertainty=number(uncertainty),
        sigmas=number(abs(value) / uncertainty) if uncertainty > 0 else None,
    )


def _ratio(reference: Floats, generated: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(reference > 0, generated / reference, np.nan)


def _per_cent(ratio: Floats) -> Floats:
    return 100 * (ratio - 1)


def _pooled(shares: Weighted, reference: Floats, generated: Floats) -> Floats:
    """Ratio of widths (1 + B, R), averaged over the ranges of energy with the shares of Monte Carlo: (1 + B, 1)."""
    share = shares.ranges.mean(axis=0)
    return _ratio(reference @ share, generated @ share)[:, None]


def _filled(sample: Weighted) -> Weighted:
    """Without the empty showers, which have no moments."""
    keep = ~sample.observed.empty
    return Weighted(sample.observed[keep], sample.weights[:, keep], sample.ranges[keep], sample.bins[keep])


def _spread_of_depth(reference: Weighted, generated: Weighted) -> Floats:
    """Ratio of the standard deviations of the barycentre in depth within a range of energy, pooled."""
    filled = [_filled(s) for s in (reference, generated)]
    sigmas = [binned_moments(s.weights, s.observed.moments_z[:, 0], s.ranges).sigma for s in filled]
    return _pooled(reference, *sigmas)


def _transverse_widths(reference: Weighted, generated: Weighted) -> Floats:
    """Ratio of the mean root-mean-square widths in x and y: (1 + B, 2)."""
    means = []
    for sample in (_filled(reference), _filled(generated)):
        widths = np.column_stack([sample.observed.moments_x[:, 1], sample.observed.moments_y[:, 1]])
        with np.errstate(divide="ignore", invalid="ignore"):
            means.append(sample.weights @ widths / sample.weights.sum(axis=1, keepdims=True))
    return _ratio(*means)


def _diversity(reference: Observed, generated: Observed) -> Difference:
    """Mean distance to the nearest shower of the same sample, generated over Monte Carlo - 1, per cent.

    Both are searched among equally many showers, in features that the energy and the angle hardly determine, in
    standard deviations of Monte Carlo. Repeated showers have distance 0, so a generator that ignores its noise has
    -100 %. The uncertainty takes neighbouring distances for fully correlated in pairs.
    """
    among = min(len(reference), len(generated), NEIGHBOURS_AMONG)
    if among < 5 * FEWEST:
        return Difference(where="")
    features = distance_features(reference)
    scale = features.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    sample = distance_features(generated[: len(generated) // among * among])
    real = _nearest(features[:among] / scale)
    # Many subsets of the generated showers, each as large as Monte Carlo: a distance depends on the number.
    fake = np.concatenate([_nearest(part / scale) for part in np.split(sample, len(sample) // among)[:10]])
    ratio = fake.mean() / real.mean() if real.mean() > 0 else np.nan
    relative = [2 * (d.std() / d.mean()) ** 2 / len(d) if d.mean() > 0 else 0.0 for d in (real, fake)]
    spread = max(ratio, relative[0] ** 0.5) * np.sqrt(sum(relative))
    return Difference(
        where="",
        value=number(100 * (ratio - 1)),
        uncertainty=number(100 * spread),
        sigmas=number(abs(ratio - 1) / spread) if spread > 0 else None,
    )


def _nearest(points: Floats) -> Floats:
    return np.asarray(scipy.spatial.cKDTree(points).query(points, k=2)[0][:, 1])
