"""Batch normalisation, with statistics of one replica's showers or of the whole batch."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from caloscale.models.legacy_keras import without_synchronized_reads

BatchNormalization = without_synchronized_reads(tf.keras.layers.BatchNormalization)
register = tf.keras.utils.register_keras_serializable(package="caloscale")


def batch_normalization(*, synchronized: bool, **options: Any) -> Any:
    """A layer of batch normalisation. synchronized: with the statistics of all replicas' showers."""
    if synchronized:
        return SharedBatchNormalization(**options)
    return BatchNormalization(**options)


def running_statistics(network: tf.keras.Model) -> list[tf.Variable]:
    """Moving means and variances of all layers of batch normalisation of a Keras model, each (C,).

    They are the only weights that a training changes without a gradient. Constants of our layers are no weights.
    """
    found: list[tf.Variable] = []
    for layer in network.layers:
        if isinstance(layer, tf.keras.Model):
            found += running_statistics(layer)
        elif isinstance(layer, tf.keras.layers.BatchNormalization):
            found += layer.non_trainable_weights
    return found


@register
class SharedBatchNormalization(BatchNormalization):  # type: ignore[misc, valid-type]
    """Statistics of the showers of all replicas, by one all-reduce for each use. Weights are as in Keras' layer."""

    def call(self, inputs: tf.Tensor, training: bool | None = None, mask: tf.Tensor | None = None) -> tf.Tensor:
        """Inputs (B, ..., C); the same shape."""
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
    axes = list(range(len(x.shape) - 1))
    both = tf.concat([tf.reduce_mean(x, axes), tf.reduce_mean(x * x, axes)], axis=0)
    context = tf.distribute.get_replica_context()
    if context is not None and context.num_replicas_in_sync > 1:
        both = context.all_reduce(tf.distribute.ReduceOp.SUM, both) / context.num_replicas_in_sync
    mean, squares = tf.split(both, 2)
    return mean, tf.maximum(squares - mean * mean, 0.0)
