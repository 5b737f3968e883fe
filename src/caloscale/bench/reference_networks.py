"""The published networks, layer by layer in plain Keras: the truth for every faster way of computing them.

Nothing of it goes through `convolution`. Layers have the same names and weights as the layers of `build`.
"""

from typing import Any

import tensorflow as tf

from caloscale.models import Networks, build
from caloscale.models.layers.constraints import constraints
from caloscale.spec import Data, Model

Layers = list[Any]


def build_reference(model: Model, data: Data) -> Networks:
    """Plain networks of a run, with fresh weights. Of other families: those of `build`."""
    plain = {
        "variable-angle": (_variable_angle_generator(), _variable_angle_discriminator(model)),
        "fixed-angle": (_fixed_angle_generator(), _fixed_angle_discriminator(model)),
    }.get(model.family)
    if plain is None:
        return build(model, data)
    generator, discriminator = plain
    latent = tf.keras.Input((model.latent_size,), name="latent")
    shower = tf.keras.Input((*data.shape, 1), name="shower")
    features = _chain(shower, discriminator)
    outputs = {
        "real_fake": tf.keras.layers.Dense(1, activation="sigmoid", name="real_fake")(features),
        "energy": tf.keras.layers.Dense(1, name="energy")(features),
        **constraints(shower, data, bin_counts=model.bin_counts),
    }
    return {
        "generator": tf.keras.Model(latent, _chain(latent, generator), name="generator"),
        "discriminator": tf.keras.Model(shower, outputs, name="discriminator"),
    }


def _chain(x: Any, layers: Layers) -> Any:
    for layer in layers:
        x = layer(x)
    return x


def _variable_angle_generator() -> Layers:
    keras = tf.keras.layers
    layers = [
        keras.Dense(5184, name="dense"),
        keras.Reshape((9, 9, 8, 8), name="reshape"),
        keras.UpSampling3D((6, 6, 6), name="upsampling"),
    ]
    middle = (
        (8, (6, 6, 8), (0, 0, 0)),
        (6, (4, 4, 6), (2, 2, 1)),
        (6, (4, 4, 6), (2, 2, 1)),
        (6, (4, 4, 6), (2, 2, 1)),
        (6, (3, 3, 5), (1, 1, 0)),
    )
    for number, (filters, kernel, zeros) in enumerate(middle, start=1):
        layers += [
            keras.ZeroPadding3D(zeros, name=f"pad{number}"),
            keras.Conv3D(filters, kernel, kernel_initializer="he_uniform", name=f"conv{number}"),
            keras.ReLU(name=f"relu{number}"),
            keras.BatchNormalization(epsilon=1e-6, name=f"norm{number}"),
        ]
    return [
        *layers,
        keras.ZeroPadding3D((1, 1, 0), name="pad6"),
        keras.Conv3D(6, (3, 3, 3), kernel_initializer="he_uniform", name="conv6"),
        keras.ReLU(name="relu6"),
        keras.Conv3D(1, (2, 2, 2), kernel_initializer="glorot_normal", name="conv7"),
        keras.ReLU(name="shower"),
    ]


def _variable_angle_discriminator(model: Model) -> Layers:
    first = tf.keras.layers.Conv3D(16, (5, 6, 6), padding="same", name="conv1")
    zeros = ((0, 0, 1), (0, 0, 1), (0, 0, 0))
    return _discriminator(first, zeros, (5, 6, 6), model.dropout, epsilon=1e-6)


def _fixed_angle_generator() -> Layers:
    keras = tf.keras.layers
    he = {"kernel_initializer": "he_uniform"}
    return [
        keras.Dense(3136, name="dense"),
        keras.Reshape((7, 7, 8, 8), name="reshape"),
        keras.Conv3D(64, (6, 6, 8), padding="same", **he, name="conv1"),
        keras.LeakyReLU(0.3, name="leaky1"),
        keras.BatchNormalization(name="norm1"),
        keras.UpSampling3D((2, 2, 2), name="upsampling1"),
        keras.ZeroPadding3D((2, 2, 0), name="pad2"),
        keras.Conv3D(6, (6, 5, 8), **he, name="conv2"),
        keras.LeakyReLU(0.3, name="leaky2"),
        keras.BatchNormalization(name="norm2"),
        keras.UpSampling3D((2, 2, 3), name="upsampling2"),
        keras.ZeroPadding3D((1, 0, 3), name="pad3"),
        keras.Conv3D(6, (3, 3, 8), **he, name="conv3"),
        keras.LeakyReLU(0.3, name="leaky3"),
        keras.Conv3D(1, (2, 2, 2), kernel_initializer="glorot_normal", use_bias=False, name="conv4"),
        keras.ReLU(name="shower"),
    ]


def _fixed_angle_discriminator(model: Model) -> Layers:
    first = tf.keras.layers.Conv3D(32, (5, 5, 5), padding="same", name="conv1")
    zeros = ((2, 2, 2), (2, 2, 2), (1, 1, 1))
    return _discriminator(first, zeros, (5, 5, 5), model.dropout, epsilon=1e-3)


def _discriminator(first: Any, zeros: Any, kernel: Any, dropout: float, *, epsilon: float) -> Layers:
    keras = tf.keras.layers
    layers = [first, keras.LeakyReLU(0.3, name="leaky1"), keras.Dropout(dropout, name="dropout1")]
    for number, pad in enumerate(zeros, start=2):
        layers += [
            keras.ZeroPadding3D(pad, name=f"pad{number}"),
            keras.Conv3D(8, kernel, name=f"conv{number}"),
            keras.LeakyReLU(0.3, name=f"leaky{number}"),
            keras.BatchNormalization(epsilon=epsilon, name=f"norm{number}"),
            keras.Dropout(dropout, name=f"dropout{number}"),
        ]
    return [*layers, keras.AveragePooling3D((2, 2, 2), name="pooling"), keras.Flatten(name="flatten")]
