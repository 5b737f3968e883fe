"""The calorimeter GAN from showers to a released generator, its report and its bill.

python -m pipelines.train_calorimeter_gan --preset compact        # here, without a cluster
python -m pipelines.train_calorimeter_gan --compile OUT.yaml      # for the Kubeflow UI
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from kfp import compiler, dsl

from pipelines.chain import chain

COMPACT = "model: {preset: compact}"


def build(here: bool = False) -> Any:
    """The pipeline; `here`: as one runs it on one's own machine."""

    @dsl.pipeline(
        name="train-calorimeter-gan",
        display_name="Train a calorimeter GAN",
        description="Simulate or read showers, train the 3DGAN, validate it against Monte Carlo, report and bill.",
    )
    def train_calorimeter_gan(workspace: str, run: str = COMPACT) -> None:
        """Train a calorimeter GAN and judge it.

        Args:
            workspace: gs://bucket/prefix in which the run keeps records, checkpoints and the report (or the path of a
                volume that all steps mount). The same workspace and run configuration resume the run.
            run: The run configuration, as YAML or JSON. The default trains the compact network in its step, in minutes.
                With a hardware block the training becomes a TrainingRun on machines of its own.
        """
        chain(run, workspace, here=here)

    return train_calorimeter_gan


def compile_pipeline(path: Path) -> None:
    """Write the pipeline as the YAML that the Kubeflow UI takes."""
    compiler.Compiler().compile(build(), str(path))


def main(arguments: list[str] | None = None) -> int:
    """Compile the pipeline, or run it on this machine; the exit code is that of the step that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("document", nargs="?", type=Path, help="run configuration (YAML)")
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

    return local.run_here(given)


if __name__ == "__main__":
    sys.exit(main())
