"""A layer without trained weights, for both files of layers of the compact network."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

register = tf.keras.utils.register_keras_serializable(package="caloscale")

SMALLEST_CELL = 1e-9
"""Cells below this (network units or energy) count as this in a logarithm: its derivative stays finite."""


class PlainLayer(tf.keras.layers.Layer):  # type: ignore[misc]
    """A layer that computes in float32 whatever the policy: sums over cells and logarithms need it.

    `options` of a subclass are its own arguments, kept for saving.
    """

    def __init__(self, *, dtype: Any = "float32", **options: Any) -> None:
        super().__init__(dtype=dtype, **options)

    def _with(self, **own: Any) -> dict[str, Any]:
        return {**super().get_config(), **own}
