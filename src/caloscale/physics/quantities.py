"""The differences from Monte Carlo that gates limit: in physical units, free of the number of showers."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import scipy

from caloscale.detector.axes import Floats
from caloscale.physics.classifier import auc, distance_features
from caloscale.physics.comparison import Weighted
from caloscale.physics.energy_response import fitted_maxima
from caloscale.physics.observables import Observed, texts_of
from caloscale.physics.resampling import summarise
from caloscale.physics.response import FEWEST, binned_moments, relative_widths, widths
from caloscale.physics.result import Classifier, Difference, ObservableResult, QuantityResult, number
from caloscale.spec.data import PDG_CODES
from caloscale.spec.validation import scale_of

TITLES, DEFINITIONS = texts_of("quantities")
BY_PARTICLE = ("response", "resolution", "weightedResolution", "showerMaximum", "hits")
"""Quantities that are also measured for each primary of a list: a generator must not make one of them for all."""
WHERE = dict.fromkeys(("transverseWidth", "widthSpread"), ("x", "y")) | dict.fromkeys(
    ("responseSpread", "depthSpread", "hitsSpread"), ("",)
)
"""Names of the differences of the quantities that are not computed in ranges of energy."""
ROUNDING = 1e-9
"""Scatter of a difference over bootstraps (per cent or layers) that is none."""
MEASURABLE = 0.9
"""Share of the bootstraps that must have a value: without one the scatter of the others is too small."""
NEIGHBOURS_AMONG = 2000
"""Showers among which nearest neighbours are searched, at most: seconds."""


def measure_quantities(
    training: Observed,
    reference: Weighted,
    generated: Weighted,
    labels: Sequence[str],
    depth_x0: Floats,
    observables: Mapping[str, ObservableResult],
    classifiers: Mapping[str, Classifier],
) -> dict[str, QuantityResult]:
    """All quantities by name, each as differences of generated from Monte Carlo showers with their uncertainty.

    labels: of the ranges of energy; classifiers: by the name of the quantity that is their AUC.
    """
    results = results_of_differences(reference, generated, labels, depth_x0)
    observed = reference.observed, generated.observed
    for name, difference in (
        ("diversity", measure_diversity(*observed)),
        ("copying", measure_copying(training, *observed)),
    ):
        results[name] = QuantityResult(title=TITLES[name], unit=scale_of(name).unit, differences=(difference,))
    results |= {name: of_classifier(name, classifier) for name, classifier in classifiers.items()}
    return results | {f"{name}Separation": of_separation(result) for name, result in observables.items()}


def results_of_differences(
    reference: Weighted, generated: Weighted, labels: Sequence[str], depth_x0: Floats
) -> dict[str, QuantityResult]:
    """The quantities of `measure_differences` by name."""
    differences = measure_differences(reference, generated, depth_x0)
    named = names_of_differences(differences, labels, tuple(reference.particles))
    pair = reference, generated
    counts = {one: [sample.particles[one].sum(keepdims=True) for sample in pair] for one in reference.particles}
    in_ranges = [sample.ranges.sum(axis=0) for sample in pair]
    return {
        name: QuantityResult(
            title=TITLES[name],
            unit=scale_of(name).unit,
            differences=tuple(
                _difference(values[:, k], where, name, counts.get(where, in_ranges))
                for k, where in enumerate(named[name])
            ),
        )
        for name, values in differences.items()
    }


def measure_differences(reference: Weighted, generated: Weighted, depth_x0: Floats) -> dict[str, Floats]:
    """Differences of generated from Monte Carlo showers by quantity, in its unit: (1 + B, K), row 0 the value.

    K: the ranges of energy, x and y, or 1; of the mean response the ranges and all energies. Of `BY_PARTICLE`, each
    primary over all energies comes last where there are several. Widths of distributions are `response.widths`.
    """
    pair = reference, generated
    means = [binned_moments(s.weights, s.observed.sampling_fraction, s.ranges).mean for s in pair]
    plain = [relative_widths(s.weights, s.observed.sampling_fraction, s.ranges) for s in pair]
    weighted = [relative_widths(s.weights, s.observed.weighted_fraction, s.ranges) for s in pair]
    response = _ratio(*means)
    with np.errstate(invalid="ignore"):
        linearity = response / response.mean(axis=1, keepdims=True)
    found = {
        "response": _per_cent(np.concatenate([response, _pooled(reference, *means)], axis=1)),
        "linearity": _per_cent(linearity if linearity.shape[1] > 1 else np.full_like(linearity, np.nan)),
        "resolution": _per_cent(_ratio(*plain)),
        "weightedResolution": _per_cent(_ratio(*weighted)),
        "responseSpread": _per_cent(_pooled(reference, *plain)),
        "showerMaximum": fitted_maxima(generated, depth_x0) - fitted_maxima(reference, depth_x0),
        "depthSpread": _per_cent(_spread(*pair, lambda o: o.moments_z[:, 0])),
        "transverseWidth": _per_cent(_transverse_widths(*pair)),
        "widthSpread": _per_cent(
            np.column_stack([_spread(*pair, lambda o: o.moments_x[:, 1]), _spread(*pair, lambda o: o.moments_y[:, 1])])
        ),
        "hits": _per_cent(_hits(*pair)),
        "hitsSpread": _per_cent(_spread(*pair, lambda o: o.hits)),
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
    named = {name: WHERE.get(name, tuple(labels)) for name in differences} | {"response": (*labels, "all energies")}
    return {name: (*wheres, *particles) if name in BY_PARTICLE else wheres for name, wheres in named.items()}


def _difference(bootstraps: Floats, where: str, name: str, counts: Sequence[Floats]) -> Difference:
    """counts: showers of both samples in the ranges of energy; of a primary all."""
    value, uncertainty = summarise(bootstraps)
    if not np.isfinite(bootstraps[1:]).mean() >= MEASURABLE or not np.isfinite(uncertainty):
        return Difference(where=where, value=number(value), reason=_reason(name, where, counts))
    return Difference(
        where=where,
        scale="ratio" if scale_of(name).unit == "%" else "linear",
        value=number(value),
        uncertainty=number(uncertainty) if uncertainty > ROUNDING else 0.0,
        sigmas=number(abs(value) / uncertainty) if uncertainty > ROUNDING else None,
    )


def _reason(name: str, where: str, counts: Sequence[Floats]) -> str:
    """Why a difference of this quantity has no value, from the showers of both samples, see `_difference`."""
    fewest = min(float(count.min()) for count in counts)
    if fewest < FEWEST:
        part = where if where in PDG_CODES else "a range of energy"
        return (
            f"{part} has {fewest:.0f} showers, fewer than {FEWEST}: there are "
            f"{' and '.join(f'{count.sum():.0f}' for count in counts)} Monte Carlo and generated showers"
        )
    if name == "linearity" and len(counts[0]) < 2:
        return "not measurable here: there is one range of energy"
    if name == "showerMaximum":
        return "not measurable here: the fitted maximum of the mean profile is not within the layers"
    return "not measurable here: a sample has no response, or the same value in all showers"


def of_classifier(name: str, classifier: Classifier) -> QuantityResult:
    """The AUCs of a classifier as a quantity, one for each number of training showers."""
    return QuantityResult(
        title=TITLES[name],
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


def of_separation(result: ObservableResult) -> QuantityResult:
    """The excess of a separation; overall and in the ranges of energy it is one number each: overall counts.

    A separation is a squared distance D^2: the variance of its estimate is 4 D^2 s^2 plus the variance of the null. The
    variance of its bootstraps has S = D^2 + the null in the place of D^2 (`resampling.excess_uncertainty`).
    """
    null = result.null_uncertainty or 0.0
    slope = max((result.uncertainty or 0.0) ** 2 - null**2, 0.0) / result.separation if result.separation else 0.0
    difference = Difference(
        where="",
        scale="squared",
        value=result.excess,
        uncertainty=result.excess_uncertainty,
        null_uncertainty=null,
        slope=slope,
        sigmas=result.excess_sigmas,
        reason=result.reason,
    )
    return QuantityResult(title=f"Separation: {result.title}", unit="", differences=(difference,), reason=result.reason)


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


def _spread(reference: Weighted, generated: Weighted, quantity: Callable[[Observed], Floats]) -> Floats:
    """Ratio of the widths of a quantity about what Monte Carlo has at the same energy and angle, pooled: (1 + B, 1).

    quantity: its values (N,). The polynomial of `of_primaries` is fitted to the Monte Carlo showers, whose widths are
    corrected for its terms.
    """
    filled = [_filled(s) for s in (reference, generated)]
    designs = [of_primaries(s.observed) for s in filled]
    values = [quantity(s.observed) for s in filled]
    coefficients, _, terms, _ = np.linalg.lstsq(designs[0], values[0])
    found = [
        widths(s.weights, value - design @ coefficients, s.ranges) for s, value, design in zip(filled, values, designs)
    ]
    count = len(filled[0].observed)
    return _pooled(reference, found[0] * np.sqrt(max(count - 1, 0) / max(count - int(terms), 1)), found[1])


def _hits(reference: Weighted, generated: Weighted) -> Floats:
    """Ratio of the mean numbers of hits (1 + B, R) of the same primaries: what these determine is fitted, as in
    `_spread`, and taken from both."""
    designs = [of_primaries(s.observed) for s in (reference, generated)]
    coefficients = np.linalg.lstsq(designs[0], reference.observed.hits)[0]
    expected = binned_moments(np.ones((1, len(designs[0]))), designs[0] @ coefficients, reference.ranges).mean
    return _ratio(
        *(
            expected + binned_moments(s.weights, s.observed.hits - design @ coefficients, s.ranges).mean
            for s, design in zip((reference, generated), designs)
        )
    )


def of_primaries(observed: Observed) -> Floats:
    """Terms (N, 6) in log(E) and cos^2(angle) of what the primary determines."""
    logarithm, inclined = np.log(observed.energy_gev), np.cos(observed.angle_rad) ** 2
    return np.column_stack(
        [np.ones_like(logarithm), logarithm, logarithm**2, inclined, inclined**2, inclined * logarithm]
    )


def _transverse_widths(reference: Weighted, generated: Weighted) -> Floats:
    """Ratio of the mean root-mean-square widths in x and y: (1 + B, 2)."""
    means = []
    for sample in (_filled(reference), _filled(generated)):
        one_bin, moments = np.ones((len(sample.observed), 1)), (sample.observed.moments_x, sample.observed.moments_y)
        means.append(np.hstack([binned_moments(sample.weights, of_axis[:, 1], one_bin).mean for of_axis in moments]))
    return _ratio(*means)


def measure_diversity(reference: Observed, generated: Observed) -> Difference:
    """Mean distance to the nearest shower of the same sample, generated over Monte Carlo - 1, per cent.

    Both are searched among equally many showers, in features that energy and angle hardly determine, in standard
    deviations of Monte Carlo. The uncertainty takes neighbouring distances for fully correlated in pairs.
    """
    among = min(len(reference), len(generated), NEIGHBOURS_AMONG)
    if among < 5 * FEWEST:
        return Difference(where="", reason=f"needs {5 * FEWEST} showers of each kind, there are {among}")
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
    value = number(100 * (ratio - 1))
    sigmas = number(abs(ratio - 1) / spread) if spread > 0 else None
    return Difference(where="", scale="ratio", value=value, uncertainty=number(100 * spread), sigmas=sigmas)


def measure_copying(training: Observed, reference: Observed, generated: Observed) -> Difference:
    """Probability that the nearest training shower is nearer to a generated shower than to a held-out one: 1/2 where
    nothing is memorised, 1 where training showers are copied (Meehan et al., arXiv:2004.05675).

    The features and their scale are those of `measure_diversity`, without their sign: copies of mirrored training
    showers count, too. Standard deviation of DeLong for these training showers.
    """
    fewest = min(len(training), len(reference), len(generated))
    if fewest < 5 * FEWEST:
        return Difference(where="", reason=f"needs {5 * FEWEST} showers of each kind, there are {fewest}")
    features = [np.abs(distance_features(observed)) for observed in (training, reference, generated)]
    scale = features[1].std(axis=0)
    known, held_out, made = (points / np.where(scale > 0, scale, 1.0) for points in features)
    tree = scipy.spatial.cKDTree(known)
    found = auc(tree.query(held_out)[0], tree.query(made)[0])
    sigmas = number((found.value - 0.5) / found.uncertainty) if found.uncertainty > 0 else None
    return Difference(where="", value=number(found.value), uncertainty=number(found.uncertainty), sigmas=sigmas)


def _nearest(points: Floats) -> Floats:
    return np.asarray(scipy.spatial.cKDTree(points).query(points, k=2)[0][:, 1])
