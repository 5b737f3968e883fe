"""caloscale calibrate: measurements of finished runs for the planner."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from caloscale.cli.options import Json, Measurements, Speeds, Wide


def command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or their usage files.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="CSV that plans read with --measurements, for runs on rented machines; other runs in it stay.",
        ),
    ] = None,
    measurements: Measurements = None,
    speeds: Speeds = None,
    wide: Wide = False,
    as_json: Json = False,
) -> None:
    """Turn finished runs into measurements for plans: rented machines into --output, this one into --speeds."""
    from caloscale.cli.tables import console, table
    from caloscale.report.plan import describe_speed
    from caloscale.stages.planning import calibrate_runs, speeds_file

    made = calibrate_runs(runs, output, measurements or (), speeds=speeds)
    if as_json:
        typer.echo(made.model_dump_json(by_alias=True, indent=2))
        return
    for own in made.own_machines:
        typer.echo(describe_speed(own))
    if made.own_machines:
        typer.echo(f"machines: {speeds or speeds_file()}")
    if not made.residuals:
        return
    residuals = [
        (
            row.source,
            f"{row.count} x {row.accelerator}",
            f"{row.step_seconds:.3f}",
            f"{row.predicted_seconds:.3f}",
            f"{row.predicted_interval[0]:.3f} to {row.predicted_interval[1]:.3f}",
            f"{row.error:+.1%}",
            "in" if row.inside else "outside",
        )
        for row in made.residuals
    ]
    out = console()
    columns = ("run", "accelerators", "step s", "predicted", f"{made.level:.0%} interval", "error", "is")
    narrow = () if wide else ("predicted",)
    out.print(table("steps, and what had been predicted without them", columns, residuals, narrow))
    forms = [
        (f"{f.accelerator} at {f.cloud}", f.form, f"{f.leave_one_out:.1%}", f"{f.held_out:.1%}", f.mechanism)
        for f in made.forms
    ]
    if forms:
        columns_of_forms = ("accelerator", "form", "leave one out", "largest held out", "mechanism")
        narrow = () if wide else ("mechanism",)
        out.print(table("forms of the model, with these runs: mean errors", columns_of_forms, forms, narrow))
    for rate in made.interruptions:
        out.print(f"{rate.accelerator}, {rate.region}: {rate.per_node_hour:.4f} interruptions of a spot node per hour")
    typer.echo(f"measurements: {output}")
