"""The variable-angle 3DGAN: 51 x 51 x 25 cells, energy and angle given.

Layers, order and initialisers are those of the network that was trained on the cloud (public code of
recardoso/Accelarated3DGAN): 1,364,983 and 87,354 trainable parameters with a latent vector of 256.
"""

from __future__ import annotations

import tensorflow as tf

from caloscale.models.convolution import Triple, convolution
from caloscale.models.discriminator import SLOPE, discriminator_of, require_shape
from caloscale.models.dropout import EventDropout
from caloscale.models.networks import Networks
from caloscale.models.normalization import batch_normalization
from caloscale.spec import Data, Model
from caloscale.spec.model import SHAPES

SHAPE = SHAPES["variable-angle"]
EPSILON = 1e-6
"""Of every batch normalisation; its momentum is Keras' 0.99."""

_GENERATOR: tuple[tuple[int, Triple, Triple, Triple], ...] = (
    # filters, kernel, upsampling and zeros before it
    (8, (6, 6, 8), (6, 6, 6), (0, 0, 0)),
    (6, (4, 4, 6), (1, 1, 1), (2, 2, 1)),
    (6, (4, 4, 6), (1, 1, 1), (2, 2, 1)),
    (6, (4, 4, 6), (1, 1, 1), (2, 2, 1)),
    (6, (3, 3, 5), (1, 1, 1), (1, 1, 0)),
)
_DISCRIMINATOR_KERNEL = (5, 6, 6)


def build_variable_angle(model: Model, data: Data, *, synchronized: bool = False) -> Networks:
    """Both networks. ConfigurationError when the showers are not 51 x 51 x 25."""
    require_shape(model, data)
    return Networks(_generator(model, synchronized), _discriminator(model, data, synchronized))


def _generator(model: Model, synchronized: bool) -> tf.keras.Model:
    """Latent (B, latentSize) -> (B, 51, 51, 25, 1)."""
    layers = tf.keras.layers
    latent = tf.keras.Input((model.latent_size,), name="latent")
    x = layers.Dense(5184, name="dense")(latent)
    x = layers.Reshape((9, 9, 8, 8), name="reshape")(x)
    for number, (filters, kernel, upsampling, pad) in enumerate(_GENERATOR, start=1):
        name = f"conv{number}"
        width = model.width(filters)
        x = convolution(x, width, kernel, upsampling=upsampling, pad=pad, slope=0, initializer="he_uniform", name=name)
        x = batch_normalization(synchronized=synchronized, epsilon=EPSILON, name=f"norm{number}")(x)
    x = convolution(x, model.width(6), (3, 3, 3), pad=(1, 1, 0), slope=0, initializer="he_uniform", name="conv6")
    x = convolution(x, 1, (2, 2, 2), initializer="glorot_normal", name="conv7")
    shower = layers.ReLU(name="shower")(x)
    return tf.keras.Model(latent, shower, name="generator")


def _discriminator(model: Model, data: Data, synchronized: bool) -> tf.keras.Model:
    """(B, 51, 51, 25, 1) -> outputs, as Networks.discriminator says."""
    shower = tf.keras.Input((*SHAPE, 1), name="shower")
    x = convolution(shower, model.width(16), _DISCRIMINATOR_KERNEL, pad="same", slope=SLOPE, name="conv1")
    x = EventDropout(model.dropout, name="dropout1")(x)
    for number, pad in enumerate(((0, 0, 1), (0, 0, 1), (0, 0, 0)), start=2):
        x = convolution(x, model.width(8), _DISCRIMINATOR_KERNEL, pad=pad, slope=SLOPE, name=f"conv{number}")
        x = batch_normalization(synchronized=synchronized, epsilon=EPSILON, name=f"norm{number}")(x)
        x = EventDropout(model.dropout, name=f"dropout{number}")(x)
    return discriminator_of(shower, x, model, data)
