"""``train.convolutions: measured``: each pass of a convolution in the way that is fastest on this machine.

Measured are TensorFlow's own operation and the sizes of cells of `convolution.CELLS`, in the order of the layers'
arithmetic, so that what is left when the time is over matters least.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import tensorflow as tf
from pydantic import ValidationError

from caloscale.errors import StorageError
from caloscale.models.layers.convolution import PaddedConv3D, has_accelerator
from caloscale.models.layers.convolution_ways import Cells, Direct, Way, Ways
from caloscale.models.layers.folding import Triple
from caloscale.processor import cores, processor_fields, processor_name
from caloscale.profiling.convolutions import (
    PASSES,
    Convolution,
    Pass,
    convolution_layers,
    passes_by,
    random_operands,
    seconds_by_turns,
)
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

Chosen = dict[Pass, Triple]
"""Cells that a pass computes at once."""


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
            layers.setdefault(convolution, []).extend(one for one in found if isinstance(one, PaddedConv3D))
    asked = sorted((one for one in layers if layers[one]), key=lambda one: one.flop, reverse=True)
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


def _way(cells: Triple) -> Way:
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
