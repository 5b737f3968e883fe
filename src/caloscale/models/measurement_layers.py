"""Measurements of a shower beside the published constraints: profiles and counts, with gradients.

B showers, X and Y cells across, L layers. None of the layers has weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from caloscale.models.plain_layer import (
    ABOVE_ROUNDING,
    SMALLEST_CELL,
    PlainLayer,
    register,
)


@register
class QuickCellEnergy(PlainLayer):
    """x^(1/power) as `layers.CellEnergy`, by exponential and logarithm: several times faster on a CPU.

    A cell of at most `SMALLEST_CELL` is empty: its energy is 0, and its gradient. The energy of any other cell is less
    than that of `CellEnergy` by SMALLEST_CELL^(1/power), which is 1e-10 of a MeV in the published units.
    """

    def __init__(self, power: float, **options: Any) -> None:
        super().__init__(**options)
        self.power = float(power)

    def call(self, shower: tf.Tensor) -> tf.Tensor:
        """Network units to energy, (B, X, Y, Z, 1) -> the same shape."""
        energy = tf.exp(tf.math.log(tf.maximum(shower, SMALLEST_CELL)) / self.power)
        return tf.nn.relu(energy - ABOVE_ROUNDING * SMALLEST_CELL ** (1 / self.power))

    def get_config(self) -> dict[str, Any]:
        """What makes an equal layer."""
        return self._with(power=self.power)


@register
class LogCells(PlainLayer):
    """ln(1 + x / faintest) of a shower in network units, x >= 0: (B, X, Y, L, 1) -> (B, X, Y, L)."""

    def __init__(self, faintest: float, **options: Any) -> None:
        super().__init__(**options)
        self.faintest = float(faintest)

    def call(self, shower: tf.Tensor) -> tf.Tensor:
        """(B, X, Y, L, 1) -> (B, X, Y, L)."""
        return tf.math.log1p(shower[..., 0] / self.faintest)

    def get_config(self) -> dict[str, Any]:
        """What makes an equal layer."""
        return self._with(faintest=self.faintest)


@register
class Profile(PlainLayer):
    """Sums of cells (B, X, Y, L, 1) over all axes but one, concatenated over the given axes: (B, n)."""

    def __init__(self, axes: Sequence[int], **options: Any) -> None:
        super().__init__(**options)
        self.axes = [int(axis) for axis in axes]

    def call(self, cells: tf.Tensor) -> tf.Tensor:
        """Cells (B, X, Y, L, 1) -> sums (B, n)."""
        rest = [[a for a in (1, 2, 3, 4) if a != kept] for kept in self.axes]
        return tf.concat([tf.reduce_sum(cells, axis=axes) for axes in rest], axis=1)

    def get_config(self) -> dict[str, Any]:
        """What makes an equal layer."""
        return self._with(axes=self.axes)


@register
class Cumulative(PlainLayer):
    """Share of the sum up to each layer: (B, L) -> (B, L), from near 0 to 1."""

    def call(self, sums: tf.Tensor) -> tf.Tensor:
        """Sums (B, L) -> shares (B, L)."""
        cumulative = tf.cumsum(sums, axis=1)
        return cumulative / tf.maximum(cumulative[:, -1:], SMALLEST_CELL)

    def get_config(self) -> dict[str, Any]:
        """What makes an equal layer."""
        return self._with()


@register
class CountsAbove(PlainLayer):
    """Cells above thresholds, counted softly so that there is a gradient.

    Input: `LogCells` (B, X, Y, L). Output (B, thresholds), or with per_layer the counts of the first threshold
    in each layer (B, L). A cell counts 0 below, 1 above, and linearly within 1/slope around the threshold
    (thresholds and width in units of the logarithm).
    """

    def __init__(
        self, thresholds: Sequence[float], per_layer: bool = False, slope: float = 3.0, **options: Any
    ) -> None:
        super().__init__(**options)
        self.thresholds = [float(t) for t in thresholds]
        self.per_layer, self.slope = bool(per_layer), float(slope)

    def call(self, logarithms: tf.Tensor) -> tf.Tensor:
        """Logarithms (B, X, Y, L) -> counts (B, n)."""
        # relu6(6 u) / 6 is u cut to 0..1 in one operation, with a quick gradient.
        scaled = logarithms * (6 * self.slope)
        offsets = [3 - 6 * self.slope * threshold for threshold in self.thresholds]
        if self.per_layer:
            return tf.reduce_sum(tf.nn.relu6(scaled + offsets[0]), axis=(1, 2)) / 6
        counts = [tf.reduce_sum(tf.nn.relu6(scaled + offset), axis=(1, 2, 3)) for offset in offsets]
        return tf.stack(counts, axis=1) / 6

    def get_config(self) -> dict[str, Any]:
        """What makes an equal layer."""
        return self._with(thresholds=self.thresholds, per_layer=self.per_layer, slope=self.slope)


@register
class LogOnePlus(PlainLayer):
    """ln(1 + x / unit)."""

    def __init__(self, unit: float, **options: Any) -> None:
        super().__init__(**options)
        self.unit = float(unit)

    def call(self, values: tf.Tensor) -> tf.Tensor:
        """Any shape; the same shape."""
        return tf.math.log1p(values / self.unit)

    def get_config(self) -> dict[str, Any]:
        """What makes an equal layer."""
        return self._with(unit=self.unit)


@register
class SquareRoot(PlainLayer):
    """sqrt(n + 1/2): the square root makes the fluctuations of counts alike."""

    def call(self, counts: tf.Tensor) -> tf.Tensor:
        """Any shape; the same shape."""
        return tf.sqrt(counts + 0.5)

    def get_config(self) -> dict[str, Any]:
        """What makes an equal layer."""
        return self._with()
