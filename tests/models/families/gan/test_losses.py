"""The loss against Keras' own losses, its gradients against formulas."""

import numpy as np
import pytest
import tensorflow as tf

from caloscale.models.families.gan.losses import adversarial_loss, binary_crossentropy
from caloscale.spec import LossWeights, load_run

BATCH = 5


def a_batch(bins=False, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)

    def column(low, high, width=1):
        return tf.constant(rng.uniform(low, high, (BATCH, width)).astype(dtype))

    outputs = {
        "real_fake": column(0.01, 0.99),
        "energy": column(-1, 2),
        "angle": column(1, 2),
        "ecal_sum": column(1, 300),
    }
    targets = {"energy": column(1, 2), "angle": column(1, 2), "ecal_sum": column(100, 300)}
    if bins:
        outputs["bins"] = tf.round(column(0, 900, 8))
        targets["bins"] = tf.round(column(1, 900, 8))
    labels = tf.constant((rng.random((BATCH, 1)) < 0.5).astype(dtype))
    return outputs, targets, labels


@pytest.mark.parametrize("seed", range(3))
def test_terms_and_total_agree_with_kerass_losses(seed):
    outputs, targets, labels = a_batch(bins=True, seed=seed)
    weights = LossWeights()
    total, terms = adversarial_loss(outputs, targets, labels, weights)
    crossentropy, percentage, absolute = map(tf.keras.losses.get, ("binary_crossentropy", "mape", "mae"))
    expected = {
        "real_fake": crossentropy(labels, outputs["real_fake"]),
        "energy": percentage(targets["energy"], outputs["energy"]),
        "angle": absolute(targets["angle"], outputs["angle"]),
        "ecal_sum": percentage(targets["ecal_sum"], outputs["ecal_sum"]),
        "bins": percentage(targets["bins"], outputs["bins"]),
    }
    assert terms.keys() == expected.keys()
    for name, term in terms.items():
        np.testing.assert_allclose(term, expected[name], rtol=2e-5, err_msg=name)
    wanted = sum(getattr(weights, name) * np.asarray(term, np.float64) for name, term in expected.items())
    np.testing.assert_allclose(total, wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("preset", "total"),
    [
        ("variable-angle", 3 * np.log(2) + 0.1 * 50 + 25 * 0.1 + 0.1 * 10),
        ("fixed-angle", 6 * np.log(2) + 0.2 * 50 + 0.1 * 10),
    ],
)
def test_published_weights(preset, total):
    one = tf.constant([[1.0]])
    outputs = {"real_fake": tf.constant([[0.5]]), "energy": one * 1.5, "angle": one * 1.1, "ecal_sum": one * 90}
    targets = {"energy": [1.0], "angle": [1.0], "ecal_sum": [100.0]}
    found, _ = adversarial_loss(outputs, targets, [1.0], load_run(preset=preset).train.loss_weights)
    np.testing.assert_allclose(found, [total], rtol=1e-5)


@pytest.mark.parametrize("label", [0.0, 1.0])
@pytest.mark.parametrize("probability", [0.0, 1e-30, 1 - 2.0**-24, 1.0])
def test_cross_entropy_is_finite_for_certain_probabilities(label, probability):
    p = tf.constant([probability])
    with tf.GradientTape() as tape:
        tape.watch(p)
        loss = binary_crossentropy(tf.constant([label]), p)
    assert np.all(np.isfinite(loss))
    assert np.all(np.isfinite(tape.gradient(loss, p)))
    wrong = abs(label - probability) > 0.5
    assert (loss[0] > 15) == wrong


def test_gradients_are_those_of_the_formulas():
    outputs, targets, labels = a_batch(dtype=np.float64)
    weights = LossWeights()
    with tf.GradientTape() as tape:
        tape.watch(outputs)
        total, _ = adversarial_loss(outputs, targets, labels, weights)
    slopes = tape.gradient(total, outputs)
    p, y = outputs["real_fake"].numpy(), labels.numpy()
    np.testing.assert_allclose(slopes["real_fake"], 3 * (p - y) / (p * (1 - p)), rtol=1e-10)
    np.testing.assert_allclose(slopes["angle"], 25 * np.sign(outputs["angle"] - targets["angle"]))
    for name in ("energy", "ecal_sum"):
        expected = 0.1 * 100 * np.sign(outputs[name] - targets[name]) / targets[name]
        np.testing.assert_allclose(slopes[name], expected, rtol=1e-12)


def test_each_shower_has_its_own_loss_and_targets_need_no_second_axis():
    outputs, targets, labels = a_batch()
    total, _ = adversarial_loss(outputs, targets, labels, LossWeights())
    of_one, flat = ({name: value[2:3] for name, value in outputs.items()}, {n: v[2:3, 0] for n, v in targets.items()})
    np.testing.assert_array_equal(total[2:3], adversarial_loss(of_one, flat, labels[2:3, 0], LossWeights())[0])


def test_weight_zero_keeps_a_term_out_of_the_total_even_when_it_is_not_finite():
    outputs, targets, labels = a_batch()
    targets["angle"] = tf.fill((BATCH, 1), np.inf)
    total, terms = adversarial_loss(outputs, targets, labels, LossWeights(angle=0))
    assert np.all(np.isfinite(total))
    assert not np.any(np.isfinite(terms["angle"]))
    nothing = LossWeights(real_fake=0, energy=0, angle=0, ecal_sum=0, bins=0)
    np.testing.assert_array_equal(adversarial_loss(outputs, targets, labels, nothing)[0], np.zeros(BATCH))


def test_an_empty_bin_counts_as_one_cell():
    outputs, targets, labels = a_batch(bins=True)
    targets["bins"] = tf.zeros((BATCH, 8))
    outputs["bins"] = tf.fill((BATCH, 8), 3.0)
    _, terms = adversarial_loss(outputs, targets, labels, LossWeights())
    np.testing.assert_allclose(terms["bins"], np.full(BATCH, 300.0))


def test_half_precision_outputs_are_widened():
    outputs, targets, labels = a_batch()
    half = {name: tf.cast(value, tf.bfloat16) for name, value in outputs.items()}
    half["real_fake"] = tf.cast(tf.ones((BATCH, 1)), tf.bfloat16)
    total, _ = adversarial_loss(half, targets, labels, LossWeights())
    assert total.dtype == tf.float32
    assert np.all(np.isfinite(total))
