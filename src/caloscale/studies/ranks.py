"""Starts the processes of a measure by mpiexec, ends them, and reads what they found."""

import json
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from caloscale.errors import TrainingError
from caloscale.sagips.mpi import mpi_environment, mpiexec_command


def run_ranks(module: str, ranks: int, settings: str, threads: int = 1) -> dict[str, Any]:
    """Run a module of this package on every rank, until all have ended; Ctrl-C ends them.

    settings: first argument of the module; the second one is the JSON file into which rank 0 writes the result, which
    is returned. threads: of each rank. Raises TrainingError when one fails, with the end of what it wrote.
    """
    with TemporaryDirectory(prefix="caloscale-study-") as temporary:
        target = Path(temporary) / "result.json"
        _run(module, ranks, [settings, str(target)], threads)
        result: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    return result


def _run(module: str, ranks: int, arguments: list[str], threads: int) -> None:
    variables = {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, "TF_CPP_MIN_LOG_LEVEL": 2}
    variables |= {"TF_NUM_INTRAOP_THREADS": threads, "TF_NUM_INTEROP_THREADS": 1}
    environment = {**mpi_environment(), **{name: str(value) for name, value in variables.items()}}
    command = mpiexec_command(ranks, ["-m", f"caloscale.studies.{module}", *arguments], environment)
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True, text=True
    )
    try:
        output = process.communicate()[1]
    except BaseException:
        process.terminate()  # mpiexec ends its ranks
        process.communicate()
        raise
    if process.returncode:
        tail = " ".join(output.split()[-60:])
        raise TrainingError(f"a process ended with exit code {process.returncode}: {tail}", remedy="use fewer workers")
