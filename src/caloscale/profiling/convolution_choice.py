"""``train.convolutions: measured``: each pass of a convolution in the way that is fastest on this machine.

Measured are TensorFlow's own operation and the sizes of cells of `convolution.CELLS`, in the order of the layers'
arithmetic, so that what is left when the time is over matters least.
"""

import hashlib
import logging
import math
import os
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import tensorflow as tf
from pydantic import ValidationError

from caloscale.errors import StorageError
from caloscale.models.layers.convolution import PaddedConv3D, has_accelerator
from caloscale.models.layers.convolution_ways import Cells, Direct, Shape, Ways
from caloscale.models.layers.folding import Triple
from caloscale.processor import cores, processor_fields, processor_name
from caloscale.profiling.peak import threads_of_operation
from caloscale.spec.block import Block
from caloscale.storage.atomic import write_text
from caloscale.storage.cache import writable_cache

log = logging.getLogger(__name__)

BUDGET_SECONDS = 15.0
"""After which no further convolution is measured. The one that is being measured then makes one call of each way."""
ROUNDS = 3
"""Calls of each way, of which the fastest counts."""
MOST_SHOWERS = 8
"""Showers of a call: a larger batch takes longer, and its layers have work for all cores with these, too."""
GAIN = 0.05
"""By how much several cells at once must be faster than TensorFlow's own operation."""
DIRECT: Triple = (1, 1, 1)
"""TensorFlow's own operation."""
DEPTHS: Triple = (1, 1, 2)
BLOCKS: Triple = (4, 2, 2)
"""For passes that compute one channel."""
FILE = "convolutions.json"

Pass = Literal["forward", "input_gradient", "kernel_gradient"]
"""The convolution with its bias and activation; the gradients of the convolution alone."""
PASSES: tuple[Pass, ...] = get_args(Pass)
Passes = dict[Pass, Callable[[], Any]]
"""Each computes a batch."""
Chosen = dict[Pass, Triple]
"""Cells that a pass computes at once."""
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Convolution:
    """What a layer computes."""

    shape: Shape
    """Sizes of the convolution."""
    channels: int
    """Of the input."""
    filters: int
    """Channels of the output."""
    slope: float
    """Of the activation below 0; 1: none."""
    bias: bool
    """Whether it has one."""

    @property
    def flop(self) -> int:
        """Operations of a pass for one shower; a multiply-add counts 2."""
        return 2 * math.prod((*self.shape.outputs, *self.shape.kernel, self.channels, self.filters))


@dataclass(frozen=True)
class Operands:
    """Random tensors for the passes of a convolution."""

    x: Any
    """(B, X, Y, Z, channels)."""
    kernel: Any
    """(kx, ky, kz, channels, filters)."""
    bias: Any
    """(filters,), or None."""
    gradient: Any
    """Of the output, (B, X', Y', Z', filters)."""


def convolution_layers(network: Any) -> dict[Convolution, list[PaddedConv3D]]:
    """The layers `PaddedConv3D` of a Keras model, by what they compute."""
    found: dict[Convolution, list[PaddedConv3D]] = {}
    for layer in network.layers:
        if isinstance(layer, tf.keras.Model):
            for convolution, layers in convolution_layers(layer).items():
                found.setdefault(convolution, []).extend(layers)
        elif isinstance(layer, PaddedConv3D):
            inputs, filters = layer.input.shape, int(layer.filters)
            one = Convolution(layer.sizes(inputs), int(inputs[-1]), filters, layer.slope, bool(layer.use_bias))
            found.setdefault(one, []).append(layer)
    return found


def random_operands(convolution: Convolution, batch: int, dtype: Any) -> Operands:
    """Normal numbers for ``batch`` showers."""
    shape, channels, filters = convolution.shape, convolution.channels, convolution.filters
    volumes = ((batch, *shape.inputs, channels), (*shape.kernel, channels, filters))
    sizes = (*volumes, (filters,), (batch, *shape.outputs, filters))
    x, kernel, bias, gradient = (
        tf.cast(tf.random.stateless_normal(size, (1, seed)), dtype) for seed, size in enumerate(sizes)
    )
    return Operands(x, kernel, bias if convolution.bias else None, gradient)


def passes_by(ways: Ways, convolution: Convolution, operands: Operands) -> Passes:
    """The passes of a convolution by given ways."""
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


class Kept(Block):
    """The file in the cache folder."""

    format: Literal[1] = 1
    """Of another format: measured anew."""
    chosen: dict[str, Chosen]
    """By machine and convolution."""


def fastest(seconds: Mapping[Triple, float]) -> Triple:
    """The cells at once with the shortest time, or `DIRECT` unless they gain at least `GAIN`."""
    best = min(seconds, key=lambda cells: seconds[cells])
    return best if seconds[best] <= (1 - GAIN) * seconds[DIRECT] else DIRECT


def candidates(convolution: Convolution, which: Pass) -> tuple[Triple, ...]:
    """What is measured for a pass."""
    channels = convolution.channels if which == "input_gradient" else convolution.filters
    return (DIRECT, DEPTHS, BLOCKS) if channels == 1 else (DIRECT, DEPTHS)


def choose_ways(
    networks: Iterable[Any],
    precision: str,
    batch: int,
    *,
    file: Path | None = None,
    budget: float = BUDGET_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Convolution, Chosen]:
    """Set the ways of the layers `PaddedConv3D` of Keras models to those that are fastest here; what was chosen.

    What was measured is kept in ``file`` (absent: in the cache folder) and not measured again on an equal machine. With
    an accelerator nothing is measured, and the layers stay as they are.
    """
    layers: dict[Convolution, list[PaddedConv3D]] = {}
    names: dict[Convolution, str] = {}
    for network in networks:
        for convolution, found in convolution_layers(network).items():
            names.setdefault(convolution, f"{network.name} {found[0].name}")
            layers.setdefault(convolution, []).extend(found)
    asked = sorted(layers, key=lambda one: one.flop, reverse=True)
    if not asked or has_accelerator():
        return {}
    file = file or writable_cache() / FILE
    kept, begun = _read(file), clock()
    keys = {one: _key(one, precision, min(batch, MOST_SHOWERS)) for one in asked}
    chosen = {
        one: kept[keys[one]]
        for one in asked
        if all(kept.get(keys[one], {}).get(which) in candidates(one, which) for which in PASSES)
    }
    known = len(chosen)
    for convolution in asked:
        left = budget - (clock() - begun)
        if convolution not in chosen and left > 0:
            chosen[convolution] = _measure(convolution, precision, min(batch, MOST_SHOWERS), left, clock)
    seconds, measured = clock() - begun, len(chosen) - known
    if measured:
        _write(file, {**kept, **{keys[one]: chosen[one] for one in chosen}})
    log.info(
        "convolutions: %d measured in %.1f s, %d known from %s, %d not measured for want of time; cells at once: %s",
        *(measured, seconds, known, file, len(asked) - len(chosen)),
        ", ".join(f"{names[one]} {_text(chosen[one])}" for one in asked if one in chosen),
    )
    for convolution in asked:
        cells = chosen.setdefault(convolution, dict.fromkeys(PASSES, DIRECT))
        for layer in layers[convolution]:
            layer.compute_by(Ways(*(_way(cells[which]) for which in PASSES)))
    return chosen


def _measure(
    convolution: Convolution, precision: str, batch: int, seconds: float, clock: Callable[[], float]
) -> Chosen:
    operands = random_operands(convolution, batch, precision)
    works = {}
    for cells in (DIRECT, DEPTHS, BLOCKS):
        passes = passes_by(Ways(*[_way(cells)] * 3), convolution, operands)
        works.update({(which, cells): passes[which] for which in PASSES if cells in candidates(convolution, which)})
    times = seconds_by_turns(works, ROUNDS, clock, seconds)
    return {
        which: fastest({cells: min(times[which, cells]) for cells in candidates(convolution, which)})
        for which in PASSES
    }


def _way(cells: Triple) -> Direct:
    return Direct() if cells == DIRECT else Cells(cells)


def _text(chosen: Chosen) -> str:
    return "/".join("x".join(map(str, chosen[which])) for which in PASSES)


def _key(convolution: Convolution, precision: str, batch: int) -> str:
    """All that the times depend on."""
    one_dnn = "/".join(os.environ.get(name, "default") for name in ("TF_ENABLE_ONEDNN_OPTS", "ONEDNN_MAX_CPU_ISA"))
    shape = convolution.shape
    sizes = (shape.inputs, shape.kernel, shape.before, shape.behind)
    return " ".join(
        [
            f"{_processor()}, {threads_of_operation() or 'all'} threads on {cores()} cores, oneDNN {one_dnn},",
            f"TensorFlow {tf.__version__}, {precision}, {batch} showers:",
            *("x".join(map(str, size)) for size in sizes),
            f"{convolution.channels}-{convolution.filters} bias {convolution.bias} slope {convolution.slope:g}",
        ]
    )


def _processor() -> str:
    """The model of the processor with its instructions: virtual machines may hide some of them."""
    fields = processor_fields()
    known = {key: fields.get(key) for key in ("cpu family", "model", "model name", "stepping", "flags")}
    return f"{processor_name()} {hashlib.sha256(repr(known).encode()).hexdigest()[:8]}"


def _read(file: Path) -> dict[str, Chosen]:
    """What was measured before; nothing where the file is absent, damaged or of another format."""
    try:
        return dict(Kept.model_validate_json(file.read_bytes()).chosen)
    except FileNotFoundError:
        return {}
    except (OSError, ValidationError) as error:
        log.warning("%s is not readable, so the convolutions are measured again: %s", file, str(error).splitlines()[0])
        return {}


def _write(file: Path, chosen: dict[str, Chosen]) -> None:
    """Nothing is lost but time where the folder cannot be written."""
    try:
        write_text(file, Kept(chosen=chosen).model_dump_json(by_alias=True, indent=1))
    except StorageError as error:
        log.warning("the choice of convolutions is not kept: %s", error)
