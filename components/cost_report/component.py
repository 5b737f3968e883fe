"""Kubeflow component: the report and the bill."""

from kfp import dsl

from components import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def cost_report(
    run: str,
    workspace: str,
    status: dsl.PipelineTaskFinalStatus,
    report: dsl.Output[dsl.HTML],
    bill: dsl.Output[dsl.Markdown],
) -> None:
    """Write the report and the bill of a run, also when a step before failed.

    Args:
        run: The run document, as YAML or JSON.
        workspace: Folder or gs://bucket/prefix in which the run keeps its records.
        status: How the steps before ended; the pipeline fills it in.
        report: The whole report as one self-contained page.
        bill: What each stage took and what it costs.
    """
    from pathlib import Path

    from caloscale import spec, stages

    failure = status.error_message or "a step failed" if status.state == "FAILED" else None
    outcome = stages.report(spec.parse_run(run), workspace, failure=failure)
    Path(report.path).write_text(outcome.html, encoding="utf-8")
    Path(bill.path).write_text(outcome.bill, encoding="utf-8")
