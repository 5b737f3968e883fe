"""The folded convolution against upsampling, zeros and Keras' Conv3D one after the other."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from caloscale.models import build
from caloscale.models.arithmetic import flops, flops_per_layer
from caloscale.models.layers.folding import UpsampledConv3D
from caloscale.spec import load_run

layers = tf.keras.layers
VARIABLE_ANGLE = ((9, 9, 8), (6, 6, 6), (6, 6, 8), (0, 0, 0))


def triples(low, high):
    return st.tuples(*[st.integers(low, high)] * 3)


def gradients(network, volume, seed):
    """Output, and the gradients of a random functional of it with respect to the input and all weights."""
    with tf.GradientTape() as tape:
        tape.watch(volume)
        output = network(volume)
        weights = np.random.default_rng(seed).normal(size=output.shape)
        loss = tf.reduce_sum(output * tf.cast(weights, output.dtype))
    return [output, *tape.gradient(loss, [volume, *network.trainable_variables])]


def both(size, factor, kernel, pad, channels, filters, dtype, bias=True):
    """The two networks with the same random weights, biases not zero."""
    volume = tf.keras.Input((*size, channels), dtype="float32" if dtype.startswith("mixed") else dtype)
    x = layers.UpSampling3D(factor, dtype=dtype)(volume)
    x = layers.ZeroPadding3D(pad, dtype=dtype)(x)
    plain = tf.keras.Model(volume, layers.Conv3D(filters, kernel, use_bias=bias, dtype=dtype)(x))
    y = UpsampledConv3D(filters, kernel, factor, pad, use_bias=bias, dtype=dtype)(volume)
    folded = tf.keras.Model(volume, y)
    rng = np.random.default_rng(1)
    weights = [rng.normal(size=weight.shape) / 10 for weight in plain.get_weights()]
    plain.set_weights(weights)
    folded.set_weights(weights)
    return plain, folded


def compare(size, factor, kernel, pad, channels, filters, dtype, tolerance, bias=True):
    plain, folded = both(size, factor, kernel, pad, channels, filters, dtype, bias)
    volume = tf.constant(np.random.default_rng(2).normal(size=(2, *size, channels)), dtype)
    assert folded.output_shape == plain.output_shape
    for found, expected in zip(gradients(folded, volume, 3), gradients(plain, volume, 3), strict=True):
        assert found.shape == expected.shape
        largest = float(tf.reduce_max(tf.abs(expected)))
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(largest, 1e-30))


@settings(max_examples=25)
@given(triples(1, 4), triples(1, 4), triples(1, 6), triples(0, 3), st.integers(1, 2), st.integers(1, 3), st.booleans())
def test_values_and_gradients_equal_the_plain_layers(size, factor, kernel, pad, channels, filters, bias):
    assume(all(n * f + 2 * p >= k for n, f, k, p in zip(size, factor, kernel, pad)))
    compare(size, factor, kernel, pad, channels, filters, "float64", 1e-12, bias)


@pytest.mark.integration
@pytest.mark.parametrize(("channels", "dtype", "tolerance"), [(2, "float64", 1e-12), (4, "float32", 3e-5)])
def test_the_variable_angle_layer(channels, dtype, tolerance):
    """The kernel's gradient adds up 100,000 products, in another order: 3e-5 of the largest, the others 3e-6."""
    compare(*VARIABLE_ANGLE, channels=channels, filters=channels, dtype=dtype, tolerance=tolerance)


def test_in_bfloat16_it_is_as_near_to_single_precision_as_the_plain_layers_are():
    single, _ = both(*VARIABLE_ANGLE, channels=4, filters=4, dtype="float32")
    plain, folded = both(*VARIABLE_ANGLE, channels=4, filters=4, dtype="mixed_bfloat16")
    volume = tf.constant(np.random.default_rng(2).normal(size=(1, 9, 9, 8, 4)), "float32")
    truth = single(volume)
    away = [float(tf.reduce_mean(tf.abs(tf.cast(network(volume), "float32") - truth))) for network in (folded, plain)]
    assert folded(volume).dtype == tf.bfloat16
    assert 0 < away[0] < 1.5 * away[1]


def test_the_arithmetic_that_is_saved():
    run = load_run(preset="variable-angle")
    generator = build(run.model, run.data)["generator"]
    published, done = (flops_per_layer(generator, folded=folded)["conv1"] for folded in (False, True))
    assert published == 2 * 49 * 49 * 41 * (6 * 6 * 8) * 8 * 8
    assert done == 2 * (9 * 9 * 7) * (2 * 2 * 3) * 8 * (6 * 6 * 6 * 8)
    assert flops(generator, folded=True) == flops(generator) - published + done


def test_a_kernel_wider_than_its_volume_is_an_error():
    with pytest.raises(ValueError, match="wider"):
        UpsampledConv3D(1, (9, 1, 1), (2, 2, 2))(tf.zeros((1, 4, 4, 4, 1)))
