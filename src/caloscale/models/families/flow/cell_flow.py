"""Stage 2, second part: a flow of the normal scores of all cells, which makes neighbouring cells depend on another."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from caloscale.models.families.flow.path import ANGLE_FEATURES, END, angle_features, interpolate
from caloscale.models.layers.plain import PlainLayer, register

HIDDEN = 64
"""Units of the dense layer that makes gains and shifts of the channels."""
STEPS = ((0.15579864, 0.54560287), (0.56016888, 0.38683005))
"""Position on the path and length of each step, in parts of the path. Two steps of equal length make the variances of
the scores too small. With these, the velocity of normal data of a variance from 0.25 to 6 leads to that variance within
0.5%: they minimise its mean squared relative error."""
_LEAST_WEIGHT = 0.02
"""Weight of a cell that is never hit, in the loss: most cells are such ones."""


@register
class CellFlow(PlainLayer):
    """Velocity of the scores: two convolutions of 3 x 3 cells over scores and logits of a hit, layers as channels.

    The channels between them have a gain and a shift from the shower's style and the angle of the path.
    """

    def __init__(self, depth: int, style: int, channels: int, **options: Any) -> None:
        super().__init__(**options)
        self.depth, self.style, self.channels = int(depth), int(style), int(channels)
        layers = tf.keras.layers

        def convolution(channels: int, name: str, **options: Any) -> Any:
            return layers.Conv2D(channels, 3, padding="same", dtype="float32", name=name, **options)

        self.of_scores = convolution(self.channels, "of_scores", use_bias=False)
        self.of_logits = convolution(self.channels, "of_logits")
        small = tf.keras.initializers.RandomNormal(stddev=0.01)
        self.out = convolution(self.depth, "velocity", kernel_initializer=small)
        self.first = layers.Dense(HIDDEN, activation="silu", dtype="float32", name="style_and_angle")
        self.second = layers.Dense(2 * self.channels, dtype="float32", name="gains_and_shifts")

    def build(self, _: Any = None) -> None:
        """Add the weights."""
        for layer in (self.of_scores, self.of_logits):
            layer.build((None, None, None, self.depth))
        self.out.build((None, None, None, self.channels))
        self.first.build((None, self.style + ANGLE_FEATURES))
        self.second.build((None, HIDDEN))
        self.built = True

    def maps(self, logits: tf.Tensor) -> tf.Tensor:
        """Logits of a hit (B, X, Y, L) -> what they add to the channels, the same at each angle (B, X, Y, C)."""
        return self.of_logits(tf.clip_by_value(logits, -8.0, 4.0) / 4 + 0.5)

    def velocity(self, scores: tf.Tensor, maps: tf.Tensor, style: tf.Tensor, angle: tf.Tensor) -> tf.Tensor:
        """Scores (B, X, Y, L), maps (B, X, Y, C), style (B, S), angle (B, 1) -> (B, X, Y, L)."""
        gains = self.second(self.first(tf.concat([style, angle_features(angle)], axis=1)))[:, None, None]
        value = (self.of_scores(scores) + maps) * (1 + gains[..., : self.channels]) + gains[..., self.channels :]
        return self.out(tf.nn.leaky_relu(value, 0.2))

    def call(self, noise: tf.Tensor, logits: tf.Tensor, style: tf.Tensor) -> tf.Tensor:
        """Independent scores (B, X, Y, L) -> scores of a shower, by `STEPS`."""
        maps, scores = self.maps(logits), noise
        one = tf.ones_like(style[:, :1])
        for position, length in STEPS:
            scores = scores + END * length * self.velocity(scores, maps, style, one * (END * position))
        return scores

    def loss(
        self, scores: tf.Tensor, logits: tf.Tensor, style: tf.Tensor, noise: tf.Tensor, angle: tf.Tensor
    ) -> tf.Tensor:
        """Mean squared error of the velocity of each shower (B,); cells that are hit often weigh more. angle (B, 1)."""
        point, wanted = interpolate(noise, scores, angle[:, :, None, None])
        weight = tf.sqrt(tf.sigmoid(logits)) + _LEAST_WEIGHT
        error = (self.velocity(point, self.maps(logits), style, angle) - wanted) ** 2
        return tf.reduce_sum(weight * error, axis=(1, 2, 3)) / tf.reduce_sum(weight, axis=(1, 2, 3))

    def arithmetic(self, cells: int) -> int:
        """Floating-point operations for one shower of so many cells across."""
        plane = 9 * self.depth * self.channels * cells
        dense = sum(int(layer.kernel.shape[0]) * int(layer.kernel.shape[1]) for layer in (self.first, self.second))
        return 2 * (plane + len(STEPS) * (2 * plane + dense))

    def get_config(self) -> dict[str, Any]:
        """What makes an equal layer."""
        return self._with(depth=self.depth, style=self.style, channels=self.channels)
