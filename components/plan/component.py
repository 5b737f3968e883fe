"""Kubeflow component: the run configuration of the form, and its machines."""

from typing import NamedTuple

from kfp import dsl

from components import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def plan(
    preset: str,
    energy_gev: list,
    angle_deg: list,
    showers: int,
    epochs: int,
    batch: int,
    precision: str,
    seed: int,
    gpus: int,
    accelerator: str,
    nodes: int,
    capacity_type: str,
    max_usd: float,
    run: dict,
    workspace: str,
    resume: str,
    plan: dsl.Output[dsl.Markdown],
) -> NamedTuple(
    "Begun",
    [
        ("folder", str),
        ("configuration", str),
        ("simulation", str),
        ("data", str),
        ("reading", str),
        ("gpu_resource", str),
        ("gpu_count", str),
    ],
):
    """Resolve the form and choose machines for the training, with time, money and the reasons.

    A run configuration without a hardware block trains where the step runs; the page says so. Configuration and plan
    are kept in the folder of the run. A form that is refused changes nothing there.

    Args:
        preset: As in the form of the pipeline, as all entries down to max_usd.
        energy_gev: As in the form.
        angle_deg: As in the form.
        showers: As in the form.
        epochs: As in the form.
        batch: As in the form.
        precision: As in the form.
        seed: As in the form.
        gpus: As in the form.
        accelerator: As in the form.
        nodes: As in the form.
        capacity_type: As in the form.
        max_usd: As in the form.
        run: The run configuration beneath the entries of the form.
        workspace: Folder or gs://bucket/prefix with the folders of runs. Empty: beside the artifacts of the run.
        resume: Folder in the workspace to continue; empty: a new one, named after the id of the pipeline run.
        plan: The choice, what else there is, and why.
        folder: Folder or gs://bucket/prefix of the run.
        configuration: The resolved run configuration, as JSON.
        simulation: What the simulated showers depend on, as JSON.
        data: What the shards depend on, as JSON.
        reading: The id of the pipeline run where the showers are files, not simulated.
        gpu_resource: What the pod of the training asks the node for; empty, nothing.
        gpu_count: How many of it.
    """
    form = dict(locals())
    from pathlib import Path

    from caloscale import errors, spec, stages

    errors.show_message_alone()
    places = {"run": run, "workspace": workspace, "resume": resume, "beside": plan.uri}
    begun = stages.begin({name: form[name] for name in spec.FORM}, **places)
    Path(plan.path).write_text(begun.plan, encoding="utf-8")
    shared = begun.folder, begun.run, begun.simulation, begun.data, begun.reading
    return *shared, begun.gpu_resource, begun.gpu_count
