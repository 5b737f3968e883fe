"""The one place where the way of computing a convolution is chosen.

The networks say what is computed; how belongs here. For now that is Keras' Conv3D on every machine.
"""

from __future__ import annotations

from typing import Any, Literal

import tensorflow as tf

Triple = tuple[int, int, int]


def convolution(
    x: Any,
    filters: int,
    kernel: Triple,
    *,
    pad: Triple | Literal["same"] = (0, 0, 0),
    initializer: str = "glorot_uniform",
    bias: bool = True,
    name: str,
) -> Any:
    """A convolution of stride 1 of (B, X, Y, Z, C) showers with (kx, ky, kz) kernels.

    pad: zeros on both sides of each axis before a valid convolution, or "same" for an output of equal size
    (an even kernel has its additional zero behind).
    """
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
