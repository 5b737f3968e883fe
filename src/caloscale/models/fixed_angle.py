"""The fixed-angle 3DGAN: 25 x 25 x 25 cells, perpendicular electrons, energy given.

Layers, order and initialisers are those of the network of the first CPU studies (public code of
sara-nl/3Dgan): 872,808 and 73,402 trainable parameters with a latent vector of 200, 946,210 together,
which are the published 3.78 MB.
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

SHAPE = SHAPES["fixed-angle"]
_DISCRIMINATOR_KERNEL = (5, 5, 5)
_DISCRIMINATOR_PADS: tuple[Triple, ...] = ((2, 2, 2), (2, 2, 2), (1, 1, 1))


def build_fixed_angle(model: Model, data: Data, *, synchronized: bool = False) -> Networks:
    """Both networks. ConfigurationError when the showers are not 25 x 25 x 25."""
    require_shape(model, data)
    return Networks(_generator(model, synchronized), _discriminator(model, data, synchronized))


def _generator(model: Model, synchronized: bool) -> tf.keras.Model:
    """Latent (B, latentSize) -> (B, 25, 25, 25, 1)."""
    layers = tf.keras.layers
    latent = tf.keras.Input((model.latent_size,), name="latent")
    x = layers.Dense(3136, name="dense")(latent)
    x = layers.Reshape((7, 7, 8, 8), name="reshape")(x)
    x = convolution(x, model.width(64), (6, 6, 8), pad="same", initializer="he_uniform", slope=SLOPE, name="conv1")
    x = batch_normalization(synchronized=synchronized, name="norm1")(x)
    x = layers.UpSampling3D((2, 2, 2), name="upsampling1")(x)
    x = convolution(x, model.width(6), (6, 5, 8), pad=(2, 2, 0), slope=SLOPE, initializer="he_uniform", name="conv2")
    x = batch_normalization(synchronized=synchronized, name="norm2")(x)
    x = layers.UpSampling3D((2, 2, 3), name="upsampling2")(x)
    x = convolution(x, model.width(6), (3, 3, 8), pad=(1, 0, 3), slope=SLOPE, initializer="he_uniform", name="conv3")
    x = convolution(x, 1, (2, 2, 2), initializer="glorot_normal", bias=False, name="conv4")
    shower = layers.ReLU(name="shower")(x)
    return tf.keras.Model(latent, shower, name="generator")


def _discriminator(model: Model, data: Data, synchronized: bool) -> tf.keras.Model:
    """(B, 25, 25, 25, 1) -> outputs, as Networks.discriminator says."""
    shower = tf.keras.Input((*SHAPE, 1), name="shower")
    x = convolution(shower, model.width(32), _DISCRIMINATOR_KERNEL, pad="same", slope=SLOPE, name="conv1")
    x = EventDropout(model.dropout, name="dropout1")(x)
    for number, pad in enumerate(_DISCRIMINATOR_PADS, start=2):
        x = convolution(x, model.width(8), _DISCRIMINATOR_KERNEL, pad=pad, slope=SLOPE, name=f"conv{number}")
        x = batch_normalization(synchronized=synchronized, name=f"norm{number}")(x)
        x = EventDropout(model.dropout, name=f"dropout{number}")(x)
    return discriminator_of(shower, x, model, data)
