"""Kubeflow component: find the parameters whose events look like the measured ones."""

from typing import NamedTuple

from kfp import dsl

from components import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def solve(
    run: dict,
    workspace: str,
    resume: str,
    generators: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
) -> NamedTuple("Begun", [("folder", str)]):
    """Solve an inverse problem on several ranks; an interrupted step resumes from the newest save of all ranks.

    Args:
        run: The run configuration with a block solver; empty: that which the folder holds.
        workspace: Folder or gs://bucket/prefix with the folders of runs. Empty: beside the artifacts of the run.
        resume: Folder in the workspace to continue; empty: a new one, named after the id of the pipeline run.
        generators: Time-stamped checkpoints of the generator of each rank.
        metrics: Seconds of an epoch and of its exchange, analysis rate, stale and dropped gradients.
        folder: Folder or gs://bucket/prefix of the run.
    """
    from pathlib import Path

    from caloscale import errors, stages

    errors.show_message_alone()
    configured, folder = stages.begin_solver(run, workspace=workspace, resume=resume, beside=generators.uri)
    summary = stages.solve(configured, folder, Path(generators.path))
    for name, value in summary.metrics.items():
        metrics.log_metric(name, value)
    return (folder,)
