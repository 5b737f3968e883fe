"""Kubeflow component: compare the solved parameters with the true ones."""

from kfp import dsl

from components import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def validate_solution(
    run: dict,
    folder: str,
    generators: dsl.Input[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    residuals: dsl.Output[dsl.Markdown],
) -> None:
    """Compute residuals of the parameters, or where the truth is not known the parameters, and their spread.

    Args:
        run: The run configuration with a block solver; empty: that which the folder holds.
        folder: Folder or gs://bucket/prefix of the run, with its records.
        generators: Time-stamped checkpoints of the generator of each rank.
        metrics: Residual of each parameter, and the mean of their absolute values; or each parameter.
        residuals: The same as a table, with the spread of the ranks' generators.
    """
    from pathlib import Path

    from caloscale import errors, stages

    errors.show_message_alone()
    values, table = stages.validate_solution(stages.solver_run(run, folder), folder, Path(generators.path))
    for name, value in values.items():
        metrics.log_metric(name, value)
    Path(residuals.path).write_text(table, encoding="utf-8")
