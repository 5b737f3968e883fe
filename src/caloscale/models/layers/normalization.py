"""Batch normalisation, with statistics of one replica's showers or of the whole batch."""

import math

import tensorflow as tf

from caloscale.models.layers.convolution import is_by_keras
from caloscale.models.layers.plain import Differentiable, differentiable, register

COLUMNS = 16
"""Numbers of float32 in a register of AVX-512, of which the width of the fused operations is a multiple."""

ROWS = 2048
"""Approximate number of rows, which the fused operation adds up one after the other, in float32. A sum of 400,000
numbers makes a variance wrong by 1e-3, and gradients of the variable-angle networks by 2.5e-2; sums of this many
numbers, and then the sum of these sums, by 1e-6 and 2e-3."""


def batch_normalization(*, synchronized: bool, **options: object) -> tf.keras.layers.Layer:
    """A layer of batch normalisation. synchronized: with the statistics of all replicas' showers."""
    return (SharedBatchNormalization if synchronized else BatchNormalization)(**options)


def running_statistics(network: tf.keras.Model) -> list[tf.Variable]:
    """Moving means and variances of all layers of batch normalisation of a Keras model, each (C,).

    They are the only weights that a training changes without a gradient. Constants of our layers are no weights.
    """
    statistics: list[tf.Variable] = []
    for layer in network.layers:
        if isinstance(layer, tf.keras.Model):
            statistics += running_statistics(layer)
        elif isinstance(layer, tf.keras.layers.BatchNormalization):
            statistics += layer.non_trainable_weights
    return statistics


@register
class BatchNormalization(tf.keras.layers.BatchNormalization):  # type: ignore[misc]
    """Keras' layer, in fewer operations where the number of cells of a batch allows it. Its weights are Keras' too.

    Keras computes a volume in elementwise operations, each a passage through the memory. TensorFlow's fused operation
    is faster, but not for 6 or 8 channels. So it reads the volume in rows of several cells, of which mean and variance
    of the channels follow. Where convolutions are computed by Keras' own layer (`convolution.is_by_keras`), so is this.
    """

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self._by_keras = is_by_keras()

    def call(self, inputs: tf.Tensor, training: bool | None = None, mask: tf.Tensor | None = None) -> tf.Tensor:
        rows = None if self._by_keras else _rows(inputs)
        if rows is None or mask is not None:
            return super().call(inputs, training=training, mask=mask)
        gamma, beta, mean, variance = (
            tf.convert_to_tensor(value) for value in (self.gamma, self.beta, self.moving_mean, self.moving_variance)
        )
        if not (training and self.trainable):
            return _Columns(inputs, rows).normalized(inputs, gamma, beta, mean, variance, self.epsilon)
        output, seen_mean, seen_variance = _normalized(inputs, rows, gamma, beta, self.epsilon)
        keep = self.momentum
        self.moving_mean.assign(keep * mean + (1 - keep) * seen_mean)
        self.moving_variance.assign(keep * variance + (1 - keep) * seen_variance)
        return output


def _rows(x: tf.Tensor) -> int | None:
    """Rows of several cells in a batch of volumes, as near to `ROWS` as it can be divided; None where it cannot, or a
    few operations are as fast."""
    if len(x.shape) != 5 or not x.shape.is_fully_defined():
        return None
    cells, channels = math.prod(x.shape[:4]), x.shape[4]
    divisors = {rows for low in range(1, math.isqrt(cells) + 1) if cells % low == 0 for rows in (low, cells // low)}
    several = divisors - {1}
    aligned = {rows for rows in several if cells // rows * channels % COLUMNS == 0}
    return min(aligned or several, key=lambda rows: abs(math.log(rows / ROWS)), default=None)


class _Columns:
    """A volume (B, X, Y, Z, C) as rows of columns, which are several cells with their channels."""

    def __init__(self, x: tf.Tensor, rows: int) -> None:
        self.rows, self.channels, self.shape = rows, x.shape[-1], x.shape
        self.cells = math.prod(x.shape) // rows // self.channels

    def of(self, x: tf.Tensor) -> tf.Tensor:
        """(1, rows, 1, cells C)."""
        return tf.reshape(x, (1, self.rows, 1, self.cells * self.channels))

    def each(self, values: tf.Tensor) -> tf.Tensor:
        """Values of the channels (C,) for all cells of a row."""
        return tf.tile(tf.cast(values, tf.float32), [self.cells])

    def by_channel(self, values: tf.Tensor) -> tf.Tensor:
        """Values of the columns as (cells, C)."""
        return tf.reshape(values, (self.cells, self.channels))

    def moments(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance (C,): the variance of a channel is the mean of the variances of its columns plus the
        variance of their means."""
        one, nothing = tf.ones(self.cells * self.channels), tf.zeros(0)
        _, means, variances, *_ = tf.raw_ops.FusedBatchNormV3(
            x=self.of(x), scale=one, offset=one, mean=nothing, variance=nothing, is_training=True
        )
        means, variances = self.by_channel(means), self.by_channel(variances)
        mean = tf.reduce_mean(means, axis=0)
        within = tf.reduce_mean(variances, axis=0) * ((self.rows - 1) / self.rows)  # the operation divides by rows - 1
        return mean, within + tf.reduce_mean(tf.square(means - mean), axis=0)

    def normalized(
        self, x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor, epsilon: float
    ) -> tf.Tensor:
        """scale (x - mean) / sqrt(variance + epsilon) + offset."""
        factors = {"scale": scale, "offset": offset, "mean": mean, "variance": variance}
        columns = {name: self.each(values) for name, values in factors.items()}
        y, *_ = tf.raw_ops.FusedBatchNormV3(x=self.of(x), **columns, epsilon=epsilon, is_training=False)
        return tf.reshape(y, self.shape)


def _normalized(
    x: tf.Tensor, rows: int, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Normalised with the statistics of the batch; mean and variance (C,).

    With h = (x - mean) / s and s = sqrt(variance + epsilon), n numbers a channel and the gradient g of the output, the
    gradient of x is (gamma / s) (g - sum(g) / n - h sum(g h) / n) (Ioffe & Szegedy 2015, section 3).
    """
    columns = _Columns(x, rows)
    count = rows * columns.cells

    @differentiable
    def normalize(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> Differentiable:
        mean, variance = columns.moments(x)
        y = columns.normalized(x, gamma, beta, mean, variance, epsilon)

        def gradients(gradient: tf.Tensor, *_: tf.Tensor) -> tuple[tf.Tensor, ...]:
            scaled, by_gamma, by_beta, *_ = tf.raw_ops.FusedBatchNormGradV3(
                y_backprop=columns.of(gradient),
                x=columns.of(x),
                scale=columns.each(gamma),
                reserve_space_1=columns.each(mean),
                reserve_space_2=columns.each(variance),
                reserve_space_3=columns.each(variance),
                epsilon=epsilon,
                is_training=False,
            )
            of_gamma = tf.reduce_sum(columns.by_channel(by_gamma), axis=0)
            of_beta = tf.reduce_sum(columns.by_channel(by_beta), axis=0)
            factor = -gamma / count
            offset = factor * of_beta * tf.math.rsqrt(variance + epsilon)
            correction = columns.normalized(
                x, factor * of_gamma * tf.math.rsqrt(variance + epsilon), offset, mean, variance, epsilon
            )
            return tf.reshape(scaled, columns.shape) + correction, of_gamma, of_beta

        return (y, mean, variance), gradients

    return normalize(x, gamma, beta)


@register
class SharedBatchNormalization(tf.keras.layers.BatchNormalization):  # type: ignore[misc]
    """Statistics of the showers of all replicas, by one all-reduce for each use. Weights are as in Keras' layer."""

    def call(self, inputs: tf.Tensor, training: bool | None = None, mask: tf.Tensor | None = None) -> tf.Tensor:
        x = tf.cast(inputs, tf.float32)
        mean, variance = (tf.convert_to_tensor(value) for value in (self.moving_mean, self.moving_variance))
        if training:
            seen_mean, seen_variance = _moments_of_all(x)
            keep = self.momentum
            self.moving_mean.assign(keep * mean + (1 - keep) * seen_mean)
            self.moving_variance.assign(keep * variance + (1 - keep) * seen_variance)
            mean, variance = seen_mean, seen_variance
        beta, gamma = (tf.convert_to_tensor(value) for value in (self.beta, self.gamma))
        return tf.cast(tf.nn.batch_normalization(x, mean, variance, beta, gamma, self.epsilon), inputs.dtype)


def _moments_of_all(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance (C,) over all but the last axis and over all replicas, of equally many showers each."""
    # In two steps, as the sum of all in float32 is too coarse (`ROWS`).
    axes = list(range(len(x.shape) - 1))
    first, further = axes[:2], axes[: len(axes[2:])]
    both = tf.concat([tf.reduce_mean(tf.reduce_mean(one, first), further) for one in (x, x * x)], axis=0)
    context = tf.distribute.get_replica_context()
    if context is not None and context.num_replicas_in_sync > 1:
        both = context.all_reduce(tf.distribute.ReduceOp.SUM, both) / context.num_replicas_in_sync
    mean, squares = tf.split(both, 2)
    return mean, tf.maximum(squares - mean * mean, 0.0)
