"""What the discriminators of both published networks share: their end, and the shape that they insist on."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from caloscale.errors import DocumentError
from caloscale.models.layers import constraints
from caloscale.spec import Data, Model


def discriminator_of(shower: Any, features: Any, model: Model, data: Data) -> Any:
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


def require_shape(data: Data, shape: tuple[int, int, int], preset: str) -> None:
    """DocumentError unless the (re-binned) showers have the shape that a published network is made for."""
    if data.shape != shape:
        raise DocumentError(
            f"the {preset} network is made for showers of {' x '.join(map(str, shape))} cells",
            field="data.geometry.cells, data.preprocessing.rebin",
            value=list(data.shape),
            remedy=f"set data.geometry.cells to {list(shape)} and data.preprocessing.rebin to [1, 1, 1], "
            "or use --preset compact",
        )
