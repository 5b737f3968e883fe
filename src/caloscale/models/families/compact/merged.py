"""The compact generator in fewer and larger operations, for inference: the same function, from latent to GeV.

- What does not depend on the shower is computed once: the functions of y, the part of the functions of x that belongs
  to a layer, and all products of weights with each other.
- sin(k (x - a)) = sin(k x) cos(k a) - cos(k x) sin(k a): only sines and cosines of the axis a of each layer are left,
  and the first dense layer along x is one product with a constant matrix.
- All dense layers that read the style are one product.
- A cell is faintest (exp(h) - 1) scaled to the sum. The network raises it to a power and `to_gev` takes the root of
  that; both are left out. What is left of it is the constant for logarithms, below 1e-5 of a cell at the threshold.

Runtimes compute sines, softplus and layouts at different speeds (`Form`). Each form is the same function.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow import Tensor

from caloscale.models.families.compact.layers import KINK, SATURATION, SLOPE
from caloscale.models.layers.plain import centred
from caloscale.spec import Data

OVERFLOW = 80.0
"""Largest width of the noise, as in a training: exp of it is finite in single precision."""
_OF_SINE = (3.2381375, -14.89984666, 42.02592698, -76.70301535, 81.60513139, -41.34170041, 6.283185303)
"""Coefficients of sin(2 pi t) / t as a polynomial of t^2 for |t| <= 1/2, highest power first: least squares at the
Chebyshev points."""


@dataclass(frozen=True)
class Form:
    """The operations that are fastest in a runtime."""

    channels_first: bool = False
    """Cells as (B, layers, X, Y) in between, as ONNX Runtime and OpenVINO want them."""
    sine_polynomial: bool = False
    """A polynomial instead of the operation: OpenVINO computes that one number at a time."""
    softplus_logarithm: bool = False
    """log(1 + exp(x)) instead of the operation, which ONNX Runtime and TensorFlow compute one number at a time."""
    whole_channels: int = 1
    """A convolution reads a multiple of this number of input channels; another one reads the remaining channels."""


FORMS = {
    "tensorflow": Form(softplus_logarithm=True),
    "onnx": Form(channels_first=True, softplus_logarithm=True, whole_channels=16),
    "openvino": Form(channels_first=True, sine_polynomial=True),
}
"""By runtime, measured with AVX-512; on other processors they are not wrong, only perhaps not the fastest."""


def merged_compact(
    network: tf.keras.Model, data: Data, form: Form, precision: str = "float32"
) -> Callable[[Tensor], Tensor]:
    """From latent (B, latentSize) to cells before the threshold, GeV, (B, X, Y, Z), with the present weights.

    precision: float32 or bfloat16, of the convolutions: sines, exponentials and sums stay in float32.
    Raises ValueError for a network with other layers.
    """
    try:
        return _Compact(network, data, form, precision)
    except KeyError as missing:
        raise ValueError(f"a network without a layer {missing} cannot be merged") from missing


class _Compact:
    def __init__(self, network: tf.keras.Model, data: Data, form: Form, precision: str) -> None:
        self.form, self.shape, self.dtype = form, tuple(data.shape), tf.as_dtype(precision)
        self.units_per_gev = data.preprocessing.units_per_gev
        self._layers = {layer.name: layer for layer in network.layers}
        self._weights = {
            name: [np.asarray(one, float) for one in layer.get_weights()] for name, layer in self._layers.items()
        }
        self._dense_of_style()
        self._functions_of_x()
        self._functions_of_y()
        self._cell_noise()
        self._filters = {name: self._filter(name) for name in ("conv1", "conv2", "shift", "width", "bend")}

    def __call__(self, latent: Tensor) -> Tensor:
        rows, columns, depth = self.shape
        layers, noise = self._layers, latent[:, 2:]
        primary, exponentials = layers["primary"](latent), layers["exponentials"](noise)
        style = tf.concat([primary, noise, exponentials], axis=1)
        for name in ("style1", "style2"):
            style = tf.nn.silu(self._dense(style, name))
        heads = tf.matmul(tf.concat([style, primary, exponentials], axis=1), self._heads) + self._heads_bias
        amplitude, offset, of_x, of_channels, fluctuations, mean = tf.split(heads, self._sizes, axis=1)

        maps = self._maps(primary, of_x, amplitude) + tf.reshape(offset, self._of_channels(depth))
        speckle = self._speckle(noise)
        x = self._convolution([maps, speckle], "conv1") + tf.reshape(
            of_channels, self._of_channels(int(of_channels.shape[1]))
        )
        x = tf.nn.leaky_relu(self._convolution([tf.nn.leaky_relu(x, SLOPE)], "conv2"), SLOPE)
        shift, width, bend = (self._convolution([x], name) for name in ("shift", "width", "bend"))
        if self.form.softplus_logarithm:
            width = tf.math.log(1 + tf.exp(tf.minimum(width, OVERFLOW)))
        else:
            width = tf.nn.softplus(width)
        value = maps + shift + width * speckle + bend * tf.maximum(speckle, KINK)
        powers = tf.exp(tf.raw_ops.ClipByValue(t=value, clip_value_min=0.0, clip_value_max=SATURATION))

        faintest = layers["shower"].faintest
        response = layers["response"]([mean, fluctuations, latent])
        total = latent[:, 0] * layers["shower"].units * tf.exp(response[:, 0])
        sums = faintest * (tf.reduce_sum(powers, axis=(1, 2, 3)) - float(rows * columns * depth))
        factor = total / (sums + faintest) * (faintest / self.units_per_gev)
        factor = tf.reshape(factor, (-1, 1, 1, 1))
        cells = powers * factor - factor
        if not self.form.channels_first:
            return cells
        cells = tf.transpose(tf.reshape(cells, (-1, depth, rows * columns)), (0, 2, 1))
        return tf.reshape(cells, (-1, rows, columns, depth))

    def _dense(self, x: Tensor, name: str) -> Tensor:
        weights, *bias = self._weights[name]
        x = tf.matmul(x, _single(weights))
        return x + _single(bias[0]) if bias else x

    def _dense_of_style(self) -> None:
        """All that is linear in [style, primary, exponentials], side by side."""
        names = ("amplitude", "offset", "x1_style", "conv1_style", "fluctuations")
        parts = [self._weights[name][0] for name in names]
        bias = [rest[0] if rest else np.zeros(w.shape[1]) for w, *rest in (self._weights[name] for name in names)]
        hidden = self._weights["style2"][0].shape[1]
        weights, constant = self._weights["mean_response"]
        mean = np.zeros((len(parts[0]), 1))
        mean[hidden : hidden + len(weights)] = weights
        self._sizes = [part.shape[1] for part in (*parts, mean)]
        self._heads = _single(np.concatenate([*parts, mean], axis=1))
        self._heads_bias = _single(np.concatenate([*bias, constant]))

    _waves: NDArray[np.float32] | None = None
    _shift: NDArray[np.float32] | None = None

    def _functions_of_x(self) -> None:
        """The first dense layer along x as a product of [cos k a, sin k a, a, 1, style] with a constant matrix."""
        rows = self.shape[0]
        weights, bias = self._weights["x1"]
        of_layer = self._weights["x1_layer"][0]
        hidden = len(bias)
        style = np.broadcast_to(np.eye(hidden), (rows, hidden, hidden))
        if "from_axis" in self._layers:
            layer = self._layers["from_axis"]
            waves = 2 * np.pi / np.array(layer.wavelengths)
            count, middles = len(waves), np.asarray(centred(rows), float)
            sines, cosines, slope = weights[:count], weights[count : 2 * count], weights[2 * count] * 2 / rows
            constant = middles[:, None] * slope + bias
            sin, cos = (wave(np.outer(middles, waves))[:, :, None] for wave in (np.sin, np.cos))
            parts = [sin * sines + cos * cosines, sin * cosines - cos * sines, np.tile(-slope, (rows, 1, 1))]
            self._waves, self._shift = _single(waves), _single(np.array(layer.shift)[:, None])
        else:
            constant = self._layers["azimuth"].values[0] @ weights + bias
            parts = []
        self._x1 = _single(
            np.concatenate([*parts, constant[:, None], style], axis=1).transpose(1, 0, 2).reshape(-1, rows * hidden)
        )
        self._of_layer = _single(of_layer[:, None])

    def _functions_of_y(self) -> None:
        """Constant: (Z, terms, Y)."""
        features = self._layers["from_middle" if "from_middle" in self._layers else "radius"].values.astype(float)
        (first, bias), (of_layer,) = self._weights["y1"], self._weights["y1_layer"]
        y = _leaky(features @ first + bias + of_layer[:, None])
        y = _leaky(y @ self._weights["y2"][0] + self._weights["y2"][1])
        y = y @ self._weights["y3"][0] + self._weights["y3"][1]
        self._along_y = _single(y.transpose(0, 2, 1) * y.shape[2] ** -0.5)

    def _maps(self, primary: Tensor, of_x: Tensor, amplitude: Tensor) -> Tensor:
        """Layer by layer, so that each product of matrices is large."""
        rows, columns, depth = self.shape
        of_layers = of_x + self._of_layer
        features = [tf.ones_like(of_layers[:, :, :1]), of_layers]
        if self._waves is not None:
            axis = (tf.reshape(primary[:, 1], (1, -1)) * self._shift)[:, :, None]
            phase = axis * self._waves
            features = [tf.cos(phase), tf.sin(phase), axis, *features]
        x = tf.matmul(tf.reshape(tf.concat(features, axis=2), (-1, self._x1.shape[0])), self._x1)
        x = tf.nn.leaky_relu(x, SLOPE)
        x = tf.nn.leaky_relu(self._dense(tf.reshape(x, (-1, self._x1.shape[1] // rows)), "x2"), SLOPE)
        terms = self._along_y.shape[1]
        x = tf.reshape(self._dense(x, "x3"), (depth, -1, rows, terms))
        amplitude = tf.transpose(tf.reshape(amplitude, (-1, depth, terms)), (1, 0, 2))
        x = tf.reshape(x * amplitude[:, :, None], (depth, -1, terms))
        maps = tf.reshape(tf.matmul(x, self._along_y), (depth, -1, rows * columns))
        maps = tf.transpose(maps, (1, 0, 2) if self.form.channels_first else (1, 2, 0))
        return tf.reshape(maps, (-1, depth, rows, columns) if self.form.channels_first else (-1, *self.shape))

    def _cell_noise(self) -> None:
        """Directions and phases of each sine, in turns for the polynomial, in the order of the layout."""
        layer = self._layers["cell_noise"]
        scale = 1 / (2 * np.pi) if self.form.sine_polynomial else 1.0
        directions = scale * layer.directions.astype(float).reshape(-1, layer.sines, *self.shape)
        phases = scale * layer.phases.astype(float).reshape(layer.sines, *self.shape)
        if self.form.channels_first:
            directions, phases = directions.transpose(0, 1, 4, 2, 3), phases.transpose(0, 3, 1, 2)
        self._sines = [
            (_single(directions[:, n].reshape(len(directions), -1)), _single(phases[n].reshape(-1)))
            for n in range(layer.sines)
        ]

    def _speckle(self, noise: Tensor) -> Tensor:
        angles = [tf.matmul(noise, directions) + phases for directions, phases in self._sines]
        turns = self.form.sine_polynomial
        waves = [sine_of_turn(angle - tf.round(angle)) if turns else tf.sin(angle) for angle in angles]
        factor = (2 / len(waves)) ** 0.5
        total = sum(waves[1:], waves[0])
        total = total if factor == 1 else total * factor
        rows, columns, depth = self.shape
        return tf.reshape(total, (-1, depth, rows, columns) if self.form.channels_first else (-1, *self.shape))

    def _filter(self, name: str) -> tuple[Tensor, Tensor]:
        """Kernel and bias; `width` includes the 1/2 of its softplus, `shift` the part of `bend` that the noise does not
        change: bend relu(noise - KINK) = bend max(noise, KINK) - KINK bend."""
        kernel, bias = self._weights[name]
        if name == "shift":
            kernel, bias = (one - KINK * other for one, other in zip((kernel, bias), self._weights["bend"]))
        return _single(kernel), _single(bias + (0.5 if name == "width" else 0.0))

    def _convolution(self, inputs: Sequence[Tensor], name: str) -> Tensor:
        """Of the inputs side by side."""
        kernel, bias = self._filters[name]
        around = f"{name}_around" in self._layers
        layout, axis = ("NCHW", 1) if self.form.channels_first else ("NHWC", 3)
        channels, whole = int(kernel.shape[2]), self.form.whole_channels
        rest = channels % whole if channels > whole else 0
        *front, last = inputs
        if rest:
            last, left_over = tf.split(last, (int(last.shape[axis]) - rest, rest), axis=axis)

        def convolve(cells: Tensor, weights: NDArray[np.float32]) -> Tensor:
            cells = tf.cast(self._around(cells) if around else cells, self.dtype)
            weights = weights.astype(self.dtype.as_numpy_dtype)
            x = tf.nn.conv2d(cells, weights, 1, "VALID" if around else "SAME", data_format=layout)
            return tf.cast(x, tf.float32)

        x = convolve(tf.concat([*front, last], axis) if front else last, kernel[:, :, : channels - rest])
        x = tf.nn.bias_add(x, bias, data_format=layout)
        return x + convolve(left_over, kernel[:, :, channels - rest :]) if rest else x

    def _around(self, cells: Tensor) -> Tensor:
        """`CylinderPadding`, in the layout of the form."""
        if not self.form.channels_first:
            return self._layers["conv1_around"](cells)
        return tf.transpose(self._layers["conv1_around"](tf.transpose(cells, (0, 2, 3, 1))), (0, 3, 1, 2))

    def _of_channels(self, count: int) -> tuple[int, ...]:
        return (-1, count, 1, 1) if self.form.channels_first else (-1, 1, 1, count)


def sine_of_turn(t: Tensor) -> Tensor:
    """sin(2 pi t) for |t| <= 1/2: an odd polynomial of degree 13, error below 1e-7."""
    square, polynomial = t * t, tf.constant(_OF_SINE[0], tf.float32)
    for coefficient in _OF_SINE[1:]:
        polynomial = polynomial * square + coefficient
    return polynomial * t


def _leaky(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(values > 0, values, SLOPE * values)


def _single(values: NDArray[np.floating]) -> NDArray[np.float32]:
    return np.asarray(values, np.float32)
