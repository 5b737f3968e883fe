"""Starts the ranks of a solver, shows their progress, and says what became of them."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from caloscale.errors import CaloscaleError, InputError, RankLostError, TrainingError
from caloscale.progress import bar
from caloscale.sagips.mpi import HOST_FILE, mpi_environment, started_ranks
from caloscale.sagips.rank import CHECK, REPORT
from caloscale.sagips.saves import common_epoch, saved_epochs
from caloscale.spec import SolverRun
from caloscale.termination import ended_by_sigterm

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
            if not line.startswith(REPORT):
                rest.write(line)
                continue
            report = json.loads(line.removeprefix(REPORT))
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
