"""caloscale validate: the generator against Monte Carlo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from caloscale.cli.options import Configuration, Json, Overrides, Preset, Workspace, folder_of, resolve
from caloscale.errors import NotAcceptedError


def command(
    configuration: Configuration = None,
    preset: Preset = None,
    overrides: Overrides = None,
    workspace: Workspace = "runs/here",
    dataset: Annotated[
        str | None, typer.Option(help="Folder of shards, or gs://bucket/prefix. Absent: <workspace>/dataset.")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="Model folder. Absent: <workspace>/training/model.")] = None,
    require_release: Annotated[
        bool, typer.Option("--require-release", help="Exit with code 10 unless the model is accepted.")
    ] = False,
    int8: Annotated[
        bool,
        typer.Option(
            "--int8",
            help="Judge the model as OpenVINO computes it in int8, and keep the verdict with that export. "
            "--model: absent, <workspace>/model.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Generate showers, compare them with held-out Monte Carlo, decide by the gates whether the model is accepted."""
    from caloscale import stages
    from caloscale.spec.workspace_layout import DATASET, MODEL, TRAINED

    run = resolve(configuration, preset, overrides, workspace)
    folder = folder_of(workspace)
    if int8:
        outcome = stages.validate_int8(run, dataset or folder / DATASET, model or folder / MODEL)
    else:
        outcome = stages.validate(run, workspace, dataset or folder / DATASET, model or folder / TRAINED)
    typer.echo(outcome.evaluation.model_dump_json(by_alias=True, indent=2) if as_json else outcome.verdict)
    if require_release and outcome.decision != "accepted":
        raise NotAcceptedError(outcome.decision)
