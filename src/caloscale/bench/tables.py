"""The results as tables of text, for terminals and for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Sequence

from caloscale.bench.results import (
    BenchMachine,
    ConvolutionFigures,
    ConvolutionsBench,
    ConvolutionTime,
    GenerateBench,
    InputBench,
    PassTimes,
    RuntimeTime,
    StepBench,
    Timing,
)
from caloscale.report.blocks import Table

Bench = StepBench | ConvolutionsBench | GenerateBench | InputBench
WIDEST = {"avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX"}


def bench_tables(bench: Bench) -> tuple[Table, ...]:
    """The tables of a bench."""
    if isinstance(bench, StepBench):
        return (_step(bench),)
    if isinstance(bench, ConvolutionsBench):
        return (_convolutions(bench),)
    if isinstance(bench, GenerateBench):
        return (_generate(bench),)
    return (_input(bench),)


def machine_text(*machines: BenchMachine) -> str:
    """One line about the machines of some measurements: equal ones once, with the range of the loads."""
    loads: dict[str, list[float]] = {}
    for one in machines:
        text = f"{one.processor}, {one.cores} cores ({_vectors(one.instructions)}), {one.memory_gib:g} GiB; {one.date}"
        loads.setdefault(text, []).append(one.load_average)
    return ". ".join(
        f"{text}; load average {' to '.join(f'{load:g}' for load in sorted({min(of), max(of)}))} at the start"
        for text, of in loads.items()
    )


def _vectors(instructions: Sequence[str]) -> str:
    """The widest vectors, and the narrow numbers that they know."""
    widest = next((text for name, text in WIDEST.items() if name in instructions), "no vector instructions")
    return ", ".join([widest, *(kind for kind in ("bf16", "fp16", "vnni", "amx") if kind in " ".join(instructions))])


def _spread(spread: Timing, digits: int = 3) -> str:
    return f"{spread.median:.{digits}g} ({spread.low:.{digits}g} to {spread.high:.{digits}g})"


def _step(bench: StepBench) -> Table:
    plain = bench.reference
    milliseconds = [one.scaled(1e3) for one in (bench.spread, plain.spread)]
    return Table(
        caption=f"A training step, {bench.preset}, batches of {bench.batch}, {bench.precision}",
        columns=("", "ms per event (quartiles)", "GFLOP/s", "peak memory, MiB"),
        rows=(
            ("ours", _spread(milliseconds[0]), f"{bench.gflops:.1f}", f"{bench.peak_memory_mib:.0f}"),
            ("reference", _spread(milliseconds[1]), f"{plain.gflops:.1f}", f"{plain.peak_memory_mib:.0f}"),
        ),
        note=(
            f"{bench.ratio:.2f} times faster than the reference (quartiles {bench.ratio_spread[0]:.2f} to "
            f"{bench.ratio_spread[1]:.2f} over {bench.spread.rounds} rounds). "
            f"A large matrix product in {bench.precision} reaches {bench.peak_gflops:.0f} GFLOP/s. GFLOP/s: ours count "
            "what is computed (folded), the reference the published arithmetic."
        ),
    )


def _convolutions(bench: ConvolutionsBench) -> Table:
    def times(one: PassTimes) -> str:
        return " / ".join(f"{value:.3g}" for value in (one.forward, one.input_gradient, one.kernel_gradient))

    def figures(one: ConvolutionFigures) -> tuple[str, ...]:
        rates = (f"{one.reference_gflops:.0f}", f"{one.gflops:.0f}", f"{100 * one.peak_share:.0f}")
        return (times(one.reference), times(one.ours), f"{one.ratio:.2f}", *rates)

    def name(one: ConvolutionTime) -> str:
        kernel = ",".join(map(str, one.kernel))
        text = f"{one.network} {', '.join(one.layers)} ({kernel}) {one.channels}-{one.filters}"
        return text if one.upsampling == (1, 1, 1) else f"{text} after x{' x'.join(map(str, one.upsampling))}"

    return Table(
        caption=f"3D convolutions, {bench.preset}, batches of {bench.batch}, {bench.precision}",
        columns=(
            "kernel, channels",
            "plain, ms (forward / gradient of input / of kernel)",
            "ours, ms",
            "ratio",
            "plain, GFLOP/s",
            "ours, GFLOP/s",
            "ours, % of a matrix product",
        ),
        rows=(*((name(one), *figures(one)) for one in bench.layers), ("all", *figures(bench.total))),
        note=(
            f"Milliseconds a shower, the least of {bench.rounds} rounds. Plain: upsampling, zeros and TensorFlow's own "
            "operations. Rates of the three passes together count the products of the plain convolution, so a folded "
            f"one may exceed the {bench.peak_gflops:.0f} GFLOP/s of a large matrix product."
        ),
    )


def _generate(bench: GenerateBench) -> Table:
    def row(one: RuntimeTime) -> tuple[str, ...]:
        if one.spread is None or one.ratio is None or one.peak_memory_mib is None:
            return (one.runtime, one.precision, f"absent: {one.problem}", "", "", "")
        faster = "" if one.speedup_over_geant4 is None else f"{one.speedup_over_geant4:.0f}"
        return (
            one.runtime,
            one.precision,
            _spread(one.spread),
            f"{one.ratio:.2f}",
            faster,
            f"{one.peak_memory_mib:.0f}",
        )

    if bench.threads is not None:
        note = "Geant4 has all cores and is not compared with."
    elif bench.geant4 is None:
        note = "Geant4 is not installed here (extra `simulate`), so it is not compared with."
    else:
        low, high = bench.geant4.energy_gev
        note = (
            f"Geant4 on the same cores: {bench.geant4.seconds_per_shower:.3f} s per shower of {low:g}-{high:g} GeV "
            f"({bench.geant4.showers} showers)."
        )
    streams = f", {bench.streams} streams" if bench.streams > 1 else ""
    if bench.threads is not None:
        streams += f", {bench.threads} thread{'s' if bench.threads > 1 else ''}"
    at_once = " The reference computes one batch after the other." if bench.streams > 1 else ""
    return Table(
        caption=f"Generation, {bench.preset}, batches of {bench.batch}{streams}",
        columns=("runtime", "precision", "ms per shower (quartiles)", "over reference", "over Geant4", "memory, MiB"),
        rows=tuple(row(one) for one in bench.runtimes),
        note=f"{note} The network is untrained.{at_once}",
    )


def _input(bench: InputBench) -> Table:
    return Table(
        caption=f"Input pipeline, {bench.preset}, batches of {bench.batch}",
        columns=("", "showers/s"),
        rows=(
            ("the pipeline alone delivers, as in later epochs", f"{bench.showers_per_second:.0f}"),
            ("the same in the first epoch, from the disk", f"{bench.first_epoch_showers_per_second:.0f}"),
            ("the training step alone consumes", f"{bench.consumed_per_second:.4g}"),
        ),
        note=(
            f"Delivered over consumed: {bench.ratio:.3g}. {bench.showers} showers ({bench.source}), "
            f"{bench.spread.rounds} rounds."
        ),
    )
