"""The calorimeter GAN from showers to a released generator, its report and its bill.

python -m pipelines.train_calorimeter_gan --preset compact        # here, without a cluster
python -m pipelines.train_calorimeter_gan --compile OUT.yaml      # for the Kubeflow UI
python -m pipelines.train_calorimeter_gan --on-cluster --compile OUT.yaml      # the default trains as a TrainingRun
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from kfp import compiler, dsl

from pipelines.chain import chain

DEFAULTS = {
    "train-calorimeter-gan": "model: {preset: compact}",
    "train-on-cluster": "{model: {preset: variable-angle}, hardware: {}}",
}
"""Default run configuration of the pipeline by the name under which it is compiled."""


def build(here: bool = False, name: str = "train-calorimeter-gan") -> Any:
    """The pipeline; `here`: as one runs it on one's own machine. name: of `DEFAULTS`."""

    @dsl.pipeline(
        name=name,
        display_name="Train a calorimeter GAN",
        description="Simulate or read showers, train the 3DGAN, validate it against Monte Carlo, report and bill.",
    )
    def train_calorimeter_gan(workspace: str, run: str = DEFAULTS[name], fail_unless_accepted: bool = False) -> None:
        """Train a calorimeter GAN and judge it.

        Args:
            workspace: gs://bucket/prefix in which the run keeps records, checkpoints and the report (or the path of a
                volume that all steps mount). The same workspace and run configuration resume the run.
            run: The run configuration, as YAML or JSON. Without a hardware block the training runs in its step; with
                one it becomes a TrainingRun on the machines that the block names, or, when it is empty, that the
                planner chooses.
            fail_unless_accepted: Fail the run unless its model is accepted. Otherwise a rejected model is a run that
                succeeded, with a step "Rejected" in its graph.
        """
        chain(run, workspace, fail_unless_accepted, here=here)

    return train_calorimeter_gan


def compile_pipeline(path: Path, name: str = "train-calorimeter-gan") -> None:
    """Write the pipeline with the default run configuration of a name as the YAML that the Kubeflow UI takes."""
    compiler.Compiler().compile(build(name=name), str(path))


def main(arguments: list[str] | None = None) -> int:
    """Compile the pipeline, or run it on this machine; the exit code is that of the step that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configuration", nargs="?", type=Path, help="run configuration (YAML)")
    parser.add_argument("--preset", help="preset below the run configuration")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="a.b=c", help="override")
    parser.add_argument("--name", help="name of the run's folder")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of all runs")
    parser.add_argument("--compile", type=Path, metavar="OUT.yaml", help="compile instead of running")
    parser.add_argument("--on-cluster", action="store_true", help="with --compile: trains as a TrainingRun by default")
    given = parser.parse_args(arguments)
    if given.compile:
        compile_pipeline(given.compile, "train-on-cluster" if given.on_cluster else "train-calorimeter-gan")
        return 0
    from pipelines import local

    return local.run_here(given, build)


if __name__ == "__main__":
    sys.exit(main())
