"""Scores of cells: both directions agree, the density integrates to the probability of a hit."""

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import expit, log_ndtr

from caloscale.models.families.flow import scores

FLOOR, MIP = 2e-5, 1.9e-4


def parameters(count: int, seed: int = 0) -> tf.Tensor:
    rng = np.random.default_rng(seed)
    return tf.constant(
        np.column_stack([rng.normal(-1, 2, count), rng.normal(-0.5, 0.7, (count, scores.BINS))]), tf.float32
    )


def edges(layer_gev: float, count: int) -> tf.Tensor:
    return tf.repeat(scores.edges(tf.fill((1, 1), layer_gev), MIP, FLOOR)[0], count, axis=0)


def depths(y, logits):
    below, point = scores.odds(y, logits)
    return tf.math.log((1 + below) / (1 + point))


def energies(y, some, bounds):
    """Depths and energies of cells."""
    depth = depths(y, some[:, 0])
    hazards, widths = (tf.transpose(values) for values in (some[:, 1:], scores.widths(bounds)))
    found = scores.hit_energies(depth, hazards, widths).numpy()
    among_others = scores.hit_energies(depth[None], hazards[None], widths[None]).numpy()
    np.testing.assert_allclose(among_others[0], found, rtol=1e-4)
    return depth.numpy(), found


def test_a_logistic_score_is_that_of_a_normal_number():
    """Also in the tails, where most cells of a fringe are decided."""
    z = np.linspace(-4.5, 4.5, 801)
    np.testing.assert_allclose(scores.logistic_of_normal(z), log_ndtr(z) - log_ndtr(-z), atol=2e-3)
    rising = scores.logistic_of_normal(np.linspace(-8, 8, 1001))
    assert (np.diff(rising) > 0).all()


def test_the_logistic_score_is_inverted():
    z = tf.linspace(-4.5, 4.5, 1001)
    np.testing.assert_allclose(scores.normal_of_logistic(scores.logistic_of_normal(z)), z, atol=2e-3)


def test_a_depth_is_that_of_its_logarithms():
    """Softplus of the score less that of the negative logit; also of cells that are as good as never hit."""
    y, logit = np.meshgrid(np.linspace(-20, 12, 65), np.linspace(-50, 5, 56))
    depth = depths(tf.constant(y, tf.float32), tf.constant(logit, tf.float32))
    np.testing.assert_allclose(depth, np.logaddexp(0, y) - np.logaddexp(0, -logit), rtol=1e-6, atol=1e-6)
    assert np.isfinite(depths(tf.constant(-9.0), tf.constant(-500.0)))


@pytest.mark.parametrize("layer_gev", [3e-5, 1e-3, 0.05])
def test_edges_ascend_for_every_energy_of_a_layer(layer_gev):
    bounds = edges(layer_gev, 1).numpy()[0]
    assert bounds[0] == 1 and (np.diff(bounds) > 0).all()


def test_energies_come_back_from_the_scores_of_hits():
    some, bounds = parameters(500), edges(0.03, 500)
    energy = tf.constant(np.exp(np.random.default_rng(1).uniform(0.05, 7, 500)), tf.float32)
    depth = tf.reduce_sum(scores.fill_bins(energy, some[:, 1:], bounds)[0], axis=1)
    inside = depth.numpy() < 8
    beyond, got = energies(scores.scores_of_hits(depth, some[:, 0]), some, bounds)
    assert inside.sum() > 300 and (beyond[inside] > 0).all()
    np.testing.assert_allclose(got[inside], energy.numpy()[inside], rtol=2e-3)


def test_softplus_and_its_gradient():
    x = tf.constant([-200.0, -9, -1, 0, 1, 9, 200])
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = scores.softplus(x)
    np.testing.assert_allclose(value, np.logaddexp(0, x), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(tape.gradient(value, x), expit(x), rtol=1e-6)


def test_the_density_of_the_energy_of_a_hit_integrates_to_1():
    for seed in range(5):
        some, bounds = tf.repeat(parameters(1, seed), 40_000, axis=0), edges(0.02, 40_000)
        steps = np.geomspace(1, 3e5, 40_001)
        middle = tf.constant((steps[1:] + steps[:-1]) / 2, tf.float32)
        density = scores.log_density(middle, some[:, 1:], bounds)
        total = float(np.sum(np.exp(density.numpy().astype(np.float64)) * np.diff(steps)))
        np.testing.assert_allclose(total, 1, rtol=2e-3)


def test_scores_of_cells_that_are_not_hit_are_uniform_below_the_point():
    logit = tf.constant([-6.0, -1.0, 0.5, 3.0])
    for uniform in (0.01, 0.5, 0.97):
        got = expit(scores.scores_of_others(tf.fill((4,), uniform), logit).numpy())
        np.testing.assert_allclose(got, uniform * (1 - expit(logit.numpy())), rtol=1e-4)
    assert (scores.scores_of_others(tf.fill((4,), 0.9999999), logit) <= -logit).numpy().all()


def test_generated_cells_follow_the_density():
    """Normal numbers through the score: share of hits, and depths of the quantiles of their energies."""
    some, bounds = tf.repeat(parameters(1, 3), 200_000, axis=0), edges(0.02, 200_000)
    z = tf.constant(np.random.default_rng(2).normal(size=200_000), tf.float32)
    beyond, energy = energies(scores.logistic_of_normal(z), some, bounds)
    hit = beyond > 0
    np.testing.assert_allclose(hit.mean(), expit(some[0, 0]), atol=4e-3)
    quantiles = tf.constant(np.quantile(energy[hit], [0.1, 0.5, 0.9]), tf.float32)
    depth = tf.reduce_sum(scores.fill_bins(quantiles, some[:3, 1:], bounds[:3])[0], axis=1)
    np.testing.assert_allclose(1 - np.exp(-depth), [0.1, 0.5, 0.9], atol=6e-3)
    filled, bins = scores.fill_bins(tf.constant(energy[hit]), some[: hit.sum(), 1:], bounds[: hit.sum()])
    ends = bins.numpy().sum(axis=0)
    np.testing.assert_allclose(ends, filled.numpy().sum(axis=0), atol=5 * np.sqrt(ends.max()))
