"""Kubeflow component: simulate showers."""

from kfp import dsl

from components import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def simulate(simulation: str, workspace: str, showers: dsl.Output[dsl.Dataset]) -> None:
    """Simulate calorimeter showers with Geant4, as the run configuration describes.

    Finished files are kept in a cache and not simulated again. When the run configuration names other data,
    nothing is simulated.

    Args:
        simulation: What the showers depend on in the block data of the run configuration, as JSON.
        workspace: Folder or gs://bucket/prefix with the folders of runs. Empty: beside the artifacts of the run.
        showers: HDF5 files of showers in the published layout.
    """
    from pathlib import Path

    from caloscale import errors, spec, stages

    errors.show_message_alone()
    data, folder = spec.Data.model_validate_json(simulation), stages.own_folder(workspace, showers.uri)
    record = stages.simulate(data, folder, Path(showers.path))
    if record is not None:
        showers.metadata.update(source=record.source, showers=record.showers)
