"""Running a pipeline on this machine: the same steps, each in a process of its own, no cluster, no Docker."""

from __future__ import annotations

import argparse
import logging
import sys
import warnings

from kfp import local

from caloscale import spec, stages
from caloscale.errors import CaloscaleError
from pipelines.train_calorimeter_gan import build


def run_here(given: argparse.Namespace) -> int:
    """Run the pipeline in ``runs/<name>``; prints a summary and the path of the report."""
    try:
        run = spec.load_run(given.document, preset=given.preset, overrides=given.overrides)
        folder = stages.new_run_folder(run, given.runs, given.name)
    except CaloscaleError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"run {folder.name}: {folder}", flush=True)
    logging.getLogger().setLevel(logging.WARNING)
    # The steps bring no image here; the runner warns of each.
    warnings.filterwarnings("ignore", message="You may be attemping to run a task", category=RuntimeWarning)
    local.init(
        local.SubprocessRunner(use_venv=False),
        pipeline_root=str(folder / "pipeline"),
        raise_on_error=False,
        enable_caching=False,
    )
    try:
        build(retries=False)(workspace=str(folder), run=spec.dump_run(run))
    except KeyboardInterrupt:
        print(f"\nstopped; to go on: make run NAME={folder.name}", file=sys.stderr)
        return 130
    return stages.print_outcome(folder)
