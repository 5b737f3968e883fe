"""caloscale inspect: what is in a file of showers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from caloscale.cli.options import Json


def command(
    path: Annotated[Path, typer.Argument(help="HDF5 file or folder of them, TFRecord shard or folder of shards.")],
    shower: Annotated[int, typer.Option(help="Number of the shower that is drawn.", min=0)] = 0,
    picture: Annotated[
        Path | None,
        typer.Option(
            help="Picture of one shower (png, svg or pdf). Absent: in the current folder, named like the file."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the content of a file or folder of showers, and draw one shower of it."""
    from rich.console import Console
    from rich.table import Table

    from caloscale.cli.plan import FIGURES
    from caloscale.errors import InputError, StorageError
    from caloscale.report.picture import draw_shower
    from caloscale.showers.inspection import describe, read_one
    from caloscale.tensorflow_import import load_tensorflow_quietly

    if picture is not None and as_json:
        raise InputError("draws nothing with --json", field="--picture", value=str(picture), remedy="leave one out")
    if picture is not None and picture.suffix not in FIGURES:
        raise StorageError(
            "is not a format of figures", file=picture, remedy=f"end its name with one of {', '.join(FIGURES)}"
        )
    if path.suffix == ".tfrecord" or (path.is_dir() and not as_json):
        load_tensorflow_quietly()
    description = describe(path)
    if as_json:
        typer.echo(description.model_dump_json(by_alias=True, indent=2))
        return
    table = Table(title=str(path), show_header=False, title_justify="left")
    for name, value in description.model_dump(mode="json", by_alias=True).items():
        table.add_row(name, str(value))
    Console().print(table)
    target = picture or Path(f"{path.stem}-shower{shower}.png")
    showers, axes = read_one(path, shower)
    draw_shower(showers, 0, target, axes=axes)
    typer.echo(f"picture: {target}")
