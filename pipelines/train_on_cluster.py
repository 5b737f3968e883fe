"""The same way with the training on machines of its own: a TrainingRun that the operator places, recovers and bills.

python -m pipelines.train_on_cluster OUT.yaml      # for the Kubeflow UI
"""

import sys
from pathlib import Path
from typing import Any

from kfp import compiler, dsl

from components.train_on_cluster.component import train_on_cluster
from pipelines.chain import chain

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

        def train_elsewhere(dataset: Any) -> Any:
            task = train_on_cluster(
                run=run, workspace=workspace, pipeline_id=dsl.PIPELINE_JOB_ID_PLACEHOLDER, dataset=dataset
            )
            task.set_caching_options(False)  # its machines are paid for each time
            return task.set_display_name("Train on the cluster")

        chain(run, workspace, train_elsewhere, train_retries=3)

    return train_calorimeter_gan_on_cluster


def compile_pipeline(path: Path) -> None:
    """Write the pipeline as the YAML that the Kubeflow UI takes."""
    compiler.Compiler().compile(build(), str(path))


if __name__ == "__main__":
    compile_pipeline(Path(sys.argv[1]))
