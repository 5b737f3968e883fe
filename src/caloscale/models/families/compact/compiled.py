"""Functions of tensors that XLA compiles within a graph, and the arithmetic that it vectorises on processors."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
from tensorflow import Tensor

from caloscale.models.families.compact.merged import sine_coefficients
from caloscale.models.layers.plain import Differentiable, Function


def compiled(function: Function) -> Function:
    """The function of tensors, compiled by XLA: few loops over all numbers, whose intermediate results are not stored.

    XLA vectorises short chains of plain arithmetic over long rows. So a loop has at most one exponential or logarithm,
    and cells are rows (B, X Y L) wherever nothing belongs to a layer.
    """
    return tf.function(function, jit_compile=True, autograph=False)


def differentiable(function: Callable[..., Differentiable]) -> Function:
    """`tf.custom_gradient`, with the name scope of TensorFlow's own gradients: by it a profile knows the layer."""

    @tf.custom_gradient
    def computed(*inputs: Tensor) -> Differentiable:
        scope = f"gradient_tape/{tf.get_current_name_scope()}".rstrip("/")
        outputs, gradient = function(*inputs)

        def scoped(*upstream: Tensor) -> Tensor:
            with tf.name_scope(f"{scope}/"):
                return gradient(*upstream)

        return outputs, scoped

    return computed


def with_gradient(function: Function) -> Function:
    """The function of tensors and its gradient, both `compiled`; the gradient computes the function again."""
    forward = compiled(function)

    def gradients(inputs: tuple[Tensor, ...], upstream: Tensor) -> Tensor:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = function(*inputs)
        return tape.gradient(outputs, inputs, upstream, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    backward = compiled(gradients)

    @differentiable
    def computed(*inputs: Tensor) -> Differentiable:
        outputs = forward(*inputs)
        return outputs, lambda *of: backward(inputs, of if isinstance(outputs, tuple) else of[0])

    return computed


def exponential(x: Tensor) -> Tensor:
    """exp(x) for -87 < x < 87, relative error 1e-7: 2^n times a polynomial (Cephes, S. Moshier).

    XLA's own exponential and logarithm take three times as long on a CPU, its sine a hundred times.
    """
    n = tf.round(x * 1.44269504)
    r = (x - n * 0.693359375) + n * 2.12194440e-4
    y = r * 1.9875691500e-4
    for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1):
        y = (y + coefficient) * r
    y = (y + 5.0000001201e-1) * r * r + r + 1
    return tf.bitcast(tf.bitcast(y, tf.int32) + tf.bitwise.left_shift(tf.cast(n, tf.int32), 23), tf.float32)


_ROOT_OF_HALF = 0x3F3504F3
"""Bits of sqrt(1/2) in single precision."""


def logarithm(x: Tensor) -> Tensor:
    """ln(x) of normal numbers above 0, error 2e-7 (Cephes). NaN stays NaN."""
    bits = tf.bitcast(x, tf.int32) - _ROOT_OF_HALF
    n = tf.cast(tf.bitwise.right_shift(bits, 23), tf.float32)
    r = tf.bitcast(tf.bitwise.bitwise_and(bits, 0x7FFFFF) + _ROOT_OF_HALF, tf.float32) - 1
    square, y = r * r, r * 7.0376836292e-2
    for coefficient in (
        -1.1514610310e-1,
        1.1676998740e-1,
        -1.2420140846e-1,
        1.4249322787e-1,
        -1.6668057665e-1,
        2.0000714765e-1,
        -2.4999993993e-1,
    ):
        y = (y + coefficient) * r
    y = (y + 3.3333331174e-1) * r * square - n * 2.12194440e-4 - 0.5 * square
    return tf.where(x > 0, y + r + n * 0.693359375, x)


def sine(x: Tensor) -> Tensor:
    """sin(x), error 1e-6 for |x| < 1000: x less whole turns, and an odd polynomial."""
    n = tf.round(x * (0.5 / np.pi))
    turns = ((x - n * 6.28125) - n * 1.9353071795864769e-3) * (0.5 / np.pi)
    *coefficients, last = sine_coefficients()
    square = turns * turns
    y = square * last
    for coefficient in reversed(coefficients[1:]):
        y = (y + coefficient) * square
    return (y + coefficients[0]) * turns
