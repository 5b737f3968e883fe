"""A convolution of an upsampled volume, computed on the volume before it was upsampled: same numbers, less work.

Nearest upsampling by f repeats each value f times, so a kernel of K values touches only about K / f different ones.
Along one axis, output o = f q + r (phase r) reads the upsampled positions o + k - pad, k = 0 .. K - 1, and these are
the original positions q + floor((r + k - pad) / f). Each phase is thus a short kernel on the original volume whose
values are sums of the original kernel's; all phases together are one matrix product, and their outputs are interleaved.
The sums are products with constant 0/1 tensors, so gradients come by themselves. For the variable-angle generator's
first convolution, (6, 6, 8) behind x6, it is (2, 2, 3) for each of 216 phases: a nineteenth of the arithmetic.
"""

import itertools
import math
from collections.abc import Iterable

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from caloscale.models.layers.plain import Differentiable, differentiable, register

Triple = tuple[int, int, int]


class Axis:
    """The folding along one axis: `size` values, upsampled by `factor`, `pad` zeros on both sides, `kernel` wide."""

    def __init__(self, size: int, factor: int, kernel: int, pad: int) -> None:
        first, last = -pad // factor, (factor + kernel - 2 - pad) // factor
        self.factor = factor
        self.taps = last - first + 1
        self.output = size * factor + 2 * pad - kernel + 1
        if self.output < 1:
            raise ValueError(f"a kernel of {kernel} is wider than {size} x {factor} values with {pad} zeros around")
        self.positions = -(-self.output // factor)
        self.before = -first
        self.behind = max(0, self.positions + self.taps - 1 - size - self.before)
        selection = np.zeros((factor, self.taps, kernel), np.float32)
        for phase, k in itertools.product(range(factor), range(kernel)):
            selection[phase, (phase + k - pad) // factor - first, k] = 1
        self.selection: NDArray[np.float32] = selection
        """(phase, tap, k): 1 where tap t of a phase's kernel holds value k of the original kernel."""


@register
class UpsampledConv3D(tf.keras.layers.Conv3D):  # type: ignore[misc]
    """UpSampling3D(factor), ZeroPadding3D(pad), a valid Conv3D(filters, kernel) and (Leaky)ReLU in one.

    Input (B, X, Y, Z, Cin), output (B, fX + 2px - kx + 1, ..., filters). Weights, their names and shapes are those of
    the Conv3D: kernel (kx, ky, kz, Cin, filters), bias (filters,). slope: of the activation below 0; 1: no activation.
    Input must have its sizes fixed, but for B.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: Triple,
        factor: Triple,
        pad: Triple = (0, 0, 0),
        slope: float = 1.0,
        **options: object,
    ) -> None:
        super().__init__(filters, kernel_size, **options)
        self.factor, self.pad, self.slope = triple(factor), triple(pad), float(slope)

    def call(self, volume: tf.Tensor) -> tf.Tensor:
        axes = self._axes(volume.shape)
        kernel = _folded(tf.convert_to_tensor(self.kernel), axes)
        patches = _patches(volume, axes)
        product = tf.matmul(tf.reshape(patches, (-1, patches.shape[-1])), kernel)
        if self.bias is not None:
            # Before the phases are interleaved: with the activation it is part of the product.
            product = tf.nn.bias_add(product, tf.tile(tf.cast(self.bias, product.dtype), [math.prod(self.factor)]))
        return _interleaved(activated(product, self.slope), axes, self.filters)

    def compute_output_shape(self, input_shape: tf.TensorShape) -> tuple[int | None, ...]:
        return (input_shape[0], *(axis.output for axis in self._axes(input_shape)), self.filters)

    def arithmetic(self) -> int:
        """Floating-point operations of the matrix product for one volume; a multiply-add counts 2."""
        rows = math.prod(axis.positions for axis in self._axes(self.input.shape))
        taps = math.prod(axis.taps for axis in self._axes(self.input.shape))
        return 2 * rows * taps * int(self.kernel.shape[3]) * math.prod(self.factor) * self.filters

    def get_config(self) -> dict[str, object]:
        return {**super().get_config(), "factor": self.factor, "pad": self.pad, "slope": self.slope}

    def _axes(self, shape: tf.Tensor) -> tuple[Axis, ...]:
        sizes = [int(size) for size in shape[1:4]]
        return tuple(Axis(*of_axis) for of_axis in zip(sizes, self.factor, self.kernel_size, self.pad))


def activated(x: tf.Tensor, slope: float) -> tf.Tensor:
    """(Leaky)ReLU with this slope below 0; 1: the values themselves."""
    if slope == 1:
        return x
    return tf.nn.relu(x) if slope == 0 else tf.nn.leaky_relu(x, slope)


def triple(values: Iterable[int]) -> Triple:
    """Three whole numbers."""
    x, y, z = (int(value) for value in values)
    return x, y, z


def _folded(kernel: tf.Tensor, axes: tuple[Axis, ...]) -> tf.Tensor:
    """(kx, ky, kz, I, O) -> (tx ty tz I, fx fy fz O): taps of all phases. Summed in float32 at least."""
    dtype = kernel.dtype
    wide = tf.float64 if dtype == tf.float64 else tf.float32
    selections = [tf.constant(axis.selection, wide) for axis in axes]
    inputs = int(kernel.shape[3])
    folded = tf.tensordot(selections[0], tf.cast(kernel, wide), [[2], [0]])  # fx tx ky kz I O
    folded = tf.tensordot(folded, selections[1], [[2], [2]])  # fx tx kz I O fy ty
    folded = tf.tensordot(folded, selections[2], [[2], [2]])  # fx tx I O fy ty fz tz
    folded = tf.transpose(folded, (1, 5, 7, 2, 0, 4, 6, 3))
    rows = math.prod(axis.taps for axis in axes) * inputs
    return tf.cast(tf.reshape(folded, (rows, -1)), dtype)


def _patches(volume: tf.Tensor, axes: tuple[Axis, ...]) -> tf.Tensor:
    """(B, X, Y, Z, I) -> (B, qx, qy, qz, tx ty tz I): what each position reads, zeros outside."""
    volume = tf.pad(volume, [[0, 0], *([axis.before, axis.behind] for axis in axes), [0, 0]])
    x, y, z = (axis.positions for axis in axes)
    taps = itertools.product(*(range(axis.taps) for axis in axes))
    return tf.concat([volume[:, i : i + x, j : j + y, k : k + z] for i, j, k in taps], axis=-1)


def _interleaved(product: tf.Tensor, axes: tuple[Axis, ...], filters: int) -> tf.Tensor:
    """(B qx qy qz, fx fy fz O) -> (B, X, Y, Z, O): phases between each other, what is too many cut off."""
    x, y, z = axes
    product = tf.reshape(product, (-1, y.positions, z.positions, x.factor, y.factor, z.factor * filters))
    product = tf.transpose(product, (0, 3, 1, 4, 2, 5))
    sizes = [axis.positions * axis.factor for axis in axes]
    product = tf.reshape(product, (-1, *sizes, filters))
    return _beginning(product, (x.output, y.output, z.output))


def _beginning(x: tf.Tensor, sizes: Triple) -> tf.Tensor:
    """The first cells along each axis. Its gradient is a padding, which TensorFlow computes faster than its own."""

    @differentiable
    def cut(x: tf.Tensor) -> Differentiable:
        def gradient(of_output: tf.Tensor) -> tf.Tensor:
            missing = ([0, size - kept] for size, kept in zip(x.shape[1:4], sizes))
            return tf.pad(of_output, [[0, 0], *missing, [0, 0]])

        return x[:, : sizes[0], : sizes[1], : sizes[2]], gradient

    return cut(x)
