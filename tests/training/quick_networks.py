"""Small networks for tests of everything around them: a training with them starts in a second.

No TensorFlow is loaded before they are built, so that processes of several workers can import this first.
"""

import math
from typing import Any

from caloscale.spec import Data, Model
from caloscale.spec.train import LossWeights

PUBLISHED_TERMS = ("realFake", "energy", "angle", "ecalSum")
_others = (field.alias for field in LossWeights.model_fields.values())
QUICK = (
    "train.generatorUpdates=1",
    "train.energyScoreWeight=0",
    "train.decay=constant",
    "checkpoint.everySeconds=0.001",
    f"train.lossWeights={{{', '.join(f'{name}: 0' for name in _others if name not in PUBLISHED_TERMS)}}}",
)
"""Overrides of the preset compact that go with `quick_networks`: one small update of each network, a checkpoint behind
every step."""


def quick_networks(model: Model, data: Data) -> Any:
    """Dense networks with dropout and the published outputs, in place of `families.compact.network.build_compact`."""
    import tensorflow as tf

    from caloscale.models.layers.constraints import constraints
    from caloscale.models.layers.dropout import EventDropout

    layers = tf.keras.layers
    latent = tf.keras.Input((model.latent_size,), name="latent")
    x = layers.Dense(512, activation="relu", name="hidden")(latent)
    x = layers.Dense(math.prod(data.shape), activation="softplus", name="cells")(x)
    x = layers.Reshape((*data.shape, 1), name="reshaped")(x)
    shower = tf.keras.Input((*data.shape, 1), name="shower")
    y = EventDropout(model.dropout, name="dropout")(layers.Flatten(name="flatten")(shower))
    outputs = {
        "real_fake": layers.Dense(1, activation="sigmoid", name="real_fake")(y),
        "energy": layers.Dense(1, name="energy")(y),
        **constraints(shower, data, bin_counts=False),
    }
    return {
        "generator": tf.keras.Model(latent, x, name="generator"),
        "discriminator": tf.keras.Model(shower, outputs, name="discriminator"),
    }
