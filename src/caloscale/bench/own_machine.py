"""The speeds of the machine at hand, for the planner: training, generation and Geant4, in about two minutes."""

from __future__ import annotations

import datetime as dt
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from caloscale.bench.generate import make_model, simulate_some
from caloscale.bench.machine import describe_machine
from caloscale.bench.rounds import Contender, interleave
from caloscale.planning.search.own_machine import MachineSpeed, cells_of, detector_of
from caloscale.spec import Run

SECONDS = 40.0
"""Approximate time of measuring step and generator, without start and compilation, s."""
LARGEST_BATCH = 32


def measure_machine(run: Run, *, rounds: int | None = None, seconds: float = SECONDS) -> MachineSpeed:
    """Time the training step, the generator (TensorFlow, float32) and, where it is installed, Geant4.

    The step is measured with the run's batch of one replica, or `LARGEST_BATCH` where that is larger. Raises BenchError
    when one of them fails.
    """
    machine = describe_machine()
    batch = min(run.train.replica_batch(1), LARGEST_BATCH)
    settings = {"configuration": run.model_dump(mode="json", by_alias=True), "batch": batch}
    with TemporaryDirectory(prefix="caloscale-measure-") as temporary, ExitStack() as stack:
        folder = Path(temporary) / "model"
        make_model(run, folder)
        runtime = {"folder": str(folder), "runtime": "tensorflow", "precision": "float32", "streams": 1}
        step = stack.enter_context(Contender("step", "step", settings))
        generator = stack.enter_context(Contender("generate", "generate", settings | runtime))
        interleave([step, generator], f"measure {run.model.network}", seconds, rounds)
    simulated = simulate_some(run)
    return MachineSpeed(
        machine_type=run.budget.priced_as.machine_type,
        processor=machine.processor,
        cores=machine.cores,
        network=run.model.network,
        cells=cells_of(run.data),
        detector=detector_of(run.data),
        batch=batch,
        trained_per_second=1 / step.timing(1 / batch).median,
        generated_per_second=1 / generator.timing(1 / batch).median,
        simulated_per_second=None if simulated is None else 1 / simulated.seconds_per_shower,
        source=f"plan --measure on {machine.processor}, {machine.cores} cores",
        observed_on=dt.date.fromisoformat(machine.date),
    )
