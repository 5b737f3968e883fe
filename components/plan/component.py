"""Kubeflow component: plan the machines."""

from kfp import dsl

from components import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def plan(run: str, workspace: str, plan: dsl.Output[dsl.Markdown]) -> None:
    """Choose machines for the training, with time, money and the reasons.

    A run configuration without a hardware block trains where the step runs; the page says so. The plan is kept in the
    workspace, where the bill is compared with it.

    Args:
        run: The run configuration, as YAML or JSON.
        workspace: Folder or gs://bucket/prefix in which the run keeps its records.
        plan: The choice, what else there is, and why.
    """
    from pathlib import Path

    from caloscale import errors, spec, stages

    errors.show_message_alone()
    Path(plan.path).write_text(stages.plan(spec.parse_run(run), workspace).table, encoding="utf-8")
