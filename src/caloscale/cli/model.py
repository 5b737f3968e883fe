"""Commands that use a trained model: showers from it, its exported forms, what an enlarged sample is worth."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from caloscale import stages
from caloscale.cli.options import Json
from caloscale.errors import InputError
from caloscale.tensorflow_import import load_tensorflow_quietly

LARGEST = 2**63 - 1
"""Of an attribute of HDF5."""


def generate(
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
    layout: Annotated[
        Literal["variable-angle", "calochallenge"], typer.Option(help="Layout of the file.")
    ] = "variable-angle",
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
    seed: Annotated[int, typer.Option(help="The same seed makes the same showers.", min=0, max=LARGEST)] = 1,
    first: Annotated[
        int, typer.Option(help="Number of the first shower, to divide a sample.", min=0, max=LARGEST // 2)
    ] = 0,
    extrapolate: Annotated[
        bool, typer.Option("--extrapolate", help="Also energies and angles that were not trained on.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Generate any number of showers into an HDF5 file; a shower depends on the seed and its number alone."""
    options = {name: value for name, value in locals().items() if name not in ("model", "as_json")}
    record = stages.generate(model, stages.Generation(**options))
    for warning in record.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if precision == "auto":
        typer.echo(f"precision {record.precision}: {record.precision_reason}", err=True)
    typer.echo(
        record.as_json()
        if as_json
        else f"{record.showers} showers in {record.file} ({record.bytes / 1e6:.1f} MB) in {record.precision}: "
        f"{record.showers_per_second:.0f} showers/s, {record.milliseconds_per_shower:.2f} ms each, "
        f"{record.peak_memory_mib:.0f} MiB of memory"
    )


def export(
    target: Annotated[
        str | None, typer.Option(help="onnx, par04 (Geant4's example), ddml (key4hep), openvino or openvino-int8.")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="Model folder, such as runs/latest/model.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder that is written.")] = None,
    check: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Repeat the target's call of this file and compare with the network."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a generator for a simulation, or check a file that was written."""
    from caloscale.inference.export.files import TARGETS, check_file, export_model
    from caloscale.inference.export.runtimes import RECORD, rejection
    from caloscale.inference.runtime import FILES
    from caloscale.models.card import read_card

    if check is not None:
        for name, value in (("--target", target), ("--output", output)):
            if value is not None:
                raise InputError("does not go with --check", field=name, value=str(value), remedy="leave it out")
        load_tensorflow_quietly()
        done = check_file(check, model)
        typer.echo(
            done.as_json()
            if as_json
            else f"{done.file}: {done.target}, {done.showers} primaries, largest deviation {done.deviation:.1e} "
            f"(allowed {done.tolerance:g}), {done.milliseconds_per_shower:.2f} ms a shower on one thread"
        )
        return
    for name, value in (("--target", target), ("--model", model), ("--output", output)):
        if value is None:
            raise InputError("is missing", field=name, remedy="give --target, --model and --output, or --check FILE")
    assert target is not None and model is not None and output is not None
    read_card(model)  # a folder that is no model is refused before TensorFlow is loaded
    load_tensorflow_quietly()
    record = export_model(model, target, output)
    for warning in rejection(model, TARGETS[target].format):
        typer.echo(f"warning: {warning}", err=True)
    file = next(name for name in FILES.values() if name in record.files)
    text = f"{output / file} for {target}, deviation {record.deviation:.1e}; {output / 'README.md'}, {RECORD}"
    typer.echo(record.as_json() if as_json else text)


def amplification(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs that differ in train.seed alone; or one.")],
    held_out: Annotated[
        Path | None,
        typer.Option(help="Folder of shards with Monte Carlo of another seed. Absent: the first run's validation."),
    ] = None,
    showers: Annotated[
        int, typer.Option(metavar="N", help="Showers of each generator that are measured.", min=100)
    ] = 10_000,
    worth_of: Annotated[int, typer.Option(help="Generated showers whose worth is stated.", min=1)] = 1_000_000,
    as_json: Json = False,
) -> None:
    """How many Geant4 showers the generators' showers are worth, by gated quantity, and dollars per such shower.

    Writes amplification.json into each run and makes its report again: it shows the result next to the verdict.
    """
    from caloscale.cli.tables import show
    from caloscale.report.physics_sections import worth_tables, worth_text
    from caloscale.stages.amplification import amplification

    worth = amplification(runs, held_out=held_out, showers=showers, worth_of=worth_of)
    if as_json:
        typer.echo(worth.as_json())
    else:
        show(worth_text(worth), *worth_tables(worth), wide=True)
