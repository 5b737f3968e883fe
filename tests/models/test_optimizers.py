"""The packed optimisers against Keras' own, number by number."""

import numpy as np
import pytest
import tensorflow as tf

from caloscale.models.optimizers import AveragingOptimizer, PackedOptimizer, pack

KERAS = {
    "rmsprop": lambda rate: tf.keras.optimizers.RMSprop(rate, rho=0.9, epsilon=1e-7),
    "adam": lambda rate: tf.keras.optimizers.Adam(rate, beta_1=0.5, beta_2=0.99, epsilon=1e-7),
}


@pytest.mark.parametrize("kind", KERAS)
def test_updates_are_those_of_keras(kind):
    rng = np.random.default_rng(3)
    shapes = [(3, 4), (5,), (1,)]
    values = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    ours, theirs = ([tf.Variable(value) for value in values] for _ in range(2))
    packed, keras = PackedOptimizer(kind, ours), KERAS[kind](0.0)
    keras.build(theirs)
    for number, rate in enumerate((0.01, 0.02, 0.005), start=1):
        scale = 10.0 ** (-3 * number)
        gradients = [tf.constant(scale * rng.standard_normal(shape), tf.float32) for shape in shapes]
        packed.apply(pack(gradients), rate, number)
        keras.learning_rate.assign(rate)
        keras.apply_gradients(zip(gradients, theirs))
        for one, other in zip(ours, theirs):
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("kind", KERAS)
def test_the_result_of_the_function_moves_the_variables(kind):
    """In a graph, in the order of the updates, with their numbers."""
    value, calls = np.float32([1, -2, 3]), []
    averaging, plain = tf.Variable(value), tf.Variable(value)

    def average(gradient, number):
        calls.append((gradient.tolist(), number))
        return gradient * np.float32(number)

    ours, other = AveragingOptimizer(kind, [averaging], average), PackedOptimizer(kind, [plain])

    @tf.function
    def step(first):
        ours.apply(tf.constant([1.0, 2.0, 4.0]), 0.01, first)
        ours.apply(tf.constant([-1.0, 0.5, 3.0]), 0.02, first + 1)

    step(tf.constant(2, tf.int64))
    other.apply(tf.constant([2.0, 4.0, 8.0]), 0.01, 2)
    other.apply(tf.constant([-3.0, 1.5, 9.0]), 0.02, 3)
    assert calls == [([1, 2, 4], 2), ([-1, 0.5, 3], 3)]
    np.testing.assert_allclose(averaging.numpy(), plain.numpy(), rtol=1e-6)
