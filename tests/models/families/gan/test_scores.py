"""The generator's terms as proper scores, against closed forms."""

import numpy as np
import pytest
import tensorflow as tf
from scipy.optimize import minimize_scalar

from caloscale.models.families.gan.losses import distance, generator_loss
from caloscale.spec import LossWeights

N = 200_000


def batch_of(values, ecal_sum=1.0):
    """Outputs or targets of many showers whose ECAL sum is `values`; all else is constant."""
    ones = tf.ones((len(values), 1))
    return {
        "real_fake": ones * 0.5,
        "energy": ones,
        "angle": ones,
        "ecal_sum": tf.reshape(tf.cast(values, tf.float32), (-1, 1)),
    }


def loss_of(generated, partner, real, energy_score_weight, targets=None, **weights):
    """Loss of each shower (B,). generated, partner, real: outputs of the discriminator; targets: absent: real."""
    weights = LossWeights(**{"real_fake": 0, "energy": 0, "angle": 0, "ecal_sum": 0, **weights})
    ones, others = tf.ones_like(generated["energy"]), {"real": real, "partner": partner}
    return generator_loss(generated, targets or real, ones, weights, **others, energy_score_weight=energy_score_weight)[
        0
    ]


def normal(width, seed, mean=1.0):
    return (mean + width * np.random.default_rng(seed).standard_normal(N)).astype(np.float32)


def width_gradient(generated_width, energy_score_weight):
    """Derivative of the mean loss by the width of the generated sums, the partner held fixed."""
    width = tf.Variable(generated_width)
    with tf.GradientTape() as tape:
        generated, partner = (batch_of(1 + width * normal(1.0, seed, 0.0)) for seed in (1, 2))
        losses = loss_of(generated, partner, batch_of(normal(0.01, 3)), energy_score_weight, ecal_sum=1)
        loss = tf.reduce_mean(losses)
    return float(tape.gradient(loss, width))


def test_the_width_of_the_real_showers_is_where_the_score_is_least():
    """d/dv of E|g - t| - E|g - g'| / 2 is 0 at v = w, for a partner that is held fixed."""
    slopes = [width_gradient(v, energy_score_weight=1.0) for v in (0.005, 0.01, 0.02)]
    assert slopes[0] < -5
    assert slopes[1] == pytest.approx(0, abs=1)
    assert slopes[2] > 5


def test_the_published_term_takes_the_width_away():
    assert all(width_gradient(v, energy_score_weight=0.0) > 5 for v in (0.005, 0.01, 0.02))


def test_the_scored_sum_has_the_real_median():
    """With a width of 10%, sums in units of the real sum would be least for a mean that is 1% too small."""
    generated, partner, real = (np.exp(normal(0.1, seed, 0.0)) for seed in (1, 2, 3))

    def loss(middle):
        sides = (batch_of(values) for values in (middle * generated, middle * partner, real))
        return float(tf.reduce_mean(loss_of(*sides, 1.0, ecal_sum=1)))

    found = minimize_scalar(loss, bracket=(0.98, 1.0), tol=1e-3).x
    assert found == pytest.approx(1, abs=2e-3)


def energy_loss(width, energy_score_weight):
    """Mean loss of showers whose estimated energies fluctuate by ``width``, real ones by 0.1 about the primary's 1."""
    generated, partner, real = (
        {**batch_of(np.ones(N)), "energy": tf.constant(normal(each, seed))[:, None]}
        for each, seed in ((width, 1), (width, 2), (0.1, 3))
    )
    total = loss_of(generated, partner, real, energy_score_weight, batch_of(np.ones(N)), energy=1)
    # The gradient of the expected score: the partner's distance counts half there.
    half = energy_score_weight * distance("energy", generated, partner, 1.0) / 2
    return float(tf.reduce_mean(total + half))


def test_the_energy_head_does_not_take_the_resolution_away():
    """The energy of the primary as target is met best by showers that do not fluctuate; as a score by real ones."""
    assert energy_loss(0.02, 0.0) < energy_loss(0.05, 0.0) < energy_loss(0.1, 0.0)
    losses = {width: energy_loss(width, 1.0) for width in (0.05, 0.1, 0.2)}
    assert min(losses, key=losses.get) == 0.1


def test_distances_by_hand():
    one, other = tf.constant([[0.09, 0.16]]), tf.constant([[0.25, 0.16]])

    def far(name, scale=1.0):
        sums = tf.fill((1, 1), 1.0)
        shower, second = {name: one, "ecal_sum": sums}, {name: other * scale, "ecal_sum": sums * scale}
        return float(distance(name, shower, second, tf.constant([2.0]))[0])

    assert far("angle") == pytest.approx(0.08)
    assert far("hits") == pytest.approx(0.08)
    assert far("counts") == pytest.approx(8)
    assert far("energy") == pytest.approx(4)
    assert far("depth") == pytest.approx(16, rel=1e-3)
    assert far("layers") == far("transverse") == pytest.approx(20, rel=1e-2)
    # Shares of a shower's own energy: twice the energy is no distance.
    assert far("layers", scale=2.0) == pytest.approx(20, rel=1e-2)
    sums = [{"ecal_sum": tf.constant([[value]])} for value in (1.0, 1.1)]
    assert float(distance("ecal_sum", *sums, None)[0]) == pytest.approx(100 * np.log(1.1), rel=1e-3)


def test_gradients_stay_finite_where_showers_are_empty_or_alike():
    for name in ("layers", "transverse", "depth", "counts", "hits", "ecal_sum"):
        values = tf.zeros((2, 3))
        with tf.GradientTape() as tape:
            tape.watch(values)
            shower = {"ecal_sum": tf.reduce_sum(values, axis=1, keepdims=True), name: values}
            other = {"ecal_sum": tf.zeros((2, 1)), name: tf.zeros((2, 3))}
            loss = tf.reduce_sum(distance(name, shower, other, tf.ones(2)))
        assert np.isfinite(tape.gradient(loss, values)).all()


@pytest.mark.parametrize(("weight", "changes"), [(1.0, False), (0.0, True)])
def test_a_target_of_the_measured_angle_matters_without_the_energy_score_only(weight, changes):
    """With it the angle of a generated shower is compared with those of showers, whatever the target is."""
    outputs, of_targets, real, partner = (batch_of(normal(0.1, seed)[:100]) for seed in (1, 2, 3, 4))
    weights = {"real_fake": 1, "energy": 1, "angle": 5, "ecal_sum": 1}
    totals = [
        loss_of(outputs, partner, real, weight, {**of_targets, "angle": tf.fill((100, 1), target)}, **weights)
        for target in (1.0, 1.5)
    ]
    difference = np.abs(totals[1] - totals[0]).max()
    assert difference > 1 if changes else difference < 1e-4
