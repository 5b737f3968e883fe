"""Kubeflow component: compare generated showers with Monte Carlo."""

from typing import NamedTuple

from kfp import dsl

from components import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def validate(
    run: str,
    folder: str,
    dataset: dsl.Input[dsl.Dataset],
    trained: dsl.Input[dsl.Model],
    model: dsl.Output[dsl.Model],
    physics: dsl.Output[dsl.Metrics],
    roc: dsl.Output[dsl.ClassificationMetrics],
    verdict: dsl.Output[dsl.Markdown],
) -> NamedTuple("Judged", [("decision", str)]):
    """Generate showers, compare them with held-out Monte Carlo, and decide by the gates whether the model is accepted.

    Args:
        run: The resolved run configuration, as JSON.
        folder: Folder or gs://bucket/prefix of the run, with its records.
        dataset: TFRecord shards and their manifest.
        trained: The trained networks.
        model: The networks with their verdict (verdict.json); only the reasons when they are rejected.
        physics: Separation from Monte Carlo of each observable, and that of Monte Carlo itself.
        roc: ROC curve of a classifier of generated against Monte Carlo showers.
        verdict: The decision, each gate, and the observables.
        decision: accepted, rejected, undecided or not assessed.
    """
    from pathlib import Path

    from caloscale import errors, spec, stages
    from caloscale.report.physics_sections import verdict_markdown

    errors.show_message_alone()
    evaluation = stages.validate(spec.parse_run(run), folder, Path(dataset.path), Path(trained.path), Path(model.path))
    model.metadata["decision"] = evaluation.decision
    model.metadata["released"] = evaluation.decision == "accepted"
    for name, value in evaluation.metrics().items():
        physics.log_metric(name, value)
    if (curve := evaluation.roc_curve()) is not None:
        roc.log_roc_curve(*curve)
    Path(verdict.path).write_text(verdict_markdown(evaluation), encoding="utf-8")
    return (evaluation.decision,)
