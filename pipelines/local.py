"""Running a pipeline on this machine: the same steps, each in a process of its own, no cluster, no Docker."""

import argparse
import contextlib
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from kfp import local

from caloscale import spec, stages
from caloscale.errors import Terminated
from pipelines.log import PipelineLog


def run_here(given: argparse.Namespace, build: Callable[..., Any]) -> int:
    """Run the pipeline that ``build`` makes in ``runs/<name>``; prints a summary and the path of the report.

    Returns the exit code. Raises CaloscaleError for a run configuration or a folder that cannot be used.
    """
    run = spec.load_run(given.configuration, preset=given.preset, overrides=given.overrides)
    folder = stages.new_run_folder(run, given.runs, given.name)
    try:
        if stopped := _run(build(here=True), folder, training=True):
            return stopped
    finally:
        stages.point_latest(folder)
    return stages.print_outcome(folder)


def solve_here(given: argparse.Namespace, build: Callable[..., Any]) -> int:
    """As `run_here`, for the pipeline of an inverse problem."""
    from caloscale.stages import solving
    from caloscale.stages.record import read_records

    run = spec.load_solver_run(given.configuration, preset=given.preset, overrides=given.overrides)
    folder = solving.new_solver_folder(run, given.runs, given.name)
    if stopped := _run(build(here=True), folder, training=False):
        return stopped
    records = read_records(folder)
    failed = next((record for record in records.values() if record.outcome != "succeeded"), None)
    if failed is not None:
        print(f"error: stage {failed.stage} {failed.outcome}: {failed.error}", file=sys.stderr)
        return failed.exit_code
    for stage in ("solve", "validate", "report"):
        if stage not in records:
            print(f"error: stage {stage} has no record: its step was killed or did not begin", file=sys.stderr)
            return 1
    solving.print_solution(folder)
    return 0


def _run(pipeline: Callable[..., Any], folder: Path, *, training: bool) -> int:
    """Run a pipeline with a workspace on this machine; the exit code where Ctrl-C or SIGTERM stopped it, else 0."""
    log = folder / "pipeline.log"
    print(f"run {folder.name}: {folder}, log {log}", flush=True)
    # Steps bring no image here, and names for the UI have no effect: the runner warns of each.
    warnings.filterwarnings("ignore", message="You may be attemping to run a task", category=RuntimeWarning)
    warnings.filterwarnings("ignore", message=".*no effect in the current local runner", category=UserWarning)
    local.init(
        local.SubprocessRunner(use_venv=False),
        pipeline_root=str(folder / "pipeline"),
        raise_on_error=False,
        enable_caching=False,
    )
    before = signal.signal(signal.SIGTERM, _end_step)
    try:
        with log.open("a", encoding="utf-8") as kept, contextlib.redirect_stdout(PipelineLog(sys.stdout, kept)):
            # The folder holds the configuration; the runner takes no null.
            pipeline(workspace=str(folder), run={}, **({"preset": ""} if training else {}))
    except (KeyboardInterrupt, Terminated) as end:
        print(f"\nstopped; the same command with --name {folder.name} resumes it", file=sys.stderr)
        return end.exit_code if isinstance(end, Terminated) else 130
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _end_step(*_: object) -> None:
    """Pass SIGTERM on to the step, which Ctrl-C reaches by itself, and wait for its end while its output is open."""
    steps = []
    for started in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            # The shell of a step waits for it, and passes no signal on.
            step = next(iter(started.children()), started) if started.name() == "sh" else started
            step.terminate()
            steps.append(step)
    psutil.wait_procs(steps, timeout=60)
    raise Terminated
