"""The compact networks of a training step against the Keras networks, layer by layer: values and gradients."""

import numpy as np
import pytest
import tensorflow as tf

from caloscale.bench.work import synthetic_batch
from caloscale.models import build, family_of, latent, noise_size
from caloscale.models.families.compact.training import compact_for_training
from caloscale.models.families.gan.step import Computed
from caloscale.spec import load_run
from tests.training.conftest import small_run
from tests.training.detector import DETECTOR


def networks_of(run):
    """With biases as after a training, so that cells are hit and missed and all thresholds are passed."""
    tf.keras.utils.set_random_seed(1)
    networks, rng = build(run.model, run.data), np.random.default_rng(5)
    for network in networks.values():
        network.set_weights([weight + rng.normal(0, 0.03, weight.shape) for weight in network.get_weights()])
    return networks


def evaluate(functions, run, networks, inputs):
    """Outputs for generated showers, and the gradients of a sum of all of them with random weights."""

    @tf.function(autograph=False)
    def graph(inputs):
        with tf.GradientTape() as tape:
            outputs = functions.discriminator(functions.generator(inputs, training=True), training=True)
            total = tf.zeros(())
            for number, name in enumerate(sorted(outputs)):
                weights = np.random.default_rng(number).normal(size=outputs[name].shape).astype(np.float32)
                size = tf.stop_gradient(tf.reduce_mean(tf.abs(outputs[name])))
                total += tf.reduce_sum(outputs[name] * weights) / size
        variables = [variable for network in networks.values() for variable in network.trainable_variables]
        return outputs, tape.gradient(total, variables)

    return graph(inputs)


@pytest.mark.parametrize(
    ("preset", "overrides", "batch"),
    [
        pytest.param("compact", DETECTOR, 7, marks=pytest.mark.integration),
        pytest.param("compact", (), 1, marks=pytest.mark.integration),
        pytest.param("par04", (), 7, marks=pytest.mark.integration),
        pytest.param("par04", (), 1, marks=pytest.mark.integration),
    ],
)
def test_values_and_gradients(preset, overrides, batch):
    """Within 1e-5 of the root mean square of an output, and 1e-4 of that of a gradient (found: 2e-6 and 1e-5)."""
    run = load_run(preset=preset, overrides=["model.latentSize=20", "model.dropout=0", *overrides])
    networks = networks_of(run)
    noise = np.random.default_rng(2).standard_normal((batch, noise_size(run.model, run.data)), np.float32)
    inputs = latent(noise, synthetic_batch(run, batch), run.model, run.data)
    functions = family_of(run.model).for_training(networks)
    assert functions.generator is not networks["generator"]
    plain = Computed(networks["generator"], networks["discriminator"], tf.identity)
    truth, expected = evaluate(plain, run, networks, inputs)
    found, gradients = evaluate(functions, run, networks, inputs)
    assert found.keys() == truth.keys()
    for name, value in truth.items():
        assert away(found[name], value) < 1e-5, name
    variables = [variable for network in networks.values() for variable in network.trainable_variables]
    for variable, one, other in zip(variables, gradients, expected, strict=True):
        assert np.abs(other).max() > 0 and away(one, other) < 1e-4, variable.path


def away(found, truth):
    found, truth = np.asarray(found, float), np.asarray(truth, float)
    return np.sqrt(np.mean((found - truth) ** 2) / np.mean(truth**2))


def test_real_and_empty_showers():
    """Showers in network units, one of them without energy: the outputs of the Keras network."""
    run = small_run("model.dropout=0")
    networks = networks_of(run)
    cells = synthetic_batch(run, 3)["cells"].numpy()[..., None]
    cells[1] = 0
    functions = compact_for_training(networks)
    found = functions.discriminator(functions.showers(tf.constant(cells)), training=False)
    for name, value in networks["discriminator"](cells, training=False).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_weight_that_is_not_a_number_is_seen():
    """By the losses: the exponentials and logarithms here are arithmetic on bits."""
    run = small_run()
    networks = networks_of(run)
    functions = compact_for_training(networks)
    noise = np.zeros((1, noise_size(run.model, run.data)), np.float32)
    inputs = latent(noise, synthetic_batch(run, 1), run.model, run.data)
    for layer in ("shift", "width", "mean_response"):
        layer = networks["generator"].get_layer(layer)
        before = layer.get_weights()
        layer.set_weights([np.full_like(weight, np.nan) for weight in before])
        outputs = functions.discriminator(functions.generator(inputs), training=False)
        assert np.isnan(outputs["ecal_sum"]).all() and np.isnan(outputs["real_fake"]).all()
        layer.set_weights(before)


def test_other_networks_are_computed_layer_by_layer():
    for overrides in (["model.binCounts=true"], ["data.azimuthDeg=[0, 360]", "data.mirror=false"]):
        run = small_run(*overrides)
        networks = build(run.model, run.data)
        assert family_of(run.model).for_training(networks).generator is networks["generator"]
        with pytest.raises(ValueError, match="layer by layer"):
            compact_for_training(networks)
