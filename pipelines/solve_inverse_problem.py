"""An inverse problem from measured events to parameters, their residuals, a report and a bill.

python -m pipelines.solve_inverse_problem --preset proxy        # here, without a cluster
python -m pipelines.solve_inverse_problem --compile OUT.yaml    # for the Kubeflow UI
"""

import sys
from typing import Any

from kfp import dsl

from components.cost_report.component import cost_report
from components.solve.component import solve
from components.validate_solution.component import validate_solution
from pipelines.chain import HEAVY, LIGHT, RETRIES, in_cluster
from pipelines.options import command, parser_of, refuse_unused, write_pipeline

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


@command
def main(arguments: list[str] | None = None) -> int:
    """Compile the pipeline, or run it on this machine; the exit code is that of the step that failed."""
    parser = parser_of(__doc__)
    given = parser.parse_args(arguments)
    refuse_unused(parser, given)
    if given.compile:
        write_pipeline(build(), given.compile)
        return 0
    from pipelines import local

    return local.solve_here(given, build)


if __name__ == "__main__":
    sys.exit(main())
