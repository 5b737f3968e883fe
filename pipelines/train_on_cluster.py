"""The same steps with a hardware block: the training is a TrainingRun that the operator places, recovers and bills.

python -m pipelines.train_on_cluster OUT.yaml      # for the Kubeflow UI
"""

import sys
from pathlib import Path
from typing import Any

from kfp import compiler, dsl

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
            workspace: gs://bucket/prefix in which the run keeps records, checkpoints and the report; the workers read
                and write there too. The same workspace and run configuration resume the run.
            run: The run configuration, as YAML or JSON; its hardware block names the machines. The default
                trains the published network (51 x 51 x 25 cells) on the machines that the planner chooses.
        """
        chain(run, workspace)

    return train_calorimeter_gan_on_cluster


def compile_pipeline(path: Path) -> None:
    """Write the pipeline as the YAML that the Kubeflow UI takes."""
    compiler.Compiler().compile(build(), str(path))


if __name__ == "__main__":
    compile_pipeline(Path(sys.argv[1]))
