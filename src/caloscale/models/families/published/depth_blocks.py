"""A convolution of a volume whose depth is cut into blocks: the same sums, in larger pieces, for inference.

The published networks have 6 or 8 channels, and a vector register of AVX-512 holds 16 numbers: a kernel that computes
16 output channels at once is idle for more than half of the time. So T neighbouring depths become channels: a volume
(B, X, Y, Z, C) is kept as (B, blocks, X, Y, T C), and a convolution along the depth becomes one along the blocks,

    out[b, (t', o)] = sum over j, t, c of in[b + j, (t, c)] W'[j, (t, c), (t', o)],
    W'[j, (t, c), (t', o)] = W[k, c, o] with k = j T + t - t' - shift, and 0 where k is outside of the kernel.

Each output is the same sum of the same products; what is added are products with 0. T = 5 makes 30 channels of 6, two
registers with 30 of 32 places used, and a kernel of 6 then reads 10 depths, exactly two blocks: 10/6 of the arithmetic
at more than twice the speed.

Blocks begin `phase` depths before the volume, so that windows that begin with zeros around the volume begin with a
block. The places of the first and the last block that do not belong to the volume must hold 0 (`mask`) before a
convolution with zeros around the volume.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caloscale.models.layers.folding import Axis, Triple

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Blocks:
    """How depths are kept: depth z has number (z + phase) % size in block (z + phase) // size."""

    size: int
    """T: depths of a block."""
    phase: int
    """Places of the first block that are before the volume."""
    depths: int
    """Z: depths of the volume."""

    @property
    def count(self) -> int:
        """Blocks."""
        return -(-(self.phase + self.depths) // self.size)

    def mask(self) -> Doubles:
        """1 for the depths of the volume, 0 for other places: (blocks, T)."""
        depth = np.arange(self.count * self.size) - self.phase
        return ((depth >= 0) & (depth < self.depths)).astype(float).reshape(self.count, self.size)


class BlockConvolution:
    """A convolution along the depth, `kernel` values wide with `pad` zeros on both sides, of a volume in blocks."""

    def __init__(self, blocks: Blocks, kernel: int, pad: int) -> None:
        size = blocks.size
        self.taps = -(-(size + kernel - 1) // size)
        """Blocks that a block of the output reads."""
        self.before = max(0, -((blocks.phase - pad) // size))
        """Blocks of zeros in front."""
        self.output = Blocks(size, blocks.phase - pad + self.before * size, blocks.depths + 2 * pad - kernel + 1)
        self.behind = self.output.count + self.taps - 1 - self.before - blocks.count
        """Blocks of zeros at the end; negative: blocks that are not read."""

    def kernel(self, kernel: NDArray[np.floating]) -> Doubles:
        """W' (taps, kx, ky, T C, T O) of W (kx, ky, kz, C, O)."""
        x, y, depth, inputs, outputs = kernel.shape
        size = self.output.size
        wide = np.zeros((self.taps, x, y, size, inputs, size, outputs))
        for block, read, made in itertools.product(range(self.taps), range(size), range(size)):
            k = block * size + read - made
            if 0 <= k < depth:
                wide[block, :, :, read, :, made] = kernel[:, :, k]
        return wide.reshape(self.taps, x, y, size * inputs, size * outputs)


class UpsampledBlocks:
    """A convolution behind nearest upsampling (see `folding`) whose output is in blocks.

    Along x and y it is folded: short kernels for each phase of the upsampling. Along the depth each block has
    another kernel, on the `taps` original depths that its window meets. All blocks are one batch of matrix products,
    with original positions as rows and (phase x, phase y, T, O) as columns.
    """

    def __init__(self, shape: Triple, factor: Triple, kernel: Triple, pad: Triple, size: int, phase: int) -> None:
        """shape: X, Y, Z before the upsampling. size, phase: see `Blocks`."""
        self.x, self.y, depth = (Axis(*axis) for axis in zip(shape, factor, kernel, pad, strict=True))
        self.output = Blocks(size, phase, depth.output)
        places = np.arange(self.output.count)[:, None] * size - phase + np.array([0, size + kernel[2] - 2])
        first, last = ((places - pad[2]) // factor[2]).T
        self.taps = int((last - first).max()) + 1
        self.depths = first[:, None] + np.arange(self.taps)
        """Original depths that each block reads: (blocks, taps); some are outside of the volume."""
        self._selection = np.zeros((self.output.count, self.taps, size, kernel[2]))
        for block, made, k in itertools.product(*map(range, (self.output.count, size, kernel[2]))):
            if self.output.mask()[block, made]:
                read = (block * size + made - phase + k - pad[2]) // factor[2] - first[block]
                self._selection[block, read, made, k] = 1

    def kernel(self, kernel: NDArray[np.floating]) -> Doubles:
        """(blocks, tx ty taps C, fx fy T O) of (kx, ky, kz, C, O)."""
        parts = (self.x.selection.astype(float), self.y.selection.astype(float), self._selection)
        folded = np.einsum("pxi,qyj,nztk,ijkco->nxyzcpqto", *parts, np.asarray(kernel, float), optimize=True)
        return folded.reshape(len(folded), np.prod(folded.shape[1:5], dtype=int), -1)

    def columns(self, values: NDArray[np.floating]) -> Doubles:
        """One value for each output channel (O,) as rows of the product (blocks, 1, fx fy T O); 0 outside."""
        masked = self.output.mask()[:, None, None, :, None] * values
        repeated = np.broadcast_to(
            masked, (self.output.count, self.x.factor, self.y.factor, self.output.size, len(values))
        )
        return repeated.reshape(self.output.count, 1, -1)
