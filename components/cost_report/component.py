"""Kubeflow component: the report and the bill."""

from kfp import dsl

from components import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def cost_report(
    run: str,
    workspace: str,
    pipeline_id: str,
    status: dsl.PipelineTaskFinalStatus,
    report: dsl.Output[dsl.HTML],
    bill: dsl.Output[dsl.Markdown],
) -> None:
    """Write the report and the bill of a run, also when a step before failed or the run was terminated.

    Args:
        run: The run configuration, as YAML or JSON.
        workspace: Folder or gs://bucket/prefix in which the run keeps its records.
        pipeline_id: Id of the pipeline run; it names the TrainingRun. Empty: the training ran in its step.
        status: How the steps before ended; the pipeline fills it in.
        report: The whole report as one self-contained page.
        bill: What each stage took and what it costs.
    """
    from pathlib import Path

    from caloscale import errors, spec, stages
    from caloscale.client import step

    errors.show_message_alone()
    try:
        configuration = spec.parse_any_run(run)
        if isinstance(configuration, spec.Run) and configuration.hardware is not None and pipeline_id:
            step.record_use(configuration, step=pipeline_id, workspace=workspace)
        failure = step.failure_of(status.state, status.error_message)
        outcome = stages.report_any(configuration, workspace, failure=failure)
    except errors.ConfigurationError as error:  # of the text, or of a workspace that holds another run
        outcome = stages.report_of_refusal(error, workspace)
    Path(report.path).write_text(outcome.html, encoding="utf-8")
    Path(bill.path).write_text(outcome.bill, encoding="utf-8")
