"""Batch normalisation over all replicas against Keras' own and the formula; its weights are Keras'."""

import numpy as np
import pytest
import tensorflow as tf

from caloscale.models.layers import convolution
from caloscale.models.layers.normalization import BatchNormalization, SharedBatchNormalization, batch_normalization

OPTIONS = {"epsilon": 1e-3, "momentum": 0.9}


def inputs(count=6):
    return np.random.default_rng(1).normal(3, 2, (count, 4, 5, 3)).astype(np.float32)


@pytest.mark.parametrize("training", [True, False])
def test_one_replica_is_keras_own(training):
    """Values, gradients and moving averages."""
    weights = [np.array(w, np.float32) for w in ([1, 2, 3], [0, 1, 0], [3, 3, 2], [4, 5, 6])]
    layers = SharedBatchNormalization(**OPTIONS), tf.keras.layers.BatchNormalization(**OPTIONS)
    found, truth = (results(layer, inputs(), np.cos(inputs()), weights, training) for layer in layers)
    for one, other in zip(found, truth, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(6, 3), (6, 4, 3), (6, 4, 5, 2, 3)])
def test_statistics_are_over_all_but_the_channels(shape):
    x = np.random.default_rng(2).normal(3, 2, shape).astype(np.float32)
    layer = SharedBatchNormalization(momentum=0.0)
    layer(x, training=True)
    flat = x.reshape(-1, 3).astype(np.float64)
    for statistic, expected in zip((layer.moving_mean, layer.moving_variance), (flat.mean(axis=0), flat.var(axis=0))):
        np.testing.assert_allclose(statistic.numpy(), expected, rtol=1e-4)


def test_bfloat16_counts_in_float32():
    layer = SharedBatchNormalization(dtype="mixed_bfloat16", **OPTIONS)
    result = layer(tf.cast(inputs(64) + 100, tf.bfloat16), training=True)
    assert result.dtype == tf.bfloat16
    assert {weight.dtype for weight in layer.get_weights()} == {np.dtype(np.float32)}
    rounded = tf.cast(tf.cast(inputs(64) + 100, tf.bfloat16), tf.float32).numpy()
    np.testing.assert_allclose(layer.get_weights()[2], 0.1 * rounded.mean(axis=(0, 1, 2)), rtol=1e-5)


@pytest.mark.parametrize("channels", [6, 8, 16])
@pytest.mark.parametrize(("batch", "cells"), [(1, (4, 6, 8)), (8, (5, 3, 7)), (7, (3, 5, 3))])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 5e-5), ("mixed_bfloat16", 2e-2)])
@pytest.mark.parametrize("training", [True, False])
def test_rows_of_several_cells_are_keras_own_in_double_precision(
    monkeypatch, channels, batch, cells, dtype, tolerance, training
):
    """Values, gradients and moving averages of volumes, also where columns are not whole registers (the last).

    A mean far from 0 shows what is lost when squares are added up.
    """
    monkeypatch.setattr(convolution, "has_wide_registers", lambda: True)
    random = np.random.default_rng(2)
    policy = tf.keras.mixed_precision.Policy(dtype)
    x = tf.constant(random.normal(30, 2, (batch, *cells, channels)) + np.arange(channels), policy.compute_dtype)
    slope = tf.constant(random.normal(size=x.shape), policy.compute_dtype)
    weights = list(random.uniform(0.5, 1.5, (4, channels)))
    layers = BatchNormalization(dtype=dtype, **OPTIONS), tf.keras.layers.BatchNormalization(dtype="float64", **OPTIONS)
    found, truth = (results(layer, x, slope, weights, training) for layer in layers)
    for one, other in zip(found, truth, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * np.abs(other).max())


@pytest.mark.parametrize("synchronized", [False, True])
@pytest.mark.parametrize("batch", [7, 8])
def test_many_cells_are_added_up_without_loss(monkeypatch, synchronized, batch):
    """Keras' own layer is wrong by 4e-4 and more here. Volumes of the variable-angle generator."""
    monkeypatch.setattr(convolution, "has_wide_registers", lambda: True)
    x = np.maximum(np.random.default_rng(3).normal(size=(batch, 49, 49, 41, 6)), 0).astype(np.float32)
    layer = batch_normalization(synchronized=synchronized, epsilon=1e-6, momentum=0.0)
    y = layer(x, training=True).numpy()
    cells = x.reshape(-1, 6).astype(np.float64)
    np.testing.assert_allclose(layer.get_weights()[2], cells.mean(axis=0), rtol=3e-6)
    np.testing.assert_allclose(layer.get_weights()[3], cells.var(axis=0), rtol=1e-5)
    truth = (cells - cells.mean(axis=0)) / np.sqrt(cells.var(axis=0) + 1e-6)
    np.testing.assert_allclose(y.reshape(-1, 6), truth, rtol=0, atol=3e-5)


def test_it_is_keras_own_where_convolutions_are(monkeypatch):
    """To the bit, though this batch can be divided."""
    monkeypatch.setattr(convolution, "has_wide_registers", lambda: True)
    x = tf.constant(np.random.default_rng(2).normal(30, 2, (4, 4, 6, 8, 6)), tf.float32)
    found, slope = {}, tf.ones_like(x) + x
    weights = [np.linspace(0.5, 1.5, 6)] * 4
    with convolution.computed_by_keras():
        found["plain"] = results(BatchNormalization(**OPTIONS), x, slope, weights, True)
    found["rows"] = results(BatchNormalization(**OPTIONS), x, slope, weights, True)
    found["keras"] = results(tf.keras.layers.BatchNormalization(**OPTIONS), x, slope, weights, True)
    assert all(np.array_equal(*pair) for pair in zip(found["plain"], found["keras"], strict=True))
    assert not np.array_equal(found["rows"][0], found["keras"][0])


def results(layer, x, slope, weights, training):
    """Output, gradients, and weights afterwards, of a compiled layer; float64."""
    layer.build(x.shape)
    layer.set_weights(weights)
    x, slope = (tf.cast(value, layer.compute_dtype) for value in (x, slope))

    @tf.function(autograph=False)
    def computed():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=training)
        return y, tape.gradient(y, [x, *layer.trainable_variables], output_gradients=slope)

    return [np.asarray(tf.cast(value, tf.float64)) for value in (*tf.nest.flatten(computed()), *layer.get_weights())]
