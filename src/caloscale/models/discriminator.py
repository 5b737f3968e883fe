"""What the discriminators of both published networks share: their end, and the shape that they insist on."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from caloscale.errors import ConfigurationError, InvalidValueError
from caloscale.models.layers import constraints
from caloscale.spec import Data, Model

SLOPE = 0.3
"""Of LeakyReLU below 0."""


def discriminator_of(shower: tf.Tensor, features: tf.Tensor, model: Model, data: Data) -> tf.keras.Model:
    """Pooling, the two trained heads and the physics constraints on top of convolutional features."""
    layers = tf.keras.layers
    x = layers.AveragePooling3D((2, 2, 2), name="pooling")(features)
    inputs, x = conditioned(shower, layers.Flatten(name="flatten")(x), data)
    outputs = {
        # In float32 whatever the policy: a probability in bfloat16 has 256 values.
        "real_fake": layers.Dense(1, activation="sigmoid", dtype="float32", name="real_fake")(x),
        "energy": layers.Dense(1, dtype="float32", name="energy")(x),
        **constraints(shower, data, bin_counts=model.bin_counts),
    }
    return tf.keras.Model(inputs, outputs, name="discriminator")


def conditioned(shower: tf.Tensor, features: tf.Tensor, data: Data) -> tuple[Any, tf.Tensor]:
    """Inputs of a discriminator, and its features (B, n) as they depend on the condition (`networks.condition`).

    A feature f becomes f (1 + V c) with the condition c: a linear judgement of it is the projection of Miyato and
    Koyama, "cGANs with projection discriminator" (2018), which asks whether the shower fits its primary. Without a
    condition both are as given.
    """
    if not data.spans:
        return shower, features
    layers = tf.keras.layers
    condition = tf.keras.Input((data.condition_size,), name="condition")
    factor = layers.Dense(features.shape[-1], use_bias=False, name="condition_factor")(condition)
    scaled = layers.Multiply(name="condition_scaled")([features, factor])
    return [shower, condition], layers.Add(name="conditioned")([features, scaled])


def require_shape(model: Model, data: Data) -> None:
    """ConfigurationError unless the (re-binned) showers have the shape that a published network is made for."""
    try:
        model.require_shape(data.shape)
    except InvalidValueError as error:
        raise ConfigurationError(
            error.problem, field="model.preset", value=model.preset, remedy=error.remedy
        ) from error
