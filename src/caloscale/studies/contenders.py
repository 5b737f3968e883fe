"""The measures `step` and `generate`: training steps and inference in processes, pinned to cores or not."""

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from caloscale.bench.benches import make_model, simulate_some
from caloscale.bench.rounds import Contender, interleave
from caloscale.errors import BenchError, ConfigurationError
from caloscale.installation import install_command
from caloscale.processor import available_cores, core_shares
from caloscale.spec import Run, parse_solver_run
from caloscale.studies.points import configured_run, nested
from caloscale.training.processor import processor_variables

STEP_INPUTS = ("processes", "coresPerProcess", "steps", "environment", "label")
"""Inputs of `step` beside the fields of the run configuration."""
GENERATE_INPUTS = ("runtime", "precision", "batch", "streams", "rounds", "environment")
"""Inputs of `generate` beside the fields of the run configuration."""
SOLVER_SECONDS = 30.0
"""Time for the epochs of a solver and the products beside them."""


def time_steps(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Training steps of several processes beside each other, none of which waits for another.

    inputs: fields of the run configuration; ``processes`` (absent: 1); ``coresPerProcess``, to as many of which each is
    pinned, no core twice (absent: all processes may use all cores); ``steps`` that are timed (20); ``environment``,
    variables of the processes; ``label``, a name for the tables. Raises ConfigurationError where there are too few
    cores, BenchError when a process fails.
    """
    run = configured_run(_fields(inputs, STEP_INPUTS))
    batch, processes = run.train.replica_batch(1), inputs.get("processes", 1)
    settings = {"configuration": run.as_values(), "batch": batch}
    shares = _core_shares(processes, inputs.get("coresPerProcess"))
    with ExitStack() as stack:
        contenders = [
            Contender(f"step {index}", "step", settings, environment=_environment(inputs, run), cores=cores)
            for index, cores in enumerate(shares)
        ]
        with ThreadPoolExecutor(processes) as pool:
            # In threads: each answers when its step is compiled. Those that did are ended when another fails.
            entered = [pool.submit(contender.__enter__) for contender in contenders]
            for contender, future in zip(contenders, entered):
                if future.exception() is None:
                    stack.push(contender)
            for future in entered:
                future.result()
            list(pool.map(lambda one: [one.run(1) for _ in range(inputs.get("steps", 20))], contenders))
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
        "steps": len(every),
    }


def time_generation(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inference of the untrained generator of the run configuration: weights do not change the speed.

    inputs: fields of the run configuration; ``runtime`` (tensorflow, onnx, openvino; keras: its layers without a
    graph; geant4: the Monte Carlo of the same showers, of which only the run counts; absent: tensorflow); ``precision``
    (float32); ``batch`` (16) of each of the ``streams`` (1) that compute beside each other; ``rounds`` (5);
    ``environment``. Result: ``millisecondsPerShower`` (median of the rounds), ``lowest`` and ``highest``,
    ``showersPerSecond``, ``peakMemoryMib``. Raises BenchError when the runtime is not installed.
    """
    run = configured_run(_fields(inputs, GENERATE_INPUTS))
    if inputs.get("runtime") == "geant4":
        return _time_geant4(run)
    batch, streams = inputs.get("batch", 16), inputs.get("streams", 1)
    with TemporaryDirectory(prefix="caloscale-study-") as temporary:
        make_model(run, Path(temporary) / "model")
        settings = {
            "configuration": run.as_values(),
            "folder": str(Path(temporary) / "model"),
            "runtime": inputs.get("runtime", "tensorflow"),
            "precision": inputs.get("precision", "float32"),
            "batch": batch,
            "streams": streams,
        }
        name = f"{settings['runtime']} {settings['precision']}"
        with Contender(name, "generate", settings, environment=_environment(inputs, run)) as contender:
            for _ in range(inputs.get("rounds", 5)):
                contender.run(1)
            contender.finish()
    each = [1000 * seconds / (batch * streams) for seconds in contender.seconds]
    return {
        "millisecondsPerShower": statistics.median(each),
        "lowest": min(each),
        "highest": max(each),
        "showersPerSecond": 1000 / statistics.median(each),
        "peakMemoryMib": contender.peak_memory_mib,
    }


def time_solver_epoch(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Epochs of one rank of the solver and large matrix products, by turns on the same core.

    inputs: fields of the solver's run configuration. Result: ``seconds`` of an epoch (median), ``gflops`` of the
    discriminator's matrix products over that time, ``productGflops``, what large products reach, and their ``share``.
    Raises ConfigurationError, BenchError.
    """
    run = parse_solver_run(json.dumps(nested({**inputs, "solver.ranks": 1})))
    core = sorted(os.sched_getaffinity(0))[:1]
    settings = {"configuration": run.as_values()}
    with (
        Contender("epoch", "solver-epoch", settings, cores=core) as epoch,
        Contender("product", "product", {"precision": run.solver.precision}, cores=core) as product,
    ):
        interleave([epoch, product], "solver epochs", SOLVER_SECONDS)
        rates = [1e-9 * one.facts["flop"] / one.timing().median for one in (epoch, product)]
        seconds = epoch.timing().median
    return {"seconds": seconds, "gflops": rates[0], "productGflops": rates[1], "share": rates[0] / rates[1]}


def _time_geant4(run: Run) -> dict[str, Any]:
    timed = simulate_some(run)
    if timed is None:
        raise BenchError("Geant4 cannot be loaded", remedy=install_command("simulate"))
    each = 1000 * timed.seconds_per_shower
    return {
        "millisecondsPerShower": each,
        "lowest": None,
        "highest": None,
        "showersPerSecond": 1000 / each,
        "peakMemoryMib": None,
    }


def _fields(inputs: Mapping[str, Any], own: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in inputs.items() if name not in own}


def _environment(inputs: Mapping[str, Any], run: Run) -> dict[str, str]:
    """Variables of the processes; raises ConfigurationError when they are no mapping."""
    given = inputs.get("environment") or {}
    if not isinstance(given, Mapping):
        remedy = "write environment: {OMP_NUM_THREADS: 1}"
        raise ConfigurationError("are no mapping", field="environment", value=given, remedy=remedy)
    return processor_variables(run.train) | {name: str(value) for name, value in given.items() if value is not None}


def _core_shares(processes: int, cores: int | None) -> list[list[int] | None]:
    """The cores of each process; None: all."""
    if not isinstance(processes, int) or processes < 1:
        raise ConfigurationError("must be 1 or more", field="processes", value=processes, remedy="write processes: 1")
    if cores is None:
        return [None] * processes
    available = available_cores()
    if not isinstance(cores, int) or cores < 1 or processes * cores > len(available):
        problem = f"{processes} processes need as many cores each, and this machine has {len(available)}"
        remedy = "leave it out, or use fewer processes"
        raise ConfigurationError(problem, field="coresPerProcess", value=cores, remedy=remedy)
    return list(core_shares(processes, available, cores))
