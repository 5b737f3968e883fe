"""Kubeflow component: find the parameters whose events look like the measured ones."""

from kfp import dsl

from components import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def solve(
    run: str,
    workspace: str,
    generators: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
) -> None:
    """Solve an inverse problem on several ranks; an interrupted step resumes from the newest save of all ranks.

    Args:
        run: The run configuration with a block solver, as YAML or JSON.
        workspace: Folder or gs://bucket/prefix in which the run keeps its records.
        generators: Time-stamped checkpoints of the generator of each rank.
        metrics: Seconds of an epoch and of its exchange, analysis rate, stale and dropped gradients.
    """
    from pathlib import Path

    from caloscale import errors, spec, stages

    errors.show_message_alone()
    summary = stages.solve(spec.parse_solver_run(run), workspace, Path(generators.path))
    for name, value in summary.metrics.items():
        metrics.log_metric(name, value)
