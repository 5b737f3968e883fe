from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from caloscale.detector.axes import axes_of
from caloscale.physics.classifier import (
    auc,
    classifier_features,
    distance_features,
    energy_regression,
    jsd,
    roc_curve,
    tell_apart,
)
from caloscale.physics.observables import choose_cuts, observe
from tests.physics.conftest import DATA, make_empty, make_showers

SCORES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=1, max_size=30)


def observed(showers):
    return observe(showers, axes_of(DATA), choose_cuts([showers], hits_gev=3e-4, threshold_gev=2e-5))


@given(SCORES, SCORES)
def test_auc_is_that_of_scikit_learn_with_ties(real, fake):
    labels = [1] * len(real) + [0] * len(fake)
    assert auc(np.array(real), np.array(fake)) == pytest.approx(roc_auc_score(labels, real + fake))


def test_roc_curve_rises_and_holds_the_auc():
    rng = np.random.default_rng(0)
    real, fake = norm.cdf(rng.normal(1, 1, 2000)), norm.cdf(rng.normal(0, 1, 2000))
    false_positives, true_positives, thresholds = roc_curve(real, fake)
    assert (false_positives[0], true_positives[0], false_positives[-1], true_positives[-1]) == (0, 0, 1, 1)
    assert (np.diff(false_positives) >= 0).all() and (np.diff(true_positives) >= 0).all()
    assert (np.diff(thresholds) <= 0).all()
    assert np.trapezoid(true_positives, false_positives) == pytest.approx(auc(real, fake), abs=0.005)


def test_jsd_at_its_ends_and_between():
    assert jsd(np.ones(10), np.zeros(10)) == 1
    assert jsd(np.full(10, 0.5), np.full(10, 0.5)) == 0
    # 3/4 of either kind are told with p = 3/4: the divergence of (3/4, 1/4) from (1/4, 3/4) is 1 - h(1/4).
    real, fake = np.array([0.75, 0.75, 0.75, 0.25]), np.array([0.25, 0.25, 0.25, 0.75])
    entropy = -(0.25 * np.log2(0.25) + 0.75 * np.log2(0.75))
    assert jsd(real, fake) == pytest.approx(1 - entropy)


def test_classifier_comes_near_the_best_possible():
    """Two Gaussians one standard deviation apart: no classifier beats Phi(1 / sqrt(2)) = 0.76."""
    rng = np.random.default_rng(1)
    real, test, fake = (rng.normal(size=(count, 3)) for count in (1200, 500, 2000))
    fake[:, 0] += 1
    found = tell_apart(real, test, fake, seed=1, bootstraps=100)
    assert found.auc.value == pytest.approx(norm.cdf(1 / np.sqrt(2)), abs=3 * found.auc.uncertainty + 0.03)
    assert 0.005 < found.auc.uncertainty < 0.05
    assert 0.05 < found.jsd < 0.3


def test_classifier_refuses_too_few():
    few = np.zeros((150, 2))
    with pytest.raises(ValueError, match="needs 100 showers of each kind to train and 40 to test, there are 90 and 30"):
        tell_apart(few, few, few, seed=1, bootstraps=10)


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
