"""Multilayer perceptrons whose weights are one vector and whose biases are another.

A vector is exchanged, updated and saved as it is: the gradient with respect to it is fused without a further copy.
"""

import math
from itertools import pairwise

import numpy as np
import tensorflow as tf

SLOPE = 0.2
"""Of LeakyReLU below zero."""


class Adam:
    """Adam (Kingma and Ba, arXiv 1412.6980) with beta 0.5 and 0.999 on a vector, one kernel an update."""

    BETA1, BETA2, EPSILON = 0.5, 0.999, 1e-8

    def __init__(self, variable: tf.Variable) -> None:
        self.variable = variable
        self.first, self.second = (tf.Variable(tf.zeros_like(variable), trainable=False) for _ in range(2))
        self.updates = tf.Variable(0.0, trainable=False)

    def apply(self, gradient: tf.Tensor, learning_rate: tf.Tensor) -> None:
        """Update the vector."""
        done = self.updates.assign_add(1.0)
        tf.raw_ops.ResourceApplyAdam(
            var=self.variable.handle,
            m=self.first.handle,
            v=self.second.handle,
            beta1_power=tf.pow(self.BETA1, done),
            beta2_power=tf.pow(self.BETA2, done),
            lr=learning_rate,
            beta1=self.BETA1,
            beta2=self.BETA2,
            epsilon=self.EPSILON,
            grad=gradient,
        )

    def state(self) -> dict[str, tf.Variable]:
        """The variables, the vector included."""
        return {"value": self.variable, "first": self.first, "second": self.second, "updates": self.updates}


class Network:
    """Dense layers of these sizes, from input to output, with LeakyReLU between them and no bias of the output; their
    variables and optimisers."""

    def __init__(self, sizes: tuple[int, ...], random: np.random.Generator) -> None:
        """The weights are normal with variance 2 / inputs (He et al. 2015, arXiv 1502.01852)."""
        self._shapes = list(pairwise(sizes))
        layers = [random.normal(0, math.sqrt(2 / a), a * b) for a, b in self._shapes]
        self.weights = tf.Variable(np.concatenate(layers).astype(np.float32))
        self.biases = tf.Variable(np.zeros(sum(sizes[1:-1]), np.float32))
        self.optimizers = {"weights": Adam(self.weights), "biases": Adam(self.biases)}

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Outputs (rows, outputs) for x (rows, inputs)."""
        return self.outputs(self.weights.read_value(), self.biases.read_value(), x)

    def outputs(self, weights: tf.Tensor, biases: tf.Tensor, x: tf.Tensor, dtype: tf.DType = tf.float32) -> tf.Tensor:
        """The same, float32, with these weights (weights,) and biases (biases,); dtype: of the matrix products."""
        matrices = tf.split(tf.cast(weights, dtype), [a * b for a, b in self._shapes])
        vectors = tf.split(tf.cast(biases, dtype), [outputs for _, outputs in self._shapes[:-1]])
        x = tf.cast(x, dtype)
        for matrix, shape, vector in zip(matrices, self._shapes, vectors):
            x = tf.nn.leaky_relu(tf.nn.bias_add(x @ tf.reshape(matrix, shape), vector), SLOPE)
        return tf.cast(x @ tf.reshape(matrices[-1], self._shapes[-1]), tf.float32)

    def apply(self, weights: tf.Tensor, biases: tf.Tensor, learning_rate: tf.Tensor) -> None:
        """Update with the gradients of weights and biases; not at all where one is not finite."""
        finite = tf.math.is_finite(tf.reduce_sum(weights) + tf.reduce_sum(biases))
        tf.cond(finite, lambda: self._update(weights, biases, learning_rate), lambda: tf.constant(0.0))

    def _update(self, weights: tf.Tensor, biases: tf.Tensor, learning_rate: tf.Tensor) -> tf.Tensor:
        self.optimizers["weights"].apply(weights, learning_rate)
        self.optimizers["biases"].apply(biases, learning_rate)
        return tf.constant(1.0)

    def state(self) -> dict[str, tf.Variable]:
        """All variables by name."""
        return {f"{o}.{n}": v for o, adam in self.optimizers.items() for n, v in adam.state().items()}
