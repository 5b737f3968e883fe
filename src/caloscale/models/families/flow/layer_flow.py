"""Stage 1: a flow that makes the whitened numbers of a shower from normal numbers.

Flow matching on a circle: x(a) = cos(a) noise + sin(a) data, the angle a from 0 to pi/2 (Lipman et al.,
arXiv:2210.02747; Albergo & Vanden-Eijnden, arXiv:2209.15571). The velocity dx/da is 0 in the mean where the data are
independent normal numbers, as the noise is: a network learns the difference from that alone, and few steps suffice
where the difference is small.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from caloscale.models.families.flow.representation import EMPTY_GAP, expectation_terms
from caloscale.models.layers.dropout import EventDropout
from caloscale.models.layers.plain import PlainLayer

END = math.pi / 2
"""Of the path."""
_ANGLE_FEATURES = 5
_HIDDEN_LAYERS = 3
NORMAL_KNOTS = np.linspace(-3, 3, 25, dtype=np.float32)
"""Normal numbers to which quantiles of the numbers of a shower are taken."""
FARTHEST = 4.5
"""Normal numbers farther out count as this: beyond the outermost quantiles they may be of any size."""
BEYOND = 1.1
"""Whitened numbers are kept within this factor of the largest of the training showers."""


class Whitening(PlainLayer):
    """Numbers of a shower (B, D) to and from whitened ones. Its weights are set before the training.

    A number less its mean, over its width, whose logarithm is linear in `expectation_terms` as the mean is, becomes
    normal by the piecewise linear function that takes its quantiles to those of the normal distribution; then all are
    divided by the root of their covariance (ZCA). Without the quantiles a few showers with extreme values decide what
    the flow learns.
    """

    numbers: int
    terms: int

    def build(self, _: Any = None) -> None:
        """Add the weights: no mean, normal numbers, covariance 1."""
        nothing, same = np.zeros((self.terms, self.numbers)), np.eye(self.numbers)
        self.mean = self.started("mean", nothing, trainable=False)
        self.log_width = self.started("log_width", nothing, trainable=False)
        self.knots = self.started("knots", np.tile(NORMAL_KNOTS[:, None], (1, self.numbers)), trainable=False)
        self.root = self.started("root", same, trainable=False)
        self.inverse = self.started("inverse", same, trainable=False)
        self.largest = self.started("largest", np.ones(self.numbers), trainable=False)
        self.built = True

    def call(self, numbers: tf.Tensor, primary: tf.Tensor) -> tf.Tensor:
        """Whiten: numbers (B, D), primary (B, P) -> (B, D)."""
        terms = expectation_terms(primary)
        rest = (numbers - tf.matmul(terms, self.mean)) * tf.exp(-tf.matmul(terms, self.log_width))
        normal = bend(rest, tf.convert_to_tensor(self.knots), tf.constant(NORMAL_KNOTS[:, None]))
        return tf.matmul(tf.clip_by_value(normal, -FARTHEST, FARTHEST), self.inverse)

    def undo(self, whitened: tf.Tensor, primary: tf.Tensor) -> tf.Tensor:
        """Whitened numbers (B, D), primary (B, P) -> numbers (B, D)."""
        rest = bend(
            tf.matmul(whitened, self.root), tf.constant(NORMAL_KNOTS[:, None]), tf.convert_to_tensor(self.knots)
        )
        terms = expectation_terms(primary)
        return rest * tf.exp(tf.matmul(terms, self.log_width)) + tf.matmul(terms, self.mean)

    def within(self, whitened: tf.Tensor) -> tf.Tensor:
        """Whitened numbers kept within the range of the training showers."""
        limit = BEYOND * self.largest[None]
        return tf.minimum(tf.maximum(whitened, -limit), limit)


class FaintLayers(PlainLayer):
    """Energies of layers in units of the faintest cell (B, L) -> those of layers that few particles reach or none.

    A flow blurs the gap between an empty layer and one of a single particle. A layer whose logarithm is below `least`
    is empty, and others follow `bend`: both are set after the training (`training.calibrate`).
    """

    depth: int

    def build(self, _: Any = None) -> None:
        """Add the weights: nothing changes."""
        names, start = ("least", "knots", "images"), unchanged_layers(self.depth)
        self.least, self.knots, self.images = (
            self.started(name, values, trainable=False) for name, values in zip(names, start)
        )
        self.built = True

    def call(self, layers: tf.Tensor) -> tf.Tensor:
        logarithms = tf.math.log(tf.maximum(layers, 1e-6))
        bent = bend(logarithms, tf.convert_to_tensor(self.knots), tf.convert_to_tensor(self.images))
        return tf.exp(tf.where(logarithms < self.least[None], tf.minimum(logarithms, -EMPTY_GAP), bent))


def unchanged_layers(depth: int) -> list[NDArray[np.float32]]:
    """Weights of `FaintLayers` (L,), (K, L), (K, L) that change nothing."""
    knots = np.tile(np.linspace(-1, 9, len(NORMAL_KNOTS) + 1, dtype=np.float32)[:, None], (1, depth))
    return [np.full(depth, -100, np.float32), knots, knots]


def bend(values: tf.Tensor, knots: tf.Tensor, images: tf.Tensor) -> tf.Tensor:
    """The piecewise linear function of each column of values (B, D) that takes its knots to their images, (K, D) or
    (K, 1) both and ascending; the first and the last piece continue."""
    widths, heights = knots[1:] - knots[:-1], images[1:] - images[:-1]
    inside = tf.clip_by_value((values[:, None] - knots[None, :-1]) / widths[None], 0.0, 1.0)
    result = tf.reduce_sum(inside * heights[None], axis=1) + images[0]
    result = result + tf.minimum(values - knots[0], 0.0) * (heights[0] / widths[0])
    return result + tf.maximum(values - knots[-1], 0.0) * (heights[-1] / widths[-1])


def interpolate(noise: tf.Tensor, data: tf.Tensor, angle: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Point and velocity of the path from noise to data (B, ...) at the angle (B, 1, ...)."""
    cosine, sine = tf.cos(angle), tf.sin(angle)
    return cosine * noise + sine * data, cosine * data - sine * noise


def _product(values: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """(..., D) by (D, N). A tensordot has many operations on shapes in an exported file."""
    return tf.matmul(values, kernel) if len(values.shape) == 2 else tf.tensordot(values, kernel, 1)


class LayerFlow(PlainLayer):
    """Velocity of the whitened numbers: dense layers over the numbers, the angle of the path, and the primary."""

    numbers: int
    primary: int
    width: int
    dropout: float
    steps: int

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        layers, names = tf.keras.layers, range(_HIDDEN_LAYERS)
        self.hidden = [layers.Dense(self.width, dtype="float32", name=f"hidden{number}") for number in names]
        self.drops = [EventDropout(self.dropout, dtype="float32", name=f"dropout{number}") for number in names]
        small = tf.keras.initializers.RandomNormal(stddev=0.01)
        self.out = layers.Dense(self.numbers, kernel_initializer=small, dtype="float32", name="velocity")

    def build(self, _: Any = None) -> None:
        size = self.numbers + _ANGLE_FEATURES + self.primary
        for layer in self.hidden:
            layer.build((None, size))
            size = self.width
        self.out.build((None, size))
        self.built = True

    def velocity(self, x: tf.Tensor, angle: tf.Tensor, primary: tf.Tensor, *, training: bool = False) -> tf.Tensor:
        """x (..., D) at the angle (..., 1) for the primary (..., P) -> (..., D)."""
        # One product for each input: what is the same for several points is computed once.
        kernels = tf.split(self.hidden[0].kernel, [self.numbers, _ANGLE_FEATURES, self.primary])
        waves = [tf.sin(angle), tf.cos(angle), tf.sin(2 * angle), tf.cos(2 * angle), tf.sin(4 * angle)]
        of_x, of_angle, of_primary = map(_product, (x, tf.concat(waves, axis=-1), primary), kernels)
        # In this order: OpenVINO takes what is added first for a constant, and ends with a fault where it is none.
        value = of_x + (of_angle + self.hidden[0].bias) + of_primary
        value = self.drops[0](tf.nn.silu(value), training=training)
        for layer, drop in zip(self.hidden[1:], self.drops[1:]):
            value = value + drop(tf.nn.silu(layer(value)), training=training)
        return self.out(value)

    def call(self, noise: tf.Tensor, primary: tf.Tensor) -> tf.Tensor:
        """Normal numbers (B, D), primary (B, P) -> whitened numbers (B, D): steps of the midpoint rule."""
        x, length = noise, END / self.steps
        for step in range(self.steps):
            middle = x + length / 2 * self.velocity(x, tf.constant([[length * step]]), primary)
            x = x + length * self.velocity(middle, tf.constant([[length * (step + 0.5)]]), primary)
        return x

    def loss(self, whitened: tf.Tensor, primary: tf.Tensor, noise: tf.Tensor, angle: tf.Tensor) -> tf.Tensor:
        """Mean squared error of the velocity of each shower (B,), over its repetitions. whitened (B, D), noise
        (B, R, D), angle (B, R, 1)."""
        point, target = interpolate(noise, whitened[:, None], angle)
        return tf.reduce_mean((self.velocity(point, angle, primary[:, None], training=True) - target) ** 2, axis=(1, 2))

    def arithmetic(self) -> int:
        """Floating-point operations for one shower."""
        kernels = [layer.kernel.shape for layer in (*self.hidden, self.out)]
        return 2 * self.steps * sum(2 * int(first) * int(last) for first, last in kernels)
