"""Kubeflow component: train the networks on machines of their own."""

from kfp import dsl

from components import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def train_on_cluster(
    run: str,
    workspace: str,
    pipeline_id: str,
    dataset: dsl.Input[dsl.Dataset],
    trained: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
) -> None:
    """Train as a TrainingRun of the cluster (with a hardware block), or in this step (without one).

    A retried step follows the run that is there; a cancelled step deletes it, after a checkpoint.

    Args:
        run: The run document, as YAML or JSON.
        workspace: gs://bucket/prefix in which the run keeps its records and checkpoints; the workers see it too.
        pipeline_id: Id of the pipeline run; it names the TrainingRun.
        dataset: TFRecord shards and their manifest.
        trained: The trained networks with their card.
        metrics: Steps, time and money.
    """
    from pathlib import Path

    from caloscale import spec, stages
    from caloscale.client import step

    document = spec.parse_run(run)
    if document.hardware is None:
        record = stages.train(document, workspace, Path(dataset.path), Path(trained.path))
        for name in ("steps", "epochs", "seconds", "showers_per_second", "best_epoch"):
            metrics.log_metric(name, getattr(record, name))
        return
    done = step.train_on_cluster(
        document, step=pipeline_id, workspace=workspace, dataset=dataset.uri, model=Path(trained.path)
    )
    metrics.log_metric("attempts", len(done.status.attempts))
    if done.status.cost is not None and done.status.cost.usd is not None:
        metrics.log_metric("usd", done.status.cost.usd)
