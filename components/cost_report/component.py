"""Kubeflow component: the report and the bill."""

from kfp import dsl

from components import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def cost_report(
    workspace: str,
    resume: str,
    status: dsl.PipelineTaskFinalStatus,
    report: dsl.Output[dsl.HTML],
    bill: dsl.Output[dsl.Markdown],
    result: dsl.Output[dsl.Metrics],
) -> None:
    """Write the report and the bill of a run, also when a step before failed or the run was terminated.

    Args:
        workspace: Folder or gs://bucket/prefix with the folders of runs. Empty: beside the artifacts of the run.
        resume: Folder in the workspace that is continued; empty: the run has one of its own.
        status: How the steps before ended; the pipeline fills it in.
        report: The whole report as one self-contained page.
        bill: What each stage took and what it costs.
        result: Verdict, AUC, dollars and showers per second, as far as they are known.
    """
    from pathlib import Path

    from caloscale import errors, stages
    from caloscale.client import step

    errors.show_message_alone()
    folder = stages.run_folder(workspace, resume, report.uri)
    if stages.run_id() is not None:
        step.record_use(step=f"{stages.run_id()} {folder}", workspace=folder)
    failure = step.failure_of(status.state, status.error_message)
    outcome = stages.report_pipeline_run(workspace, resume, report.uri, failure=failure)
    Path(report.path).write_text(outcome.html, encoding="utf-8")
    Path(bill.path).write_text(outcome.bill, encoding="utf-8")
    result.metadata.update(outcome.metrics)
