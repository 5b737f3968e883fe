"""caloscale solve: find the parameters whose events look like the measured ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from caloscale.cli.options import Configuration, Json, Overrides


def command(
    configuration: Configuration = None,
    preset: Annotated[
        str | None, typer.Option(help="Preset, which the configuration overrides: proxy or proxy-paper.")
    ] = None,
    overrides: Overrides = None,
    name: Annotated[str | None, typer.Option(help="Name of the run; an existing run is resumed.")] = None,
    runs: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """Solve an inverse problem on several ranks: summary, bill, report and checkpoints of the generators are left."""
    from caloscale.spec import load_solver_run
    from caloscale.stages.solving import new_solver_folder, print_solution, solve_and_report

    run = load_solver_run(configuration, preset=preset, overrides=overrides or ())
    folder = new_solver_folder(run, runs, name)
    solve_and_report(run, folder)
    if as_json:
        typer.echo((folder / "summary.json").read_text(encoding="utf-8"))
    else:
        print_solution(folder)
