"""The three passes of the 3D convolutions of networks, each alone, by given ways."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar, get_args

import tensorflow as tf

from caloscale.models.layers.convolution import PaddedConv3D
from caloscale.models.layers.convolution_ways import Direct, Shape, Ways
from caloscale.models.layers.folding import Triple, UpsampledConv3D, triple

Pass = Literal["forward", "input_gradient", "kernel_gradient"]
"""The convolution with its bias and activation; the gradients of the convolution alone."""
PASSES: tuple[Pass, ...] = get_args(Pass)
Passes = dict[Pass, Callable[[], Any]]
"""Each computes a batch."""
DIRECT = Ways(Direct(), Direct(), Direct())
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Convolution:
    """What a layer computes."""

    shape: Shape
    """Sizes of the convolution; behind an upsampling those of the upsampled volume."""
    channels: int
    """Of the input."""
    filters: int
    """Channels of the output."""
    slope: float
    """Of the activation below 0; 1: none."""
    bias: bool
    """Whether it has one."""
    upsampling: Triple = (1, 1, 1)
    """How often a cell is repeated along each axis before the convolution."""

    @property
    def flop(self) -> int:
        """Operations of a pass for one shower, not folded; a multiply-add counts 2."""
        return 2 * math.prod((*self.shape.outputs, *self.shape.kernel, self.channels, self.filters))


@dataclass(frozen=True)
class Operands:
    """Random tensors for the passes of a convolution."""

    x: Any
    """(B, X, Y, Z, channels), before the upsampling."""
    kernel: Any
    """(kx, ky, kz, channels, filters)."""
    bias: Any
    """(filters,), or None."""
    gradient: Any
    """Of the output, (B, X', Y', Z', filters)."""


def convolution_layers(network: Any) -> dict[Convolution, list[Any]]:
    """The layers `PaddedConv3D` and `UpsampledConv3D` of a Keras model, by what they compute."""
    found: dict[Convolution, list[Any]] = {}
    for layer in network.layers:
        if isinstance(layer, tf.keras.Model):
            for convolution, layers in convolution_layers(layer).items():
                found.setdefault(convolution, []).extend(layers)
        elif isinstance(layer, PaddedConv3D | UpsampledConv3D):
            found.setdefault(_convolution(layer), []).append(layer)
    return found


def random_operands(convolution: Convolution, batch: int, dtype: Any) -> Operands:
    """Normal numbers for ``batch`` showers."""
    shape, channels, filters = convolution.shape, convolution.channels, convolution.filters
    cells = (size // factor for size, factor in zip(shape.inputs, convolution.upsampling))
    sizes = (
        (batch, *cells, channels),
        (*shape.kernel, channels, filters),
        (filters,),
        (batch, *shape.outputs, filters),
    )
    x, kernel, bias, gradient = (
        tf.cast(tf.random.stateless_normal(size, (1, seed)), dtype) for seed, size in enumerate(sizes)
    )
    return Operands(x, kernel, bias if convolution.bias else None, gradient)


def passes_by(ways: Ways, convolution: Convolution, operands: Operands) -> Passes:
    """The passes of a convolution without upsampling."""
    x, kernel, gradient, shape = operands.x, operands.kernel, operands.gradient, convolution.shape
    return {
        "forward": partial(ways.forward.forward, x, kernel, shape, operands.bias, convolution.slope),
        "input_gradient": partial(ways.input_gradient.input_gradient, gradient, kernel, shape),
        "kernel_gradient": partial(ways.kernel_gradient.kernel_gradient, x, gradient, shape),
    }


def seconds_by_turns(
    works: Mapping[Key, Callable[[], Any]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
    budget: float = math.inf,
) -> dict[Key, list[float]]:
    """Seconds of ``rounds`` calls of each work, as a compiled tf.function that was called once before.

    A round calls each work once; every second round has the reverse order. After ``budget`` seconds no round but the
    first begins.
    """
    compiled = {key: tf.function(work, autograph=False) for key, work in works.items()}
    seconds: dict[Key, list[float]] = {key: [] for key in works}
    start = clock()
    for number in range(-1, rounds):
        if number > 0 and clock() - start > budget:
            break
        in_order = list(compiled.items())
        for key, work in in_order if number % 2 else reversed(in_order):
            begun = clock()
            work()
            if number >= 0:
                seconds[key].append(clock() - begun)
    return seconds


def _convolution(layer: Any) -> Convolution:
    inputs = layer.input.shape
    if isinstance(layer, PaddedConv3D):
        shape, upsampling = layer.sizes(inputs), (1, 1, 1)
    else:
        upsampling = layer.factor
        wide = triple(size * factor for size, factor in zip(inputs[1:4], upsampling))
        shape = Shape(wide, triple(layer.kernel_size), layer.pad, layer.pad)
    return Convolution(shape, int(inputs[-1]), int(layer.filters), layer.slope, bool(layer.use_bias), upsampling)
