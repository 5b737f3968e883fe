"""caloscale study: a sweep over run configurations or planner inputs."""

from __future__ import annotations

import json
import shlex
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from caloscale.cli.options import AsOf, Json, Measurements, Prices, Wide, day_of


def command(
    study: Annotated[
        str | None, typer.Argument(help="Name of a study (see --list), or the YAML file of one.", show_default=False)
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the studies of the package.")] = False,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Another value of an input, or [a, b] of an axis."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of points and results; absent: runs/study-<name>.")
    ] = None,
    prices: Prices = None,
    measurements: Measurements = None,
    as_of: AsOf = None,
    wide: Wide = False,
    as_json: Json = False,
) -> None:
    """Run a study: points that are finished are not computed again; tables, figures and statements are left."""
    from caloscale.cli.tables import console, surplus, table
    from caloscale.studies.measures import Context
    from caloscale.studies.report import run_study
    from caloscale.studies.sweep import load_study, parse_changes, study_names

    if listed or study is None:
        titles = {name: load_study(name).title for name in study_names()}
        if as_json:
            typer.echo(json.dumps(titles, indent=2))
            return
        questions = (
            titles.values() if wide else (textwrap.shorten(each, 54, placeholder=" ...") for each in titles.values())
        )
        console().print(table("Studies", ("study", "question"), list(zip(titles, questions))))
        return
    asked = load_study(study).changed(parse_changes(changes or ()))
    folder = output or Path("runs") / f"study-{asked.name}"
    context = Context(day_of(as_of), tuple(prices or ()), tuple(measurements or ()))
    words = ["caloscale", "study", study, *(word for change in changes or () for word in ("--set", change))]
    outcome = run_study(asked, context, folder, shlex.join(words))
    if as_json:
        typer.echo(outcome.as_json())
        raise typer.Exit(outcome.exit_code)
    out = console()
    out.print(asked.title, style="bold")
    for made in outcome.tables:
        plot = made.sweep.plot
        drawn = () if plot is None else (plot.x, plot.y, *plot.series)
        left_out = () if wide else surplus(made.headings, made.cells, keep=(made.headings[0], "figures", *drawn))
        out.print(table(made.sweep.title, made.headings, made.cells, left_out))
        if left_out:
            out.print(f"without the columns {', '.join(left_out)} (--wide shows them)", soft_wrap=True)
        out.print(made.note, soft_wrap=True)
    for statement in outcome.statements:
        out.print(f"- {statement.claim}\n  {statement.finding}", soft_wrap=True)
    typer.echo(f"report: {folder / 'study.html'}")
    raise typer.Exit(outcome.exit_code)
