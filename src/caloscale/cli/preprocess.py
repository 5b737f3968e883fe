"""caloscale preprocess: showers into shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from caloscale.cli.options import Configuration, Json, Overrides, Preset, resolve


def command(
    configuration: Configuration = None,
    preset: Preset = None,
    overrides: Overrides = None,
    showers: Annotated[
        str | None, typer.Option(help="HDF5 files: a file, a folder, or gs://bucket/prefix. Absent: data.source.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the shards.")] = Path("dataset"),
    as_json: Json = False,
) -> None:
    """Select, re-bin and compress showers, split off the validation showers, and write TFRecord shards."""
    from caloscale.errors import ConfigurationError
    from caloscale.showers.tfrecord.shards import preprocess_showers

    data = resolve(configuration, preset, overrides, ".").data
    source = showers or data.source
    if source == "simulate":
        raise ConfigurationError(
            "there are no showers to read",
            field="data.source",
            value=source,
            remedy="give --showers FOLDER (made by caloscale simulate), or set data.source to your files",
        )
    manifest = preprocess_showers(data, source, output)
    if as_json:
        typer.echo(manifest.model_dump_json(by_alias=True, indent=2))
    else:
        counts = ", ".join(f"{count} {split}" for split, count in manifest.splits.items())
        typer.echo(f"{counts} showers ({manifest.source}) of {' x '.join(map(str, manifest.shape))} cells in {output}")
