"""Kubeflow component: train the networks."""

from kfp import dsl

from components import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def train(
    run: str,
    workspace: str,
    dataset: dsl.Input[dsl.Dataset],
    trained: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
) -> None:
    """Train generator and discriminator; a retried step goes on from the last checkpoint in the workspace.

    Args:
        run: The run document, as YAML or JSON.
        workspace: Folder or gs://bucket/prefix in which the run keeps its records and checkpoints.
        dataset: TFRecord shards and their manifest.
        trained: The trained networks with their card.
        metrics: Steps, showers per second and times.
    """
    from pathlib import Path

    from caloscale import spec, stages

    record = stages.train(spec.parse_run(run), workspace, Path(dataset.path), Path(trained.path))
    for name in ("steps", "epochs", "seconds", "showers_per_second", "best_epoch"):
        metrics.log_metric(name, getattr(record, name))
