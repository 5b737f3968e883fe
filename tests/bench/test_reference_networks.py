"""The networks' arithmetic against a plain reference: numpy and scipy, double precision, no TensorFlow."""

import numpy as np
import pytest
import scipy.signal
import tensorflow as tf

from caloscale.models import build
from caloscale.models.layers.convolution import convolution
from caloscale.spec import load_run


def correlate(x, kernel, bias):
    """Valid correlation of (X, Y, Z, Cin) with (kx, ky, kz, Cin, Cout)."""
    flipped = kernel[::-1, ::-1, ::-1]
    out = sum(
        scipy.signal.fftconvolve(x[..., c, None], flipped[..., c, :], mode="valid", axes=(0, 1, 2))
        for c in range(x.shape[-1])
    )
    return out + bias


def padded(x, before, after=None):
    after = before if after is None else after
    return np.pad(x, [*zip(before, after), (0, 0)])


def relu(x):
    return np.maximum(x, 0)


def leaky(x):
    return np.where(x > 0, x, 0.3 * x)


class Weights:
    """Random weights of this seed, set in the network too, so that biases and moving averages matter."""

    def __init__(self, network, seed):
        rng = np.random.default_rng(seed)
        self.network = network
        for layer in network.layers:
            weights = layer.get_weights()
            if type(layer).__name__ == "BatchNormalization":
                weights = [rng.uniform(0.5, 1.5, w.shape) for w in weights]
            elif weights:
                scale = np.sqrt(2 / np.prod(weights[0].shape[:-1]))
                weights = [rng.normal(0, scale if w.ndim > 1 else 0.1, w.shape) for w in weights]
            layer.set_weights(weights)

    def of(self, name):
        return [w.astype(np.float64) for w in self.network.get_layer(name).get_weights()]

    def conv(self, x, name):
        kernel, *bias = self.of(name)
        return correlate(x, kernel, bias[0] if bias else 0.0)

    def norm(self, x, name, epsilon):
        gamma, beta, mean, variance = self.of(name)
        return gamma * (x - mean) / np.sqrt(variance + epsilon) + beta

    def dense(self, x, name):
        kernel, bias = self.of(name)
        return x @ kernel + bias


def assert_equal_showers(found, expected):
    assert expected.max() > 0
    np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())


def test_convolution_at_tiny_shapes():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, 6, 7, 8, 3)).astype(np.float32)
    for kernel, pad in (((2, 3, 4), (0, 0, 0)), ((2, 3, 4), (1, 0, 2)), ((3, 4, 5), "same"), ((2, 2, 2), "same")):
        inputs = tf.keras.Input(x.shape[1:])
        network = tf.keras.Model(inputs, convolution(inputs, 4, kernel, pad=pad, name="conv"))
        weights = Weights(network, seed=1)
        before = [(k - 1) // 2 for k in kernel] if pad == "same" else pad
        after = [k - 1 - b for k, b in zip(kernel, before)] if pad == "same" else pad
        found = network(x)[0]
        expected = weights.conv(padded(x[0].astype(np.float64), before, after), "conv")
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("upsampling", [(2, 2, 3), (4, 4, 4)])
def test_convolution_behind_an_upsampling(upsampling):
    x = np.random.default_rng(3).normal(size=(1, 3, 2, 2, 2)).astype(np.float32)
    inputs = tf.keras.Input(x.shape[1:])
    made = convolution(inputs, 3, (3, 2, 4), upsampling=upsampling, pad=(1, 0, 2), name="conv")
    network = tf.keras.Model(inputs, made)
    weights = Weights(network, seed=4)
    repeated = x[0].astype(np.float64)
    for axis, times in enumerate(upsampling):
        repeated = repeated.repeat(times, axis=axis)
    expected = weights.conv(padded(repeated, (1, 0, 2)), "conv")
    assert network(x)[0].shape == expected.shape
    np.testing.assert_allclose(network(x)[0], expected, atol=1e-5)


def networks_of(preset):
    run = load_run(preset=preset)
    return build(run.model, run.data)


@pytest.mark.integration
def test_the_variable_angle_generator():
    generator = networks_of("variable-angle")["generator"]
    weights = Weights(generator, seed=3)
    latent = np.random.default_rng(4).normal(size=(1, 256)).astype(np.float32)
    x = weights.dense(latent[0].astype(np.float64), "dense").reshape(9, 9, 8, 8)
    x = x.repeat(6, axis=0).repeat(6, axis=1).repeat(6, axis=2)
    pads = [(0, 0, 0), (2, 2, 1), (2, 2, 1), (2, 2, 1), (1, 1, 0)]
    for number, pad in enumerate(pads, start=1):
        x = weights.norm(relu(weights.conv(padded(x, pad), f"conv{number}")), f"norm{number}", 1e-6)
    x = relu(weights.conv(padded(x, (1, 1, 0)), "conv6"))
    expected = relu(weights.conv(x, "conv7"))
    assert_equal_showers(generator(latent, training=False)[0], expected)


def test_the_fixed_angle_generator():
    generator = networks_of("fixed-angle")["generator"]
    weights = Weights(generator, seed=7)
    latent = np.random.default_rng(8).normal(size=(1, 200)).astype(np.float32)
    x = weights.dense(latent[0].astype(np.float64), "dense").reshape(7, 7, 8, 8)
    x = weights.norm(leaky(weights.conv(padded(x, (2, 2, 3), (3, 3, 4)), "conv1")), "norm1", 1e-3)
    x = x.repeat(2, axis=0).repeat(2, axis=1).repeat(2, axis=2)
    x = weights.norm(leaky(weights.conv(padded(x, (2, 2, 0)), "conv2")), "norm2", 1e-3)
    x = x.repeat(2, axis=0).repeat(2, axis=1).repeat(3, axis=2)
    x = leaky(weights.conv(padded(x, (1, 0, 3)), "conv3"))
    expected = relu(weights.conv(x, "conv4"))
    assert_equal_showers(generator(latent, training=False)[0], expected)


@pytest.mark.parametrize(
    ("preset", "cells", "same", "pads", "epsilon"),
    [
        pytest.param(
            "variable-angle",
            (51, 51, 25),
            ((2, 2, 2), (2, 3, 3)),
            [(0, 0, 1), (0, 0, 1), (0, 0, 0)],
            1e-6,
            marks=pytest.mark.integration,
        ),
        ("fixed-angle", (25, 25, 25), ((2, 2, 2), (2, 2, 2)), [(2, 2, 2), (2, 2, 2), (1, 1, 1)], 1e-3),
    ],
)
def test_the_discriminators(preset, cells, same, pads, epsilon):
    """Their trained heads."""
    discriminator = networks_of(preset)["discriminator"]
    weights = Weights(discriminator, seed=5)
    shower = np.random.default_rng(6).gamma(0.2, 0.05, (1, *cells, 1)).astype(np.float32)
    x = leaky(weights.conv(padded(shower[0].astype(np.float64), *same), "conv1"))
    for number, pad in enumerate(pads, start=2):
        x = weights.norm(leaky(weights.conv(padded(x, pad), f"conv{number}")), f"norm{number}", epsilon)
    a, b, c = (n // 2 for n in x.shape[:3])
    x = x[: 2 * a, : 2 * b, : 2 * c].reshape(a, 2, b, 2, c, 2, 8).mean(axis=(1, 3, 5)).ravel()
    outputs = discriminator(shower, training=False)
    real_fake = 1 / (1 + np.exp(-weights.dense(x, "real_fake")))
    np.testing.assert_allclose(outputs["real_fake"][0], real_fake, atol=1e-5)
    np.testing.assert_allclose(outputs["energy"][0], weights.dense(x, "energy"), atol=1e-5)
