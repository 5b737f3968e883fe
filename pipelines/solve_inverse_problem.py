"""An inverse problem from measured events to parameters, their residuals, a report and a bill.

python -m pipelines.solve_inverse_problem --preset proxy        # here, without a cluster
python -m pipelines.solve_inverse_problem --compile OUT.yaml    # for the Kubeflow UI
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from kfp import compiler, dsl

from components.cost_report.component import cost_report
from components.solve.component import solve
from components.validate_solution.component import validate_solution
from pipelines.chain import HEAVY, LIGHT, RETRIES, in_cluster

NAME = "solve-inverse-problem"
DEFAULT = {"solver": {"preset": "proxy"}}


def build(here: bool = False) -> Any:
    """The pipeline; `here`: as one runs it on one's own machine, where no step is tried again."""

    @dsl.pipeline(
        name=NAME,
        display_name="Solve an inverse problem",
        description="Find parameters whose events look like measured ones, compare with the truth, report and bill.",
    )
    def solve_inverse_problem(run: dict = DEFAULT, workspace: str = "", resume: str = "") -> None:
        """Solve an inverse problem on several ranks of one pod.

        Args:
            run: The run configuration. Its block solver names the problem, the optimiser, and the number of ranks,
                which are processes of the step.
            workspace: gs://bucket/prefix in which each run has a folder, named after its id, with records, checkpoints
                and report (also s3:// and minio://). Empty: beside the artifacts of the run.
            resume: Id of an earlier run in the same workspace to continue, with the same run configuration. Empty: a
                new run.
        """
        bill = cost_report(workspace=workspace, resume=resume).set_display_name("Report and bill")
        bill.set_caching_options(False)
        if not here:
            in_cluster(bill, LIGHT)
        with dsl.ExitHandler(bill, name="Run"):
            solved = solve(run=run, workspace=workspace, resume=resume).set_display_name("Solve")
            generators = solved.outputs["generators"]
            judged = validate_solution(run=run, folder=solved.outputs["folder"], generators=generators)
            judged.set_display_name("Compare with the truth")
            for task, resources in ((solved, HEAVY), (judged, LIGHT)):
                task.set_caching_options(False)  # what is done is in the workspace
                if not here:
                    in_cluster(task, resources, retries=RETRIES[task.name])

    return solve_inverse_problem


def compile_pipeline(path: Path) -> None:
    """Write the pipeline as the YAML that the Kubeflow UI takes."""
    compiler.Compiler().compile(build(), str(path))


def main(arguments: list[str] | None = None) -> int:
    """Compile the pipeline, or run it on this machine; the exit code is that of the step that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configuration", nargs="?", type=Path, help="run configuration (YAML)")
    parser.add_argument("--preset", help="preset below the run configuration")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="a.b=c", help="override")
    parser.add_argument("--name", help="name of the run's folder")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of all runs")
    parser.add_argument("--compile", type=Path, metavar="OUT.yaml", help="compile instead of running")
    given = parser.parse_args(arguments)
    if given.compile:
        compile_pipeline(given.compile)
        return 0
    from pipelines import local

    return local.solve_here(given, build)


if __name__ == "__main__":
    sys.exit(main())
