"""Options that several verbs share, and the run that they make."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from caloscale.errors import ConfigurationError, InputError
from caloscale.spec import Run, load_run

Document = Annotated[Path | None, typer.Argument(help="Run document (YAML); or give --preset.", show_default=False)]
Preset = Annotated[
    str | None, typer.Option(help="Preset beneath the document: compact, variable-angle or fixed-angle.")
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


def resolve(document: Path | None, preset: str | None, overrides: list[str] | None, workspace: str) -> Run:
    """The run of the options; without document and preset, the one that the workspace already holds."""
    kept = Path(workspace) / "run.yaml"
    if document is None and preset is None and kept.is_file():
        return load_run(kept, overrides=overrides or ())
    if document is None and preset is None:
        held = f"or {kept.name} in this folder" if workspace == "." else f"or a --workspace that holds {kept.name}"
        raise ConfigurationError("no document", remedy=f"give a run document, or --preset, {held}")
    return load_run(document, preset=preset, overrides=overrides or ())


def folder_of(workspace: str) -> Path:
    """The workspace as a folder of this machine; InputError when it is in a bucket."""
    from caloscale.storage.objects import is_remote

    if is_remote(workspace):
        raise InputError(
            "is in a bucket, and this verb looks there for what earlier stages left",
            field="--workspace",
            value=workspace,
            remedy="name dataset and model by their options, or use a folder",
        )
    return Path(workspace)
