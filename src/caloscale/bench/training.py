"""The benches of a training: its step, and its input pipeline."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from caloscale.bench.machine import describe_machine
from caloscale.bench.results import InputBench, StepBench, StepReference
from caloscale.bench.rounds import Contender, interleave, ratios
from caloscale.showers.tfrecord.shards import preprocess_showers
from caloscale.simulation import simulate
from caloscale.spec import Run
from caloscale.tensorflow_import import load_tensorflow_quietly
from caloscale.training.processor import processor_variables

STEP_SECONDS = 110.0
"""Approximate time of measuring the step, without start and compilation, s."""
PRODUCT = "product"
INPUT_SECONDS = 60.0
SHOWERS = 256
"""Showers that are made when no folder of shards is given: parametrised, which are as sparse as Geant4's."""


def bench_step(run: Run, batch: int, *, rounds: int | None = None, seconds: float = STEP_SECONDS) -> StepBench:
    """Time our step and the reference on batches of ``batch`` showers. Raises BenchError when one of them fails."""
    machine = describe_machine()
    if run.train.precision == "auto":
        load_tensorflow_quietly()
        from caloscale.profiling.peak import with_measured_precision

        run = with_measured_precision(run)
    configuration = run.model_dump(mode="json", by_alias=True)
    precision = run.train.precision
    plain = run.model_copy(update={"train": run.train.model_copy(update={"precision": "float32"})})
    with ExitStack() as stack:
        ours, reference, product = (
            stack.enter_context(Contender(name, name, settings, environment=environment))
            for name, settings, environment in (
                ("step", {"configuration": configuration, "batch": batch}, processor_variables(run.train)),
                ("reference-step", {"configuration": plain.model_dump(mode="json", by_alias=True), "batch": batch}, {}),
                (PRODUCT, {"precision": precision}, {}),
            )
        )
        interleave([ours, reference, product], f"bench step {run.model.network}", seconds, rounds)
    own, plainly, faster = ours.timing(1 / batch), reference.timing(1 / batch), ratios(reference, ours)
    return StepBench(
        preset=run.model.network,
        precision=precision,
        batch=batch,
        seconds_per_event=own.median,
        spread=own,
        reference=StepReference(
            seconds_per_event=plainly.median,
            spread=plainly,
            gflops=1e-9 * reference.facts["flopPerEvent"] / plainly.median,
            peak_memory_mib=reference.peak_memory_mib,
        ),
        ratio=faster.median,
        ratio_spread=(faster.low, faster.high),
        gflops=1e-9 * ours.facts["flopPerEvent"] / own.median,
        peak_gflops=1e-9 * product.facts["flop"] / min(product.seconds),
        peak_memory_mib=ours.peak_memory_mib,
        machine=machine,
    )


def sample_shards(run: Run, folder: Path, showers: int = SHOWERS) -> Path:
    """A folder of shards for the run, of parametrised showers; training split of about ``showers``."""
    simulation = run.data.simulation.model_copy(update={"engine": "parametrised"})
    data = run.data.model_copy(update={"source": "simulate", "showers": showers, "simulation": simulation})
    simulate(data, folder / "showers")
    preprocess_showers(data, folder / "showers", folder / "dataset")
    return folder / "dataset"


def bench_input(
    run: Run, batch: int, *, dataset: Path | None = None, rounds: int | None = None, seconds: float = INPUT_SECONDS
) -> InputBench:
    """Time the pipeline alone and the step alone, alternately.

    dataset: a folder of shards that fits the run; absent, some are made. Raises BenchError, ShowerFileError.
    """
    machine = describe_machine()
    configuration = run.model_dump(mode="json", by_alias=True)
    with TemporaryDirectory(prefix="caloscale-bench-") as temporary, ExitStack() as stack:
        folder = dataset or sample_shards(run, Path(temporary))
        settings = {"configuration": configuration, "folder": str(folder), "batch": batch}
        pipeline = stack.enter_context(Contender("input", "input", settings))
        order = {"configuration": configuration, "batch": batch}
        environment = processor_variables(run.train)
        step = stack.enter_context(Contender("step", "step", order, environment=environment))
        interleave([pipeline, step], f"bench input {run.model.network}", seconds, rounds)
    per_epoch = pipeline.facts["showers"]
    per_shower, consumed = pipeline.timing(1 / per_epoch), step.timing(1 / batch)
    return InputBench(
        preset=run.model.network,
        batch=batch,
        showers=per_epoch,
        source=str(dataset) if dataset else "parametrised",
        showers_per_second=1 / per_shower.median,
        spread=per_shower,
        first_epoch_showers_per_second=per_epoch / pipeline.facts["firstEpochSeconds"],
        consumed_per_second=1 / consumed.median,
        ratio=consumed.median / per_shower.median,
        machine=machine,
    )
