"""What the discriminators of both published networks share: their end, and the shape that they insist on."""

from __future__ import annotations

import tensorflow as tf

from caloscale.errors import ConfigurationError, InvalidValueError
from caloscale.models.layers import constraints
from caloscale.spec import Data, Model


def discriminator_of(shower: tf.Tensor, features: tf.Tensor, model: Model, data: Data) -> tf.keras.Model:
    """Pooling, the two trained heads and the physics constraints on top of convolutional features."""
    layers = tf.keras.layers
    x = layers.AveragePooling3D((2, 2, 2), name="pooling")(features)
    x = layers.Flatten(name="flatten")(x)
    outputs = {
        # In float32 whatever the policy: a probability in bfloat16 has 256 values.
        "real_fake": layers.Dense(1, activation="sigmoid", dtype="float32", name="real_fake")(x),
        "energy": layers.Dense(1, dtype="float32", name="energy")(x),
        **constraints(shower, data, bin_counts=model.bin_counts),
    }
    return tf.keras.Model(shower, outputs, name="discriminator")


def require_shape(model: Model, data: Data) -> None:
    """ConfigurationError unless the (re-binned) showers have the shape that a published network is made for."""
    try:
        model.require_shape(data.shape)
    except InvalidValueError as error:
        raise ConfigurationError(
            error.problem, field="model.preset", value=model.preset, remedy=error.remedy
        ) from error
