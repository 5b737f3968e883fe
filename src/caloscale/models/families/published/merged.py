"""The published generators with their layers merged, for inference: the same function in fewer and larger operations.

- Convolution, bias and activation are one step; batch normalisation behind it is one factor and one term for each
  channel (Ioffe & Szegedy 2015, section 3.1): its statistics do not change any more.
- Convolutions behind an upsampling are folded (`folding`), others computed in blocks of depths (`depth_blocks`), as
  `_block_size` chooses. Weights are rearranged in double precision, once.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow import Tensor

from caloscale.models.families.published.depth_blocks import BlockConvolution, Blocks, UpsampledBlocks
from caloscale.models.layers.convolution import VECTOR
from caloscale.models.layers.convolution_ways import needs_plane, with_own_zeros
from caloscale.models.layers.folding import Triple, UpsampledConv3D, activated, triple


@dataclass
class Stage:
    """A convolution of stride 1 with all that is between it and the next one."""

    kernel: NDArray[np.float32]
    """(kx, ky, kz, C, O)."""
    bias: NDArray[np.float32]
    """(O,)."""
    upsampling: Triple
    pad: Triple
    same: bool
    """Zeros for an output of equal size, instead of `pad`."""
    slope: float = 1.0
    """Of the activation below 0."""
    norm: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
    """Factor and term of the batch normalisation, (O,)."""

    @property
    def filters(self) -> int:
        """O."""
        return int(self.kernel.shape[-1])

    @property
    def sizes(self) -> Triple:
        """kx, ky, kz."""
        return triple(self.kernel.shape[:3])


def merged(
    network: tf.keras.Model, precision: str = "float32", *, rounded_later: bool = False
) -> Callable[[Tensor], Tensor]:
    """The function of a published generator, latent (B, latentSize) -> (B, X, Y, Z, 1), with the weights it has now.

    precision: float32 or bfloat16, of all that is behind the dense layer. Results are float32.
    rounded_later: whether a runtime may compute it in bfloat16 (`needs_plane`).
    Raises ValueError for a network that is not a dense layer and a chain of convolutions.
    """
    dense, shape, stages = _stages(network)
    weights, bias = (np.asarray(one) for one in dense.get_weights())

    def generate(latent: Tensor) -> Tensor:
        x = tf.cast(tf.reshape(tf.matmul(latent, weights) + bias, (-1, *shape)), precision)
        blocks: Blocks | None = None
        for number, stage in enumerate(stages):
            behind = stages[number + 1 :]
            if stage.upsampling != (1, 1, 1):
                x, blocks = _upsampled(x if blocks is None else _volume(x, blocks), stage, behind)
            elif blocks is None:
                x = _plain(x, stage, rounded_later)
            else:
                x, blocks = _in_blocks(x, blocks, stage, behind)
        return tf.cast(x if blocks is None else _volume(x, blocks), tf.float32)

    return generate


def _stages(network: tf.keras.Model) -> tuple[tf.keras.layers.Dense, tuple[int, ...], list[Stage]]:
    """The dense layer, the shape behind it, and the convolutions."""
    layers = tf.keras.layers
    dense, shape = None, ()
    stages: list[Stage] = []
    upsampling, pad = (1, 1, 1), (0, 0, 0)
    for layer in network.layers:
        if isinstance(layer, layers.Dense):
            dense = layer
        elif isinstance(layer, layers.Reshape):
            shape = tuple(layer.target_shape)
        elif isinstance(layer, layers.UpSampling3D):
            upsampling = tuple(layer.size)
        elif isinstance(layer, layers.ZeroPadding3D):
            pad = tuple(before for before, _ in layer.padding)
        elif isinstance(layer, layers.Conv3D | UpsampledConv3D):
            if isinstance(layer, UpsampledConv3D):
                upsampling = layer.factor
            pad = getattr(layer, "pad", pad)
            kernel, *rest = (np.asarray(one) for one in layer.get_weights())
            bias = rest[0] if rest else np.zeros(kernel.shape[-1], np.float32)
            same, slope = getattr(layer, "padding", "valid") == "same", getattr(layer, "slope", 1.0)
            stages.append(Stage(kernel, bias, upsampling, pad, same, slope))
            upsampling, pad = (1, 1, 1), (0, 0, 0)
        elif isinstance(layer, layers.ReLU):
            stages[-1].slope = 0.0
        elif isinstance(layer, layers.LeakyReLU):
            stages[-1].slope = float(layer.negative_slope)
        elif isinstance(layer, layers.BatchNormalization):
            gamma, beta, mean, variance = (np.asarray(one, float) for one in layer.get_weights())
            scale = gamma / np.sqrt(variance + layer.epsilon)
            stages[-1].norm = scale, beta - mean * scale
        elif not isinstance(layer, layers.InputLayer):
            raise ValueError(f"a layer {type(layer).__name__} cannot be merged")
    if dense is None:
        raise ValueError("a network without a dense layer cannot be merged")
    return dense, shape, stages


def _block_size(filters: int) -> int:
    """Depths of a block, by the number of output channels; 1: without blocks.

    5 makes 30 channels of 6, and a kernel of 6 reads exactly two blocks. With registers that are narrower than those of
    AVX-512 it is not the best size, but never a bad one: plain 3D convolutions are slowest there.
    """
    return 5 if filters < VECTOR else 1


def _upsampled(x: Tensor, stage: Stage, behind: list[Stage]) -> tuple[Tensor, Blocks]:
    """From a volume to blocks: patches of the original positions, a product for each block, phases interleaved."""
    size = _block_size(stage.filters)
    rows, columns, depth = (int(n) for n in x.shape[1:4])
    shape = (rows, columns, depth)
    form = UpsampledBlocks(shape, stage.upsampling, stage.sizes, stage.pad, size, _phase(size, behind))
    before = max(0, -int(form.depths.min()))
    zeros = (before, max(0, int(form.depths.max()) + 1 - shape[2]))
    x = tf.pad(x, [[0, 0], *([axis.before, axis.behind] for axis in (form.x, form.y)), zeros, [0, 0]])
    rows, columns = form.x.positions, form.y.positions
    taps = [(i, j) for i in range(form.x.taps) for j in range(form.y.taps)]
    patches = tf.stack([x[:, i : i + rows, j : j + columns] for i, j in taps], axis=3)
    starts = [int(first) + before for first in form.depths[:, 0]]
    patches = tf.stack([patches[:, :, :, :, first : first + form.taps] for first in starts], axis=0)
    kernel = form.kernel(stage.kernel)
    product = tf.matmul(tf.reshape(patches, (len(kernel), -1, kernel.shape[1])), _like(x, kernel))
    x = activated(product + _like(x, form.columns(stage.bias)), stage.slope)
    if stage.norm:
        scale, shift = (_like(x, form.columns(values)) for values in stage.norm)
        x = x * scale + shift
    inner = form.y.factor * size * stage.filters
    x = tf.reshape(x, (len(kernel), -1, rows, columns, form.x.factor, inner))
    x = tf.transpose(x, (1, 0, 2, 4, 3, 5))
    sizes = (rows * form.x.factor, columns * form.y.factor)
    x = tf.reshape(x, (-1, len(kernel), *sizes, size * stage.filters))
    return x[:, :, : form.x.output, : form.y.output], form.output


def _in_blocks(x: Tensor, blocks: Blocks, stage: Stage, behind: list[Stage]) -> tuple[Tensor, Blocks]:
    form = BlockConvolution(blocks, stage.sizes[2], stage.pad[2])
    if form.behind < 0:
        x = x[:, : form.behind]
    zeros = [[form.before, max(0, form.behind)], *([n, n] for n in stage.pad[:2])]
    if any(map(any, zeros)):
        x = tf.pad(x, [[0, 0], *zeros, [0, 0]])
    x = tf.nn.conv3d(x, _like(x, form.kernel(stage.kernel)), [1] * 5, "VALID")
    x = activated(tf.nn.bias_add(x, _like(x, np.tile(stage.bias, blocks.size))), stage.slope)
    mask = form.output.mask()
    if not behind or behind[0].upsampling != (1, 1, 1) or not behind[0].pad[2]:
        mask = np.ones((1, blocks.size))  # nothing reads the other places

    def of_channels(values: NDArray[np.floating]) -> Tensor:
        return _like(x, (mask[:, :, None] * values).reshape(1, len(mask), 1, 1, -1))

    if stage.norm:
        scale, shift = map(of_channels, stage.norm)
        x = x * scale + shift
    elif not mask.all():
        x = x * of_channels(np.ones(stage.filters))
    return x, form.output


def _plain(x: Tensor, stage: Stage, rounded_later: bool) -> Tensor:
    before = behind = stage.pad
    if stage.same:
        before, behind = (triple((width - more) // 2 for width in stage.sizes) for more in (1, 0))
    kernel = stage.kernel
    if (rounded_later or x.dtype == tf.bfloat16) and needs_plane(int(x.shape[-1]), stage.sizes[2]):
        behind = (*behind[:2], behind[2] + 1)
        kernel = np.pad(kernel, [(0, 0), (0, 0), (0, 1), (0, 0), (0, 0)])
    x = tf.nn.conv3d(with_own_zeros(x, before, behind), _like(x, kernel), [1] * 5, "VALID")
    x = activated(tf.nn.bias_add(x, _like(x, stage.bias)), stage.slope)
    if stage.norm:
        scale, shift = (_like(x, values) for values in stage.norm)
        x = x * scale + shift
    return x


def _volume(x: Tensor, blocks: Blocks) -> Tensor:
    """(B, blocks, X, Y, T C) -> (B, X, Y, Z, C)."""
    _, count, rows, columns, channels = x.shape
    x = tf.reshape(x, (-1, count, rows, columns, blocks.size, channels // blocks.size))
    x = tf.transpose(x, (0, 2, 3, 1, 4, 5))
    x = tf.reshape(x, (-1, rows, columns, count * blocks.size, channels // blocks.size))
    return x[:, :, :, blocks.phase : blocks.phase + blocks.depths]


def _phase(size: int, behind: list[Stage]) -> int:
    """The phase with which all convolutions up to the next upsampling begin with a block, if there is one."""
    zeros = 0
    for stage in behind:
        if stage.upsampling != (1, 1, 1):
            break
        zeros += stage.pad[2]
    return min(size - 1, zeros)


def _like(x: Tensor, values: NDArray[np.floating]) -> NDArray[np.floating]:
    """In the precision of x."""
    return np.asarray(values, x.dtype.as_numpy_dtype)
