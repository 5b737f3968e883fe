"""Ways to compute a convolution of stride 1 and its two gradients: the same sums of the same products in another order.

A way has three methods: the convolution, the gradient with respect to its input, and that with respect to its kernel.
Each is exact, so the three passes of a layer may go different ways (`convolution` chooses).

A register of AVX-512 holds 16 numbers, and a kernel of oneDNN computes 16 output channels at once. The published
networks have 1, 6 or 8, so what the ways have in common is that they make several cells of the output channels of one
position. The matrix units of a GPU want more channels still: there all depths are channels.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from tensorflow import Tensor

from caloscale.models.layers.folding import Triple, activated, triple


@dataclass(frozen=True)
class Shape:
    """Sizes of a convolution of stride 1 along x, y and z."""

    inputs: Triple
    """X, Y, Z of the volume (B, X, Y, Z, C)."""
    kernel: Triple
    """kx, ky, kz of the kernel (kx, ky, kz, C, O)."""
    before: Triple
    """Zeros in front of the volume."""
    behind: Triple
    """Zeros behind it."""

    @property
    def padded(self) -> Triple:
        """The volume with its zeros."""
        return triple(sum(one) for one in zip(self.inputs, self.before, self.behind))

    @property
    def outputs(self) -> Triple:
        """X', Y', Z' of the output (B, X', Y', Z', O)."""
        return triple(size - width + 1 for size, width in zip(self.padded, self.kernel))


@dataclass(frozen=True)
class Direct:
    """A convolution and its gradients by TensorFlow's own operations.

    x: (B, X, Y, Z, C); kernel: (kx, ky, kz, C, O); gradient: with respect to the output, (B, X', Y', Z', O). All of one
    type.
    """

    def forward(
        self, x: Tensor, kernel: Tensor, shape: Shape, bias: Tensor | None = None, slope: float = 1.0
    ) -> Tensor:
        """(B, X', Y', Z', O), with a bias (O,) added and a (Leaky)ReLU of this slope below 0 behind it."""
        y = _convolution(x, kernel, shape.before, shape.behind)
        return activated(y if bias is None else tf.nn.bias_add(y, bias), slope)

    def input_gradient(self, gradient: Tensor, kernel: Tensor, shape: Shape) -> Tensor:
        """(B, X, Y, Z, C)."""
        of_input = _input_gradient(gradient, kernel, shape.padded)
        return _cut(of_input, shape.before, shape.inputs)

    def kernel_gradient(self, x: Tensor, gradient: Tensor, shape: Shape) -> Tensor:
        """(kx, ky, kz, C, O)."""
        return _kernel_gradient(with_own_zeros(x, shape.before, shape.behind), gradient, shape.kernel)


@dataclass(frozen=True)
class Cells(Direct):
    """A convolution makes the outputs of Tx x Ty x Tz cells as channels, in strides of as many cells.

        out[T n + t', o] = sum over i of in[T n + i] W'[i, (t', o)],    W'[i, (t', o)] = W[i - t', o]

    along each axis, W' being T - 1 wider than W. Where T is above 1 along z only, the output is in order without a
    copy. The gradient with respect to the input is such a convolution too, with the kernel turned over.
    """

    size: Triple

    def forward(
        self, x: Tensor, kernel: Tensor, shape: Shape, bias: Tensor | None = None, slope: float = 1.0
    ) -> Tensor:
        counts, behind = self._counts(shape), self._behind(shape)
        y = _convolution(x, self._kernel(kernel), shape.before, behind, self.size)
        if bias is not None:
            y = tf.nn.bias_add(y, tf.tile(bias, [math.prod(self.size)]))
        y = activated(y, slope)
        y = tf.reshape(y, (-1, *counts, *self.size, kernel.shape[4]))
        if self.size[:2] != (1, 1):
            y = tf.transpose(y, (0, 1, 4, 2, 5, 3, 6, 7))
        sizes = [count * size for count, size in zip(counts, self.size)]
        return _cut(tf.reshape(y, (-1, *sizes, kernel.shape[4])), (0, 0, 0), shape.outputs)

    def input_gradient(self, gradient: Tensor, kernel: Tensor, shape: Shape) -> Tensor:
        turned = tf.transpose(tf.reverse(kernel, (0, 1, 2)), (0, 1, 2, 4, 3))
        before, behind = (
            triple(width - 1 - zeros for width, zeros in zip(shape.kernel, side))
            for side in (shape.before, shape.behind)
        )
        return self.forward(gradient, turned, Shape(shape.outputs, shape.kernel, before, behind))

    def kernel_gradient(self, x: Tensor, gradient: Tensor, shape: Shape) -> Tensor:
        counts, channels = self._counts(shape), gradient.shape[4]
        missing = triple(count * size - output for count, size, output in zip(counts, self.size, shape.outputs))
        gradient = _with_zeros(gradient, (0, 0, 0), missing)
        (nx, ny, nz), (sx, sy, sz) = counts, self.size
        if self.size[:2] != (1, 1):
            gradient = tf.reshape(gradient, (-1, nx, sx, ny, sy, nz, sz, channels))
            gradient = tf.transpose(gradient, (0, 1, 3, 5, 2, 4, 6, 7))
        gradient = tf.reshape(gradient, (-1, *counts, math.prod(self.size) * channels))
        x = with_own_zeros(x, shape.before, self._behind(shape))
        widths = triple(width + size - 1 for width, size in zip(shape.kernel, self.size))
        of_kernel = _kernel_gradient(x, gradient, widths, self.size)
        of_kernel = tf.reshape(of_kernel, (*of_kernel.shape[:4], math.prod(self.size), channels))
        parts = [
            of_kernel[i : i + shape.kernel[0], j : j + shape.kernel[1], k : k + shape.kernel[2], :, number]
            for number, (i, j, k) in enumerate(itertools.product(*map(range, self.size)))
        ]
        return tf.add_n(parts)

    def _counts(self, shape: Shape) -> Triple:
        return triple(-(-output // size) for output, size in zip(shape.outputs, self.size))

    def _behind(self, shape: Shape) -> Triple:
        """Zeros behind the volume, so that all cells of the last stride are made."""
        extents = zip(self._counts(shape), self.size, shape.kernel, shape.inputs, shape.before)
        return triple(count * size + width - 1 - cells - before for count, size, width, cells, before in extents)

    def _kernel(self, kernel: Tensor) -> Tensor:
        """(kx + Tx - 1, ky + Ty - 1, kz + Tz - 1, C, Tx Ty Tz O)."""
        shifted = [
            tf.pad(kernel, [*([at, size - 1 - at] for at, size in zip(place, self.size)), [0, 0], [0, 0]])
            for place in itertools.product(*map(range, self.size))
        ]
        return tf.concat(shifted, axis=4)


@dataclass(frozen=True)
class Depths(Direct):
    """A convolution in two dimensions, from Z C to Z' O channels: all depths of a position at once.

        out[z', o] = sum over z, c of in[z, c] W'[(z, c), (z', o)],    W'[z, z'] = W[z - z' + zeros in front]

    along z, and 0 outside of the kernel. Volumes are in this order in memory, so that nothing is copied. The published
    networks then have 4 to 7 times the products, in a form that fills the matrix units of a GPU.
    """

    def forward(
        self, x: Tensor, kernel: Tensor, shape: Shape, bias: Tensor | None = None, slope: float = 1.0
    ) -> Tensor:
        x = _with_zeros(x, *self._across(shape))
        y = tf.nn.conv2d(_flat(x), self._band(kernel, shape), 1, "VALID")
        if bias is not None:
            y = tf.nn.bias_add(y, tf.tile(bias, [shape.outputs[2]]))
        return tf.reshape(activated(y, slope), (-1, *shape.outputs, kernel.shape[4]))

    def input_gradient(self, gradient: Tensor, kernel: Tensor, shape: Shape) -> Tensor:
        sizes, channels = (*shape.padded[:2], shape.inputs[2]), kernel.shape[3]
        of_input = tf.raw_ops.Conv2DBackpropInput(
            input_sizes=tf.concat([tf.shape(gradient)[:1], [*sizes[:2], sizes[2] * channels]], axis=0),
            filter=self._band(kernel, shape),
            out_backprop=_flat(gradient),
            strides=[1] * 4,
            padding="VALID",
        )
        return _cut(tf.reshape(of_input, (-1, *sizes, channels)), self._across(shape)[0], shape.inputs)

    def kernel_gradient(self, x: Tensor, gradient: Tensor, shape: Shape) -> Tensor:
        channels, filters = x.shape[4], gradient.shape[4]
        (kx, ky, _), depths = shape.kernel, (shape.inputs[2], shape.outputs[2])
        of_band = tf.raw_ops.Conv2DBackpropFilter(
            input=_flat(_with_zeros(x, *self._across(shape))),
            filter_sizes=(kx, ky, depths[0] * channels, depths[1] * filters),
            out_backprop=_flat(gradient),
            strides=[1] * 4,
            padding="VALID",
        )
        of_band = tf.reshape(of_band, (kx, ky, depths[0], channels, depths[1], filters))
        return tf.einsum("zwk,xyzcwo->xykco", self._places(shape, of_band.dtype), of_band)

    def _across(self, shape: Shape) -> tuple[Triple, Triple]:
        """Zeros in front and behind along x and y; those along z are in the band."""
        return (*shape.before[:2], 0), (*shape.behind[:2], 0)

    def _places(self, shape: Shape, dtype: tf.DType) -> Tensor:
        """1 where depth z of the input meets place k of the kernel for depth z' of the output: (Z, Z', kz)."""
        z, made, k = np.ogrid[: shape.inputs[2], : shape.outputs[2], : shape.kernel[2]]
        return tf.constant(z - made + shape.before[2] == k, dtype)

    def _band(self, kernel: Tensor, shape: Shape) -> Tensor:
        """(kx, ky, Z C, Z' O)."""
        band = tf.einsum("zwk,xykco->xyzcwo", self._places(shape, kernel.dtype), kernel)
        return tf.reshape(band, (*shape.kernel[:2], shape.inputs[2] * kernel.shape[3], -1))


def _flat(x: Tensor) -> Tensor:
    """(B, X, Y, Z, C) -> (B, X, Y, Z C)."""
    return tf.reshape(x, (-1, *x.shape[1:3], x.shape[3] * x.shape[4]))


def _convolution(x: Tensor, kernel: Tensor, before: Triple, behind: Triple, strides: Triple = (1, 1, 1)) -> Tensor:
    """With zeros around the volume, and the plane of zeros that bfloat16 may need on a processor."""
    if x.dtype == tf.bfloat16 and needs_plane(int(kernel.shape[3]), int(kernel.shape[2])):
        behind = (*behind[:2], behind[2] + 1)
        kernel = tf.pad(kernel, [[0, 0], [0, 0], [0, 1], [0, 0], [0, 0]])
    return tf.nn.conv3d(_with_zeros(x, before, behind), kernel, [1, *strides, 1], "VALID")


def needs_plane(channels: int, width: int) -> bool:
    """Whether oneDNN may compute a convolution in bfloat16 wrongly, so that the kernel gets a plane of zeros.

    channels: of the input; width: of the kernel along z. On processors with AMX, oneDNN multiplies the numbers of all
    channels and places along z at once where there are less than 16 channels, and is wrong (results of the right size
    with no relation to the truth) where they fill several whole rows of a tile, of 32 numbers: measured with oneDNN
    3.7.3 in TensorFlow 2.21 and in OpenVINO 2026.4. A kernel that is wider by one plane of zeros gives the same sums.
    """
    return channels < 16 and channels % 2 == 0 and channels * width > 32 and channels * width % 32 == 0


def _input_gradient(gradient: Tensor, kernel: Tensor, inputs: Triple) -> Tensor:
    sizes = tf.concat([tf.shape(gradient)[:1], [*inputs, kernel.shape[3]]], axis=0)
    of_input = tf.raw_ops.Conv3DBackpropInputV2(
        input_sizes=sizes, filter=kernel, out_backprop=gradient, strides=[1] * 5, padding="VALID"
    )
    return tf.ensure_shape(of_input, (None, *inputs, kernel.shape[3]))


def _kernel_gradient(x: Tensor, gradient: Tensor, kernel: Triple, strides: Triple = (1, 1, 1)) -> Tensor:
    sizes = (*kernel, x.shape[4], gradient.shape[4])
    of_kernel = tf.raw_ops.Conv3DBackpropFilterV2(
        input=x, filter_sizes=sizes, out_backprop=gradient, strides=[1, *strides, 1], padding="VALID"
    )
    return tf.ensure_shape(of_kernel, sizes)


def _zeros(before: Triple, behind: Triple) -> list[list[int]]:
    """Zeros around a volume (B, X, Y, Z, C), as `tf.pad` takes them; empty where there are none."""
    around = [[front, back] for front, back in zip(before, behind)]
    return [[0, 0], *around, [0, 0]] if any((*before, *behind)) else []


def _with_zeros(x: Tensor, before: Triple, behind: Triple) -> Tensor:
    zeros = _zeros(before, behind)
    return tf.pad(x, zeros) if zeros else x


def with_own_zeros(x: Tensor, before: Triple, behind: Triple) -> Tensor:
    """As `_with_zeros`, by an operation that TensorFlow does not merge with the convolution.

    TensorFlow's remapper makes zeros in front of a convolution part of it, without asking who else reads them. If the
    gradient did, the remapper would fail and leave the graph of the step as it is. It also loses the slope of a leaky
    ReLU behind zeros and a 3D convolution whose bias is 0 (TensorFlow 2.21).
    """
    zeros = _zeros(before, behind)
    return tf.raw_ops.PadV2(input=x, paddings=zeros, constant_values=tf.zeros((), x.dtype)) if zeros else x


def _cut(x: Tensor, begin: Triple, sizes: Triple) -> Tensor:
    if tuple(x.shape[1:4]) == sizes:
        return x
    (i, j, k), (nx, ny, nz) = begin, sizes
    return x[:, i : i + nx, j : j + ny, k : k + nz]
