"""Quantities, fits and bins of drawn showers, one by one in plain numpy."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from caloscale.physics.binning import SCALAR_BINS, _edges, _one_hot, choose_edges, fill_histograms
from caloscale.physics.classifier import distance_features, energy_regression
from caloscale.physics.comparison import Comparison, Weighted, compare
from caloscale.physics.correlation import compare_correlations, correlation_features, weighted_correlation
from caloscale.physics.distances import Estimate
from caloscale.physics.energy_response import (
    compare_linearity,
    compare_maxima,
    compare_resolution,
    compare_response,
    mean_energy,
)
from caloscale.physics.gates import exceeding_sigmas, interval
from caloscale.physics.multivariate import compare_features, compare_regression
from caloscale.physics.observables import concatenate
from caloscale.physics.quantities import (
    measure_copying,
    measure_differences,
    measure_diversity,
    measure_quantities,
    names_of_differences,
    of_classifier,
    of_separation,
    results_of_differences,
)
from caloscale.physics.response import bin_of_energy, gamma_maximum, range_edges
from caloscale.physics.result import Classifier, Difference, LearningPoint, ObservableResult
from caloscale.spec import Gate, Validation
from tests.physics.conftest import DATA, make_showers

DEPTH_X0 = np.linspace(1.0, 20.0, 12)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    """All samples have the same distribution; nothing is evaluated."""
    samples = [make_showers(count, seed) for seed, count in enumerate((240, 300, 260, 250))]
    validation = Validation(showers=300, bootstraps=10)
    return compare(*samples[:2], training=samples[2], untrained=samples[3], data=DATA, validation=validation)


@pytest.fixture
def pair(comparison: Comparison) -> tuple[Weighted, Weighted]:
    """Reference and generated showers, the second row of whose weights are drawn; a generator with 10% too much."""
    rng = np.random.default_rng(6)

    def weigh(sample: Weighted, **changes: np.ndarray) -> Weighted:
        count = len(sample.observed)
        weights = np.stack([np.ones(count), np.bincount(rng.integers(0, count, count), minlength=count)])
        return replace(sample, observed=replace(sample.observed, **changes), weights=weights)

    reference, generated = (comparison.weighted[name] for name in ("reference", "generated"))
    scaled = ("ecal_sum_gev", "weighted_sum_gev", "hits", "moments_x")
    return weigh(reference), weigh(generated, **{name: 1.1 * getattr(generated.observed, name) for name in scaled})


def drawn(sample: Weighted, row: int, membership: np.ndarray | None = None) -> np.ndarray:
    """Indices of the showers of a row of weights, in a range."""
    weights = sample.weights[row] * (1 if membership is None else membership)
    return np.repeat(np.arange(len(weights)), weights.astype(int))


def width(values: np.ndarray) -> float:
    """That of Gaussian numbers is their standard deviation."""
    return np.sqrt(np.pi / 2) * np.abs(values - values.mean()).mean() * np.sqrt(len(values) / (len(values) - 1))


def terms(o) -> np.ndarray:
    """What the primary determines is linear in them."""
    x, y = np.log(o.energy_gev), np.cos(o.angle_rad) ** 2
    return np.stack([x**i * y**j for i, j in ((0, 0), (1, 0), (2, 0), (0, 1), (0, 2), (1, 1))], axis=1)


def in_ranges(sample: Weighted, values: np.ndarray, row: int = 0, statistic=np.mean) -> np.ndarray:
    """A statistic of the showers of a row of weights in each range of energy."""
    return np.array([statistic(values[drawn(sample, row, member)]) for member in sample.ranges.T])


def relative_width(values: np.ndarray) -> float:
    return width(values) / values.mean()


def per_cent(reference, generated):
    return pytest.approx(100 * (np.divide(generated, reference) - 1))


@pytest.mark.parametrize("row", [0, 1])
def test_means_are_compared_in_per_cent(pair, row):
    reference, generated = pair
    found = {name: values[row] for name, values in measure_differences(reference, generated, DEPTH_X0).items()}
    means = [in_ranges(s, s.observed.ecal_sum_gev / s.observed.energy_gev, row) for s in pair]
    ratio, share = means[1] / means[0], reference.ranges.mean(axis=0)
    assert found["response"][:3] == per_cent(*means) and found["response"][3] == per_cent(*(m @ share for m in means))
    assert found["linearity"] == per_cent(ratio.mean(), ratio)
    # Of the hits, which follow the energy, the means for the same primaries.
    fitted = np.linalg.pinv(terms(reference.observed)) @ reference.observed.hits
    expected = in_ranges(reference, terms(reference.observed) @ fitted)
    hits = [expected + in_ranges(s, s.observed.hits - terms(s.observed) @ fitted, row) for s in pair]
    assert found["hits"] == per_cent(*hits) and (found["hits"] - 10) == pytest.approx(0, abs=2)
    moments = [(s.observed.moments_x, s.observed.moments_y) for s in pair]
    assert found["transverseWidth"] == per_cent(
        *([np.mean(one[drawn(s, row), 1]) for one in both] for s, both in zip(pair, moments))
    )


def test_widths_are_compared_about_what_the_primary_determines(pair):
    reference, generated = pair
    found = {name: values[0] for name, values in measure_differences(reference, generated, DEPTH_X0).items()}
    share, count = reference.ranges.mean(axis=0), len(reference.observed)
    for name, quantity in (("ecal_sum_gev", "resolution"), ("weighted_sum_gev", "weightedResolution")):
        widths = [
            in_ranges(s, getattr(s.observed, name) / s.observed.energy_gev, statistic=relative_width) for s in pair
        ]
        assert found[quantity] == per_cent(*widths)
        if quantity == "resolution":
            assert found["responseSpread"][0] == per_cent(*(one @ share for one in widths))

    def spread(quantity):
        fitted = np.linalg.pinv(terms(reference.observed)) @ quantity(reference.observed)
        real, fake = (
            in_ranges(s, quantity(s.observed) - terms(s.observed) @ fitted, statistic=width) @ share for s in pair
        )
        return per_cent(real * np.sqrt((count - 1) / (count - 6)), fake)

    assert found["hitsSpread"][0] == spread(lambda o: o.hits)
    assert found["depthSpread"][0] == spread(lambda o: o.moments_z[:, 0])
    assert found["widthSpread"][0] == spread(lambda o: o.moments_x[:, 1])
    assert found["widthSpread"][1] == spread(lambda o: o.moments_y[:, 1])


def test_names_of_differences_follow_the_ranges_and_the_primaries(comparison):
    reference, generated = (comparison.weighted[name] for name in ("reference", "generated"))
    found = measure_differences(reference, generated, DEPTH_X0)
    labels = ("low", "middle", "high")
    named = names_of_differences(found, labels)
    assert named["response"] == (*labels, "all energies") and named["hits"] == labels
    assert named["widthSpread"] == named["transverseWidth"] == ("x", "y")
    assert named["depthSpread"] == named["hitsSpread"] == named["responseSpread"] == ("",)
    several = names_of_differences(found, labels, ("e-", "gamma"))
    assert several["response"] == (*named["response"], "e-", "gamma") and several["linearity"] == labels
    assert all(len(several[name]) == len(named[name]) + 2 for name in ("resolution", "showerMaximum", "hits"))
    results = measure_quantities(reference.observed, reference, generated, labels, DEPTH_X0, {}, {})
    assert {d.where: d.value for d in results["hits"].differences} == pytest.approx(
        dict(zip(labels, found["hits"][0])), rel=1e-4
    )
    assert [{d.scale for d in results[name].differences} for name in ("hits", "showerMaximum")] == [
        {"ratio"},
        {"linear"},
    ]
    assert results["hits"].unit == "%" and results["showerMaximum"].unit == "layers"


def test_each_of_several_primaries_is_a_sample_of_its_own(pair):
    """Of a generator that makes 10% too much of one of them alone."""
    members = [np.arange(len(s.observed)) % 2 for s in pair]
    reference, generated = (
        replace(s, particles={"e-": 1.0 - member, "gamma": 1.0 * member}) for s, member in zip(pair, members)
    )
    sums = generated.observed.ecal_sum_gev * np.where(members[1], 1, 1.1)
    generated = replace(generated, observed=replace(generated.observed, ecal_sum_gev=sums))
    found = results_of_differences(reference, generated, ("low", "middle", "high"), DEPTH_X0)
    response = {one.where: one.value for one in found["response"].differences}
    assert list(response) == ["low", "middle", "high", "all energies", "e-", "gamma"]
    for particle, k in (("e-", 0), ("gamma", 1)):
        means = [s.observed.sampling_fraction[m == k].mean() for s, m in zip((reference, generated), members)]
        assert response[particle] == pytest.approx(100 * (means[1] / means[0] - 1), rel=1e-4)
    assert measure_differences(reference, generated, DEPTH_X0)["response"].shape[1] == len(response)
    counts = {name: len(result.differences) for name, result in found.items()}
    assert (counts["resolution"], counts["showerMaximum"], counts["hits"], counts["linearity"]) == (5, 5, 5, 3)


def test_what_cannot_be_measured_has_its_reason(pair):
    reference, generated = pair
    labels = ("low", "middle", "high")

    def found(name: str, first: Weighted = reference, second: Weighted = generated, names=labels) -> Difference:
        return results_of_differences(first, second, names, DEPTH_X0)[name].differences[0]

    whole = [replace(s, ranges=np.ones((len(s.observed), 1))) for s in pair]
    assert found("linearity", *whole, ("all",)).reason == "not measurable here: there is one range of energy"
    shallow = replace(reference.observed, longitudinal=np.exp(DEPTH_X0) + 0 * reference.observed.longitudinal)
    assert "is not within the layers" in found("showerMaximum", replace(reference, observed=shallow)).reason
    dark = replace(reference.observed, ecal_sum_gev=0 * reference.observed.ecal_sum_gev)
    nothing = found("response", replace(reference, observed=dark))
    assert nothing.value is None and nothing.reason.startswith("not measurable here: a sample has no response")
    few = found("hits", first_of(reference, 12))
    assert "fewer than 8: there are 12 and 300 Monte Carlo and generated showers" in few.reason
    photons = [{"e-": 1.0 - first, "gamma": 1.0 * first} for s in pair for first in [np.arange(len(s.observed)) < 5]]
    rare = results_of_differences(*(replace(s, particles=p) for s, p in zip(pair, photons)), labels, DEPTH_X0)["hits"]
    assert "gamma has 5 showers, fewer than 8: there are 5 and 5 Monte Carlo" in rare.differences[-1].reason
    single = found("transverseWidth", first_of(reference, 1), first_of(generated, 1))  # all its bootstraps are equal
    assert single.value is single.uncertainty is None and "fewer than 8" in single.reason
    # Half of the bootstraps have no shower.
    halved = [replace(s, weights=np.repeat([1.0, 0.0], 10)[:, None] * np.ones(len(s.observed))) for s in pair]
    lacking = found("hits", *halved)
    assert lacking.value == pytest.approx(measure_differences(*pair, DEPTH_X0)["hits"][0, 0], rel=1e-4)
    assert lacking.reason and lacking.uncertainty is None
    # None of them differs.
    still = [replace(s, weights=np.ones((5, len(s.observed)))) for s in pair]
    same = found("hits", *still)
    assert (same.value, same.uncertainty, same.sigmas, same.reason) == (lacking.value, 0.0, None, None)


def test_the_stochastic_term_is_that_of_the_showers(comparison):
    """Of a width that falls as 1/sqrt(E)."""
    rng = np.random.default_rng(4)
    observed = comparison.observed["reference"][rng.integers(len(comparison.observed["reference"]), size=20_000)]
    energy = rng.uniform(5, 40, 20_000)
    sums = 0.026 * energy * (1 + 0.3 / np.sqrt(energy) * rng.normal(size=20_000))
    edges = range_edges((5, 40), 6)
    sample = Weighted(
        replace(observed, energy_gev=energy, ecal_sum_gev=sums),
        np.ones((3, 20_000)),
        bin_of_energy(energy, edges[::2]),
        bin_of_energy(energy, edges),
    )
    found = compare_resolution(sample, sample, sample, lambda o: o.sampling_fraction)
    assert found.stochastic.reference.value == pytest.approx(0.3, rel=0.03)
    assert found.constant.reference.value < 0.02
    inside = sample.bins > 0
    assert mean_energy(sample) == pytest.approx([energy[member].mean() for member in inside.T])
    assert np.isnan(mean_energy(replace(sample, bins=0 * sample.bins))).all()


def test_response_line_and_resolution_of_each_range(pair):
    reference, generated = pair
    response = compare_response(reference, generated)
    means = [1000 * in_ranges(s, s.observed.ecal_sum_gev / s.observed.energy_gev) for s in pair]
    assert [r.mev_per_gev.reference.value for r in response] == pytest.approx(means[0], rel=1e-4)
    assert [r.mev_per_gev.generated.value for r in response] == pytest.approx(means[1], rel=1e-4)
    assert [r.ratio.value for r in response] == pytest.approx(means[1] / means[0], rel=1e-4)
    line = compare_linearity(reference, generated)
    for name, s in (("reference", reference), ("generated", generated)):
        energy, total = s.observed.energy_gev, s.observed.ecal_sum_gev
        slope, offset = np.polyfit(energy, total, 1, w=1 / np.sqrt(energy))
        assert getattr(line.line_mev, name).value == pytest.approx(1000 * offset, rel=1e-3)
        assert getattr(line.slope_mev_per_gev, name).value == pytest.approx(1000 * slope, rel=1e-3)
        inside = [member > 0 for member in s.bins.T]
        largest = max(abs(total[i].mean() / (offset + slope * energy[i].mean()) - 1) for i in inside)
        assert getattr(line.deviation, name).value == pytest.approx(largest, rel=1e-3)
    for name in ("ecal_sum_gev", "weighted_sum_gev"):
        found = compare_resolution(
            reference, generated, reference, lambda o, name=name: getattr(o, name) / o.energy_gev
        )
        real, fake = (
            in_ranges(s, getattr(s.observed, name) / s.observed.energy_gev, statistic=relative_width) for s in pair
        )
        assert [r.sigma.reference.value for r in found.ranges] == pytest.approx(real, rel=1e-3)
        assert [r.sigma.generated.value for r in found.ranges] == pytest.approx(fake, rel=1e-3)
        assert [r.ratio.value for r in found.ranges] == pytest.approx(fake / real, rel=1e-3)
        assert found.deviation.value == pytest.approx(np.abs(fake / real - 1).mean(), rel=1e-3)
        assert found.baseline.value == 0 and found.reason is None


def test_the_maximum_is_that_of_the_mean_profile(pair):
    reference, generated = pair
    for k, found in enumerate(compare_maxima(reference, generated, DEPTH_X0)):
        profiles = [s.observed.longitudinal[s.ranges[:, k] > 0].mean(axis=0) for s in (reference, generated)]
        layers = [int(profile.argmax()) for profile in profiles]
        depths = [float(gamma_maximum(profile, DEPTH_X0)) for profile in profiles]
        assert (found.layer.reference.value, found.layer.generated.value) == tuple(layers)
        assert (found.depth_x0.reference.value, found.depth_x0.generated.value) == pytest.approx(depths, rel=1e-4)
        step = DEPTH_X0[1] - DEPTH_X0[0]
        assert found.fitted_difference_layers.value == pytest.approx((depths[1] - depths[0]) / step, rel=1e-2)


def test_the_regressed_energy_has_a_bias_and_a_width(comparison):
    found, names = compare_regression(comparison), ("reference", "generated")
    errors = energy_regression(comparison.training, [comparison.observed[name] for name in names])
    for name, relative in zip(names, errors):
        assert getattr(found.bias, name).value == pytest.approx(relative.mean(), rel=1e-3, abs=1e-6)
        assert getattr(found.width, name).value == pytest.approx(relative.std(), rel=1e-3)


def test_a_distance_is_stated_with_its_null_and_its_sizes(comparison):
    """Of a distance that is the difference of the mean energies, for which all is known."""
    reference, generated = (comparison.observed[name] for name in ("reference", "generated"))
    calls, seed = [], comparison.validation.seed

    def distance(first, second, *, seed):
        calls.append((len(first), len(second), seed))
        if len(second) < 200:
            raise ValueError("too few")
        return Estimate(float(second[:, 0].mean() - first[:, 0].mean()), 0.5)

    found = compare_features(comparison, distance)
    means = [float(distance_features(s)[:, 0].mean()) for s in (reference, generated)]
    assert found.value == pytest.approx(means[1] - means[0], rel=1e-3, abs=1e-9)
    count = len(reference)
    assert calls[0] == (count, len(generated), seed) and calls[1:6] == [(count, count, seed)] * 5
    assert (found.showers, found.null_showers) == (count, count)
    assert found.uncertainty == pytest.approx(np.hypot(0.5, found.null_uncertainty), rel=1e-3)
    assert found.null_uncertainty > 0 and abs(found.null) < 4 * found.null_uncertainty
    assert "published recipe has at least 5000" in found.reason
    assert found.baseline is not None and found.untrained is not None


@pytest.mark.parametrize("value", [0.0, 0.02, 0.3])
def test_the_interval_of_a_squared_distance_is_what_the_test_does_not_exclude(value):
    """A true distance t has the variance null^2 + slope t: the ends solve value - t = +-Z sqrt(variance)."""
    null, slope, z = 0.01, 0.004, norm.ppf(0.95)
    difference = Difference(
        where="", scale="squared", value=value, uncertainty=0.02, null_uncertainty=null, slope=slope
    )
    low, high = interval(difference)
    for side, end in ((1, low), (-1, high)):
        if null**2 + slope * end > 0:
            assert value - end == pytest.approx(side * z * np.sqrt(null**2 + slope * end))
    gate = Gate(quantity="hitsSeparation", tolerance=0.1)
    expected = (value - 0.1) / np.sqrt(null**2 + slope * 0.1)
    assert exceeding_sigmas(gate, difference) == pytest.approx(expected)
    at_the_end = Gate(quantity="hitsSeparation", tolerance=high)
    assert exceeding_sigmas(at_the_end, difference) == pytest.approx(-z)


def test_the_slope_of_a_separation_is_that_of_its_bootstraps():
    observable = ObservableResult(
        title="Hits", separation=0.3, uncertainty=0.05, null_uncertainty=0.03, excess=0.2, expected_null=0.1
    )
    (difference,) = of_separation(observable).differences
    assert difference.slope == pytest.approx((0.05**2 - 0.03**2) / 0.3) and difference.null_uncertainty == 0.03
    assert (difference.scale, difference.value, of_separation(observable).title) == ("squared", 0.2, "Separation: Hits")
    (flat,) = of_separation(observable.model_copy(update={"uncertainty": 0.02})).differences
    assert flat.slope == 0


def test_a_number_is_in_one_bin_and_edges_hold_ninety_nine_per_cent():
    numbers = np.array([-0.1, 0.0, 0.9, 1.0, 2.0, 2.1, np.nan])  # the last bin has its upper edge
    in_bins = _one_hot(numbers, np.array([0.0, 1.0, 2.0]))
    assert in_bins.shape == (7, 5) and (in_bins.sum(axis=1) == 1).all()
    assert in_bins.argmax(axis=1).tolist() == [0, 1, 1, 2, 2, 3, 4]
    values = np.r_[np.random.default_rng(1).normal(size=5000), np.nan]
    edges = _edges(values)
    assert len(edges) == SCALAR_BINS + 1 and np.ptp(np.diff(edges)) < 1e-12
    assert (edges[0], edges[-1]) == pytest.approx(np.quantile(values[:-1], [0.005, 0.995]))
    for same, ends in ((0.5, (0, 1)), (-8, (-12, -4)), (0, (-0.5, 0.5)), (np.nan, (0, 1))):
        assert tuple(_edges(np.full(9, float(same)))[[0, -1]]) == ends


def test_histograms_count_each_shower_once(comparison):
    observed = comparison.observed["reference"]
    found = fill_histograms(observed, choose_edges(observed))
    assert found["showerMaximum"].shape[2] == observed.longitudinal.shape[1] + 3
    assert (found["showerMaximum"][:, 0].argmax(axis=1) == observed.maximum_layer + 1).all()
    for name in ("ecalSum", "momentsLongitudinal", "momentsTransverse", "hits"):
        assert (found[name].sum(axis=2) == 1).all()
    assert found["momentsTransverse"].shape[1:] == (6, SCALAR_BINS + 3)
    low = np.quantile(1000 * observed.ecal_sum_gev, 0.005)
    assert found["ecalSum"][:, 0, 0].sum() == (1000 * observed.ecal_sum_gev < low).sum()


def test_correlations_of_drawn_showers_are_those_of_numpy(comparison):
    observed = comparison.observed["reference"]
    features = correlation_features(observed[~observed.empty])
    assert features.shape[1] == 16
    rng = np.random.default_rng(2)
    draws = rng.integers(0, len(features), len(features))
    weights = np.stack([np.ones(len(features)), np.bincount(draws, minlength=len(features))])
    found = weighted_correlation(features, weights)
    assert found[0] == pytest.approx(np.corrcoef(features, rowvar=False), abs=1e-9)
    assert found[1] == pytest.approx(np.corrcoef(features[draws], rowvar=False), abs=1e-9)
    constant = features.copy()
    constant[:, 3] = 5.0
    without = weighted_correlation(constant, weights)
    assert (without[:, 3] == 0).all() and without[0, 0, 1] == pytest.approx(found[0, 0, 1])


def test_correlations_of_two_samples_differ_by_the_mean_over_the_pairs(pair, comparison):
    found = compare_correlations(*pair, comparison.halves)
    features = [correlation_features(s.observed[~s.observed.empty]) for s in pair]
    matrices = [np.corrcoef(one, rowvar=False) for one in features]
    above = np.triu_indices(16, 1)
    assert found.mean_difference == pytest.approx(np.abs(matrices[0] - matrices[1])[above].mean(), rel=1e-3)
    keep = ~pair[0].observed.empty
    halves = [
        [np.corrcoef(features[0][one[keep] == which], rowvar=False) for which in (0, 1)] for one in comparison.halves
    ]
    assert found.self_difference == pytest.approx(
        np.mean([np.abs(first - second)[above].mean() for first, second in halves]), rel=1e-3
    )
    assert "needs 8 showers" in compare_correlations(first_of(pair[0], 7), pair[1], comparison.halves).reason


def first_of(sample: Weighted, count: int) -> Weighted:
    """The first showers of a sample."""
    return Weighted(sample.observed[:count], sample.weights[:, :count], sample.ranges[:count], sample.bins[:count])


def test_diversity_is_the_distance_to_the_nearest_shower(comparison):
    """Showers that are drawn from few of the generated ones have less of it; repeated ones have none."""
    reference, generated = (comparison.weighted[name] for name in ("reference", "generated"))

    def diversity(fake: Weighted) -> Difference:
        return measure_diversity(reference.observed, fake.observed)

    def nearest(observed, scale) -> np.ndarray:
        points = distance_features(observed) / scale
        distances = np.linalg.norm(points[:, None] - points[None], axis=-1)
        return np.sort(distances, axis=1)[:, 1]

    found = diversity(generated)
    scale = distance_features(reference.observed).std(axis=0)
    real, fake = (nearest(s.observed[:240], scale) for s in (reference, generated))
    ratio = fake.mean() / real.mean()
    spread = ratio * np.sqrt(sum(2 * (d.std() / d.mean()) ** 2 / 240 for d in (real, fake)))
    assert found.scale == "ratio" and found.value == pytest.approx(100 * (ratio - 1), rel=1e-3)
    assert found.uncertainty == pytest.approx(100 * spread, rel=0.05)
    assert found.sigmas == pytest.approx(abs(ratio - 1) / spread, rel=0.05)
    twice = replace(first_of(generated, 240), observed=generated.observed[np.arange(240) // 2])
    assert diversity(twice).value == -100 and diversity(twice).uncertainty > 0
    lacking = diversity(first_of(generated, 39))
    assert lacking.value is None and lacking.reason == "needs 40 showers of each kind, there are 39"


def test_copies_of_training_showers_are_nearer_to_them_than_held_out_showers(comparison):
    """Against all pairs; half of 240 copies, mirrored in x, are found in a quarter of the pairs beside chance."""
    reference, generated = (comparison.weighted[name].observed for name in ("reference", "generated"))
    training = comparison.training

    def nearest(observed, scale) -> np.ndarray:
        points, known = (np.abs(distance_features(o)) / scale for o in (observed, training))
        return np.linalg.norm(points[:, None] - known[None], axis=-1).min(axis=1)

    scale = np.abs(distance_features(reference)).std(axis=0)
    real, fake = nearest(reference, scale), nearest(generated, scale)
    found = measure_copying(training, reference, generated)
    assert found.value == pytest.approx((real[:, None] > fake[None]).mean(), abs=1e-4)
    assert abs(found.value - 0.5) < 3 * found.uncertainty < 0.1
    mirrored = replace(training[:120], moments_x=training.moments_x[:120] * [-1, 1, -1])
    copying = measure_copying(training, reference, concatenate([mirrored, generated[:120]]))
    assert copying.value == pytest.approx(0.75, abs=0.05)
    assert measure_copying(training[:39], reference, generated).reason == "needs 40 showers of each kind, there are 39"


def test_an_auc_is_a_difference_for_each_number_of_training_showers():
    curve = tuple(LearningPoint(showers=n, value=v, uncertainty=u) for n, v, u in ((250, 0.5, 0.0), (500, 0.6, 0.05)))
    found = of_classifier("layerAuc", Classifier(learning_curve=curve, reason="few"))
    assert [(d.where, d.value, d.uncertainty, d.sigmas) for d in found.differences] == [
        ("250 showers of each kind", 0.5, 0.0, None),
        ("500 showers of each kind", 0.6, 0.05, pytest.approx(2)),
    ]
    assert (found.title, found.unit, found.reason) == ("Classifier AUC of the layer energies", "", "few")
