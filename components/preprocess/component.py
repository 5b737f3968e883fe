"""Kubeflow component: prepare showers for training."""

from kfp import dsl

from components import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def preprocess(
    data: str, reading: str, workspace: str, showers: dsl.Input[dsl.Dataset], dataset: dsl.Output[dsl.Dataset]
) -> None:
    """Select, re-bin and compress showers, split off the validation showers, and write TFRecord shards.

    Args:
        data: What the shards depend on in the block data of the run configuration, as JSON.
        reading: Another in each run that reads files: the server's cache does not know whether these have changed.
        workspace: Folder or gs://bucket/prefix with the folders of runs. Empty: beside the artifacts of the run.
        showers: Simulated showers; not used when the run configuration names other data.
        dataset: TFRecord shards and their manifest.
    """
    from pathlib import Path

    from caloscale import errors, spec, stages

    errors.show_message_alone()
    block, folder = spec.Data.model_validate_json(data), stages.own_folder(workspace, dataset.uri)
    manifest = stages.preprocess(block, folder, Path(showers.path), Path(dataset.path))
    dataset.metadata.update(source=manifest.source, **manifest.splits)
