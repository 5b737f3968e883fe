"""The generator's terms as proper scores, against closed forms."""

import numpy as np
import pytest
import tensorflow as tf
from scipy.stats import norm

from caloscale.models.losses import adversarial_loss
from caloscale.models.scores import distance, generator_loss
from caloscale.spec import LossWeights

N = 200_000


def batch_of(values, ecal_sum=1.0):
    """Outputs or targets of many showers whose ECAL sum is `values`; all else is constant."""
    ones = tf.ones((len(values), 1))
    return {
        "real_fake": ones * 0.5,
        "energy": ones,
        "angle": ones,
        "ecal_sum": tf.reshape(tf.constant(values), (-1, 1)),
    }


def score(generated, partner, real, weight=1.0):
    weights = LossWeights(real_fake=0, energy=0, angle=0, ecal_sum=1)
    targets = batch_of(real)
    total, _ = generator_loss(
        batch_of(generated),
        targets,
        tf.ones((len(real), 1)),
        weights,
        partner=batch_of(partner),
        energy_score_weight=weight,
    )
    return float(tf.reduce_mean(total))


def normal(width, seed, mean=1.0):
    return (mean + width * np.random.default_rng(seed).standard_normal(N)).astype(np.float32)


@pytest.mark.parametrize(
    ("width", "generated_width", "shift"), [(0.01, 0.01, 0.0), (0.01, 0.02, 0.0), (0.01, 0.005, 0.01)]
)
def test_the_expected_score_has_its_closed_form(width, generated_width, shift):
    """E|g - t| of two normal variables is E|N(shift, w^2 + v^2)|; E|g - g'| is 2 v / sqrt(pi)."""
    both = np.hypot(width, generated_width)
    apart = both * np.sqrt(2 / np.pi) * np.exp(-((shift / both) ** 2) / 2) + shift * (1 - 2 * norm.cdf(-shift / both))
    expected = 100 * (apart - 2 * generated_width / np.sqrt(np.pi))
    found = score(normal(generated_width, 1, 1 + shift), normal(generated_width, 2, 1 + shift), normal(width, 3))
    # The published percentage is of the real sum, whose width is a hundredth here.
    assert found == pytest.approx(expected, abs=0.015)


def width_gradient(generated_width, energy_score_weight):
    """Derivative of the mean loss by the width of the generated sums, the partner held fixed."""
    width = tf.Variable(generated_width)
    draws = [tf.constant(normal(1.0, seed, 0.0)) for seed in (1, 2)]
    weights = LossWeights(real_fake=0, energy=0, angle=0, ecal_sum=1)
    with tf.GradientTape() as tape:
        generated, partner = (batch_of([0.0])["ecal_sum"] + 1 + width * draw[:, None] for draw in draws)
        ones = tf.ones_like(generated)
        outputs = {"real_fake": ones * 0.5, "energy": ones, "angle": ones, "ecal_sum": generated}
        loss, _ = generator_loss(
            outputs,
            batch_of(normal(0.01, 3)),
            ones,
            weights,
            partner={**outputs, "ecal_sum": partner},
            energy_score_weight=energy_score_weight,
        )
        loss = tf.reduce_mean(loss)
    return float(tape.gradient(loss, width))


def test_the_width_of_the_real_showers_is_where_the_score_is_least():
    """d/dv of E|g - t| - E|g - g'| / 2 is 0 at v = w, for a partner that is held fixed."""
    slopes = [width_gradient(v, energy_score_weight=1.0) for v in (0.005, 0.01, 0.02)]
    assert slopes[0] < -5
    assert slopes[1] == pytest.approx(0, abs=1)
    assert slopes[2] > 5


def test_the_published_term_takes_the_width_away():
    assert all(width_gradient(v, energy_score_weight=0.0) > 5 for v in (0.005, 0.01, 0.02))


def test_without_energy_score_and_profiles_it_is_the_published_loss():
    outputs, targets = batch_of(normal(0.1, 1)), batch_of(normal(0.1, 2))
    ones = tf.ones((N, 1))
    published, terms = adversarial_loss(outputs, targets, ones, LossWeights())
    total, others = generator_loss(outputs, targets, ones, LossWeights(), partner=outputs, energy_score_weight=0)
    np.testing.assert_array_equal(total, published)
    assert set(others) == set(terms)


def test_distances_by_hand():
    one, other, ecal_sum = tf.constant([[0.09, 0.16]]), tf.constant([[0.25, 0.16]]), tf.constant([1.0])
    assert float(distance("angle", one, other, ecal_sum)[0]) == pytest.approx(0.08)
    assert float(distance("hits", one, other, ecal_sum)[0]) == pytest.approx(0.08)
    assert float(distance("counts", one, other, ecal_sum)[0]) == pytest.approx(8)
    assert float(distance("ecal_sum", one[:, :1], other[:, :1], ecal_sum * 2)[0]) == pytest.approx(8)
    assert float(distance("depth", one, other, ecal_sum)[0]) == pytest.approx(16, rel=1e-3)


def test_gradients_stay_finite_where_showers_are_empty_or_alike():
    for name in ("layers", "transverse", "depth", "counts", "hits"):
        values = tf.zeros((2, 3))
        with tf.GradientTape() as tape:
            tape.watch(values)
            loss = tf.reduce_sum(distance(name, values, tf.zeros((2, 3)), tf.ones(2)))
        assert np.isfinite(tape.gradient(loss, values)).all()
