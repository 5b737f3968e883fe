"""Kubeflow component: train the networks."""

from kfp import dsl

from components import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def train(
    run: str,
    folder: str,
    dataset: dsl.Input[dsl.Dataset],
    trained: dsl.Output[dsl.Model],
    speed: dsl.Output[dsl.Metrics],
) -> None:
    """Train the networks: in this step, or, with a hardware block, as a TrainingRun.

    A retried step resumes from the last checkpoint in the workspace, or follows the TrainingRun that is there. The
    TrainingRun of a cancelled step is suspended, after a checkpoint.

    Args:
        run: The resolved run configuration, as JSON.
        folder: Folder or gs://bucket/prefix of the run, with its records and checkpoints; workers see it too.
        dataset: TFRecord shards and their manifest.
        trained: The trained networks with their card.
        speed: Steps, showers per second, time, US dollars; of a TrainingRun also attempts.
    """
    from pathlib import Path

    from caloscale import errors, spec, stages
    from caloscale.client import step

    errors.show_message_alone()
    configuration, shards, model = spec.parse_run(run), Path(dataset.path), Path(trained.path)
    if configuration.hardware is None or stages.run_id() is None:
        figures = stages.train_as_step(configuration, folder, shards, model)
    else:
        places = {"workspace": folder, "dataset": dataset.uri, "shards": shards, "model": model}
        figures = step.metrics_of(step.train_on_cluster(configuration, step=f"{stages.run_id()} {folder}", **places))
    for name, value in figures.items():
        speed.log_metric(name, value)
