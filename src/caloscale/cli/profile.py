"""caloscale profile: where the time of a training step goes."""

from __future__ import annotations

import os
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from caloscale.cli.options import Json, Overrides, Preset

if TYPE_CHECKING:
    from caloscale.profiling.result import Profile
    from caloscale.spec import Run


class By(StrEnum):
    """What a row of the profile is."""

    PHASE = "phase"
    LAYER = "layer"
    OPERATION = "operation"


def command(
    source: Annotated[
        Path | None,
        typer.Argument(
            help="Folder of a run, whose training was profiled; or a run configuration.", show_default=False
        ),
    ] = None,
    preset: Preset = None,
    overrides: Overrides = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Showers of a step. Absent: 8 of the published networks, 32 of compact.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps that are profiled.")] = 5,
    by: Annotated[
        By, typer.Option(help="Phases of the step, layers beside the limit of this machine, or types of operations.")
    ] = By.PHASE,
    dataset: Annotated[Path | None, typer.Option(help="Folder of shards. Absent: parametrised showers.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the figure. Absent: the run's, or none.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Profile some steps, or show the profile of a run's training: shares by phase, speeds, what limits."""
    if by is not By.PHASE:
        _break_down(by, _measured(source, preset, overrides, batch), steps, dataset, output, as_json)
        return
    profile, folder = _profile(source, preset, overrides, batch, steps, dataset)
    if as_json:
        typer.echo(profile.model_dump_json(by_alias=True, indent=2))
    target = output or folder
    if target is not None:
        from caloscale.report.drawing import save_figures
        from caloscale.report.run_figures import step_profile

        (drawn,) = save_figures(target, [partial(step_profile, profile)])
    if as_json:
        return
    from caloscale.cli.tables import console, table
    from caloscale.report.run_figures import profile_table

    shares = profile_table(profile)
    title = (
        f"{profile.preset}, {profile.device}, {profile.precision}: {profile.steps} steps of "
        f"{profile.batch} showers, {profile.seconds_per_step:.3g} s each; per cent of a step"
    )
    out = console()
    out.print(table(title, shares.columns, shares.texts()))
    out.print(
        f"achieved {profile.gflops:.3g} GFLOP/s, within convolutions and products {profile.matrix_gflops:.3g}; "
        f"measured peak {profile.peak_gflops:.3g} GFLOP/s",
        soft_wrap=True,
    )
    out.print(profile.statement, soft_wrap=True)
    if target is not None:
        typer.echo(f"figure: {drawn.png}")


def _profile(
    source: Path | None,
    preset: str | None,
    overrides: list[str] | None,
    batch: int | None,
    steps: int,
    dataset: Path | None,
) -> tuple[Profile, Path | None]:
    """The profile, and where a figure of it belongs."""
    from caloscale.errors import ConfigurationError
    from caloscale.profiling.result import PROFILE_FILE, Profile
    from caloscale.spec.block import read_block

    if source is not None and source.is_dir():
        kept = source / "training" / PROFILE_FILE
        if not kept.is_file():
            raise ConfigurationError(
                "holds no profile",
                file=source,
                remedy="trainings of at least 40 steps make one; or give --preset to measure some steps now",
            )
        return read_block(Profile, kept, remedy="give --preset to measure some steps now"), source / "figures"
    run, size = _measured(source, preset, overrides, batch)
    from caloscale.bench.profiling import profile_step

    return profile_step(run, size, steps=steps, dataset=dataset), None


def _measured(
    source: Path | None, preset: str | None, overrides: list[str] | None, batch: int | None
) -> tuple[Run, int]:
    """What is profiled, and the batch; loads TensorFlow."""
    from caloscale.errors import ConfigurationError
    from caloscale.spec import load_run
    from caloscale.tensorflow_import import load_tensorflow_quietly
    from caloscale.training.processor import set_processor

    if source is not None and source.is_dir():
        raise ConfigurationError(
            "is a folder, and the profile of a training is kept by phase alone",
            field="SOURCE",
            value=str(source),
            remedy=f"give {source}/run.yaml, or --preset, to measure some steps now",
        )
    run = load_run(source, preset=preset or (None if source else "compact"), overrides=overrides or ())
    set_processor(run, os.environ)
    load_tensorflow_quietly()
    return run, batch or (32 if run.model.is_compact else 8)


def _break_down(
    by: By, measured: tuple[Run, int], steps: int, dataset: Path | None, output: Path | None, as_json: bool
) -> None:
    from caloscale.bench.profiling import break_down_step
    from caloscale.cli.tables import console, table
    from caloscale.report.run_figures import breakdown_table, step_breakdown

    run, size = measured
    found = break_down_step(run, size, "layer" if by is By.LAYER else "operation", steps=steps, dataset=dataset)
    if as_json:
        typer.echo(found.model_dump_json(by_alias=True, indent=2))
    else:
        rows = breakdown_table(found)
        title = f"{found.preset}, {found.precision}, {found.steps} steps of {found.batch} showers: {rows.caption}"
        out = console()
        out.print(table(title, rows.columns, rows.texts()))
        out.print(
            f"measured peak {found.peak_gflops:.3g} GFLOP/s, bandwidth {found.gigabytes_per_second:.3g} GB/s",
            soft_wrap=True,
        )
    if output is not None:
        from caloscale.report.drawing import save_figures

        (drawn,) = save_figures(output, [partial(step_breakdown, found)])
        if not as_json:
            typer.echo(f"figure: {drawn.png}")
