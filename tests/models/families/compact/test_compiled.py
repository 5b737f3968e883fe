"""Exponential, logarithm and sine of single precision, and gradients of compiled functions."""

import numpy as np
import tensorflow as tf

from caloscale.models.families.compact.cells import exponential, logarithm, sine, with_gradient


def test_functions_of_single_precision():
    """Against double precision, over the whole range that is used."""
    x = np.linspace(-86, 86, 100_001, dtype=np.float32)
    np.testing.assert_allclose(exponential(x), np.exp(x.astype(float)), rtol=3e-7)
    positive = np.exp(np.linspace(-80, 80, 100_001)).astype(np.float32)
    np.testing.assert_allclose(logarithm(positive), np.log(positive.astype(float)), rtol=1e-7, atol=3e-7)
    assert np.isnan(logarithm(np.float32(np.nan)))
    np.testing.assert_allclose(sine(x * 10), np.sin((x * 10).astype(float)), rtol=0, atol=1e-6)


def test_a_compiled_function_with_its_gradient():
    """Two outputs of two inputs, one of which does not depend on the second: derivatives by hand."""
    function = with_gradient(lambda x, y: (x * x, tf.reduce_sum(x * y)))
    x, y = tf.constant([1.0, 2.0]), tf.constant([3.0, 5.0])
    with tf.GradientTape() as tape:
        tape.watch((x, y))
        square, product = function(x, y)
        total = tf.reduce_sum(square) + 2 * product
    of_x, of_y = tape.gradient(total, (x, y))
    np.testing.assert_allclose(total, 5 + 2 * 13)
    np.testing.assert_allclose(of_x, [2 + 6, 4 + 10])
    np.testing.assert_allclose(of_y, [2, 4])
