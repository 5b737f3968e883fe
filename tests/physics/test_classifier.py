import numpy as np
import pytest
from scipy.stats import norm

from caloscale.detector.axes import axes_of
from caloscale.physics.classifier import (
    Point,
    TwoSampleTest,
    auc,
    classifier_features,
    distance_features,
    energy_regression,
    extrapolate,
    learning_curve,
    measure_auc,
    roc_points,
    split_by_primary,
)
from caloscale.physics.observables import choose_cuts, observe
from tests.physics.conftest import DATA, make_empty, make_showers


def observed(showers):
    return observe(showers, axes_of(DATA), choose_cuts([showers], hits_gev=3e-4, threshold_gev=2e-5))


def test_the_deviation_of_an_auc_is_that_of_its_scatter():
    rng = np.random.default_rng(0)
    found = [auc(rng.normal(1, 1, 150), rng.normal(0, 1, 400)) for _ in range(300)]
    assert np.mean([f.value for f in found]) == pytest.approx(norm.cdf(1 / np.sqrt(2)), abs=0.005)
    assert np.mean([f.uncertainty for f in found]) == pytest.approx(np.std([f.value for f in found]), rel=0.1)


def test_the_points_of_a_roc_curve_hold_its_auc():
    rng = np.random.default_rng(0)
    real, fake = rng.normal(1, 1, 2000), rng.normal(0, 1, 2000)
    false_positives, true_positives, thresholds = roc_points(real, fake)
    assert (false_positives[0], true_positives[0], false_positives[-1], true_positives[-1]) == (0, 0, 1, 1)
    assert (
        len(thresholds) == 51 and (np.diff(thresholds) <= 0).all() and thresholds.min() >= 0 and thresholds.max() < 1.01
    )
    assert np.trapezoid(true_positives, false_positives) == pytest.approx(auc(real, fake).value, abs=0.005)


def gaussians(shift: float, sizes: tuple[int, int, int] = (1200, 500, 2000), seed: int = 1) -> TwoSampleTest:
    """Gaussians that are apart in the first of three features, with primaries of their own."""
    rng = np.random.default_rng(seed)
    real, test, fake = (rng.normal(size=(count, 3)) for count in sizes)
    fake[:, 0] += shift
    groups = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return split_by_primary((real, groups[0]), (test, groups[1]), (fake, groups[2]), seed)


def test_classifier_comes_near_the_best_possible():
    """Two Gaussians one standard deviation apart: no classifier beats Phi(1 / sqrt(2)) = 0.76."""
    test, best = gaussians(1), norm.cdf(1 / np.sqrt(2))
    curve = learning_curve(test, seed=1, also=[1000])
    assert [p.showers for p in curve] == [150, 300, 600, 1000, 1200]
    last, limit = curve[-1], extrapolate(curve)
    assert last.value == pytest.approx(best, abs=3 * last.uncertainty + 0.03) and 0.005 < last.uncertainty < 0.05
    assert curve[0].value < last.value < limit.value < best + 3 * limit.uncertainty


def test_equal_distributions_are_not_separated_at_any_size():
    curve = learning_curve(gaussians(0), seed=1)
    assert all(abs(p.value - 0.5) < 3.5 * p.uncertainty for p in curve)
    assert abs(extrapolate(curve).value - 0.5) < 3.5 * extrapolate(curve).uncertainty + 0.01


@pytest.mark.parametrize("paired", [True, False])
def test_the_auc_of_equal_responses_is_one_half_with_and_without_common_primaries(paired):
    """Features that hold the primary's coordinates: showers of a primary that was trained on are recognised by them.

    Each of 40 primaries has five generated showers and five Monte Carlo showers, or its own kind has primaries of its
    own. Responses are equal, so the AUC is 1/2 where no primary is on both sides. A split by shower instead knows the
    kind of each primary where they are not shared.
    """
    rng = np.random.default_rng(3)
    count, repeats = 500, 5
    primaries = rng.uniform(size=(2, count, 1))
    groups = [np.arange(count), np.arange(count) if paired else np.arange(count, 2 * count)]

    def sample(kind: int):
        features = np.repeat(primaries[0 if paired else kind], repeats, axis=0)
        return np.column_stack([features, rng.normal(size=len(features))]), np.repeat(groups[kind], repeats)

    training = rng.uniform(size=(1500, 1))
    real = np.column_stack([training, rng.normal(size=1500)]), np.arange(10_000, 11_500)
    test = split_by_primary(real, sample(0), sample(1), seed=1)
    known = {tuple(row) for row in np.concatenate([test.real_train, test.fake_train])[:, :1]}
    assert not known & {tuple(row) for row in np.concatenate([test.real_test, test.fake_test])[:, :1]}
    assert len(test.real_test) == (0.4 if paired else 1) * count * repeats
    found = measure_auc(test, test.largest, seed=1)
    # Five showers of a primary fluctuate together.
    assert abs(found.value - 0.5) < 3 * np.sqrt(repeats) * found.uncertainty


def test_a_learning_curve_is_extrapolated_with_its_uncertainty():
    sizes = np.array([180, 360, 720, 1440])
    rng = np.random.default_rng(1)

    def experiment():
        values = 0.9 - 2.0 / np.sqrt(sizes) + rng.normal(0, 0.01, 4)
        return extrapolate([Point(float(v), 0.01, int(n)) for n, v in zip(sizes, values)])

    found = [experiment() for _ in range(400)]
    assert np.mean([f.value for f in found]) == pytest.approx(0.9, abs=0.002)
    assert np.mean([f.uncertainty for f in found]) == pytest.approx(np.std([f.value for f in found]), rel=0.35)
    assert extrapolate([Point(0.7, 0.01, 100)] * 2) is None


def test_classifier_refuses_too_few():
    few = gaussians(1, (150, 30, 150))
    with pytest.raises(ValueError, match="needs 100 showers of each kind to train and 40 to test, there are 90 and 30"):
        learning_curve(few, seed=1)


def test_features_of_empty_showers_are_usable():
    empty = observed(make_empty(make_showers(3, 1)))
    assert np.isfinite(distance_features(empty)).all()
    assert distance_features(empty).shape == (3, 16)
    assert np.isnan(classifier_features(empty)).any()


def test_regression_finds_the_energy():
    train, test = observed(make_showers(400, 2)), observed(make_showers(200, 3))
    brighter = observed(make_showers(200, 4, response=1.1))
    errors, shifted = energy_regression(train, [test, brighter])
    assert abs(errors.mean()) < 0.03 and errors.std() < 0.2
    assert shifted.mean() - errors.mean() == pytest.approx(0.1, abs=0.03)
    with pytest.raises(ValueError, match="needs 100 training showers, there are 50"):
        energy_regression(train[:50], [test])
