"""A classifier two-sample test: generated against Monte Carlo showers. And a regression of the primary's energy."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from threadpoolctl import threadpool_limits

from caloscale.detector.axes import Floats
from caloscale.physics.distances import Estimate
from caloscale.physics.observables import Observed

MINIMUM_TEST = 40
"""Fewest test showers of each kind: the AUC's error is then below 0.07."""
MINIMUM_TRAIN = 100
"""Fewest training showers of each kind of a classifier or a regression."""
TEST_SHARE = 0.4
"""Share of the generated showers that test."""
REPEATS = 4
"""Draws of the training showers at each size of the learning curve."""
CURVE_POINTS = 4
"""Sizes of the learning curve, each twice the one before."""
ROC_POINTS = 51


@dataclass(frozen=True)
class TwoSampleTest:
    """Showers of a classifier two-sample test: features (N, D).

    No primary of a training shower occurs among the test showers.
    """

    real_train: Floats
    fake_train: Floats
    real_test: Floats
    fake_test: Floats

    @property
    def largest(self) -> int:
        """Most training showers of each kind."""
        return min(len(self.real_train), len(self.fake_train))


@dataclass(frozen=True)
class Point(Estimate):
    """The AUC of classifiers trained on `showers` of each kind: mean over the draws of the training showers."""

    showers: int


def classifier_features(observed: Observed) -> Floats:
    """What the classifier sees (N, D): the primary, share of each layer, sampling fraction, moments, hits per
    energy, sparsity, radius, measured angle. NaN (an empty shower) stays: the classifier knows missing values."""
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = observed.longitudinal / observed.ecal_sum_gev[:, None]
    primary = [observed.energy_gev, observed.angle_rad, observed.further]
    return np.column_stack([*primary, observed.sampling_fraction, *_shape(observed), shares, *_moments(observed)])


def layer_features(observed: Observed) -> Floats:
    """The primary and the energy of each layer over its energy (N, D)."""
    layers = observed.longitudinal / observed.energy_gev[:, None]
    return np.column_stack([observed.energy_gev, observed.angle_rad, observed.further, layers])


def distance_features(observed: Observed) -> Floats:
    """What FPD and KPD see (N, 16): no column is a sum of others; an empty shower has 0 where it has no value."""
    columns = [observed.sampling_fraction, observed.fractions[:, :2], *_shape(observed), *_moments(observed)]
    return np.nan_to_num(np.column_stack(columns))


def _shape(o: Observed) -> list[Floats]:
    return [o.hits / o.energy_gev, o.sparsity, o.radius90_mm, o.angle_error_rad]


def _moments(o: Observed) -> list[Floats]:
    return [o.moments_z, o.moments_x, o.moments_y]


def split_by_primary(
    real: tuple[Floats, NDArray[np.intp]],
    real_test: tuple[Floats, NDArray[np.intp]],
    generated: tuple[Floats, NDArray[np.intp]],
    seed: int,
) -> TwoSampleTest:
    """Training and test showers without a primary in both.

    real: Monte Carlo showers that the generator may have been trained on; real_test: showers that it has not seen.
    Each is features (N, D) and the number of each shower's primary (N,). A random share of the generated showers'
    primaries tests, the others train. Monte Carlo showers with a primary of the other side are left out: none where
    all primaries were drawn independently.
    """
    primaries = np.random.default_rng(seed).permutation(np.unique(generated[1]))
    testing = primaries[: round(TEST_SHARE * len(primaries))]
    fake_tests = np.isin(generated[1], testing)
    real_trains = ~np.isin(real[1], testing)
    in_training = np.concatenate([generated[1][~fake_tests], real[1][real_trains]])
    real_tests = ~np.isin(real_test[1], in_training)
    return TwoSampleTest(
        real[0][real_trains], generated[0][~fake_tests], real_test[0][real_tests], generated[0][fake_tests]
    )


def _require_enough(test: TwoSampleTest) -> None:
    tests = min(len(test.real_test), len(test.fake_test))
    if tests < MINIMUM_TEST or test.largest < MINIMUM_TRAIN:
        raise ValueError(
            f"the classifier needs {MINIMUM_TRAIN} showers of each kind to train and {MINIMUM_TEST} to test, "
            f"there are {test.largest} and {tests}"
        )


def measure_auc(test: TwoSampleTest, showers: int, *, seed: int, repeats: int = 1) -> Point:
    """The mean AUC of classifiers that are trained on draws of this many showers of each kind.

    The uncertainty adds the scatter of the mean over the draws and the statistics of the test showers.
    Raises ValueError where a sample has too few showers.
    """
    _require_enough(test)
    found = [auc(real, fake) for real, fake in score(test, showers, seed=seed, repeats=repeats)]
    values = [one.value for one in found]
    scatter = np.var(values, ddof=1) / len(values) if len(values) > 1 else 0.0
    variance = np.mean([one.uncertainty**2 for one in found])
    return Point(float(np.mean(values)), float(np.sqrt(scatter + variance)), showers)


def score(test: TwoSampleTest, showers: int, *, seed: int, repeats: int) -> list[tuple[Floats, Floats]]:
    """Scores of the Monte Carlo (N,) and of the generated test showers (M,) by classifiers that are trained on draws of
    this many showers of each kind."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    rng = np.random.default_rng([seed, showers])
    scores = []
    for _ in range(repeats):
        real, fake = (sample[rng.permutation(len(sample))[:showers]] for sample in (test.real_train, test.fake_train))
        trees = HistGradientBoostingClassifier(
            max_iter=100, max_leaf_nodes=15, min_samples_leaf=10, early_stopping=False, random_state=seed
        )
        with threadpool_limits(limits=1):  # small samples: threads that wait for each other cost more than they bring
            trees.fit(np.concatenate([real, fake]), np.r_[np.ones(len(real)), np.zeros(len(fake))])
            scores.append((trees.decision_function(test.real_test), trees.decision_function(test.fake_test)))
    return scores


def learning_curve(test: TwoSampleTest, *, seed: int, also: Collection[int] = ()) -> tuple[Point, ...]:
    """The AUC against the number of training showers, doubling up to the largest; also: at further sizes.

    Raises ValueError where a sample has too few showers.
    """
    _require_enough(test)
    sizes = {test.largest // 2**k for k in range(CURVE_POINTS)} | {*also}
    usable = sorted(size for size in sizes if MINIMUM_TRAIN <= size <= test.largest)
    return tuple(measure_auc(test, size, seed=seed, repeats=REPEATS) for size in usable)


def extrapolate(curve: Sequence[Point]) -> Estimate | None:
    """The AUC of infinitely many training showers: a of a - b / sqrt(n), weighted least squares.

    The uncertainty of the fit is widened where the points scatter more than their uncertainties. The form is an
    assumption: the excess error of a classifier falls at least as slowly (Vapnik). None for fewer than three points.
    """
    if len(curve) < 3:
        return None
    x = np.array([point.showers for point in curve]) ** -0.5
    y = np.array([point.value for point in curve])
    sigma = np.maximum([point.uncertainty for point in curve], 1e-4)
    fitted, covariance = np.polyfit(x, y, 1, w=1 / sigma, cov="unscaled")
    chi2 = float(np.sum(((y - np.polyval(fitted, x)) / sigma) ** 2)) / (len(curve) - 2)
    return Estimate(float(np.clip(fitted[1], 0.5, 1.0)), float(np.sqrt(covariance[1, 1] * max(1.0, chi2))))


def auc(real: Floats, fake: Floats) -> Estimate:
    """Probability that a real shower (N,) scores higher than a generated one (M,), ties half (Mann-Whitney), with the
    standard deviation of DeLong et al., Biometrics 44 (1988)."""
    from sklearn.metrics import roc_auc_score

    value = float(roc_auc_score(np.r_[np.ones(len(real)), np.zeros(len(fake))], np.r_[real, fake]))
    placements = [_placements(real, fake), _placements(fake, real)]
    variance = sum(p.var(ddof=1) / len(p) if len(p) > 1 else 0.0 for p in placements)
    return Estimate(value, float(np.sqrt(variance)))


def _placements(scores: Floats, others: Floats) -> Floats:
    """For each score the part of the others below it, ties half."""
    order = np.sort(others)
    return (np.searchsorted(order, scores, "left") + np.searchsorted(order, scores, "right")) / (2 * len(others))


def roc_points(real: Floats, fake: Floats) -> tuple[Floats, Floats, Floats]:
    """False and true positive rates and falling thresholds (probability of being Monte Carlo) of scores: at most
    `ROC_POINTS` of the curve, evenly spread."""
    from sklearn.metrics import roc_curve

    labels, probabilities = np.r_[np.ones(len(real)), np.zeros(len(fake))], expit(np.r_[real, fake])
    false_positives, true_positives, thresholds = roc_curve(labels, probabilities)
    chosen = np.unique(np.linspace(0, len(thresholds) - 1, ROC_POINTS).astype(int))
    return false_positives[chosen], true_positives[chosen], np.minimum(thresholds, 1 + 1e-9)[chosen]


def energy_regression(train: Observed, samples: list[Observed]) -> list[Floats]:
    """Relative error of the primary's energy, estimate / energy - 1, for each sample (N,).

    Ridge regression on the layers' energies, trained on Monte Carlo with weights 1/E^2 (relative errors count),
    then applied to the samples. Raises ValueError for too few training showers.
    """
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(train) < MINIMUM_TRAIN:
        raise ValueError(f"the energy regression needs {MINIMUM_TRAIN} training showers, there are {len(train)}")
    model = make_pipeline(StandardScaler(), RidgeCV(alphas=np.geomspace(1e-3, 1e3, 13)))
    model.fit(train.longitudinal, train.energy_gev, ridgecv__sample_weight=train.energy_gev**-2.0)
    return [model.predict(sample.longitudinal) / sample.energy_gev - 1 for sample in samples]
