"""The points of a study on a cluster: those that are whole runs, each with its own workspace, some beside each other.

python -m pipelines.run_study batch-size --set train.epochs=60 --compile OUT.yaml      # for the Kubeflow UI

A run configuration with a hardware block trains as a TrainingRun, so a study gets its machines by
--set hardware.count=32 --set hardware.perNode=8. Every point leaves its run in WORKSPACE/points/NAME. Copy
WORKSPACE/points to runs/study-STUDY/points, and `caloscale study` with the same --set makes the tables from it,
without running anything.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from kfp import dsl

from caloscale.planning.catalogue.prices import today
from caloscale.spec import EMPTY_FORM
from caloscale.spec.configuration import parse_override
from caloscale.stages.pipeline_run import HERE
from caloscale.studies.measures import Context
from caloscale.studies.runner import runs_of
from caloscale.studies.sweep import Study, load_study
from components.cost_report.component import cost_report
from pipelines.chain import LIGHT, in_cluster, steps
from pipelines.options import command, write_pipeline

PARALLEL = 4


def build(study: Study, context: Context, parallel: int = PARALLEL) -> Any:
    """The pipeline of a study; ``parallel``: most points at a time. Raises ConfigurationError without whole runs."""
    points = [
        {"point": name, "run": run.model_dump(mode="json", by_alias=True)} for name, run in runs_of(study, context)
    ]

    @dsl.pipeline(name="point")
    def point(run: dict, workspace: str) -> None:
        steps({**EMPTY_FORM, "run": run, "workspace": workspace, "resume": HERE})

    @dsl.pipeline(name=f"study-{study.name}", display_name=study.title, description=study.about or study.title)
    def run_study(workspace: str) -> None:
        """Run all points; one that fails does not end the others.

        Args:
            workspace: gs://bucket/prefix in which each point has a folder. The same workspace resumes the study.
        """
        with dsl.ParallelFor(items=points, parallelism=parallel, name="Points") as item:
            item.run.channel_type = "Dict"  # the compiler takes the values of a loop for texts
            folder = f"{workspace}/points/{item.point}"
            run = point(run=item.run, workspace=folder).set_display_name("Run")
            bill = cost_report(workspace=folder, resume=HERE)
            bill.set_display_name("Report and bill").set_caching_options(False)
            # Kubeflow hangs it on what it is after: on the last step it would not come when an earlier one fails.
            bill.after(run).ignore_upstream_failure()
            in_cluster(bill, LIGHT)

    return run_study


@command
def main(arguments: list[str] | None = None) -> int:
    """Compile the pipeline of a study; the exit code is 2 for a study or an input that cannot be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", help="name of a study, or the YAML file of one")
    parser.add_argument(
        "--set", action="append", default=[], dest="changes", metavar="a.b=c", help="as caloscale study"
    )
    parser.add_argument("--parallel", type=int, default=PARALLEL, help=f"points at a time (absent: {PARALLEL})")
    parser.add_argument("--compile", type=Path, required=True, metavar="OUT.yaml", help="file of the pipeline")
    given = parser.parse_args(arguments)
    if given.parallel < 1:
        parser.error(f"--parallel: at least one point at a time (got {given.parallel})")
    study = load_study(given.study).changed(dict(map(parse_override, given.changes)))
    write_pipeline(build(study, Context(today()), given.parallel), given.compile)
    return 0


if __name__ == "__main__":
    sys.exit(main())
