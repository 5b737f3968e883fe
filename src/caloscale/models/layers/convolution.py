"""How a convolution is computed.

The networks say what is computed; how belongs here. A convolution behind a large upsampling is folded (`folding`).
Measured with AVX-512, forward and with gradients: folding is 10 and 7 times faster behind x6 x6 x6 (variable-angle);
behind x2 x2 x2 and x2 x2 x3 (fixed-angle) 1.4 to 1.8 times faster forward, and with gradients 1.4 to 1.7 times slower:
these are not folded. All others go one of three ways (`convolution_ways`), by the number of channels that a pass
computes and the processor or GPU.
"""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import tensorflow as tf
from tensorflow import Tensor

from caloscale.errors import InputError
from caloscale.models.layers.convolution_ways import Cells, Depths, Direct, Shape, needs_plane
from caloscale.models.layers.folding import Triple as Triple
from caloscale.models.layers.folding import UpsampledConv3D, activated, triple
from caloscale.models.layers.plain import Differentiable, differentiable, register
from caloscale.processor import CPUINFO, instructions

VECTOR = 16
"""Numbers of type float32 in a register of AVX-512. A kernel of oneDNN computes as many output channels at once."""
CELLS: Mapping[int, Triple] = MappingProxyType({1: (4, 2, 2), 6: (1, 1, 2), 8: (1, 1, 2)})
"""Cells along x, y and z that a pass of a training computes at once with such registers, by the number of its channels
(of the output; for the gradient with respect to the input, of the input); others: one.

Measured on an AMD EPYC, in float32 and bfloat16 alike (docs/computing-training.md)."""
BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16"})
"""Instructions that multiply numbers of type bfloat16 and add the products up in float32."""


def has_accelerator() -> bool:
    """Whether TensorFlow sees a GPU or TPU, which computes convolutions by other programs than a processor."""
    return any(tf.config.list_physical_devices(kind) for kind in ("GPU", "TPU"))


@cache
def has_matrix_units() -> bool:
    """Whether TensorFlow sees GPUs that multiply matrices in TF32 and bfloat16: those of NVIDIA since Ampere."""
    details = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.list_physical_devices("GPU")]
    return bool(details) and all(gpu.get("compute_capability", (0, 0)) >= (8, 0) for gpu in details)


def _one_dnn_may_be_wide() -> bool:
    """Whether TensorFlow computes by oneDNN, and with registers as wide as the processor has."""
    allowed = os.environ.get("ONEDNN_MAX_CPU_ISA", os.environ.get("DNNL_MAX_CPU_ISA", "DEFAULT")).upper()
    return os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1") != "0" and allowed.startswith(
        ("AVX512", "AVX10", "DEFAULT", "ALL")
    )


@cache
def has_wide_registers(cpuinfo: Path = CPUINFO) -> bool:
    """Whether oneDNN computes here, with registers of `VECTOR` numbers."""
    return not has_accelerator() and _one_dnn_may_be_wide() and "avx512f" in instructions(cpuinfo)


def has_bfloat16(cpuinfo: Path = CPUINFO) -> bool:
    """Whether TensorFlow adds up products of bfloat16 in float32 here.

    A processor without these instructions, and one whose oneDNN is off, adds up in bfloat16: convolutions are wrong by
    3 to 5% of their largest result, showers of a published generator by 20% of the largest cell.
    """
    return has_accelerator() or (_one_dnn_may_be_wide() and not BFLOAT16.isdisjoint(instructions(cpuinfo)))


def check_precision(precision: str, field: str) -> None:
    """Raises InputError for a precision whose results are wrong here."""
    if precision == "bfloat16" and not has_bfloat16():
        problem = "gives results that are wrong by several per cent here: TensorFlow adds up in bfloat16 on a "
        problem += f"processor without oneDNN and one of the instructions {' and '.join(sorted(BFLOAT16))}"
        remedy = f"set {field} to float32, or use such a processor (without TF_ENABLE_ONEDNN_OPTS=0, train.oneDnn: "
        remedy += "false and ONEDNN_MAX_CPU_ISA), a GPU or a TPU"
        raise InputError(problem, field=field, value=precision, remedy=remedy)


_asked_for_keras: ContextVar[bool] = ContextVar("asked_for_keras", default=False)


@contextmanager
def computed_by_keras() -> Iterator[None]:
    """Convolutions and batch normalisations that are made within are computed by Keras' own layers."""
    token = _asked_for_keras.set(True)
    try:
        yield
    finally:
        _asked_for_keras.reset(token)


def is_by_keras() -> bool:
    """Whether layers that are made now are computed by Keras' own ones: they are asked for, or faster here."""
    return _asked_for_keras.get() or not has_wide_registers()


@register
class PaddedConv3D(tf.keras.layers.Conv3D):  # type: ignore[misc]
    """ZeroPadding3D(pad), Conv3D of stride 1 and (Leaky)ReLU in one.

    Input (B, X, Y, Z, C), output (B, X + 2px - kx + 1, ..., filters), or of equal size with padding "same". Weights,
    their names and shapes are those of Conv3D. slope: of the activation below 0; 1: no activation. Input must have its
    sizes fixed, but for B.
    """

    def __init__(
        self, filters: int, kernel_size: Triple, pad: Triple = (0, 0, 0), slope: float = 1.0, **options: object
    ) -> None:
        super().__init__(filters, kernel_size, **options)
        self.pad, self.slope = triple(pad), float(slope)
        self._by_depths = has_matrix_units() and not _asked_for_keras.get()
        self._by_keras = is_by_keras() and not self._by_depths

    def build(self, input_shape: tf.TensorShape) -> None:
        super().build(self._padded(input_shape))

    def call(self, inputs: Tensor) -> Tensor:
        if self._by_keras and not self._wrong_by_keras(inputs):
            zeros = [[0, 0], *([n, n] for n in self.pad), [0, 0]]
            return activated(super().call(tf.pad(inputs, zeros) if any(self.pad) else inputs), self.slope)
        bias = None if self.bias is None else tf.convert_to_tensor(self.bias)
        ways = self._way(int(self.filters)), self._way(int(inputs.shape[-1]))
        kernel = tf.convert_to_tensor(self.kernel)
        return _convolved(inputs, kernel, bias, self._sizes(inputs.shape), self.slope, *ways)

    def _sizes(self, inputs: tf.TensorShape) -> Shape:
        sizes, kernel = triple(inputs[1:4]), triple(self.kernel_size)
        before = behind = self.pad
        if self.padding == "same":
            before, behind = (triple((width - more) // 2 for width in kernel) for more in (1, 0))
        return Shape(sizes, kernel, before, behind)

    def compute_output_shape(self, input_shape: tf.TensorShape) -> tf.TensorShape:
        return super().compute_output_shape(self._padded(input_shape))

    def get_config(self) -> dict[str, object]:
        return {**super().get_config(), "pad": self.pad, "slope": self.slope}

    def _padded(self, shape: tf.TensorShape) -> tuple[int | None, ...]:
        batch, *sizes, channels = shape
        return (batch, *(size + 2 * zeros for size, zeros in zip(sizes, self.pad)), channels)

    def _wrong_by_keras(self, inputs: Tensor) -> bool:
        if inputs.dtype != tf.bfloat16 or has_accelerator():
            return False
        return needs_plane(int(inputs.shape[-1]), int(self.kernel_size[2]))

    def _way(self, channels: int) -> Direct:
        if self._by_depths:
            return Depths()
        cells = None if self._by_keras else CELLS.get(channels)
        return Direct() if cells is None else Cells(cells)


def _convolved(
    x: Tensor, kernel: Tensor, bias: Tensor | None, shape: Shape, slope: float, way: Direct, backward: Direct
) -> Tensor:
    """Convolution, bias and activation, of which the gradient of the input has another way, `backward`."""

    @differentiable
    def convolve(x: Tensor, kernel: Tensor, *bias: Tensor) -> Differentiable:
        y = way.forward(x, kernel, shape, bias[0] if bias else None, slope)

        def gradients(gradient: Tensor) -> list[Tensor]:
            # Without the dependency zeros around the input are made as soon as it is there, and kept until now.
            with tf.control_dependencies([gradient]):
                if slope == 0:
                    gradient = tf.raw_ops.ReluGrad(gradients=gradient, features=y)
                elif slope != 1:
                    # The output has the sign of the input.
                    gradient = tf.raw_ops.LeakyReluGrad(gradients=gradient, features=y, alpha=slope)
                of_input = backward.input_gradient(gradient, kernel, shape)
                of_kernel = way.kernel_gradient(x, gradient, shape)
                return [of_input, of_kernel, *(_sum_of_channels(gradient) for _ in bias)]

        return y, gradients

    return convolve(x, kernel) if bias is None else convolve(x, kernel, bias)


def _sum_of_channels(x: Tensor) -> Tensor:
    """(B, X, Y, Z, C) -> (C,), summed in float32 at least. First over rows of many numbers, which is faster."""
    channels = x.shape[-1]
    rows = tf.reshape(x, (-1, math.prod(x.shape[2:])))
    wide = rows if rows.dtype == tf.float64 else tf.cast(rows, tf.float32)
    return tf.cast(tf.reduce_sum(tf.reshape(tf.reduce_sum(wide, axis=0), (-1, channels)), axis=0), x.dtype)


def convolution(
    x: Tensor,
    filters: int,
    kernel: Triple,
    *,
    upsampling: Triple | None = None,
    pad: Triple | Literal["same"] = (0, 0, 0),
    slope: float = 1.0,
    initializer: str = "glorot_uniform",
    bias: bool = True,
    name: str,
) -> Tensor:
    """A convolution of stride 1 of (B, X, Y, Z, C) showers with (kx, ky, kz) kernels, and a (Leaky)ReLU.

    upsampling: how often each cell is repeated along each axis before that (nearest neighbour); the convolution is
    folded then, and pad must be numbers.
    pad: zeros on both sides of each (upsampled) axis before a valid convolution, or "same" for an output of equal
    size (an even kernel has its additional zero behind).
    slope: of the activation below 0; 1: no activation.
    """
    options: dict[str, Any] = {"kernel_initializer": initializer, "use_bias": bias, "name": name}
    if upsampling is not None:
        assert pad != "same"
        return UpsampledConv3D(filters, kernel, upsampling, pad, slope=slope, **options)(x)
    if pad == "same":
        return PaddedConv3D(filters, kernel, slope=slope, padding="same", **options)(x)
    return PaddedConv3D(filters, kernel, pad, slope, **options)(x)
