"""How a convolution is computed.

The networks say what is computed; how belongs here. A convolution behind a large upsampling is folded (`folding`);
all others are Keras' Conv3D. Measured with AVX-512, forward and with gradients: folding is 10 and 7 times faster behind
x6 x6 x6 (variable-angle); behind x2 x2 x2 and x2 x2 x3 (fixed-angle) 1.4 to 1.8 times faster forward, and with
gradients 1.4 to 1.7 times slower.
"""

from __future__ import annotations

import math
from typing import Literal

import tensorflow as tf

from caloscale.models.folding import Triple as Triple
from caloscale.models.folding import UpsampledConv3D

FOLDED_FROM = 64
"""Upsampling, as the product over the three axes, from which on a convolution behind it is folded."""

VECTOR = 16
"""Numbers of type float32 in a register of AVX-512. A kernel of oneDNN computes so many output channels at once."""
INFERENCE_BLOCK = 5
"""Depths of a block in inference: 30 channels of 6, and a kernel of 6 reads exactly two blocks.

With narrower registers it is not the best size, but never a bad one: plain 3D convolutions are slowest there."""


def inference_block(filters: int) -> int:
    """Depths of a block when showers are made, by the number of output channels; 1: without blocks."""
    return INFERENCE_BLOCK if filters < VECTOR else 1


def convolution(
    x: tf.Tensor,
    filters: int,
    kernel: Triple,
    *,
    upsampling: Triple = (1, 1, 1),
    pad: Triple | Literal["same"] = (0, 0, 0),
    initializer: str = "glorot_uniform",
    bias: bool = True,
    name: str,
) -> tf.Tensor:
    """A convolution of stride 1 of (B, X, Y, Z, C) showers with (kx, ky, kz) kernels.

    upsampling: how often each cell is repeated along each axis before that (nearest neighbour).
    pad: zeros on both sides of each (upsampled) axis before a valid convolution, or "same" for an output of equal
    size (an even kernel has its additional zero behind; not behind an upsampling).
    """
    if math.prod(upsampling) >= FOLDED_FROM:
        if pad == "same":
            raise ValueError("a convolution behind an upsampling is valid; give its zeros as numbers")
        return UpsampledConv3D(
            filters, kernel, upsampling, pad, use_bias=bias, kernel_initializer=initializer, name=name
        )(x)
    if upsampling != (1, 1, 1):
        x = tf.keras.layers.UpSampling3D(upsampling, name=f"{name}_upsampling")(x)
    if pad != "same" and any(pad):
        x = tf.keras.layers.ZeroPadding3D(pad, name=f"{name}_pad")(x)
    return tf.keras.layers.Conv3D(
        filters,
        kernel,
        padding="same" if pad == "same" else "valid",
        kernel_initializer=initializer,
        use_bias=bias,
        name=name,
    )(x)
