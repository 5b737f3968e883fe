"""caloscale inspect: what is in a file of showers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from caloscale.cli.options import Json, Wide


def command(
    path: Annotated[Path, typer.Argument(help="HDF5 file or folder of them, TFRecord shard or folder of shards.")],
    shower: Annotated[int, typer.Option(help="Number of the shower that is drawn.", min=0)] = 0,
    picture: Annotated[
        Path | None,
        typer.Option(
            help="Picture of one shower (png, svg or pdf). Absent: in the current folder, named like the file."
        ),
    ] = None,
    wide: Wide = False,
    as_json: Json = False,
) -> None:
    """Show the content of a file or folder of showers, and draw one shower of it."""
    from caloscale.cli.plan import FIGURES
    from caloscale.cli.tables import console, table
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
    described = description.model_dump(mode="json", by_alias=True, exclude={"file"})
    rows = [(name, _text(name, value, wide=wide)) for name, value in described.items()]
    console().print(str(path), soft_wrap=True)
    console().print(table("", ("field", "value"), rows))
    target = picture or Path(f"{path.stem}-shower{shower}.png")
    showers, axes = read_one(path, shower)
    draw_shower(showers, 0, target, axes=axes)
    typer.echo(f"picture: {target}")


RANGES = ("energyGev", "angleDeg", "azimuthDeg", "entryMm", "sumGev", "showersPerFile")
LONG = ("attributes", "files")
"""Fields of which only the names or the number are shown without --wide."""


def _text(name: str, value: Any, *, wide: bool) -> str:
    """A value as text: lines for a map, and numbers joined as the field means them."""
    if value is None:
        return "absent"
    if name in RANGES:
        return f"{value[0]:g} to {value[1]:g}"
    if name in LONG and not wide and isinstance(value, list):
        return str(len(value))
    if isinstance(value, dict):
        names_only = name in LONG and not wide
        return "\n".join(key if names_only else f"{key}: {_text('', one, wide=wide)}" for key, one in value.items())
    if isinstance(value, list):
        inner = (_text("", one, wide=wide) for one in value)
        return " x ".join(inner) if name in ("shape", "") else ", ".join(inner)
    return str(value)
