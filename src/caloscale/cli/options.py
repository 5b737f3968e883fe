"""Options that several commands share, and the run that they give."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from caloscale.errors import ConfigurationError, InputError
from caloscale.spec import Run, load_run

Configuration = Annotated[
    Path | None, typer.Argument(help="Run configuration (YAML); or give --preset.", show_default=False)
]
Preset = Annotated[
    str | None, typer.Option(help="Preset, which the configuration overrides: compact, variable-angle or fixed-angle.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="a.b=c", help="Override a field, such as train.epochs=3. May be repeated."),
]
Workspace = Annotated[
    str,
    typer.Option(
        "--workspace",
        "-w",
        help="Folder of the run (or gs://bucket/prefix): what earlier stages left is read here, records are kept here.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def resolve(configuration: Path | None, preset: str | None, overrides: list[str] | None, workspace: str) -> Run:
    """The run of the options; without configuration and preset, that of the workspace."""
    kept = Path(workspace) / "run.yaml"
    if configuration is None and preset is None and kept.is_file():
        return load_run(kept, overrides=overrides or ())
    if configuration is None and preset is None:
        held = f"or {kept.name} in this folder" if workspace == "." else f"or a --workspace that holds {kept.name}"
        raise ConfigurationError("no run configuration", remedy=f"give a run configuration (YAML), or --preset, {held}")
    return load_run(configuration, preset=preset, overrides=overrides or ())


def folder_of(workspace: str) -> Path:
    """The workspace as a folder of this machine; InputError when it is in a bucket."""
    from caloscale.storage.objects import is_remote

    if is_remote(workspace):
        raise InputError(
            "is in a bucket; this command needs the results of earlier stages in a local folder",
            field="--workspace",
            value=workspace,
            remedy="name dataset and model by their options, or use a folder",
        )
    return Path(workspace)
