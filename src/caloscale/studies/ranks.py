"""Starts the processes of a measure by mpiexec, and ends them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from caloscale.errors import TrainingError
from caloscale.sagips.mpi import mpi_environment, mpiexec_command


def run_ranks(module: str, ranks: int, arguments: Sequence[str], threads: int = 1) -> None:
    """Run a module of this package on every rank, until all have ended; Ctrl-C ends them.

    threads: of each rank. Raises TrainingError when one fails, with the end of what it wrote.
    """
    settings = {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, "TF_CPP_MIN_LOG_LEVEL": 2}
    settings |= {"TF_NUM_INTRAOP_THREADS": threads, "TF_NUM_INTEROP_THREADS": 1}
    environment = {**mpi_environment(), **{name: str(value) for name, value in settings.items()}}
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
