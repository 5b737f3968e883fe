"""The measures `step` and `generate`: training steps and inference in processes, pinned to cores or not."""

import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import Field

from caloscale.bench.benches import make_model, simulate_some
from caloscale.bench.rounds import Contender
from caloscale.errors import BenchError, ConfigurationError
from caloscale.installation import install_command
from caloscale.processor import available_cores, core_shares
from caloscale.spec import Run
from caloscale.spec.block import Block
from caloscale.studies.points import configured_run, own_inputs
from caloscale.training.processor import processor_variables


class StepInputs(Block):
    """Training steps of processes that run at the same time."""

    environment: dict[str, str | int | float | None] | None = None
    """Variables added to the environment of the processes, such as {OMP_NUM_THREADS: 1}; null removes one."""
    processes: int = Field(1, ge=1)
    cores_per_process: int | None = Field(None, ge=1)
    """Cores to which each is pinned, no core twice; absent: all processes may use all cores."""
    steps: int = Field(20, ge=2)
    """Steps that are timed; one has no variation."""
    label: str = ""
    """A name for the tables."""

    def variables(self, run: Run) -> dict[str, str | None]:
        """The environment of the processes, with what the run configuration sets."""
        own = {name: None if value is None else str(value) for name, value in (self.environment or {}).items()}
        return {**processor_variables(run.train), **own}

    def core_shares(self) -> Sequence[Sequence[int] | None]:
        """The cores of each process; None: all. Raises ConfigurationError where there are too few."""
        if self.cores_per_process is None:
            return [None] * self.processes
        available = available_cores()
        shares = core_shares(self.processes, available, self.cores_per_process)
        if not shares:
            problem = f"{self.processes} processes need as many cores each, and this machine has {len(available)}"
            remedy = "leave it out, or use fewer processes"
            raise ConfigurationError(problem, field="coresPerProcess", value=self.cores_per_process, remedy=remedy)
        return shares


class GenerateInputs(Block):
    """Inference by the untrained generator of a run configuration."""

    runtime: str = "tensorflow"
    """tensorflow, onnx, openvino; keras: its layers without a graph; geant4: the Monte Carlo of the same showers, of
    which only the run counts."""
    precision: str = "float32"
    batch: int = Field(16, ge=1)
    """Showers of a stream's batch."""
    streams: int = Field(1, ge=1)
    """Batches that are computed at the same time."""
    rounds: int = Field(5, ge=1)


def time_steps(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Training steps of several processes at the same time, none of which waits for another.

    inputs: `StepInputs` and fields of the run configuration. Result: `describe_steps`, and ``peakMemoryMib`` of all.
    Raises ConfigurationError where there are too few cores, BenchError when a process fails.
    """
    asked, fields = own_inputs(StepInputs, inputs)
    run = configured_run(fields)
    batch, environment = run.train.replica_batch(1), asked.variables(run)
    settings = {"configuration": run.as_values(), "batch": batch}
    contenders = [
        Contender(f"step {index}", "our_step", settings, environment=environment, cores=cores)
        for index, cores in enumerate(asked.core_shares())
    ]
    with ExitStack() as stack:
        with ThreadPoolExecutor(asked.processes) as pool:
            # In threads: each answers when its step is compiled. Those that did are ended when another fails.
            entered = [pool.submit(contender.__enter__) for contender in contenders]
            for contender, future in zip(contenders, entered):
                if future.exception() is None:
                    stack.push(contender)
            for future in entered:
                future.result()
            list(pool.map(lambda contender: [contender.run(1) for _ in range(asked.steps)], contenders))
        for contender in contenders:
            contender.finish()
    figures = describe_steps([contender.seconds for contender in contenders], batch)
    return {**figures, "peakMemoryMib": sum(contender.peak_memory_mib for contender in contenders)}


def describe_steps(seconds: Sequence[Sequence[float]], batch: int) -> dict[str, Any]:
    """Figures of the steps of each process, s: over all steps median, mean, ``cv`` (standard deviation over mean) and
    ``worst`` (the longest over the median); ``showersPerSecond`` of all processes, with each its own mean step.
    """
    every = [step for steps in seconds for step in steps]
    median, mean = statistics.median(every), statistics.fmean(every)
    return {
        "stepSeconds": median,
        "meanStepSeconds": mean,
        "cv": statistics.pstdev(every) / mean,
        "worst": max(every) / median,
        "showersPerSecond": sum(batch / statistics.fmean(steps) for steps in seconds),
    }


def time_generation(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inference of the untrained generator of the run configuration: weights do not change the speed.

    inputs: `GenerateInputs` and fields of the run configuration. Result: ``millisecondsPerShower`` (median of the
    rounds), ``lowest`` and ``highest``, ``showersPerSecond``, ``peakMemoryMib``; of Geant4 the mean alone. Raises
    ConfigurationError; BenchError when the runtime is not installed.
    """
    asked, fields = own_inputs(GenerateInputs, inputs)
    run = configured_run(fields)
    further: dict[str, float | None]
    if asked.runtime == "geant4":
        timed = simulate_some(run)
        if timed is None:
            problem = "Geant4 was not measured: it is absent, or was disturbed"
            raise BenchError(problem, remedy=install_command("simulate"))
        typical, further = 1000 * timed.seconds_per_shower, dict.fromkeys(("lowest", "highest", "peakMemoryMib"))
    else:
        each, memory = _generation(asked, run)
        typical, further = statistics.median(each), {"lowest": min(each), "highest": max(each), "peakMemoryMib": memory}
    return {"millisecondsPerShower": typical, "showersPerSecond": 1000 / typical, **further}


def _generation(asked: GenerateInputs, run: Run) -> tuple[list[float], float]:
    """Milliseconds of a shower in each round, and the largest memory, MiB."""
    with TemporaryDirectory(prefix="caloscale-study-") as temporary:
        make_model(run, Path(temporary) / "model")
        settings = asked.values_of("runtime", "precision", "batch", "streams")
        settings |= {"configuration": run.as_values(), "folder": str(Path(temporary) / "model")}
        name = f"{asked.runtime} {asked.precision}"
        with Contender(name, "runtime_work", settings, environment=processor_variables(run.train)) as contender:
            for _ in range(asked.rounds):
                contender.run(1)
            contender.finish()
    showers = asked.batch * asked.streams
    return [1000 * seconds / showers for seconds in contender.seconds], contender.peak_memory_mib
