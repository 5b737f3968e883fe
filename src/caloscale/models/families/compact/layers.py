"""Layers of the compact networks, in addition to dense layers and 2D convolutions. None of them has weights.

Layers of the generator come first, then measurements of a shower in addition to the published constraints: profiles and
counts, with gradients.

B showers, X and Y cells across, L layers. Layers of the calorimeter are the channels of 2D convolutions.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from caloscale.models.layers.plain import (
    ABOVE_ROUNDING,
    SMALLEST_CELL,
    PlainLayer,
    centred,
    compressed,
    fourier_features,
)

SLOPE = 0.2
"""Of all leaky ReLUs of the compact networks below 0."""
KINK = 0.3
"""Noise from which on the bend of `Speckle` counts."""
SATURATION = 12.0
"""Largest logarithm of a cell: a diverging generator saturates instead of overflowing."""


class Primary(PlainLayer):
    """The primary as a network's input (B, 3): (ln E - centre) / width, cot a and its square.

    Input: [E / energyScaleGev, angle in rad, ...] (B, 2 or more). The shower axis crosses a layer at a distance
    proportional to cot a, so the network need not learn the tangent.
    """

    centre: float
    width: float

    def call(self, primary: tf.Tensor) -> tf.Tensor:
        log_energy = (tf.math.log(tf.maximum(primary[:, 0], SMALLEST_CELL)) - self.centre) / self.width
        cotangent = tf.cos(primary[:, 1]) / tf.maximum(tf.sin(primary[:, 1]), 1e-3)
        return tf.stack([log_energy, cotangent, cotangent * cotangent], axis=1)


class Constant(PlainLayer):
    """Constant values with a first axis of 1; the input only connects the layer to the network."""

    def __init__(self, values: ArrayLike, **options: object) -> None:
        super().__init__(**options)
        self.values = np.asarray(values, dtype=np.float32)

    def call(self, _: tf.Tensor) -> tf.Tensor:
        return tf.constant(self.values[None])

    def compute_output_shape(self, _: tf.Tensor) -> tuple[int, ...]:
        return (1, *self.values.shape)

    def get_config(self) -> dict[str, object]:
        return {**super().get_config(), "values": self.values.tolist()}


class CylinderPadding(PlainLayer):
    """One more cell around the cells of azimuth and radius: (B, X, Y, C) -> (B, X + 2, Y + 2, C).

    Before the first azimuth is the last one and the other way round; inside the smallest radius is the cell on the
    other side of the axis; outside the largest radius is nothing.
    """

    def call(self, cells: tf.Tensor) -> tf.Tensor:
        across = tf.roll(cells[:, :, :1], cells.shape[1] // 2, axis=1)
        cells = tf.concat([across, cells, tf.zeros_like(across)], axis=2)
        return tf.concat([cells[:, -1:], cells, cells[:, :1]], axis=1)


class FromAxis(PlainLayer):
    """Coordinates along x in the frame of the shower: (B, 3) of `Primary` -> (B, L, X, 2 * waves + 1).

    In each layer the distance of the middle of a cell from the shower's axis, in cells, as sines and cosines
    of the given wavelengths (cells), and itself over half the window. Any inclined shower is upright in it.
    `shift`: cells by which the axis of a shower with cot a = 1 is off the middle of the window, per layer.
    """

    cells: int
    shift: list[float]
    wavelengths: list[float]

    def call(self, primary: tf.Tensor) -> tf.Tensor:
        return self._features(primary[:, 1:2] * tf.constant([self.shift]))

    def _features(self, axis: tf.Tensor) -> tf.Tensor:
        """Of an axis that crosses the layers there (B, L)."""
        distance = tf.constant(centred(self.cells))[None, None] - axis[:, :, None]
        return fourier_features(distance, self.wavelengths, self.cells)


class Line(PlainLayer):
    """The axis of a shower and its condition: latent [E, angle, condition, ...] -> (B, 4 + remaining condition).

    Slope and entry along x, slope and entry along y: the axis crosses a layer at a distance slope * depth from its
    entry, with the slopes cot a cos p and cot a sin p at the azimuth p. Without azimuth p is 0, without entry both are
    0. The rest of the condition, a number for each primary, is passed on. size: numbers of the condition.
    """

    azimuth: bool
    entry: bool
    size: int

    def call(self, latent: tf.Tensor) -> tf.Tensor:
        cotangent = tf.cos(latent[:, 1]) / tf.maximum(tf.sin(latent[:, 1]), 1e-3)
        numbers = tf.unstack(latent[:, 2 : 2 + self.size], axis=1)
        none = tf.zeros_like(cotangent)
        cosine, sine = (numbers.pop(0), numbers.pop(0)) if self.azimuth else (none + 1, none)
        x, y = (numbers.pop(0), numbers.pop(0)) if self.entry else (none, none)
        return tf.stack([cotangent * cosine, x, cotangent * sine, y, *numbers], axis=1)


class FromLine(FromAxis):
    """As `FromAxis`, along x (axis 0) or y (axis 1), for the axis of `Line`: (B, 4 or more) -> (B, L, cells, n)."""

    axis: int

    def call(self, line: tf.Tensor) -> tf.Tensor:
        slope, entry = (line[:, n : n + 1] for n in (2 * self.axis, 2 * self.axis + 1))
        return self._features(slope * tf.constant([self.shift]) + entry)


class BroadcastAdd(PlainLayer):
    """Sum of tensors such as (B, L, X, Q), (B, L, Q) and (B, Q), missing axes repeated, then a leaky ReLU."""

    slope: float = SLOPE

    def call(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        total = parts[0]
        for part in parts[1:]:
            while len(part.shape) < len(total.shape):
                part = tf.expand_dims(part, -2)
            total = total + part
        return tf.nn.leaky_relu(total, self.slope)


class SeparableMaps(PlainLayer):
    """sum_k amplitude[l, k] f_k(x, l) g_k(y, l) + offset[l]: (B, X, Y, L).

    Inputs: f (B, L, X, K), amplitude (B, L K), g (1, L, Y, K) or (B, L, Y, K), offset (B, L). Few terms make any smooth
    map.
    """

    def call(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        along_x, amplitude, along_y, offset = parts
        _, layers, cells_x, terms = along_x.shape
        cells_y = along_y.shape[2]
        scaled = along_x * tf.reshape(amplitude, (-1, layers, 1, terms))
        if along_y.shape[0] != 1:
            maps = tf.matmul(scaled, along_y, transpose_b=True) * terms**-0.5
            return tf.transpose(maps, (0, 2, 3, 1)) + offset[:, None, None]
        # Layer by layer, so that each product of matrices is large.
        by_layer = tf.reshape(tf.transpose(scaled, (1, 0, 2, 3)), (layers, -1, terms))
        maps = tf.matmul(by_layer, along_y[0], transpose_b=True) * terms**-0.5
        maps = tf.reshape(tf.transpose(maps, (1, 2, 0)), (-1, cells_x, cells_y, layers))
        return maps + offset[:, None, None]


class CellNoise(PlainLayer):
    """A random number per cell, a fixed function of the latent noise: (B, N) -> (B, X, Y, L), mean 0, variance 1.

    Sum of sines of random directions in the latent space (random Fourier features, Rahimi & Recht 2007). The
    directions are long, so the phases of any two cells are independent for all that a network can see, and the
    generator stays a function of its input: seeded, repeatable and free of random operations when exported.
    """

    shape: tuple[int, ...]
    sines: int = 2
    frequency: float = 3.0

    def build(self, input_shape: tf.TensorShape) -> None:
        """Draw directions (N, sines * cells) and phases (sines * cells,): constants, the same in every network.

        They are no weights: nothing trains, saves or all-reduces them. `RandomState` is the generator whose numbers
        NumPy guarantees never to change (NEP 19), so that a saved generator makes the same showers with every version.
        """
        rng = np.random.RandomState(0)
        size = (int(input_shape[-1]), self.sines * int(np.prod(self.shape)))
        self.directions = (self.frequency * rng.standard_normal(size)).astype(np.float32)
        self.phases = rng.uniform(0, 2 * np.pi, size[1:]).astype(np.float32)
        super().build(input_shape)

    def call(self, noise: tf.Tensor) -> tf.Tensor:
        sines = tf.sin(tf.matmul(noise, self.directions) + self.phases)
        total = tf.reduce_sum(tf.reshape(sines, (-1, self.sines, *self.shape)), axis=1)
        return total * (2 / self.sines) ** 0.5


class Speckle(PlainLayer):
    """The noise of each cell added to its map, with a width and a bend from the network: (B, X, Y, L).

    Inputs: map m, shift a, width b, bend c, noise n, all (B, X, Y, L). Output
    relu(m + a + softplus(b + 1/2) n + c relu(n - KINK)), at most `SATURATION`: the logarithm of a cell over the
    faintest cell, 0 for none. A cell in the fringe is hit in some showers and not in others, as a threshold on noise
    makes it.
    """

    def call(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        maps, shift, width, bend, noise = parts
        value = maps + shift + tf.nn.softplus(width + 0.5) * noise + bend * tf.nn.relu(noise - KINK)
        return SATURATION / 6 * tf.nn.relu6(value / (SATURATION / 6))


class Response(PlainLayer):
    """Logarithm of the response of a calorimeter (B, 1): its mean and two fluctuations.

    Inputs: mean logarithm (B, 1), fluctuations c and s (B, 2), latent [E / energyScaleGev, ...] (B, ...). Output
    mean + c + s sqrt(middle / E): sigma/E is a constant and a stochastic term in quadrature, as of every sampling
    calorimeter (PDG, Review of Particle Physics, section on calorimeters). With c alone the network must learn from
    the few showers of the lowest energies that they fluctuate more.
    """

    middle: float

    def call(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        mean, fluctuations, latent = parts
        stochastic = tf.sqrt(self.middle / tf.maximum(latent[:, :1], SMALLEST_CELL))
        return mean + fluctuations[:, :1] + stochastic * fluctuations[:, 1:]


class Deposit(PlainLayer):
    """From logarithms of cells to a shower in network units (B, X, Y, L, 1) with a given sum.

    Inputs: logarithms h (B, X, Y, L), latent [E / energyScaleGev, ...] (B, ...), logarithm of the response (B, 1).
    Cells are proportional to exp(h) - 1, their sum (units of 1/unitsPerGev GeV) is E * units * exp(response);
    x = cell^power.
    """

    units: float
    faintest: float
    power: float

    def call(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        logarithms, latent, response = parts
        cells = self.faintest * tf.math.expm1(logarithms)
        total = latent[:, 0] * self.units * tf.exp(response[:, 0])
        sums = tf.reduce_sum(cells, axis=(1, 2, 3))
        return compressed(cells * (total / (sums + self.faintest))[:, None, None, None], self.power)[..., None]


class Exponentials(PlainLayer):
    """Independent exponentially distributed numbers, less their mean of 1, from normal ones: (B, N) -> (B, count).

    Half the sum of two squares, of the first 2 * count columns (Box & Muller, Ann. Math. Stat. 29 (1958) 610). The
    depth at which a shower begins is exponentially distributed. Smooth functions of normal numbers have too short a
    tail for late showers, which are short and lose energy behind the calorimeter.
    """

    count: int

    def call(self, noise: tf.Tensor) -> tf.Tensor:
        squares = tf.square(noise[:, : 2 * self.count])
        return (squares[:, : self.count] + squares[:, self.count :]) / 2 - 1


class Slice(PlainLayer):
    """The columns of (B, N) from number `first`: (B, N - first)."""

    first: int

    def call(self, values: tf.Tensor) -> tf.Tensor:
        return values[:, self.first :]


class Scaled(PlainLayer):
    """Values times a constant."""

    factor: float

    def call(self, values: tf.Tensor) -> tf.Tensor:
        return values * self.factor


class QuickCellEnergy(PlainLayer):
    """x^(1/power) as `constraints.CellEnergy`, by exponential and logarithm: several times faster on a CPU.

    A cell of at most `SMALLEST_CELL` is empty: its energy and its gradient are 0. The energy of any other cell is less
    than `CellEnergy` gives by SMALLEST_CELL^(1/power), which is 1e-10 MeV in the published units.
    """

    power: float

    def call(self, shower: tf.Tensor) -> tf.Tensor:
        energy = tf.exp(tf.math.log(tf.maximum(shower, SMALLEST_CELL)) / self.power)
        return tf.nn.relu(energy - ABOVE_ROUNDING * SMALLEST_CELL ** (1 / self.power))


class LogCells(PlainLayer):
    """ln(1 + x / faintest) of a shower in network units, x >= 0: (B, X, Y, L, 1) -> (B, X, Y, L)."""

    faintest: float

    def call(self, shower: tf.Tensor) -> tf.Tensor:
        return tf.math.log1p(shower[..., 0] / self.faintest)


class Profile(PlainLayer):
    """Sums of cells (B, X, Y, L, 1) over all axes but one, concatenated over the given axes: (B, n)."""

    axes: list[int]

    def call(self, cells: tf.Tensor) -> tf.Tensor:
        rest = [[a for a in (1, 2, 3, 4) if a != kept] for kept in self.axes]
        return tf.concat([tf.reduce_sum(cells, axis=axes) for axes in rest], axis=1)


class Cumulative(PlainLayer):
    """Share of the sum up to each layer: (B, L) -> (B, L), from near 0 to 1."""

    def call(self, sums: tf.Tensor) -> tf.Tensor:
        cumulative = tf.cumsum(sums, axis=1)
        return cumulative / tf.maximum(cumulative[:, -1:], SMALLEST_CELL)


class CountsAbove(PlainLayer):
    """Cells above thresholds, counted softly so that there is a gradient.

    Input: `LogCells` (B, X, Y, L). Output (B, thresholds), or with per_layer the counts of the first threshold
    in each layer (B, L). A cell counts 0 below, 1 above, and linearly within 1/slope around the threshold
    (thresholds and width in units of the logarithm).
    """

    thresholds: list[float]
    per_layer: bool = False
    slope: float = 3.0

    def call(self, logarithms: tf.Tensor) -> tf.Tensor:
        # relu6(6 u) / 6 is u cut to 0..1 in one operation, with a quick gradient.
        scaled = logarithms * (6 * self.slope)
        offsets = [3 - 6 * self.slope * threshold for threshold in self.thresholds]
        if self.per_layer:
            return tf.reduce_sum(tf.nn.relu6(scaled + offsets[0]), axis=(1, 2)) / 6
        counts = [tf.reduce_sum(tf.nn.relu6(scaled + offset), axis=(1, 2, 3)) for offset in offsets]
        return tf.stack(counts, axis=1) / 6


class LogOnePlus(PlainLayer):
    """ln(1 + x / unit)."""

    unit: float

    def call(self, values: tf.Tensor) -> tf.Tensor:
        return tf.math.log1p(values / self.unit)


class SquareRoot(PlainLayer):
    """sqrt(n + 1/2): the square root makes the fluctuations of counts alike."""

    def call(self, counts: tf.Tensor) -> tf.Tensor:
        return tf.sqrt(counts + 0.5)
