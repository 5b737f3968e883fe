"""Measures that work in separate processes: a function `work` of a module of this package on each of several ranks.

    mpiexec -n RANKS python -m mpi4py -m caloscale.studies.ranks MODULE SETTINGS FILE

One rank needs no MPI. What the ranks import is loaded in them alone: the largest memory is that of the work.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from caloscale.errors import TrainingError
from caloscale.sagips.launch import mpi_environment, started_ranks


def run_ranks(module: str, ranks: int, settings: Mapping[str, Any], threads: int = 1) -> dict[str, Any]:
    """Call `work` of a module of this package on every rank, until all have ended; they end with this process.

    settings: its argument, as in JSON. threads: of each rank. Returns what it returns on the rank where that is not
    None (rank 0). Raises TrainingError when a rank fails, with the end of what it wrote.
    """
    variables = {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, "TF_CPP_MIN_LOG_LEVEL": 2}
    variables |= {"TF_NUM_INTRAOP_THREADS": threads, "TF_NUM_INTEROP_THREADS": 1}
    environment = {**mpi_environment(), **{name: str(value) for name, value in variables.items()}}
    with TemporaryDirectory(prefix="caloscale-study-") as temporary:
        target = Path(temporary) / "result.json"
        words = ["-m", __spec__.name, module, json.dumps(settings), str(target)]
        with started_ranks(ranks, words, environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            output = process.communicate()[1]
        if process.returncode:
            tail = " ".join(output.split()[-60:])
            problem = f"a process ended with exit code {process.returncode}: {tail}"
            raise TrainingError(problem, remedy="read what it wrote; too many workers have too little memory")
        result: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    return result


def slowest_step(world: Any, steps: int, step: Callable[[], float]) -> dict[str, float]:
    """Times of the slowest rank, means over steps after one that is not timed: it compiles and touches memory.

    step: returns the seconds of its exchange. Result: ``stepSeconds`` and of these ``exchangeSeconds`` (waiting
    included) and ``computeSeconds``.
    """
    seconds = exchanging = 0.0
    for number in range(steps + 1):
        world.Barrier()
        start = time.perf_counter()
        exchanged = step()
        if number:
            seconds, exchanging = seconds + time.perf_counter() - start, exchanging + exchanged
    slowest, its_exchanges = max(world.allgather((seconds / steps, exchanging / steps)))
    return {"stepSeconds": slowest, "exchangeSeconds": its_exchanges, "computeSeconds": slowest - its_exchanges}


if __name__ == "__main__":
    module, settings, target = sys.argv[1:]
    found = import_module(f"caloscale.studies.{module}").work(json.loads(settings))
    if found is not None:
        Path(target).write_text(json.dumps(found), encoding="utf-8")
