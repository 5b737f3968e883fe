"""Batch normalisation over all replicas against Keras' own and the formula; its weights are Keras'."""

import numpy as np
import pytest
import tensorflow as tf

from caloscale.models.normalization import SharedBatchNormalization, batch_normalization

OPTIONS = {"epsilon": 1e-3, "momentum": 0.9}


def inputs(count=6):
    return np.random.default_rng(1).normal(3, 2, (count, 4, 5, 3)).astype(np.float32)


@pytest.mark.parametrize("training", [True, False])
def test_one_replica_is_keras_own(training):
    shared, keras = SharedBatchNormalization(**OPTIONS), tf.keras.layers.BatchNormalization(**OPTIONS)
    for layer in (shared, keras):
        layer.build((None, 4, 5, 3))
        layer.set_weights([np.array(w, np.float32) for w in ([1, 2, 3], [0, 1, 0], [3, 3, 2], [4, 5, 6])])
    for _ in range(2):
        one, other = (layer(inputs(), training=training).numpy() for layer in (shared, keras))
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    for one, other in zip(shared.get_weights(), keras.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_its_gradient_is_that_of_keras_own():
    gradients = []
    for layer in (SharedBatchNormalization(**OPTIONS), tf.keras.layers.BatchNormalization(**OPTIONS)):
        x = tf.constant(inputs())
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.sin(layer(x, training=True)))
        gradients.append(tape.gradient(loss, x).numpy())
    np.testing.assert_allclose(gradients[0], gradients[1], rtol=1e-3, atol=1e-5)


def test_bfloat16_counts_in_float32():
    layer = SharedBatchNormalization(dtype="mixed_bfloat16", **OPTIONS)
    result = layer(tf.cast(inputs(64) + 100, tf.bfloat16), training=True)
    assert result.dtype == tf.bfloat16
    assert {weight.dtype for weight in layer.get_weights()} == {np.dtype(np.float32)}
    rounded = tf.cast(tf.cast(inputs(64) + 100, tf.bfloat16), tf.float32).numpy()
    np.testing.assert_allclose(layer.get_weights()[2], 0.1 * rounded.mean(axis=(0, 1, 2)), rtol=1e-5)


def test_the_configuration_chooses_the_layer():
    assert type(batch_normalization(synchronized=True)) is SharedBatchNormalization
    assert not isinstance(batch_normalization(synchronized=False), SharedBatchNormalization)
