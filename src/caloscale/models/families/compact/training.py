"""The compact networks as a training step computes them: the same functions, with fewer passes over memory.

- Convolution, bias and leaky ReLU are one operation of oneDNN, and the gradient of the activation follows from its
  result. The noise gets no gradient, so the input gradient of the first convolution has half of the channels.
- All that is computed for each cell (`cells`) is a few loops that XLA compiles (`compiled`), with gradients of
  their own: they reuse the forward results, and no exponential or logarithm is computed for them.
- A generated shower is not made in network units and taken back to energies: its energies and logarithms go to the
  discriminator. What is left out is the constant of the logarithm, below 1e-5 of a cell at the threshold.
- sin(k (x - a)) = sin(k x) cos(k a) - cos(k x) sin(k a), as in `merged`: the first dense layer along x needs
  sines and cosines of the axis of each layer only.

Weights are those of the Keras networks, which also compute all that is small: the style, the functions of y, the
discriminator's heads. B showers, X and Y cells across, L layers, H units.
"""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from tensorflow import Tensor

from caloscale.models.families.compact.cells import Cells, Seen, compiled, sine, with_gradient
from caloscale.models.families.compact.layers import SLOPE
from caloscale.models.families.family import Networks
from caloscale.models.families.gan.step import Computed
from caloscale.models.layers.plain import Differentiable, centred, differentiable

_OF_GENERATOR = ("primary", "noise", "amplitude", "offset", "x1_style", "y3", "conv1_style", "response")
"""Layers whose results the cells are computed from."""
_MEASURED = ("angle", "ecal_sum", "layers", "transverse", "depth", "counts", "hits")
_JUDGED = ("ecal_sum", "layers", "transverse", "counts", "hits")
"""Of these, what the heads of the discriminator read."""


def compact_for_training(networks: Networks) -> Computed:
    """The functions of compact networks, with their weights of the time of a call. Raises ValueError for others."""
    generator, discriminator = ({layer.name: layer for layer in network.layers} for network in networks.values())
    if "cell_noise" not in generator or "line" in generator or "bins" in discriminator:
        raise ValueError("networks with conditions, counts in ranges or other layers are computed layer by layer")
    cells = Cells(generator, discriminator)
    generate = _Generator(networks["generator"], generator, cells)
    judge = _Discriminator(networks["discriminator"], discriminator, cells)
    return Computed(generate, judge, cells.of_showers)


@compiled
def _noise(*phases: Tensor) -> Tensor:
    return sum(map(sine, phases)) * (2 / len(phases)) ** 0.5


@with_gradient
def _first_hidden(x: Tensor, of_x: Tensor, of_layer: Tensor, of_style: Tensor) -> Tensor:
    """(L, B, X, H) or (L, 1, X, H), (X, H), (L, H), (B, H) -> (L, B, X, H)."""
    return tf.nn.leaky_relu(x + of_x + of_layer[:, None, None] + of_style[:, None], SLOPE)


@with_gradient
def _scaled(x: Tensor, bias: Tensor, amplitude: Tensor) -> Tensor:
    """(L, B, X, K), (K,), (B, L, K) -> (x + bias) amplitude (L, B, X, K)."""
    return (x + bias) * tf.transpose(amplitude, (1, 0, 2))[:, :, None]


@with_gradient
def _styled(x: Tensor, bias: Tensor, style: Tensor) -> Tensor:
    """(B, X, Y, C), (C,), (B, C) -> (B, X, Y, C)."""
    total = tf.cast(x, tf.float32) + bias + style[:, None, None]
    return tf.cast(tf.nn.leaky_relu(total, SLOPE), x.dtype)


@with_gradient
def _layers_last(maps: Tensor, offset: Tensor) -> Tensor:
    """(L, B, X, Y), (B, L) -> maps with their offset (B, X, Y, L)."""
    return tf.transpose(maps, (1, 2, 3, 0)) + offset[:, None, None]


def _convolution(x: Tensor, all_channels: Tensor, kernel: Tensor, padding: str) -> Tensor:
    """Convolution of all channels (B, X, Y, C), of which x is the first ones: only these get a gradient."""

    @differentiable
    def convolve(x: Tensor, kernel: Tensor) -> Differentiable:
        def gradient(upstream: Tensor) -> tuple[Tensor, ...]:
            of_x = _input_gradient(x.shape, kernel[:, :, : x.shape[3]], upstream, 1, padding)
            return tf.cast(of_x, x.dtype), _kernel_gradient(all_channels, kernel.shape, upstream, 1, padding)

        return tf.nn.conv2d(all_channels, kernel, 1, padding), gradient

    return convolve(x, kernel)


def _leaky_convolution(x: Tensor, kernel: Tensor, bias: Tensor, strides: int, padding: str) -> Tensor:
    """leaky ReLU(convolution + bias): one operation, as nothing but the result is used."""

    @differentiable
    def convolve(x: Tensor, kernel: Tensor, bias: Tensor) -> Differentiable:
        y = tf.nn.leaky_relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, strides, padding), bias), SLOPE)

        def gradient(upstream: Tensor) -> tuple[Tensor, ...]:
            inner = tf.raw_ops.LeakyReluGrad(gradients=upstream, features=y, alpha=SLOPE)  # y has the sign of its input
            return (
                _input_gradient(x.shape, kernel, inner, strides, padding),
                _kernel_gradient(x, kernel.shape, inner, strides, padding),
                tf.raw_ops.BiasAddGrad(out_backprop=inner),
            )

        return y, gradient

    return convolve(x, kernel, bias)


@differentiable
def _leaky_dense(x: Tensor, kernel: Tensor, bias: Tensor) -> Differentiable:
    """The same for rows (N, H)."""
    y = tf.nn.leaky_relu(tf.nn.bias_add(tf.matmul(x, kernel), bias), SLOPE)

    def gradient(upstream: Tensor) -> tuple[Tensor, ...]:
        inner = tf.raw_ops.LeakyReluGrad(gradients=upstream, features=y, alpha=SLOPE)
        of_kernel = tf.matmul(x, inner, transpose_a=True)
        return tf.matmul(inner, kernel, transpose_b=True), of_kernel, tf.raw_ops.BiasAddGrad(out_backprop=inner)

    return y, gradient


def _input_gradient(shape: tf.TensorShape, kernel: Tensor, upstream: Tensor, strides: int, padding: str) -> Tensor:
    return tf.raw_ops.Conv2DBackpropInput(
        input_sizes=list(shape), filter=kernel, out_backprop=upstream, strides=[1, strides, strides, 1], padding=padding
    )


def _kernel_gradient(x: Tensor, shape: tf.TensorShape, upstream: Tensor, strides: int, padding: str) -> Tensor:
    return tf.raw_ops.Conv2DBackpropFilter(
        input=x, filter_sizes=list(shape), out_backprop=upstream, strides=[1, strides, strides, 1], padding=padding
    )


def _leaky(layers: Mapping[str, tf.keras.layers.Layer], name: str, x: Tensor, factor: float = 1.0) -> Tensor:
    """A convolution of x times a factor, and its leaky ReLU, in the precision of the layer."""
    layer = layers[name]
    x = _around(layers, name, tf.cast(x, layer.compute_dtype))
    with tf.name_scope(name):
        kernel, bias = (tf.cast(tf.convert_to_tensor(one), x.dtype) for one in (layer.kernel, layer.bias))
        kernel = kernel if factor == 1 else kernel * tf.cast(factor, x.dtype)
        return _leaky_convolution(x, kernel, bias, layer.strides[0], layer.padding.upper())


def _around(layers: Mapping[str, tf.keras.layers.Layer], name: str, x: Tensor) -> Tensor:
    return layers[f"{name}_around"](x) if f"{name}_around" in layers else x


class _Generator:
    def __init__(self, network: tf.keras.Model, layers: Mapping[str, tf.keras.layers.Layer], cells: Cells) -> None:
        self._layers, self._cells = layers, cells
        self._front = tf.keras.Model(network.input, [layers[n].output for n in _OF_GENERATOR], name="generator")
        noise = layers["cell_noise"]
        self._directions = np.split(noise.directions, noise.sines, axis=1)
        self._phases = np.split(noise.phases, noise.sines)
        self._heads = [layers[name] for name in ("shift", "width", "bend")]

    def __call__(self, latent: Tensor, training: bool = False) -> Seen:
        """Latent (B, latentSize) -> generated showers."""
        primary, noise, *rest = (tf.cast(one, tf.float32) for one in self._front(latent, training=training))
        amplitude, offset, of_style, along_y, style, response = rest
        deposit, shape, dtype = self._layers["shower"], (-1, *self._cells.shape), self._layers["conv1"].compute_dtype
        with tf.name_scope("generator"):
            maps = self._maps(primary, of_style, amplitude, along_y, offset)
            with tf.name_scope("cell_noise"):
                phases = [tf.matmul(noise, d) + phase for d, phase in zip(self._directions, self._phases)]
                speckle = _noise(*phases)
            with tf.name_scope("maps_and_noise"):
                both = [tf.cast(one, dtype) for one in (tf.stop_gradient(maps), tf.reshape(speckle, shape))]
                x = tf.concat(both, axis=3)
            of_maps, x = (_around(self._layers, "conv1", one) for one in (maps, x))
            with tf.name_scope("conv1"):
                kernel, padding = tf.cast(self._weight("conv1"), dtype), self._layers["conv1"].padding.upper()
                x = _convolution(of_maps, x, kernel, padding)
            with tf.name_scope("styled"):
                x = _styled(x, self._weight("conv1", "bias"), style)
            x = _leaky(self._layers, "conv2", x)
            with tf.name_scope("shower"):
                kernel = tf.concat([head.kernel[0, 0] for head in self._heads], axis=1)
                bias = tf.concat([tf.convert_to_tensor(head.bias) for head in self._heads], axis=0)
                heads = tf.matmul(tf.reshape(x, (-1, x.shape[3])), tf.cast(kernel, x.dtype))
                heads = tf.reshape(heads, (-1, *shape[1:3], 3 * shape[3]))
                total = latent[:, 0] * (deposit.units / deposit.faintest) * tf.exp(response[:, 0])
                return self._cells.deposited(maps, speckle, heads, bias, total)

    def _weight(self, layer: str, name: str = "kernel") -> Tensor:
        return tf.convert_to_tensor(getattr(self._layers[layer], name))

    def _maps(self, primary: Tensor, of_style: Tensor, amplitude: Tensor, along_y: Tensor, offset: Tensor) -> Tensor:
        """`SeparableMaps` (B, X, Y, L). Layers come first until the end, so that each product of matrices is large."""
        rows, columns, depth = self._cells.shape
        hidden, terms = self._weight("x2").shape[0], self._weight("x3").shape[1]
        with tf.name_scope("x1"):
            x, of_x = self._functions_of_x(primary)
        with tf.name_scope("x1_leaky"):
            x = _first_hidden(x, of_x + self._weight("x1", "bias"), self._weight("x1_layer"), of_style)
        with tf.name_scope("x2"):
            x = _leaky_dense(tf.reshape(x, (-1, hidden)), self._weight("x2"), self._weight("x2", "bias"))
        with tf.name_scope("x3"):
            x = tf.reshape(tf.matmul(x, self._weight("x3")), (depth, -1, rows, terms))
        with tf.name_scope("maps"):
            x = _scaled(x, self._weight("x3", "bias"), tf.reshape(amplitude, (-1, depth, terms)))
            x = tf.matmul(tf.reshape(x, (depth, -1, terms)), along_y[0] * terms**-0.5, transpose_b=True)
            return _layers_last(tf.reshape(x, (depth, -1, rows, columns)), offset)

    def _functions_of_x(self, primary: Tensor) -> tuple[Tensor, Tensor]:
        """The first dense layer along x without bias: what depends on the layer (L, B or 1, X, H), the rest (X, H)."""
        rows, _, depth = self._cells.shape
        kernel = self._weight("x1")
        hidden = kernel.shape[1]
        if "from_axis" not in self._layers:
            values = self._layers["azimuth"].values
            x = tf.matmul(values.reshape(-1, values.shape[-1]), kernel)
            return tf.reshape(x, (depth, 1, rows, hidden)), tf.zeros((rows, hidden))
        layer = self._layers["from_axis"]
        waves = (2 * np.pi / np.array(layer.wavelengths)).astype(np.float32)
        count, middles = len(waves), np.asarray(centred(rows))
        sin, cos = (wave(np.outer(middles, waves))[:, :, None] for wave in (np.sin, np.cos))
        of_sines, of_cosines, slope = kernel[:count], kernel[count : 2 * count], kernel[2 * count] * (2 / rows)
        parts = [
            sin * of_sines + cos * of_cosines,
            sin * of_cosines - cos * of_sines,
            tf.tile(-slope[None, None], (rows, 1, 1)),
        ]
        matrix = tf.reshape(tf.transpose(tf.concat(parts, axis=1), (1, 0, 2)), (-1, rows * hidden))
        axis = tf.transpose(primary[:, 1:2] * np.array([layer.shift], np.float32))[:, :, None]
        features = tf.concat([tf.cos(axis * waves), tf.sin(axis * waves), axis], axis=2)
        x = tf.matmul(tf.reshape(features, (-1, matrix.shape[0])), matrix)
        return tf.reshape(x, (depth, -1, rows, hidden)), middles[:, None] * slope


class _Discriminator:
    def __init__(self, network: tf.keras.Model, layers: Mapping[str, tf.keras.layers.Layer], cells: Cells) -> None:
        self._layers, self._cells = layers, cells
        inputs = [layers["leaky3"].output, *(network.output[name] for name in _JUDGED)]
        outputs = {name: network.output[name] for name in ("real_fake", "energy")}
        self._heads = tf.keras.Model(inputs, outputs, name="discriminator")
        self._outputs = with_gradient(self._measurements)

    def __call__(self, showers: Seen, training: bool = False) -> dict[str, Tensor]:
        """The outputs of the Keras network."""
        layers = self._layers
        with tf.name_scope("discriminator"):
            measured: dict[str, Tensor] = dict(
                zip(_MEASURED, self._outputs(showers.counts, showers.hits, *showers.sums))
            )
            x = _leaky(layers, "conv1", showers.logarithms, layers["half_logarithms"].factor)
            x = _leaky(layers, "conv3", _leaky(layers, "conv2", x))
        return {**self._heads([x, *(measured[name] for name in _JUDGED)], training=training), **measured}

    def _measurements(self, counts: Tensor, hits: Tensor, along_x: Tensor, along_y: Tensor, *moments: Tensor) -> Tensor:
        """The outputs of `_MEASURED`."""
        layers, angle = tf.reduce_sum(along_x, axis=1), self._layers["angle"]
        if not moments:
            sizes = zip((along_x, along_y), angle.cell_mm)
            moments = tuple(
                tf.reduce_sum(profile * (centred(profile.shape[1]) * np.float32(size))[:, None], axis=1)
                for profile, size in sizes
            )
        return (
            angle.of_moments(layers, *moments),
            tf.reduce_sum(layers, axis=1, keepdims=True),
            layers,
            tf.concat([tf.reduce_sum(along_x, axis=2), tf.reduce_sum(along_y, axis=2)], axis=1),
            self._layers["depth"](layers),
            self._layers["counts"](counts),
            self._layers["hits"](hits),
        )
