"""The same way with the training on machines of its own: a TrainingRun that the operator places, recovers and bills.

python -m pipelines.train_on_cluster OUT.yaml      # for the Kubeflow UI
"""

import sys
from pathlib import Path
from typing import Any

from kfp import compiler, dsl

from components.cost_report.component import cost_report
from components.plan.component import plan
from components.preprocess.component import preprocess
from components.simulate.component import simulate
from components.train_on_cluster.component import train_on_cluster
from components.validate.component import validate

VARIABLE_ANGLE = "{model: {preset: variable-angle}, hardware: {}}"


def build() -> Any:
    """The pipeline."""

    @dsl.pipeline(
        name="train-on-cluster",
        display_name="Train a calorimeter GAN on machines of its own",
        description="Plan, prepare showers, train as a TrainingRun on whole nodes, validate, report and bill.",
    )
    def train_calorimeter_gan_on_cluster(workspace: str, run: str = VARIABLE_ANGLE) -> None:
        """Train a calorimeter GAN on the machines that the plan chooses.

        Args:
            workspace: gs://bucket/prefix in which the run keeps records, checkpoints and the report.
            run: The run document, as YAML or JSON; its hardware block says on which machines it trains.
        """
        bill = cost_report(run=run, workspace=workspace).set_display_name("Report and bill")
        bill.set_caching_options(False)
        with dsl.ExitHandler(bill, name="Run"):
            planned = plan(run=run, workspace=workspace).set_display_name("Plan machines")
            planned.set_caching_options(False)  # prices are those of the day
            simulated = simulate(run=run, workspace=workspace).set_display_name("Simulate showers")
            prepared = preprocess(run=run, workspace=workspace, showers=simulated.outputs["showers"])
            prepared.set_display_name("Prepare showers")
            trained = train_on_cluster(
                run=run,
                workspace=workspace,
                pipeline_id=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
                dataset=prepared.outputs["dataset"],
            )
            trained.set_display_name("Train on the cluster").after(planned)
            trained.set_caching_options(False)  # its machines are paid for each time
            judged = validate(
                run=run,
                workspace=workspace,
                dataset=prepared.outputs["dataset"],
                trained=trained.outputs["trained"],
            )
            judged.set_display_name("Validate against Monte Carlo")
            for task, attempts in ((planned, 1), (simulated, 2), (prepared, 2), (trained, 3), (judged, 1)):
                task.set_retry(num_retries=attempts, backoff_duration="60s", backoff_factor=2.0)

    return train_calorimeter_gan_on_cluster


def compile_pipeline(path: Path) -> None:
    """Write the pipeline as the YAML that the Kubeflow UI takes."""
    compiler.Compiler().compile(build(), str(path))


if __name__ == "__main__":
    compile_pipeline(Path(sys.argv[1]))
