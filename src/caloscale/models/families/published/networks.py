"""The two published 3DGANs: layers, order and initialisers are those of the public code.

Variable angle: 51 x 51 x 25 cells, energy and angle given, as it was trained on the cloud
(recardoso/Accelarated3DGAN): 1,364,983 and 87,354 trainable parameters with a latent vector of 256.
Fixed angle: 25 x 25 x 25 cells, perpendicular electrons, energy given, as in the first CPU studies
(sara-nl/3Dgan): 872,808 and 73,402 with a latent vector of 200, 946,210 together, which are the published 3.78 MB.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import tensorflow as tf

from caloscale.models.families.family import Networks
from caloscale.models.families.gan.conditions import conditioned
from caloscale.models.layers.constraints import constraints
from caloscale.models.layers.convolution import Triple, convolution
from caloscale.models.layers.dropout import EventDropout
from caloscale.models.layers.normalization import batch_normalization
from caloscale.spec import Data, Model

SLOPE = 0.3
"""Of LeakyReLU below 0."""
EPSILON = 1e-6
"""Of every batch normalisation of the variable-angle networks; its momentum is Keras' 0.99."""

_VARIABLE_GENERATOR: tuple[tuple[int, Triple, Triple | None, Triple], ...] = (
    # filters, kernel, upsampling and zeros before it
    (8, (6, 6, 8), (6, 6, 6), (0, 0, 0)),
    *[(6, (4, 4, 6), None, (2, 2, 1))] * 3,
    (6, (3, 3, 5), None, (1, 1, 0)),
)


class Layers(NamedTuple):
    """What makes the layers that can be computed in several ways."""

    convolution: Callable[..., tf.Tensor]
    """As `layers.convolution.convolution`."""
    normalization: Callable[..., tf.keras.layers.Layer]
    """Batch normalisation: (epsilon, name)."""
    dropout: Callable[..., tf.keras.layers.Layer]
    """(rate, name)."""


def own_layers(*, synchronized: bool) -> Layers:
    """The layers that a training has."""
    return Layers(convolution, partial(batch_normalization, synchronized=synchronized), EventDropout)


def build_published(model: Model, data: Data, made: Layers) -> Networks:
    """Both networks of the 3DGAN for showers of 51 x 51 x 25 (variable angle) or 25 x 25 x 25 cells (fixed angle)."""
    if data.shape == (51, 51, 25):
        generator, pads = _variable_generator(model, made), ((0, 0, 1), (0, 0, 1), (0, 0, 0))
        discriminator = _discriminator(model, data, made, 16, (5, 6, 6), pads, EPSILON)
    else:
        generator, pads = _fixed_generator(model, made), ((2, 2, 2), (2, 2, 2), (1, 1, 1))
        discriminator = _discriminator(model, data, made, 32, (5, 5, 5), pads, 1e-3)
    return {"generator": generator, "discriminator": discriminator}


def width(model: Model, published: int) -> int:
    """Filters of a layer that has ``published`` of them."""
    return published if model.filters is None else 16 * -(-published // 16)


def _variable_generator(model: Model, made: Layers) -> tf.keras.Model:
    """Latent (B, latentSize) -> (B, 51, 51, 25, 1)."""
    layers = tf.keras.layers
    latent = tf.keras.Input((model.latent_size,), name="latent")
    x = layers.Dense(5184, name="dense")(latent)
    x = layers.Reshape((9, 9, 8, 8), name="reshape")(x)
    for number, (filters, kernel, upsampling, pad) in enumerate(_VARIABLE_GENERATOR, start=1):
        name, own = f"conv{number}", width(model, filters)
        x = made.convolution(
            x, own, kernel, upsampling=upsampling, pad=pad, slope=0, initializer="he_uniform", name=name
        )
        x = made.normalization(epsilon=EPSILON, name=f"norm{number}")(x)
    x = made.convolution(x, width(model, 6), (3, 3, 3), pad=(1, 1, 0), slope=0, initializer="he_uniform", name="conv6")
    x = made.convolution(x, 1, (2, 2, 2), initializer="glorot_normal", name="conv7")
    shower = layers.ReLU(name="shower")(x)
    return tf.keras.Model(latent, shower, name="generator")


def _fixed_generator(model: Model, made: Layers) -> tf.keras.Model:
    """Latent (B, latentSize) -> (B, 25, 25, 25, 1)."""
    layers, he = tf.keras.layers, "he_uniform"
    latent = tf.keras.Input((model.latent_size,), name="latent")
    x = layers.Dense(3136, name="dense")(latent)
    x = layers.Reshape((7, 7, 8, 8), name="reshape")(x)
    x = made.convolution(x, width(model, 64), (6, 6, 8), pad="same", initializer=he, slope=SLOPE, name="conv1")
    x = made.normalization(name="norm1")(x)
    x = layers.UpSampling3D((2, 2, 2), name="upsampling1")(x)
    x = made.convolution(x, width(model, 6), (6, 5, 8), pad=(2, 2, 0), slope=SLOPE, initializer=he, name="conv2")
    x = made.normalization(name="norm2")(x)
    x = layers.UpSampling3D((2, 2, 3), name="upsampling2")(x)
    x = made.convolution(x, width(model, 6), (3, 3, 8), pad=(1, 0, 3), slope=SLOPE, initializer=he, name="conv3")
    x = made.convolution(x, 1, (2, 2, 2), initializer="glorot_normal", bias=False, name="conv4")
    shower = layers.ReLU(name="shower")(x)
    return tf.keras.Model(latent, shower, name="generator")


def _discriminator(
    model: Model, data: Data, made: Layers, first: int, kernel: Triple, pads: tuple[Triple, ...], epsilon: float
) -> tf.keras.Model:
    """Showers (B, X, Y, Z, 1) -> outputs, as `gan.Gan` says. first: filters of the first convolution."""
    layers = tf.keras.layers
    shower = tf.keras.Input((*data.shape, 1), name="shower")
    x = made.convolution(shower, width(model, first), kernel, pad="same", slope=SLOPE, name="conv1")
    x = made.dropout(model.dropout, name="dropout1")(x)
    for number, pad in enumerate(pads, start=2):
        x = made.convolution(x, width(model, 8), kernel, pad=pad, slope=SLOPE, name=f"conv{number}")
        x = made.normalization(epsilon=epsilon, name=f"norm{number}")(x)
        x = made.dropout(model.dropout, name=f"dropout{number}")(x)
    x = layers.AveragePooling3D((2, 2, 2), name="pooling")(x)
    inputs, x = conditioned(shower, layers.Flatten(name="flatten")(x), data)
    outputs = {
        # In float32 whatever the policy: a probability in bfloat16 has 256 values.
        "real_fake": layers.Dense(1, activation="sigmoid", dtype="float32", name="real_fake")(x),
        "energy": layers.Dense(1, dtype="float32", name="energy")(x),
        **constraints(shower, data, bin_counts=model.bin_counts),
    }
    return tf.keras.Model(inputs, outputs, name="discriminator")
