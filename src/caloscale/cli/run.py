"""caloscale run: all stages, one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from caloscale.cli.options import Configuration, Json, Overrides, Preset


def command(
    configuration: Configuration = None,
    preset: Preset = None,
    overrides: Overrides = None,
    name: Annotated[str | None, typer.Option(help="Name of the run; an existing run is resumed.")] = None,
    runs: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """Simulate or read showers, train, validate, report: all stages of a run configuration."""
    from caloscale import stages
    from caloscale.spec import load_run

    run = load_run(configuration, preset=preset, overrides=overrides or ())
    folder = stages.new_run_folder(run, runs, name)
    stages.run_all(run, folder)
    if as_json:
        typer.echo((folder / "summary.json").read_text(encoding="utf-8"))
    else:
        stages.print_outcome(folder)
