"""caloscale worker: what a pod of a run on a cluster runs."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from caloscale.errors import InputError
from caloscale.status import PROGRESS_FILE_VARIABLE

if TYPE_CHECKING:
    from caloscale.spec import Run, SolverRun


def command() -> None:
    """Train as one of the workers of a run on a cluster; everything comes from the environment of the pod."""
    from caloscale.cluster.workload.pod_template import RUN_VARIABLE
    from caloscale.spec import SolverRun, parse_any_run
    from caloscale.termination import ended_by_sigterm

    text = os.environ.get(RUN_VARIABLE)
    if text is None:
        raise InputError(
            "is not set: this command is for pods of the operator",
            field=RUN_VARIABLE,
            remedy="train here with caloscale train or caloscale run",
        )
    logging.basicConfig(format="%(message)s")
    logging.getLogger("caloscale").setLevel(logging.INFO)
    run = parse_any_run(text)
    with ended_by_sigterm():
        if isinstance(run, SolverRun):
            _solve(run)
        else:
            _work(run)


def _solve(run: SolverRun) -> None:
    """As the launcher of an MPIJob: start the ranks on all nodes, and report."""
    from caloscale.client.reporting import ProgressReporter
    from caloscale.cluster.workload.pod_template import WORKSPACE_VARIABLE
    from caloscale.stages.solving import new_solver_folder, solve_and_report

    workspace, progress = Path(os.environ[WORKSPACE_VARIABLE]), _progress_file()
    with ProgressReporter(progress):
        solve_and_report(run, new_solver_folder(run, workspace.parent, workspace.name))


def _scratch() -> Path:
    from caloscale.cluster.workload.pod_template import SCRATCH

    return Path(os.environ.get("CALOSCALE_SCRATCH", SCRATCH))


def _progress_file() -> Path:
    """The file that training or ranks write their progress into, from now on."""
    file = _scratch() / "progress.json"
    os.environ[PROGRESS_FILE_VARIABLE] = str(file)
    return file


def _work(run: Run) -> None:
    """Shards, training, and after it what worker 0 does alone."""
    from caloscale import stages
    from caloscale.client.reporting import ProgressReporter, worker_index
    from caloscale.cluster.workload.pod_template import DATASET_VARIABLE, WORKSPACE_VARIABLE

    chief = worker_index(os.environ) == 0
    scratch = _scratch()
    shared, given = os.environ.get(WORKSPACE_VARIABLE), os.environ.get(DATASET_VARIABLE)
    workspace = shared if shared is not None and chief else str(scratch / "run")
    shards = stages.provide_shards(run, scratch, workspace=shared, given=given, chief=chief)
    trained = scratch / "model"
    with ProgressReporter(_progress_file()):
        stages.train(run, workspace, shards, trained)
    if chief and given is None:  # with shards from elsewhere this is a step of a longer chain
        stages.validate(run, workspace, shards, trained)
        stages.report(run, workspace)
