"""Showers from a trained generator into a file of any size."""

import math
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic.alias_generators import to_camel

import caloscale
from caloscale.errors import CaloscaleError, CheckpointError, InputError, StorageError, Terminated
from caloscale.inference.export.runtimes import is_exported, rejection, verdict
from caloscale.inference.primaries import Primaries, check_ranges, parse_primaries
from caloscale.inference.runtime import Runtime, format_of, open_fastest, open_runtime, suitable_batch, suitable_streams
from caloscale.inference.stream import stream
from caloscale.models.card import ModelCard, read_card, read_configuration
from caloscale.processor import peak_memory_mib
from caloscale.progress import bar
from caloscale.showers.files import SUFFIXES
from caloscale.showers.hdf5.layouts import REBIN_ATTRIBUTE, Layout
from caloscale.showers.hdf5.writer import open_writer
from caloscale.showers.sources import origin_attributes
from caloscale.spec.block import Block
from caloscale.spec.data import Data
from caloscale.tensorflow_import import load_tensorflow_quietly
from caloscale.termination import StopRequest, ended_by_sigterm, signal_of_system_error


@dataclass(frozen=True)
class Generation:
    """What is to be generated, and how."""

    output: Path
    """File that is written."""
    count: int | None = None
    """Number of showers; absent: as many as the file of the energies has."""
    energies: str | None = None
    """Energies in GeV, a..b or a,b,c, or an HDF5 file; absent: the range that was trained on."""
    angles: str | None = None
    """Angles in degrees, a..b or a,b,c; absent: the range that was trained on."""
    azimuths: str | None = None
    """Azimuths in degrees, as angles."""
    entry_x: str | None = None
    """Displacements along x in mm, as angles."""
    entry_y: str | None = None
    """Displacements along y in mm, as angles."""
    particles: str | None = None
    """Primaries, such as e-,gamma; absent: all that were trained on."""
    layout: Layout = "variable-angle"
    """Layout of the file."""
    runtime: str = "tensorflow"
    """What computes."""
    precision: str = "float32"
    """Arithmetic of the convolutions; auto: bfloat16 where that is faster on this machine, otherwise float32."""
    streams: int | None = None
    """Batches at the same time; absent: at most 4, by the threads and the number of batches."""
    threads: int | None = None
    """Threads of all streams together; absent: one per core."""
    batch: int | None = None
    """Showers in a batch; absent: by the size of a shower."""
    seed: int = 1
    """Seed of all random numbers."""
    first: int = 0
    """Number of the first shower: a sample may be made in several commands."""
    extrapolate: bool = False
    """Also energies and angles that the generator was not trained on."""


class GenerationRecord(Block):
    """What was generated, and how fast."""

    file: str
    layout: Layout
    showers: int
    """Number of showers."""
    first: int
    """Number of the first."""
    seed: int
    """Seed of all random numbers."""
    energy_gev: tuple[float, float]
    """Lowest and highest energy that was asked for, GeV."""
    angle_deg: tuple[float, float]
    """Lowest and highest angle that was asked for, degrees."""
    further: dict[str, tuple[float, float]]
    """Lowest and highest value of the further columns of the table of primaries, by name."""
    runtime: str
    """What computed."""
    precision: str
    """What it computed in: float32, bfloat16 or int8."""
    precision_reason: str
    """Why: what was asked for, or what `auto` measured."""
    streams: int
    """Batches at the same time."""
    threads: int | None
    """Threads of all streams together; absent: one per core."""
    batch: int
    """Showers in a batch."""
    opening_seconds: float
    """Loading the model, with the export where it had to be made."""
    seconds: float
    """From the first batch to the whole file, with the preparation of the first batch."""
    showers_per_second: float
    """Showers over `seconds`."""
    milliseconds_per_shower: float
    """The inverse."""
    bytes: int
    """Size of the file."""
    peak_memory_mib: float
    """Most memory that the process held, MiB."""
    warnings: tuple[str, ...]
    """What a reader of the showers must know."""


class GenerationStoppedError(CaloscaleError):
    """Ctrl-C (exit code 130) or SIGTERM (143)."""

    def __init__(self, exit_code: int) -> None:
        self.exit_code = exit_code
        remedy = "the same command makes the same showers; --first and --count divide a sample"
        super().__init__("stopped: no file was written, and one of this name is as it was", remedy=remedy)


def generate(model: Path, wanted: Generation) -> GenerationRecord:
    """Generate showers with the model in a folder, batch by batch, into one file.

    Raises CheckpointError, InputError and StorageError; GenerationStoppedError when it is interrupted, with nothing
    left, or KeyboardInterrupt or Terminated when the file was complete.
    """
    complete = False
    try:
        with ended_by_sigterm(), signal_of_system_error():
            card = read_card(model)
            primaries, count = _primaries(card, wanted)
            warnings = (*_warnings(card, primaries, wanted), *_doubts(model, wanted))
            _check_output(wanted)
            started = time.perf_counter()
            # Where it is only computed in other runtimes, TensorFlow's seconds and half a gigabyte are spared.
            format = format_of(wanted.runtime, wanted.precision)
            if format is None or not is_exported(model, format):
                load_tensorflow_quietly()
            batch = suitable_batch(card.shape) if wanted.batch is None else wanted.batch
            batches = math.ceil(count / batch)
            streams = wanted.streams or suitable_streams(wanted.threads, batches)
            options: dict[str, Any] = {"streams": streams, "threads": wanted.threads}
            if wanted.precision == "auto":
                table = primaries.of(wanted.first, min(batch, count))
                runtime, reason = open_fastest(model, wanted.runtime, table, batches=batches, **options)
            else:
                runtime = open_runtime(model, wanted.runtime, precision=wanted.precision, **options)
                reason = "as asked for"
            opened = time.perf_counter()
            with StopRequest() as stop:
                _write(runtime, read_configuration(model).data, primaries, wanted, count, batch, stop)
                complete = True
            seconds = time.perf_counter() - opened
            return GenerationRecord(
                file=str(wanted.output),
                layout=wanted.layout,
                showers=count,
                first=wanted.first,
                seed=wanted.seed,
                energy_gev=primaries.range_of("energy_gev"),
                angle_deg=tuple(map(math.degrees, primaries.range_of("angle_rad"))),
                further={name: primaries.range_of(name) for name in card.spans},
                runtime=wanted.runtime,
                precision=runtime.precision,
                precision_reason=reason,
                streams=streams,
                threads=wanted.threads,
                batch=batch,
                opening_seconds=round(opened - started, 3),
                seconds=round(seconds, 3),
                showers_per_second=round(count / seconds, 3),
                milliseconds_per_shower=round(seconds / count * 1000, 4),
                bytes=wanted.output.stat().st_size,
                peak_memory_mib=round(peak_memory_mib(), 1),
                warnings=warnings,
            )
    except (KeyboardInterrupt, Terminated) as stopped:
        if complete:
            raise
        raise GenerationStoppedError(Terminated.exit_code if isinstance(stopped, Terminated) else 130) from None


def _check_output(wanted: Generation) -> None:
    """Raises StorageError for a folder, the file of the energies, and a name of another kind of file."""
    output, remedy = wanted.output, "give the name of another file, such as showers.h5"
    if output.is_dir():
        raise StorageError("is a folder", file=output, remedy=remedy)
    if output.exists() and wanted.energies is not None and Path(wanted.energies).resolve() == output.resolve():
        raise StorageError("is the file of the energies, which would be replaced", file=output, remedy=remedy)
    if output.suffix in SUFFIXES and output.suffix not in (".h5", ".hdf5"):
        raise StorageError("would be HDF5 under the name of another kind of file", file=output, remedy=remedy)


def _primaries(card: ModelCard, wanted: Generation) -> tuple[Primaries, int]:
    names = ("energies", "angles", "azimuths", "entry_x", "entry_y", "particles")
    texts = {to_camel(name): getattr(wanted, name) for name in names}
    primaries = parse_primaries(texts, card, seed=wanted.seed)
    count = primaries.turn if wanted.count is None and primaries.paired else wanted.count
    if count is None or count < 1:
        raise InputError("must be at least 1", field="count", value=wanted.count, remedy="give --count 1000")
    return primaries, count


def _write(
    runtime: Runtime, trained: Data, primaries: Primaries, wanted: Generation, count: int, batch: int, stop: StopRequest
) -> None:
    card = runtime.card
    attributes: dict[str, Any] = {
        "preset": card.preset,
        **origin_attributes(trained),
        "trainedOn": card.source,
        "generatorStep": card.step,
        "seed": wanted.seed,
        "firstShower": wanted.first,
        "runtime": wanted.runtime,
        "precision": runtime.precision,
        REBIN_ATTRIBUTE: "x".join(map(str, card.preprocessing.rebin)),
        "caloscale": caloscale.__version__,
    }
    batches = stream(
        runtime, primaries, seed=wanted.seed, count=count, first=wanted.first, batch=batch, check=stop.check
    )
    with (
        closing(batches),
        open_writer(
            wanted.output,
            count,
            card.shape,
            layout=wanted.layout,
            source="generated",
            attributes=attributes,
            geometry=card.geometry,
            rebin=card.preprocessing.rebin,
        ) as writer,
        bar("generate", count, "showers") as shown,
    ):
        for showers in batches:
            writer.write(showers)
            shown.update(len(showers))
        stop.check()


def _warnings(card: ModelCard, primaries: Primaries, wanted: Generation) -> Iterator[str]:
    """What the user must know. Raises InputError for what was not trained, unless that is wanted."""
    ends = {name: np.array(primaries.range_of(name)) for name in ("energy_gev", "angle_rad")}
    yield from check_ranges(ends, card, extrapolate=wanted.extrapolate)
    if (wanted.count or primaries.turn) < primaries.turn:
        lists, left = "combinations of the lists", "the others are left out"
        if primaries.paired:
            lists, left = f"primaries of {wanted.energies}", "if the file is sorted, they are no sample of it"
        yield f"{wanted.count} of the {primaries.turn} {lists} are taken, from number {wanted.first} on: {left}"
    if wanted.layout == "calochallenge":
        yield "the CaloChallenge layout has no angles: they are in the dataset theta, which its own tools do not read"


def _doubts(model: Path, wanted: Generation) -> tuple[str, ...]:
    """That the gates rejected a model, and what is not known of it in int8. Raises CheckpointError where they rejected
    it in int8."""
    format = format_of(wanted.runtime, wanted.precision)
    if format != "openvino-int8":
        return rejection(model)
    decision = verdict(model, format)["decision"]
    if decision == "rejected":
        problem = "is rejected by its gates in int8"
        raise CheckpointError(problem, file=model, field="precision", value="int8", remedy="use float32")
    doubt = f"int8 is {decision} by the gates of {model}: caloscale validate --int8 judges it"
    return () if decision == "accepted" else (doubt,)
