"""What a training step of the compact network computes for each cell, in few passes over memory, with its gradient.

From the generator's last convolution to what the discriminator sees: `Speckle`, `Deposit`, `LogCells` and all
measurements of a shower, by functions that XLA compiles within a graph and vectorises on processors. B showers, X and Y
cells across, L layers.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow import Tensor

from caloscale.detector.geometry import cylinder_mm
from caloscale.models.families.compact.layers import KINK, SATURATION
from caloscale.models.families.compact.merged import OVERFLOW, sine_of_turn
from caloscale.models.layers.plain import ABOVE_ROUNDING, SMALLEST_CELL, Differentiable, Function, differentiable


def compiled(function: Function) -> Function:
    """The function of tensors, compiled by XLA: few loops over all numbers, whose intermediate results are not stored.

    XLA vectorises short chains of plain arithmetic over long rows. So a loop has at most one exponential or logarithm,
    and cells are rows (B, X Y L) wherever nothing belongs to a layer.
    """
    return tf.function(function, jit_compile=True, autograph=False)


def with_gradient(function: Function) -> Function:
    """The function of tensors and its gradient, both `compiled`; the gradient computes the function again."""
    forward = compiled(function)

    def gradients(inputs: tuple[Tensor, ...], upstream: Tensor) -> Tensor:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = function(*inputs)
        return tape.gradient(outputs, inputs, upstream, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    backward = compiled(gradients)

    @differentiable
    def computed(*inputs: Tensor) -> Differentiable:
        outputs = forward(*inputs)
        return outputs, lambda *of: backward(inputs, of if isinstance(outputs, tuple) else of[0])

    return computed


def exponential(x: Tensor) -> Tensor:
    """exp(x) for -87 < x < 87, relative error 1e-7: 2^n times a polynomial (Cephes, S. Moshier).

    XLA's own exponential and logarithm take three times as long on a CPU, its sine a hundred times.
    """
    n = tf.round(x * 1.44269504)
    r = (x - n * 0.693359375) + n * 2.12194440e-4
    y = r * 1.9875691500e-4
    for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1):
        y = (y + coefficient) * r
    y = (y + 5.0000001201e-1) * r * r + r + 1
    return tf.bitcast(tf.bitcast(y, tf.int32) + tf.bitwise.left_shift(tf.cast(n, tf.int32), 23), tf.float32)


_ROOT_OF_HALF = 0x3F3504F3
"""Bits of sqrt(1/2) in single precision."""


def logarithm(x: Tensor) -> Tensor:
    """ln(x) of normal numbers above 0, error 2e-7 (Cephes). NaN stays NaN."""
    bits = tf.bitcast(x, tf.int32) - _ROOT_OF_HALF
    n = tf.cast(tf.bitwise.right_shift(bits, 23), tf.float32)
    r = tf.bitcast(tf.bitwise.bitwise_and(bits, 0x7FFFFF) + _ROOT_OF_HALF, tf.float32) - 1
    square, y = r * r, r * 7.0376836292e-2
    for coefficient in (
        -1.1514610310e-1,
        1.1676998740e-1,
        -1.2420140846e-1,
        1.4249322787e-1,
        -1.6668057665e-1,
        2.0000714765e-1,
        -2.4999993993e-1,
    ):
        y = (y + coefficient) * r
    y = (y + 3.3333331174e-1) * r * square - n * 2.12194440e-4 - 0.5 * square
    return tf.where(x > 0, y + r + n * 0.693359375, x)


def sine(x: Tensor) -> Tensor:
    """sin(x), error 1e-6 for |x| < 1000: x less whole turns, and a polynomial."""
    n = tf.round(x * (0.5 / np.pi))
    return sine_of_turn(((x - n * 6.28125) - n * 1.9353071795864769e-3) * (0.5 / np.pi))


_logarithms = compiled(logarithm)


class Seen(NamedTuple):
    """What the discriminator sees of showers."""

    logarithms: Tensor
    """As `LogCells` gives them, (B, X, Y, L)."""
    counts: Tensor
    """As `CountsAbove` gives them, (B, thresholds)."""
    hits: Tensor
    """The same for each layer, (B, L)."""
    sums: tuple[Tensor, ...]
    """Energies summed over y (B, X, L) and over x (B, Y, L); of a cylinder also its moments along x and y (B, L)."""


class Cells:
    """What is computed for each cell, between the generator's convolutions and the discriminator's."""

    def __init__(
        self, generator: Mapping[str, tf.keras.layers.Layer], discriminator: Mapping[str, tf.keras.layers.Layer]
    ) -> None:
        deposit, count = generator["shower"], discriminator["count_cells"]
        self.shape = tuple(int(n) for n in deposit.output.shape[1:4])
        self.number = int(np.prod(self.shape))
        self._power, self._deposit_faintest = deposit.power, deposit.faintest
        self._faintest = discriminator["log_cells"].faintest
        self._empty = ABOVE_ROUNDING * SMALLEST_CELL**self._power
        self._scale, self._slope = 6 * count.slope, count.slope
        self._offsets = [3 - self._scale * threshold for threshold in count.thresholds]
        angle = discriminator["angle"]
        positions = cylinder_mm(self.shape[0], self.shape[1], angle.cell_mm[1]) if angle.cylinder else ()
        self._positions = [np.asarray(at, np.float32)[:, :, None] for at in positions]
        self._split, self._energy = compiled(self._split_heads), compiled(self._energies)
        self._grown = compiled(lambda width: 1 + exponential(tf.clip_by_value(width, -OVERFLOW, OVERFLOW)))
        self._height = compiled(self._heights)
        self._over = compiled(lambda raised: 1 + tf.nn.relu(exponential(raised) - self._empty) / self._faintest)
        self._powers = compiled(lambda height: exponential(height) - 1)
        self._root = compiled(self._rooted)
        self._hits, self._sums = compiled(self._counted_hits), compiled(self._summed)
        # One by one: several at once take XLA twice as long.
        self._counts = [compiled(self._counted(offset)) for offset in self._offsets[1:]]
        self._tiled = compiled(lambda of_sums: tf.tile(of_sums[:, :, None], (1, 1, self.shape[1], 1)))
        self._of_energy = compiled(self._energy_gradient)
        self._of_height, self._of_noise = compiled(self._height_gradient), compiled(self._noise_gradients)

    def deposited(self, maps: Tensor, noise: Tensor, heads: Tensor, bias: Tensor, total: Tensor) -> Seen:
        """`Speckle`, `Deposit` and all measurements.

        maps (B, X, Y, L), noise (B, X Y L), heads (B, X, Y, 3 L): shift, width and bend side by side, before their bias
        (3 L). total (B,): sum of the cells over the faintest one. Only the noise gets no gradient.
        """
        rows, cells = (-1, self.number), (-1, *self.shape)

        @differentiable
        def deposit(maps: Tensor, heads: Tensor, bias: Tensor, total: Tensor) -> Differentiable:
            value, width = self._split(maps, noise, heads, bias)
            grown = self._grown(tf.reshape(width, rows))
            powers = self._powers(self._height(tf.reshape(value, rows), grown, noise))
            energy, power_sums, raised = self._energy(powers, total)
            over = self._over(raised)
            logarithms = tf.reshape(_logarithms(over), cells)

            def gradient(*upstream: Tensor) -> tuple[Tensor, ...]:
                of_energy = self._of_energy(energy, logarithms, over, self._tiled(upstream[3]), upstream)
                of_value, of_total = self._of_height(of_energy, energy, power_sums, total)
                parts = (of_value, *self._of_noise(of_value, noise, grown))
                of_heads = tf.concat([tf.reshape(part, cells) for part in parts], axis=3)
                of_bias = tf.raw_ops.BiasAddGrad(out_backprop=of_heads)
                return tf.reshape(of_value, cells), tf.cast(of_heads, heads.dtype), of_bias, of_total

            return (logarithms, *self._measured(tf.reshape(energy, cells), logarithms)), gradient

        logarithms, counts, hits, *sums = deposit(maps, heads, bias, total)
        return Seen(logarithms, counts, hits, tuple(sums))

    def of_showers(self, showers: Tensor) -> Seen:
        """The same of showers in network units (B, X, Y, L, 1), without a gradient."""
        rows, cells = tf.reshape(showers, (-1, self.number)), (-1, *self.shape)
        energy = tf.reshape(self._root(_logarithms(tf.maximum(rows, SMALLEST_CELL))), cells)
        logarithms = tf.reshape(_logarithms(1 + rows / self._faintest), cells)
        counts, hits, *sums = self._measured(energy, logarithms)
        return Seen(logarithms, counts, hits, tuple(sums))

    def _split_heads(self, maps: Tensor, noise: Tensor, heads: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        shift, width, bend = tf.split(tf.cast(heads, tf.float32) + bias, 3, axis=3)
        return maps + shift + bend * tf.nn.relu(tf.reshape(noise, (-1, *self.shape)) - KINK), width + 0.5

    def _heights(self, value: Tensor, grown: Tensor, noise: Tensor) -> Tensor:
        return tf.clip_by_value(value + logarithm(grown) * noise, 0.0, SATURATION)

    def _energies(self, powers: Tensor, total: Tensor) -> tuple[Tensor, ...]:
        sums = tf.reduce_sum(powers, axis=1)
        energy = powers * (self._deposit_faintest * total / (sums + 1))[:, None]
        return energy, sums, self._power * logarithm(energy + SMALLEST_CELL)

    def _rooted(self, logarithms: Tensor) -> Tensor:
        return tf.nn.relu(exponential(logarithms / self._power) - ABOVE_ROUNDING * SMALLEST_CELL ** (1 / self._power))

    def _measured(self, energy: Tensor, logarithms: Tensor) -> tuple[Tensor, ...]:
        """Counts, hits and sums, from (B, X, Y, L)."""
        rows, columns, depth = self.shape
        hits, long = self._hits(logarithms), tf.reshape(logarithms, (-1, rows, columns * depth))
        counts = [tf.reduce_sum(hits, axis=1), *(tf.reduce_sum(count(long), axis=1) for count in self._counts)]
        return tf.stack(counts, axis=1) / 6, hits / 6, *self._sums(energy)

    def _counted_hits(self, logarithms: Tensor) -> Tensor:
        return tf.reduce_sum(tf.nn.relu6(logarithms * self._scale + self._offsets[0]), axis=(1, 2))

    def _counted(self, offset: float) -> Callable[[Tensor], Tensor]:
        return lambda long: tf.reduce_sum(tf.nn.relu6(long * self._scale + offset), axis=2)

    def _summed(self, energy: Tensor) -> tuple[Tensor, ...]:
        moments = [tf.reduce_sum(energy * at, axis=(1, 2)) for at in self._positions]
        return tf.reduce_sum(energy, axis=2), tf.reduce_sum(energy, axis=1), *moments

    def _energy_gradient(
        self, energy: Tensor, logarithms: Tensor, over: Tensor, along_x: Tensor, upstream: tuple[Tensor, ...]
    ) -> Tensor:
        """(B, X Y L): by the sums, and by the logarithm, with l = ln(1 + (E^p - constants) / faintest)."""
        direct, counts, hits, _, along_y, *moments = upstream
        rows, columns, depth = self.shape
        long = (-1, rows, columns * depth)
        energy, logarithms, over, direct, along_x = (
            tf.reshape(one, long) for one in (energy, logarithms, over, direct, along_x)
        )
        of_sums = along_x + tf.reshape(along_y, (-1, 1, columns * depth))
        for moment, at in zip(moments, self._positions):
            of_sums = of_sums + tf.reshape(moment[:, None, None] * at, long)
        of_logarithm = direct
        for number, offset in enumerate(self._offsets):
            value, by = logarithms * self._scale + offset, counts[:, number, None, None]
            if number == 0:
                by = by + tf.tile(hits, (1, columns))[:, None]
            within = tf.logical_and(value > 0, value < 6)
            of_logarithm = of_logarithm + tf.where(within, self._slope * by, 0.0)
        raised = self._faintest * (over - 1) + self._empty
        slope = self._power * raised / ((energy + SMALLEST_CELL) * (self._faintest * over))
        return tf.reshape(of_sums + tf.where(logarithms > 0, of_logarithm * slope, 0.0), (-1, self.number))

    def _height_gradient(self, upstream: Tensor, energy: Tensor, sums: Tensor, total: Tensor) -> tuple[Tensor, ...]:
        """(B, X Y L) before the cut at 0 and `SATURATION`, and of the total (B,): E = factor (exp(height) - 1)."""
        factor = self._deposit_faintest * total / (sums + 1)
        common = tf.reduce_sum(upstream * energy, axis=1) / (factor * (sums + 1))
        of_total, factor = common * self._deposit_faintest, factor[:, None]
        grown = energy + factor
        within = tf.logical_and(energy > 0, grown < factor * float(np.exp(SATURATION) * (1 - 1e-6)))
        return tf.where(within, (upstream - common[:, None]) * grown, 0.0), of_total

    def _noise_gradients(self, of_value: Tensor, noise: Tensor, grown: Tensor) -> tuple[Tensor, ...]:
        """Of width and bend; the derivative of softplus is 1 - 1 / (1 + exp)."""
        return of_value * noise * (1 - 1 / grown), of_value * tf.nn.relu(noise - KINK)
