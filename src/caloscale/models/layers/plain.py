"""Base class and constants of layers without weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

register = tf.keras.utils.register_keras_serializable(package="caloscale")

SMALLEST_CELL = 1e-9
"""Cells below this (network units or energy) count as this in a logarithm: its derivative stays finite."""

SMALLEST_SUM = 1e-3
"""Added to a sum of cells (units of 1/unitsPerGev GeV) in a logarithm or a divisor: 20 keV at 50 units per GeV."""

ABOVE_ROUNDING = 1 + 1e-5
"""Factor above the error of exp(p ln x) in single precision, of a part in a million: what is subtracted to make an
empty cell exactly 0 is larger by this."""

Function: TypeAlias = Callable[..., tf.Tensor]
"""Of tensors, to one or several."""
Differentiable: TypeAlias = tuple[tf.Tensor, Function]
"""What a function gives, one tensor or several, and the function of their gradients to those of the inputs."""


class PlainLayer(tf.keras.layers.Layer):  # type: ignore[misc]
    """A layer that computes in float32 whatever the policy: sums over cells and logarithms need it.

    `options` of a subclass are its own arguments, kept for saving.
    """

    def __init__(self, *, dtype: str | tf.DType = "float32", **options: object) -> None:
        super().__init__(dtype=dtype, **options)

    def get_config(self) -> dict[str, object]:
        """What makes an equal layer. Keras 2 forgets name and dtype of a layer that leaves this out."""
        return self._with()

    def _with(self, **own: object) -> dict[str, object]:
        return {**super().get_config(), **own}


def centred(cells: int) -> NDArray[np.float32]:
    """Positions of the middles of cells from the middle of the window, in cells, float32 (cells,)."""
    return (np.arange(cells) - (cells - 1) / 2).astype(np.float32)
