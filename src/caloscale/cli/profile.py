"""caloscale profile: where the time of a training step goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from caloscale.cli.options import Json, Overrides, Preset


def command(
    source: Annotated[
        Path | None,
        typer.Argument(help="Folder of a run, whose training was profiled; or a run document.", show_default=False),
    ] = None,
    preset: Preset = None,
    overrides: Overrides = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Showers of a step. Absent: 8 of the published networks, 32 of compact.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps that are profiled.")] = 5,
    dataset: Annotated[Path | None, typer.Option(help="Folder of shards. Absent: parametrised showers.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the figure. Absent: the run's, or none.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Profile some steps, or show the profile of a run's training: shares by phase, speeds, what limits."""
    profile, folder = _profile(source, preset, overrides, batch, steps, dataset)
    if as_json:
        typer.echo(json.dumps(profile, indent=2))
    target = output or folder
    if target is not None:
        from caloscale.report.figures import draw_profile

        drawn = draw_profile(target, profile)
    if as_json:
        return
    from caloscale.cli.tables import console, table
    from caloscale.report.figures_profile import profile_rows

    columns, rows = profile_rows(profile)
    title = (
        f"{profile['preset']}, {profile['device']}, {profile['precision']}: {profile['steps']} steps of "
        f"{profile['batch']} showers, {profile['secondsPerStep']:.3g} s each"
    )
    out = console()
    out.print(table(title, columns, rows))
    out.print(
        f"achieved {profile['gflops']:.3g} GFLOP/s, within convolutions and products {profile['matrixGflops']:.3g}; "
        f"measured peak {profile['peakGflops']:.3g} GFLOP/s",
        soft_wrap=True,
    )
    out.print(profile["statement"], soft_wrap=True)
    if target is not None:
        typer.echo(f"figure: {drawn.png}")


def _profile(
    source: Path | None,
    preset: str | None,
    overrides: list[str] | None,
    batch: int | None,
    steps: int,
    dataset: Path | None,
) -> tuple[dict[str, Any], Path | None]:
    """The profile, and where a figure of it belongs."""
    from caloscale.errors import ConfigurationError
    from caloscale.spec import load_run
    from caloscale.spec.block import read_json

    if source is not None and source.is_dir():
        kept = source / "training" / "profile.json"
        if not kept.is_file():
            raise ConfigurationError(
                "holds no profile",
                file=source,
                remedy="trainings of at least 40 steps make one; or give --preset to measure some steps now",
            )
        return read_json(kept, remedy="give --preset to measure some steps now"), source / "figures"
    run = load_run(source, preset=preset or (None if source else "compact"), overrides=overrides or ())
    size = batch or (32 if run.model.preset == "compact" else 8)
    from caloscale.stages import load_tensorflow_quietly

    load_tensorflow_quietly()
    from caloscale.bench.profiling import profile_step

    made = profile_step(run, size, steps=steps, dataset=dataset)
    return made.model_dump(mode="json", by_alias=True), None
