"""The bench of generation: every runtime that is installed, the plain network, and Geant4 on the same cores."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from caloscale.bench.machine import describe_machine
from caloscale.bench.results import Geant4Time, GenerateBench, RuntimeTime
from caloscale.bench.rounds import Contender, interleave, ratios
from caloscale.errors import BenchError, SimulationError
from caloscale.inference.runtime import suitable_streams
from caloscale.simulation import simulate
from caloscale.spec import Run
from caloscale.tensorflow_import import load_tensorflow_quietly

SECONDS = 60.0
RUNTIMES = (
    ("tensorflow", "float32"),
    ("tensorflow", "bfloat16"),
    ("onnx", "float32"),
    ("openvino", "float32"),
    ("openvino", "bfloat16"),
    ("openvino", "int8"),
)
GEANT4_GEV = 1600.0
"""Energy of the showers of the shorter simulation together; 5-8 ms per GeV on a core."""


def bench_generate(
    run: Run,
    batch: int,
    *,
    precisions: Sequence[str] = ("float32", "bfloat16", "int8"),
    streams: int | None = None,
    threads: int | None = None,
    rounds: int | None = None,
    seconds: float = SECONDS,
    geant4: bool = True,
) -> GenerateBench:
    """Time the runtimes on batches of ``batch`` showers, and Geant4 unless it is not installed.

    streams: batches that a runtime computes at the same time; absent: as many as `caloscale generate`. The reference
    computes one after the other.
    threads: of a runtime, all streams together, and of the reference; absent: one for each core. With
    a number of threads Geant4, which has all cores, is not run.

    Raises BenchError when the reference fails; a runtime that is not installed is named with its problem.
    """
    streams = suitable_streams(threads) if streams is None else streams
    machine = describe_machine()
    configuration = run.model_dump(mode="json", by_alias=True)
    problems: dict[tuple[str, str], str] = {}
    contenders: dict[tuple[str, str], Contender] = {}
    with TemporaryDirectory(prefix="caloscale-bench-") as temporary, ExitStack() as stack:
        reference = stack.enter_context(
            Contender(
                "reference", "reference-generate", {"configuration": configuration, "batch": batch, "threads": threads}
            )
        )
        folder = Path(temporary) / "model"
        make_model(run, folder)
        for runtime, precision in RUNTIMES:
            if precision not in precisions:
                continue
            settings = {
                "configuration": configuration,
                "folder": str(folder),
                "runtime": runtime,
                "precision": precision,
                "batch": batch,
                "streams": streams,
                "threads": threads,
            }
            try:
                contender = stack.enter_context(Contender(f"{runtime} {precision}", "generate", settings))
                contenders[runtime, precision] = contender
            except BenchError as error:
                problems[runtime, precision] = str(error)
        interleave([reference, *contenders.values()], f"bench generate {run.model.network}", seconds, rounds)
    simulated = simulate_some(run) if geant4 and threads is None else None
    times = [_time(("reference", "float32"), reference, reference, batch, simulated)]
    times += [
        _time(key, contenders[key], reference, batch * streams, simulated, batch)
        if key in contenders
        else RuntimeTime(
            runtime=key[0],
            precision=key[1],
            milliseconds_per_shower=None,
            spread=None,
            ratio=None,
            speedup_over_geant4=None,
            peak_memory_mib=None,
            problem=problems[key],
        )
        for key in RUNTIMES
        if key in contenders or key in problems
    ]
    return GenerateBench(
        preset=run.model.network,
        batch=batch,
        streams=streams,
        threads=threads,
        runtimes=tuple(times),
        geant4=simulated,
        machine=machine,
    )


def make_model(run: Run, folder: Path) -> None:
    """Write untrained networks of a run as a model folder: weights do not change the speed."""
    load_tensorflow_quietly()
    from caloscale.bench.generate_work import write_untrained

    write_untrained(run, folder)


def _time(
    key: tuple[str, str],
    contender: Contender,
    reference: Contender,
    showers: int,
    geant4: Geant4Time | None,
    reference_showers: int | None = None,
) -> RuntimeTime:
    """The time of a runtime; a unit of it makes ``showers`` showers, one of the reference ``reference_showers``."""
    spread = contender.timing(1e3 / showers)
    faster = ratios(reference, contender).median * showers / (reference_showers or showers)
    return RuntimeTime(
        runtime=key[0],
        precision=key[1],
        milliseconds_per_shower=spread.median,
        spread=spread,
        ratio=faster,
        speedup_over_geant4=1e3 * geant4.seconds_per_shower / spread.median if geant4 else None,
        peak_memory_mib=contender.peak_memory_mib,
    )


def simulate_some(run: Run) -> Geant4Time | None:
    """Seconds of one more Geant4 shower of the run's energies on all cores; None where Geant4 is not installed.

    The difference between a longer and a shorter simulation: the time to start the processes drops out.
    """
    low, high = run.data.energy_gev
    few = max(16, round(GEANT4_GEV / ((low + high) / 2)))
    # Files so small that no core waits long for the last one.
    simulation = run.data.simulation.model_copy(update={"engine": "geant4", "showers_per_file": 2})
    records = []
    with TemporaryDirectory(prefix="caloscale-bench-") as temporary:
        for count in (few, 3 * few):
            data = run.data.model_copy(update={"source": "simulate", "showers": count, "simulation": simulation})
            try:
                records.append(simulate(data, Path(temporary) / str(count)))
            except SimulationError:
                return None
    short, long = records
    return Geant4Time(
        showers=short.showers + long.showers,
        seconds_per_shower=(long.seconds - short.seconds) / (long.showers - short.showers),
        energy_gev=(low, high),
    )
