"""caloscale train: the networks."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from caloscale.cli.options import Configuration, Json, Overrides, Preset, Workspace, folder_of, resolve


def command(
    configuration: Configuration = None,
    preset: Preset = None,
    overrides: Overrides = None,
    workspace: Workspace = "runs/here",
    dataset: Annotated[
        str | None, typer.Option(help="Folder of shards, or gs://bucket/prefix. Absent: <workspace>/dataset.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train generator and discriminator; resumes from the newest checkpoint in the workspace.

    One worker of several when TF_CONFIG says so, as in a TFJob, JobSet or Azure ML job.
    """
    from caloscale import stages

    _say_what_is_decided()
    run = resolve(configuration, preset, overrides, workspace)
    record = stages.train(run, workspace, dataset or folder_of(workspace) / "dataset")
    if as_json:
        typer.echo(record.model_dump_json(by_alias=True, indent=2))
    else:
        typer.echo(
            f"{record.steps} steps of {record.global_batch_size} on {record.replicas} {record.device}, "
            f"{record.epochs} epochs, {record.showers_per_second:.0f} showers/s, "
            f"selected epoch {record.selected_epoch}; model in {workspace.rstrip('/')}/training/model"
        )


def _say_what_is_decided() -> None:
    """Strategy, Keras and shards of this worker go to the standard error stream, beside the warnings."""
    log = logging.getLogger("caloscale")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
