"""Running a pipeline on this machine: the same steps, each in a process of its own, no cluster, no Docker."""

from __future__ import annotations

import argparse
import contextlib
import sys
import warnings

from kfp import local

from caloscale import spec, stages
from caloscale.errors import CaloscaleError
from pipelines.log import PipelineLog
from pipelines.train_calorimeter_gan import build


def run_here(given: argparse.Namespace) -> int:
    """Run the pipeline in ``runs/<name>``; prints a summary and the path of the report; returns the exit code."""
    try:
        run = spec.load_run(given.configuration, preset=given.preset, overrides=given.overrides)
        folder = stages.new_run_folder(run, given.runs, given.name)
    except CaloscaleError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
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
    try:
        with log.open("a", encoding="utf-8") as kept, contextlib.redirect_stdout(PipelineLog(sys.stdout, kept)):
            build(here=True)(workspace=str(folder), run=spec.dump_run(run))
    except KeyboardInterrupt:
        print(f"\nstopped; the same command with --name {folder.name} resumes it", file=sys.stderr)
        return 130
    finally:
        stages.point_latest(folder)
    return stages.print_outcome(folder)
