"""caloscale study: a sweep over run configurations or planner inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from caloscale.cli.options import AsOf, Json, Measurements, Prices, day_of


def command(
    study: Annotated[str, typer.Argument(help="Name of a study (cost), or the YAML file of one.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of points and results; absent: runs/study-<name>.")
    ] = None,
    prices: Prices = None,
    measurements: Measurements = None,
    as_of: AsOf = None,
    as_json: Json = False,
) -> None:
    """Run a study: points that are finished are not computed again; tables, figures and statements are left."""
    from caloscale.cli.tables import console, table
    from caloscale.studies.measures import Context
    from caloscale.studies.report import run_study
    from caloscale.studies.sweep import load_study

    asked = load_study(study)
    folder = output or Path("runs") / f"study-{asked.name}"
    context = Context(day_of(as_of), tuple(prices or ()), tuple(measurements or ()))
    outcome = run_study(asked, context, folder, f"caloscale study {study}")
    if as_json:
        typer.echo(outcome.as_json())
        return
    out = console()
    out.print(asked.title, style="bold")
    for made in outcome.tables:
        out.print(table(made.sweep.title, tuple(made.sweep.columns), made.cells))
    for statement in outcome.statements:
        out.print(f"- {statement.claim}\n  {statement.finding}", soft_wrap=True)
    typer.echo(f"report: {folder / 'study.md'}")
