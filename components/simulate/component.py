"""Kubeflow component: simulate showers."""

from kfp import dsl

from components import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def simulate(run: str, workspace: str, showers: dsl.Output[dsl.Dataset]) -> None:
    """Simulate calorimeter showers with Geant4, as the run configuration describes.

    Finished files are kept in a cache and not simulated again. When the run configuration names other data,
    nothing is simulated.

    Args:
        run: The run configuration, as YAML or JSON.
        workspace: Folder or gs://bucket/prefix in which the run keeps its records.
        showers: HDF5 files of showers in the published layout.
    """
    from pathlib import Path

    from caloscale import errors, spec, stages

    errors.show_message_alone()
    record = stages.simulate(spec.parse_run(run), workspace, Path(showers.path))
    if record is not None:
        showers.metadata.update(source=record.source, showers=record.showers)
