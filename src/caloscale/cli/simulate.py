"""caloscale simulate: showers by Monte Carlo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from caloscale.cli.options import Configuration, Json, Overrides, Preset, resolve


def command(
    configuration: Configuration = None,
    preset: Preset = None,
    overrides: Overrides = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the HDF5 files.")] = Path("showers"),
    as_json: Json = False,
) -> None:
    """Simulate the showers of a run configuration with Geant4 into HDF5 files; resumes from finished files."""
    from caloscale.errors import ConfigurationError
    from caloscale.simulation import simulate

    data = resolve(configuration, preset, overrides, ".").data
    if data.source != "simulate":
        raise ConfigurationError(
            "names showers that are there already",
            field="data.source",
            value=data.source,
            remedy="--set data.source=simulate and data.showers=1500, say; or run caloscale preprocess",
        )
    record = simulate(data, output)
    if as_json:
        typer.echo(record.model_dump_json(by_alias=True, indent=2))
    else:
        rate = f"{record.showers_per_second:.1f} showers/s, {record.core_seconds_per_shower:.3f} core seconds each"
        rate = rate if record.showers_per_second else "speed not recorded"
        reused = ", simulated before" if record.reused else ""
        typer.echo(f"{record.showers} showers ({record.source}) in {output}: {rate}{reused}")
