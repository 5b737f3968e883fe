"""How a discriminator judges whether a shower fits its primary."""

from collections.abc import Mapping

import tensorflow as tf

from caloscale.models.families.family import condition
from caloscale.spec import Data


def judged(cells: tf.Tensor, primaries: Mapping[str, tf.Tensor], data: Data) -> tf.Tensor | list[tf.Tensor]:
    """Input of the discriminator: the showers (B, X, Y, Z, 1), and their `condition` where there is one."""
    further = condition(primaries, data)
    return [cells, tf.concat(further, axis=1)] if further else cells


def conditioned(shower: tf.Tensor, features: tf.Tensor, data: Data) -> tuple[tf.Tensor | list[tf.Tensor], tf.Tensor]:
    """Inputs of a discriminator, and its features (B, n) as they depend on the condition (`family.condition`).

    A feature f becomes f (1 + V c) with the condition c: a linear judgement of it is the projection of Miyato and
    Koyama, "cGANs with projection discriminator" (2018), which asks whether the shower fits its primary. Without a
    condition both are as given.
    """
    if not data.spans:
        return shower, features
    layers = tf.keras.layers
    inputs = tf.keras.Input((data.condition_size,), name="condition")
    factor = layers.Dense(features.shape[-1], use_bias=False, name="condition_factor")(inputs)
    scaled = layers.Multiply(name="condition_scaled")([features, factor])
    return [shower, inputs], layers.Add(name="conditioned")([features, scaled])
