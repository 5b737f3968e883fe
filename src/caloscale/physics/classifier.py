"""Can a classifier tell generated from Monte Carlo showers? And a regression of the primary's energy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from caloscale.detector.axes import Floats
from caloscale.physics.distances import Estimate
from caloscale.physics.observables import Observed

MINIMUM_TEST = 40
"""Fewest showers of each kind in the test part of the classifier: the AUC's error is then below 0.07."""
MINIMUM_TRAIN = 100
"""Fewest showers of each kind that a classifier or a regression is trained on."""


@dataclass(frozen=True)
class Verdict:
    """How well generated showers are told from Monte Carlo ones.

    auc: area under the receiver-operating curve of the test part, 0.5 (not at all) to 1 (always).
    jsd: Jensen-Shannon divergence estimated from the calibrated probabilities, 0 to 1 bit.
    roc: false positive rates, true positive rates, thresholds (probability of being Monte Carlo), ascending rates.
    """

    auc: Estimate
    jsd: float
    roc: tuple[Floats, Floats, Floats]


def classifier_features(observed: Observed) -> Floats:
    """What the classifier sees (N, D): energy and angle, share of each layer, sampling fraction, moments, hits per
    energy, sparsity, radius, measured angle. NaN (an empty shower) stays: the classifier knows missing values."""
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = observed.longitudinal / observed.ecal_sum_gev[:, None]
    columns = [
        observed.energy_gev,
        observed.angle_rad,
        observed.sampling_fraction,
        observed.hits / observed.energy_gev,
        observed.sparsity,
        observed.radius90_mm,
        observed.angle_error_rad,
    ]
    return np.column_stack([*columns, shares, observed.moments_z, observed.moments_x, observed.moments_y])


def distance_features(observed: Observed) -> Floats:
    """What FPD and KPD see (N, 16): no column is a sum of others; an empty shower has 0 where it has no value."""
    columns = [
        observed.sampling_fraction,
        observed.fractions[:, :2],
        observed.hits / observed.energy_gev,
        observed.sparsity,
        observed.radius90_mm,
        observed.angle_error_rad,
        observed.moments_z,
        observed.moments_x,
        observed.moments_y,
    ]
    return np.nan_to_num(np.column_stack(columns))


def tell_apart(real: Floats, real_test: Floats, generated: Floats, *, seed: int, bootstraps: int) -> Verdict:
    """Train, calibrate and test a classifier of real (N, D) against generated (M, D) showers.

    Generated showers are split 60/20/20 into training, calibration and test. Real ones for training and
    calibration (3:1) are Monte Carlo showers that the generator may have seen; the test takes ``real_test``, showers
    that neither has seen. Gradient-boosted trees (scikit-learn), sigmoid calibration (Platt), equal numbers.
    The uncertainty of the AUC is the scatter over bootstraps of the test part.
    Raises ValueError where a part has too few showers.
    """
    rng = np.random.default_rng(seed)
    fake_train, fake_calibrate, fake_test = _split(generated, (0.6, 0.2, 0.2), rng)
    real_train, real_calibrate = _split(real, (0.75, 0.25), rng)
    # Equal numbers rather than weights: scikit-learn bins weighted samples ten times slower.
    train, calibrate = min(len(real_train), len(fake_train)), min(len(real_calibrate), len(fake_calibrate))
    fewest_test = min(len(fake_test), len(real_test))
    if fewest_test < MINIMUM_TEST or train < MINIMUM_TRAIN:
        raise ValueError(
            f"the classifier needs {MINIMUM_TRAIN} showers of each kind to train and {MINIMUM_TEST} to test, "
            f"there are {train} and {fewest_test}"
        )
    with threadpool_limits(limits=1):  # small samples: threads that wait for each other cost more than they bring
        p_real, p_fake = _fitted_probabilities(
            (real_train[:train], fake_train[:train]),
            (real_calibrate[:calibrate], fake_calibrate[:calibrate]),
            (real_test, fake_test),
            seed,
        )
    area = Estimate(auc(p_real, p_fake), _auc_scatter(p_real, p_fake, rng, bootstraps))
    return Verdict(area, jsd(p_real, p_fake), roc_curve(p_real, p_fake))


def _fitted_probabilities(
    train: tuple[Floats, Floats], calibrate: tuple[Floats, Floats], test: tuple[Floats, Floats], seed: int
) -> tuple[Floats, Floats]:
    """Calibrated probabilities of being real for the real and the generated showers of the test part."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    trees = HistGradientBoostingClassifier(
        max_iter=100, max_leaf_nodes=15, min_samples_leaf=10, early_stopping=False, random_state=seed
    )
    trees.fit(*_labelled(*train))
    showers, labels = _labelled(*calibrate)
    sigmoid = LogisticRegression(C=1e6)
    sigmoid.fit(trees.decision_function(showers)[:, None], labels)
    real, fake = (sigmoid.predict_proba(trees.decision_function(part)[:, None])[:, 1] for part in test)
    return real, fake


def auc(real: Floats, fake: Floats) -> float:
    """Probability that a real shower scores higher than a generated one, ties half (Mann-Whitney)."""
    order = np.sort(fake)
    below, not_above = np.searchsorted(order, real, "left"), np.searchsorted(order, real, "right")
    return float((below + not_above).mean() / (2 * len(fake)))


def roc_curve(real: Floats, fake: Floats, points: int = 51) -> tuple[Floats, Floats, Floats]:
    """False and true positive rates at thresholds between 1 and 0 (quantiles of the scores, so that the curve is
    traced evenly): the parts of fake (M,) and real (N,) scores that reach the threshold."""
    inner = np.quantile(np.concatenate([real, fake]), np.linspace(1, 0, points - 2))
    thresholds = np.concatenate([[1 + 1e-9], inner, [0.0]])
    rates = [(sample[:, None] >= thresholds).mean(axis=0) for sample in (fake, real)]
    return rates[0], rates[1], thresholds


def jsd(real: Floats, fake: Floats) -> float:
    """Jensen-Shannon divergence in bits from calibrated probabilities of being real, at equal priors:

    1 + (mean log2 p(real) + mean log2 (1 - p(fake))) / 2, clipped to 0 to 1.
    """
    tiny = 1e-12
    value = 1 + (np.log2(real.clip(tiny)).mean() + np.log2((1 - fake).clip(tiny)).mean()) / 2
    return float(np.clip(value, 0, 1))


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


def _split(sample: Floats, parts: tuple[float, ...], rng: np.random.Generator) -> list[Floats]:
    cuts = np.round(np.cumsum(parts)[:-1] * len(sample)).astype(int)
    return np.split(sample[rng.permutation(len(sample))], cuts)


def _labelled(real: Floats, fake: Floats) -> tuple[Floats, Floats]:
    return np.concatenate([real, fake]), np.concatenate([np.ones(len(real)), np.zeros(len(fake))])


def _auc_scatter(real: Floats, fake: Floats, rng: np.random.Generator, bootstraps: int) -> float:
    values = [
        auc(real[rng.integers(0, len(real), len(real))], fake[rng.integers(0, len(fake), len(fake))])
        for _ in range(bootstraps)
    ]
    return float(np.std(values))
