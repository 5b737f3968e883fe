"""The one place where the way of computing a convolution is chosen.

The networks say what is computed; how belongs here. A convolution behind an upsampling is folded (`folding`), which
was faster on every machine that it was measured on (docs/benchmarks.md); all others are Keras' Conv3D.
"""

from __future__ import annotations

from typing import Any, Literal

import tensorflow as tf

from caloscale.models.folding import Triple as Triple
from caloscale.models.folding import UpsampledConv3D


def convolution(
    x: Any,
    filters: int,
    kernel: Triple,
    *,
    upsampling: Triple = (1, 1, 1),
    pad: Triple | Literal["same"] = (0, 0, 0),
    initializer: str = "glorot_uniform",
    bias: bool = True,
    name: str,
) -> Any:
    """A convolution of stride 1 of (B, X, Y, Z, C) showers with (kx, ky, kz) kernels.

    upsampling: how often each cell is repeated along each axis before that (nearest neighbour).
    pad: zeros on both sides of each (upsampled) axis before a valid convolution, or "same" for an output of equal
    size (an even kernel has its additional zero behind; not behind an upsampling).
    """
    if upsampling != (1, 1, 1):
        if pad == "same":
            raise ValueError("a convolution behind an upsampling is valid; give its zeros as numbers")
        return UpsampledConv3D(
            filters, kernel, upsampling, pad, use_bias=bias, kernel_initializer=initializer, name=name
        )(x)
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
