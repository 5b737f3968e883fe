"""caloscale calibrate: measurements of finished runs for the planner."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from caloscale.cli.options import Json, Measurements


def command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs on rented machines, or their usage files.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="CSV that plans read with --measurements; other runs in it stay.")
    ],
    measurements: Measurements = None,
    as_json: Json = False,
) -> None:
    """Turn finished runs into measurements, and report how well they were predicted."""
    from caloscale.cli.tables import console, table
    from caloscale.stages.planning import learn

    made = learn(runs, output, measurements or ())
    if as_json:
        typer.echo(made.model_dump_json(by_alias=True, indent=2))
        return
    learnt = [
        (
            row.source,
            f"{row.count} x {row.accelerator}",
            f"{row.step_seconds:.3f}",
            f"{row.predicted_seconds:.3f}",
            f"{row.predicted_interval[0]:.3f} to {row.predicted_interval[1]:.3f}",
            f"{row.error:+.1%}",
            "in" if row.inside else "outside",
        )
        for row in made.learnt
    ]
    out = console()
    columns = ("run", "accelerators", "step s", "predicted", f"{made.level:.0%} interval", "error", "interval")
    out.print(table("steps, and what had been predicted without them", columns, learnt))
    forms = [
        (f"{f.accelerator} at {f.cloud}", f.form, f"{f.leave_one_out:.1%}", f"{f.held_back:.1%}", f.mechanism)
        for f in made.forms
    ]
    if forms:
        columns_of_forms = ("accelerator", "form", "leave one out", "largest counts held out", "mechanism")
        out.print(table("forms of the model, with these runs", columns_of_forms, forms))
    for rate in made.interruptions:
        out.print(f"{rate.accelerator}, {rate.region}: {rate.per_node_hour:.4f} interruptions of a spot node per hour")
    typer.echo(f"measurements: {output}")
