"""Kubeflow component: prepare showers for training."""

from kfp import dsl

from components import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def preprocess(run: str, workspace: str, showers: dsl.Input[dsl.Dataset], dataset: dsl.Output[dsl.Dataset]) -> None:
    """Select, re-bin and compress showers, split off the validation showers, and write TFRecord shards.

    Args:
        run: The run configuration, as YAML or JSON.
        workspace: Folder or gs://bucket/prefix in which the run keeps its records.
        showers: Simulated showers; not used when the run configuration names other data.
        dataset: TFRecord shards and their manifest.
    """
    from pathlib import Path

    from caloscale import errors, spec, stages

    errors.show_message_alone()
    manifest = stages.preprocess(spec.parse_run(run), workspace, Path(showers.path), Path(dataset.path))
    dataset.metadata.update(source=manifest.source, **manifest.splits)
