"""caloscale simulate: showers by Monte Carlo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from caloscale.cli.options import Configuration, Json, Overrides, Preset, resolve

if TYPE_CHECKING:
    from caloscale.spec import Data


def command(
    configuration: Configuration = None,
    preset: Preset = None,
    overrides: Overrides = None,
    models: Annotated[
        list[Path] | None,
        typer.Option(
            "--with", help="Model folder that takes over the particles of its kind, energies and angles; repeatable."
        ),
    ] = None,
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
    if models:
        _with_generators(data, models, output, as_json=as_json)
        return
    record = simulate(data, output)
    if as_json:
        typer.echo(record.model_dump_json(by_alias=True, indent=2))
    else:
        rate = f"{record.showers_per_second:.1f} showers/s, {record.core_seconds_per_shower:.3f} core seconds each"
        rate = rate if record.showers_per_second else "speed not recorded"
        reused = ", simulated before" if record.reused else ""
        typer.echo(f"{record.showers} showers ({record.source}) in {output}: {rate}{reused}")


def _with_generators(data: Data, models: list[Path], output: Path, *, as_json: bool) -> None:
    from caloscale.errors import ConfigurationError
    from caloscale.tensorflow_import import load_tensorflow_quietly

    if data.simulation.engine != "geant4":
        raise ConfigurationError(
            "makes whole showers and carries no particles to generators",
            field="data.simulation.engine",
            value=data.simulation.engine,
            remedy="set it to geant4, or leave --with out",
        )
    load_tensorflow_quietly()
    from caloscale.stages.hybrid import simulate_hybrid

    record = simulate_hybrid(data, models, output)
    if as_json:
        typer.echo(record.model_dump_json(by_alias=True, indent=2))
        return
    typer.echo(
        f"{record.showers} showers in {output}: {record.generated} particles with {record.generated_energy:.0%} of the "
        f"energy were generated; {record.geant4_core_seconds_per_shower:.3f} core seconds of Geant4 and "
        f"{record.generator_seconds_per_shower:.4f} s of the generators each"
    )
