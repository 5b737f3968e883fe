"""The benches: a training step, generation, and the speeds of the machine at hand for the planner."""

import datetime as dt
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from caloscale.bench.results import Bench, ContenderFigures, Geant4Time, describe_machine
from caloscale.bench.rounds import Contender, interleave
from caloscale.errors import BenchError, SimulationError
from caloscale.inference.runtime import suitable_streams
from caloscale.models import build
from caloscale.models.card import CARD, GENERATOR, ModelCard
from caloscale.planning.search.own_machine import MachineSpeed, cells_of, detector_of, name_of_network, priced_machine
from caloscale.simulation import simulate
from caloscale.spec import Run
from caloscale.tensorflow_import import load_tensorflow_quietly
from caloscale.training.processor import processor_variables

log = logging.getLogger(__name__)

STEP_SECONDS, GENERATE_SECONDS, MACHINE_SECONDS = 110.0, 60.0, 40.0
"""Approximate times of the measurements, without start and compilation, s."""
LARGEST_BATCH = 32
"""Of a step that is measured for the planner."""
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


def bench_step(run: Run, batch: int, *, rounds: int | None = None) -> Bench:
    """Time our step and the reference on batches of ``batch`` showers. Raises BenchError when one of them fails."""
    machine = describe_machine()
    if run.train.precision == "auto":
        load_tensorflow_quietly()
        from caloscale.profiling.peak import with_measured_precision

        run = with_measured_precision(run)
    precision = run.train.precision
    plain = run.model_copy(update={"train": run.train.model_copy(update={"precision": "float32"})})
    with ExitStack() as stack:
        ours, reference, product = (
            stack.enter_context(Contender(name, work, settings, environment=environment))
            for name, work, settings, environment in (
                ("step", "our_step", _settings(run, batch), processor_variables(run.train)),
                ("reference step", "reference_step_work", _settings(plain, batch), {}),
                ("product", "large_product", {"precision": precision}, {}),
            )
        )
        interleave([ours, reference, product], f"bench step {run.model.network}", STEP_SECONDS, rounds)
    figures = [_figures("ours", precision, ours, reference, batch)]
    figures.append(_figures("reference", "float32", reference, reference, batch))
    return Bench(
        bench="step",
        preset=run.model.network,
        batch=batch,
        contenders=tuple(figures),
        peak_gflops=1e-9 * product.facts["flop"] / min(product.seconds),
        machine=machine,
    )


def bench_generate(
    run: Run,
    batch: int,
    *,
    precisions: Sequence[str] = ("float32", "bfloat16", "int8"),
    streams: int | None = None,
    threads: int | None = None,
    rounds: int | None = None,
) -> Bench:
    """Time the runtimes on batches of ``batch`` showers, and Geant4 unless it is not installed.

    Args:
        streams: batches that a runtime computes at the same time; absent: as many as `caloscale generate`.
        threads: of a runtime, all streams together, and of the reference; absent: one for each core. With a number of
            threads Geant4, which has all cores, is not run.

    Raises:
        BenchError: the reference fails. A runtime that is not installed is named with its problem.
    """
    streams = suitable_streams(threads) if streams is None else streams
    machine = describe_machine()
    contenders: dict[tuple[str, str], Contender | BenchError] = {}
    with TemporaryDirectory(prefix="caloscale-bench-") as temporary, ExitStack() as stack:
        settings = {**_settings(run, batch), "threads": threads}
        reference = stack.enter_context(Contender("reference", "reference_work", settings))
        folder = Path(temporary) / "model"
        make_model(run, folder)
        for name, precision in (key for key in RUNTIMES if key[1] in precisions):
            runtime = {"folder": str(folder), "runtime": name, "precision": precision, "streams": streams}
            contender = Contender(f"{name} {precision}", "runtime_work", settings | runtime)
            try:
                contenders[name, precision] = stack.enter_context(contender)
            except BenchError as error:
                contenders[name, precision] = error
        started = [contender for contender in contenders.values() if isinstance(contender, Contender)]
        interleave([reference, *started], f"bench generate {run.model.network}", GENERATE_SECONDS, rounds)
    figures = [_figures("reference", "float32", reference, reference, batch)]
    for (name, precision), entered in contenders.items():
        if isinstance(entered, BenchError):
            figures.append(ContenderFigures(name=name, precision=precision, problem=str(entered)))
        else:
            figures.append(_figures(name, precision, entered, reference, batch, streams))
    return Bench(
        bench="generate",
        preset=run.model.network,
        batch=batch,
        streams=streams,
        threads=threads,
        contenders=tuple(figures),
        geant4=simulate_some(run) if threads is None else None,
        machine=machine,
    )


def measure_machine(run: Run) -> MachineSpeed:
    """Time the training step, the generator (TensorFlow, float32) and, where it is installed, Geant4.

    The step has the run's batch of one replica, at most `LARGEST_BATCH`. Raises BenchError when one of them fails, and
    InputError for a machine type that is not in the catalogue.
    """
    priced, machine = priced_machine(run), describe_machine()
    batch = min(run.train.replica_batch(1), LARGEST_BATCH)
    settings = _settings(run, batch)
    with TemporaryDirectory(prefix="caloscale-measure-") as temporary, ExitStack() as stack:
        folder = Path(temporary) / "model"
        make_model(run, folder)
        runtime = {"folder": str(folder), "runtime": "tensorflow", "precision": "float32", "streams": 1}
        step = stack.enter_context(Contender("step", "our_step", settings, environment=processor_variables(run.train)))
        generator = stack.enter_context(Contender("generate", "runtime_work", settings | runtime))
        interleave([step, generator], f"measure {run.model.network}", MACHINE_SECONDS)
    simulated = simulate_some(run)
    return MachineSpeed(
        machine_type=priced.name,
        processor=machine.processor,
        cores=machine.cores,
        network=name_of_network(run),
        cells=cells_of(run.data),
        detector=detector_of(run.data),
        batch=batch,
        trained_per_second=1 / step.timing(1 / batch).median,
        generated_per_second=1 / generator.timing(1 / batch).median,
        simulated_per_second=None if simulated is None else 1 / simulated.seconds_per_shower,
        source=f"plan --measure on {machine.processor}, {machine.cores} cores",
        observed_on=dt.date.fromisoformat(machine.date),
    )


def make_model(run: Run, folder: Path) -> None:
    """Write untrained networks of a run as a model folder: weights do not change the speed."""
    load_tensorflow_quietly()
    from caloscale.training.release import parameters, versions

    networks = build(run.model, run.data)
    card = ModelCard.of(run, source="parametrised", versions=versions(), parameters=parameters(networks))
    folder.mkdir(parents=True, exist_ok=True)
    networks["generator"].save(folder / GENERATOR)
    (folder / CARD).write_text(card.model_dump_json(by_alias=True), encoding="utf-8")


def simulate_some(run: Run) -> Geant4Time | None:
    """Seconds of one more Geant4 shower of the run's energies on all cores; None where it fails or is disturbed.

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
            except SimulationError as error:
                log.warning("Geant4 is not measured: %s", error.sentence)
                return None
    short, long = records
    if long.seconds <= short.seconds:
        log.warning("Geant4 is not measured: three times as many showers took no longer, as other work disturbed it")
        return None
    return Geant4Time(
        showers=short.showers + long.showers,
        seconds_per_shower=(long.seconds - short.seconds) / (long.showers - short.showers),
        energy_gev=(low, high),
    )


def _settings(run: Run, batch: int) -> dict[str, object]:
    return {"configuration": run.model_dump(mode="json", by_alias=True), "batch": batch}


def _figures(
    name: str, precision: str, contender: Contender, reference: Contender, batch: int, streams: int = 1
) -> ContenderFigures:
    """Of a contender whose unit is a batch in each stream; that of the reference is a batch."""
    times, flop = contender.timing(1e3 / (batch * streams)), contender.facts.get("flopPerEvent")
    return ContenderFigures(
        name=name,
        precision=precision,
        milliseconds_per_shower=times,
        ratio=contender.ratio(reference, streams),
        gflops=None if flop is None else 1e-6 * flop / times.median,
        peak_memory_mib=contender.peak_memory_mib,
    )
