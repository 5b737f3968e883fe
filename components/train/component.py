"""Kubeflow component: train the networks."""

from kfp import dsl

from components import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def train(
    run: str,
    workspace: str,
    pipeline_id: str,
    dataset: dsl.Input[dsl.Dataset],
    trained: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
) -> None:
    """Train generator and discriminator: in this step, or, with a hardware block, as a TrainingRun.

    A retried step resumes from the last checkpoint in the workspace, or follows the TrainingRun that is there. The
    TrainingRun of a cancelled step is suspended, after a checkpoint.

    Args:
        run: The run configuration, as YAML or JSON.
        workspace: Folder or gs://bucket/prefix in which the run keeps its records and checkpoints; workers see it too.
        pipeline_id: Id of the pipeline run; it names the TrainingRun. Empty: train in this step.
        dataset: TFRecord shards and their manifest.
        trained: The trained networks with their card.
        metrics: Steps, showers per second, times; of a TrainingRun also attempts and money.
    """
    from pathlib import Path

    from caloscale import errors, spec, stages
    from caloscale.client import step

    errors.show_message_alone()
    configuration, shards, model = spec.parse_run(run), Path(dataset.path), Path(trained.path)
    if configuration.hardware is None or not pipeline_id:
        figures = stages.train(configuration, workspace, shards, model).metrics
    else:
        places = {"workspace": workspace, "dataset": dataset.uri, "shards": shards, "model": model}
        figures = step.metrics_of(step.train_on_cluster(configuration, step=pipeline_id, **places))
    for name, value in figures.items():
        metrics.log_metric(name, value)
