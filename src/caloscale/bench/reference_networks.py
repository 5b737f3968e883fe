"""The published networks of plain Keras layers: the truth for every faster way of computing them.

Order, sizes and names of the layers are those of `published.networks`, which tests hold against the published figures.
"""

from typing import Literal

import tensorflow as tf

from caloscale.models import Networks, build
from caloscale.models.families.published.networks import Layers, build_published
from caloscale.models.layers.folding import Triple
from caloscale.spec import Data, Model


def build_reference(model: Model, data: Data) -> Networks:
    """Plain networks of a run, with fresh weights. Of other families: those of `build`."""
    if model.family not in ("variable-angle", "fixed-angle"):
        return build(model, data)
    return build_published(
        model, data, Layers(_convolution, tf.keras.layers.BatchNormalization, tf.keras.layers.Dropout)
    )


def _convolution(
    x: tf.Tensor,
    filters: int,
    kernel: Triple,
    *,
    upsampling: Triple | None = None,
    pad: Triple | Literal["same"] = (0, 0, 0),
    slope: float = 1.0,
    initializer: str = "glorot_uniform",
    bias: bool = True,
    name: str,
) -> tf.Tensor:
    """As `convolution`, one layer after the other."""
    layers, padding = tf.keras.layers, "same" if pad == "same" else "valid"
    if upsampling is not None:
        x = layers.UpSampling3D(upsampling, name=f"{name}_upsampling")(x)
    if pad != "same" and any(pad):
        x = layers.ZeroPadding3D(pad, name=f"{name}_pad")(x)
    options = {"padding": padding, "kernel_initializer": initializer, "use_bias": bias}
    x = layers.Conv3D(filters, kernel, **options, name=name)(x)
    if slope == 1:
        return x
    return layers.LeakyReLU(slope, name=f"{name}_leaky")(x) if slope else layers.ReLU(name=f"{name}_relu")(x)
