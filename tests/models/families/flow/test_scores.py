"""Scores of cells: both directions agree, the density integrates to the probability of a hit."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from scipy.special import expit, ndtr

from caloscale.models.families.flow import scores


def parameters(count: int, seed: int = 0) -> list[tf.Tensor]:
    rng = np.random.default_rng(seed)
    columns = [
        rng.normal(-1, 2, count),
        rng.normal(3, 1, count),
        *rng.normal(-0.3, 0.4, (scores.PARAMETERS - 2, count)),
    ]
    return [tf.constant(column, tf.float32) for column in columns]


def test_a_logistic_score_is_that_of_a_normal_number():
    z = np.linspace(-4, 4, 801)
    np.testing.assert_allclose(expit(scores.logistic_of_normal(z)), ndtr(z), atol=2e-4)


def test_the_cubic_is_inverted():
    z = tf.linspace(-5.0, 5.0, 1001)
    np.testing.assert_allclose(scores.normal_of_logistic(scores.logistic_of_normal(z)), z, atol=2e-5)


def test_energies_come_back_from_the_scores_of_hits():
    some = parameters(500)
    logarithm = tf.constant(np.random.default_rng(1).uniform(0.3, 8, 500), tf.float32)
    rho, _ = scores.rho_of_energies(logarithm, some)
    inside = np.abs(rho) < 8  # beyond, single precision has few digits left
    beyond, got = scores.hit_energies(scores.scores_of_hits(rho, some[0]), some)
    assert inside.sum() > 300 and (beyond.numpy()[inside] > 0).all()
    np.testing.assert_allclose(got.numpy()[inside], logarithm.numpy()[inside], rtol=2e-3)


def test_the_density_integrates_to_the_probability_of_a_hit():
    for seed in range(5):
        one = [tf.repeat(value[:1], 40_000) for value in parameters(1, seed)]
        edges = np.exp(np.linspace(np.log(2e-3), np.log(60), 40_001))
        middle = tf.constant((edges[1:] + edges[:-1]) / 2, tf.float32)
        _, density = scores.rho_of_energies(middle, one)
        total = float(np.sum(np.exp(density.numpy().astype(np.float64)) * np.diff(edges)))
        below = float(tf.sigmoid(scores.rho_of_energies(tf.constant([2e-3]), [v[:1] for v in one])[0])[0])
        wanted = float(tf.sigmoid(one[0][0]))
        np.testing.assert_allclose(total, wanted * (1 - below), rtol=5e-3)


def test_scores_of_cells_that_are_not_hit_are_uniform_below_the_point():
    logit = tf.constant([-6.0, -1.0, 0.5, 3.0])
    for uniform in (0.01, 0.5, 0.97):
        got = expit(scores.scores_of_others(tf.fill((4,), uniform), logit).numpy())
        np.testing.assert_allclose(got, uniform * (1 - expit(logit.numpy())), rtol=1e-4)
    assert (scores.scores_of_others(tf.fill((4,), 0.9999999), logit) <= -logit).numpy().all()


def test_generated_cells_follow_the_density():
    """Normal numbers through the score: share of hits and quantiles of their energies."""
    one = [value[:1] for value in parameters(1, 3)]
    z = np.random.default_rng(2).normal(size=200_000).astype(np.float32)
    beyond, logarithm = scores.hit_energies(scores.logistic_of_normal(tf.constant(z)), one)
    hit = beyond.numpy() > 0
    np.testing.assert_allclose(hit.mean(), expit(one[0].numpy()[0]), atol=4e-3)
    rho, _ = scores.rho_of_energies(tf.constant(np.quantile(logarithm.numpy()[hit], [0.1, 0.5, 0.9]), tf.float32), one)
    np.testing.assert_allclose(expit(rho.numpy()), [0.1, 0.5, 0.9], atol=5e-3)
