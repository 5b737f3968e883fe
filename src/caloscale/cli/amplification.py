"""caloscale amplification: how many Geant4 showers generated ones are worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from caloscale.cli.options import Json


def command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs that differ in train.seed alone; or one.")],
    held_out: Annotated[
        Path | None,
        typer.Option(help="Folder of shards with Monte Carlo of another seed. Absent: the first run's validation."),
    ] = None,
    showers: Annotated[int, typer.Option(help="Showers of each generator that are measured.", min=100)] = 10_000,
    worth_of: Annotated[int, typer.Option(help="Generated showers whose worth is stated.", min=1)] = 1_000_000,
    as_json: Json = False,
) -> None:
    """How many Geant4 showers the generators' showers are worth, by gated quantity, and dollars per such shower.

    Writes amplification.json into each run and makes its report again: it shows the result beside the verdict.
    """
    from caloscale.report.blocks import markdown
    from caloscale.report.physics_sections import worth_tables, worth_text
    from caloscale.stages.amplification import amplification

    worth = amplification(runs, held_out=held_out, showers=showers, worth_of=worth_of)
    text = (
        worth.model_dump_json(by_alias=True, indent=2) if as_json else markdown(worth_text(worth), *worth_tables(worth))
    )
    typer.echo(text)
