"""The results as tables of text, for terminals and for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Sequence

from caloscale.bench.results import (
    AllReduceBench,
    BenchMachine,
    ConvolutionFigures,
    ConvolutionsBench,
    ConvolutionTime,
    ExchangeBench,
    ExchangeTime,
    GenerateBench,
    InputBench,
    PassTimes,
    RuntimeTime,
    SolverEpoch,
    StepBench,
    Timing,
)
from caloscale.report.blocks import Table

Bench = StepBench | ConvolutionsBench | GenerateBench | InputBench | AllReduceBench | ExchangeBench
WIDEST = {"avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX"}


def bench_tables(bench: Bench) -> tuple[Table, ...]:
    """The tables of a bench."""
    if isinstance(bench, StepBench):
        return (_step(bench),)
    if isinstance(bench, ConvolutionsBench):
        return (_convolutions(bench),)
    if isinstance(bench, GenerateBench):
        return (_generate(bench),)
    if isinstance(bench, InputBench):
        return (_input(bench),)
    if isinstance(bench, AllReduceBench):
        return (_allreduce(bench),)
    return (_solver_epochs(bench), _exchange_times(bench), _exchange_counts(bench), _exchange_scaling(bench))


def machine_text(machine: BenchMachine) -> str:
    """One line about the machine."""
    versions = ", ".join(f"{name} {number}" for name, number in machine.versions.items())
    return (
        f"{machine.processor}, {machine.cores} cores ({_vectors(machine.instructions)}), "
        f"{machine.memory_gib:g} GiB; {versions}; {machine.date}; load average {machine.load_average:g} at the start"
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
            f"A large matrix product in {bench.precision} reaches {bench.peak_gflops:.0f} GFLOP/s. GFLOP/s of ours "
            "count what is computed (folded), those of the reference the published arithmetic."
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
        return text if one.upsampling == (1, 1, 1) else f"{text} behind x{' x'.join(map(str, one.upsampling))}"

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
            f"Milliseconds a shower, the least of {bench.rounds} rounds over all passes in one process. Plain: "
            "upsampling, zeros and TensorFlow's own operations in the same precision. Ratio and rates are those of the "
            "three passes together; both rates count the products of the plain convolution, so a folded one may "
            f"exceed the {bench.peak_gflops:.0f} GFLOP/s of a large matrix product. A training step makes some passes "
            "several times and others not at all."
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
        note=f"{note} The network is untrained. All but the reference give cells in GeV.{at_once}",
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


def _allreduce(bench: AllReduceBench) -> Table:
    return Table(
        caption=f"All-reduces of a step, {bench.preset}, {bench.tapes} tapes",
        columns=("processes", "variables", "MB of gradients", "packed, ms", "per variable, ms", "ratio", "limit, ms"),
        rows=tuple(
            (
                str(one.workers),
                str(one.tensors),
                f"{1e-6 * one.bytes:.2f}",
                _spread(one.packed.scaled(1e3)),
                _spread(one.per_variable.scaled(1e3)),
                f"{one.ratio:.2f}",
                f"{1e3 * one.limit_seconds:.2f}",
            )
            for one in bench.workers
        ),
        note=(
            f"The limit is that of a ring with the loopback's {1e6 * bench.latency_seconds:.0f} us and "
            f"{1e-9 * bench.bytes_per_second:.2f} GB/s of one stream; on one machine all processes share the cores."
        ),
    )


def _solver_epochs(bench: ExchangeBench) -> Table:
    def row(one: SolverEpoch) -> tuple[str, ...]:
        rate = one.flop / one.spread.median
        return (
            one.precision,
            _spread(one.spread),
            f"{1e-9 * rate:.1f}",
            f"{1e-9 * one.product_flop_per_second:.1f}",
            f"{100 * rate / one.product_flop_per_second:.0f}",
        )

    first = bench.epochs[0]
    return Table(
        caption=f"An epoch of {first.events:,} events on one core",
        columns=("precision", "epoch, s (quartiles)", "GFLOP/s", "matrix product, GFLOP/s", "share, %"),
        rows=tuple(row(one) for one in bench.epochs),
        note=(
            f"The {1e-9 * first.flop:.1f} GFLOP are those of the discriminator's matrix products; the time is that of "
            "the whole epoch, without exchange. Matrix products of 2,048 rows and columns on the same core, by turns "
            "with the epochs, state the limit."
        ),
    )


def _exchange_times(bench: ExchangeBench) -> Table:
    ranks = sorted({one.ranks for one in bench.times})
    columns: dict[tuple[str, int, bool], dict[int, ExchangeTime]] = {}
    for one in bench.times:
        columns.setdefault((one.method, one.tensors, one.in_step), {})[one.ranks] = one

    def row(key: tuple[str, int, bool]) -> tuple[str, ...]:
        method, tensors, in_step = key
        measured = [columns[key][count] for count in ranks]
        new = [one.new_share for one in measured if one.new_share is not None]
        return (
            f"{method}, with barriers" if in_step else method,
            "fused" if tensors == 1 else f"{tensors} tensors",
            *(_spread(one.spread.scaled(1e3)) for one in measured),
            "/".join(f"{100 * share:.0f}" for share in new),
        )

    floats, links = sum(bench.tensors), bench.links
    return Table(
        caption=f"An exchange of {floats:,} floats, groups of {bench.group}",
        columns=("method", "vectors", *(f"{count} ranks, ms (quartiles)" for count in ranks), "new slots, %"),
        rows=tuple(row(key) for key in columns),
        note=(
            f"Ranks compute nothing between exchanges. The outer ring is in every {bench.outer_every}th exchange. With "
            "remote memory only new slots are copied. All ranks share the cores of one machine, which then limit. A "
            f"message between two ranks takes {1e6 * links.message_seconds:.1f} us and "
            f"{1e-9 * links.message_bytes_per_second:.2f} GB/s, a look into remote memory "
            f"{1e6 * links.window_seconds:.1f} us, a copy {1e-9 * links.window_bytes_per_second:.1f} GB/s."
        ),
    )


def _exchange_counts(bench: ExchangeBench) -> Table:
    def both(measured: float | None, modelled: float | None) -> str:
        if measured is None or modelled is None:
            return ""
        return f"{100 * measured:.1f} / {100 * modelled:.1f}"

    return Table(
        caption="Epochs with stragglers: measured / modelled",
        columns=("ranks", "method", "computing, ms", "epoch, ms", "stale slots, %", "slots with nothing new, %"),
        rows=tuple(
            (
                str(one.ranks),
                one.method,
                f"{1e3 * one.computing_seconds:.1f}",
                f"{1e3 * one.epoch_seconds:.1f} / {1e3 * one.modelled_epoch_seconds:.1f}",
                both(one.stale_share, one.modelled_stale_share),
                both(one.repeated_share, one.modelled_repeated_share),
            )
            for one in bench.counts
        ),
        note=(
            "Computing is imitated by sleeping; the model takes the times that really passed, and the links above. It "
            "knows nothing of cores that ranks share. An epoch is the time of the slowest rank."
        ),
    )


def _exchange_scaling(bench: ExchangeBench) -> Table:
    return Table(
        caption="Weak scaling, modelled",
        columns=("ranks", "method", "computing, ms", "epoch, ms", "share of computing, %", "stale slots, %"),
        rows=tuple(
            (
                str(one.ranks),
                one.method,
                f"{1e3 * one.computing_seconds:.1f}",
                f"{1e3 * one.epoch_seconds:.1f}",
                f"{100 * one.computing_seconds / one.epoch_seconds:.1f}",
                "" if one.stale_share is None else f"{100 * one.stale_share:.1f}",
            )
            for one in bench.scaling
        ),
        note=(
            "Not measured. Links within a node are those above. Assumed: messages between nodes of 10 us and 10 GB/s; "
            "epochs log-normal with a width of 5%, one in 100 takes twice as long. 585 ms is an epoch at the published "
            "batch on two cores, 20 ms a short one, as on an accelerator."
        ),
    )
