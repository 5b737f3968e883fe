"""caloscale generate: showers from a trained generator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from caloscale.cli.options import Json


def command(
    model: Annotated[Path, typer.Option(help="Model folder, such as runs/latest/model.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="HDF5 file that is written.")],
    count: Annotated[
        int | None, typer.Option(help="Number of showers. Absent: as many as the file of --energies has.", min=1)
    ] = None,
    energies: Annotated[
        str | None,
        typer.Option(
            help="GeV: a range 10..500, a list 10,50,100, or an .h5 file whose energies and angles are taken. "
            "Absent: what was trained on."
        ),
    ] = None,
    angles: Annotated[
        str | None, typer.Option(help="Degrees: a range 60..120 or a list 62,90,118. Absent: what was trained on.")
    ] = None,
    azimuths: Annotated[
        str | None, typer.Option(help="Degrees: a range -90..90 or a list 0,45. Absent: what was trained on.")
    ] = None,
    entry_x: Annotated[
        str | None, typer.Option(help="Displacement along x, mm: a range -2..2 or a list 0,1. Absent: as trained.")
    ] = None,
    entry_y: Annotated[
        str | None, typer.Option(help="Displacement along y, mm: a range -2..2 or a list 0,1. Absent: as trained.")
    ] = None,
    particles: Annotated[
        str | None, typer.Option(help="Primaries, such as gamma or e-,gamma. Absent: all that was trained on.")
    ] = None,
    layout: Annotated[str, typer.Option(help="variable-angle or calochallenge.")] = "variable-angle",
    runtime: Annotated[str, typer.Option(help="tensorflow, onnx or openvino.")] = "tensorflow",
    precision: Annotated[
        str,
        typer.Option(
            help="float32; with tensorflow and openvino also bfloat16, with openvino int8; auto: bfloat16 where that "
            "is faster here, otherwise float32."
        ),
    ] = "float32",
    streams: Annotated[
        int | None,
        typer.Option(help="Batches that are computed at the same time. Absent: up to 4, by the threads.", min=1),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads of all streams together. Absent: one per core.", min=1)
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Showers in a batch. Absent: by the size of a shower.", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed makes the same showers.", min=0)] = 1,
    first: Annotated[int, typer.Option(help="Number of the first shower, to divide a sample.", min=0)] = 0,
    extrapolate: Annotated[
        bool, typer.Option("--extrapolate", help="Also energies and angles that were not trained on.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Generate any number of showers into an HDF5 file; a shower depends on the seed and its number alone."""
    from caloscale import stages

    record = stages.generate(
        model,
        stages.Generation(
            output=output,
            count=count,
            energies=energies,
            angles=angles,
            azimuths=azimuths,
            entry_x=entry_x,
            entry_y=entry_y,
            particles=particles,
            layout=layout,  # type: ignore[arg-type]
            runtime=runtime,
            precision=precision,
            streams=streams,
            threads=threads,
            batch=batch,
            seed=seed,
            first=first,
            extrapolate=extrapolate,
        ),
    )
    for warning in record.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if precision == "auto":
        typer.echo(f"precision {record.precision}: {record.precision_reason}", err=True)
    if as_json:
        typer.echo(record.model_dump_json(by_alias=True, indent=2))
    else:
        typer.echo(
            f"{record.showers} showers in {record.file} ({record.bytes / 1e6:.1f} MB) in {record.precision}: "
            f"{record.showers_per_second:.0f} showers/s, {record.milliseconds_per_shower:.2f} ms each, "
            f"{record.peak_memory_mib:.0f} MiB of memory"
        )
