"""caloscale export: a trained generator as a file that a simulation loads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from caloscale.cli.options import Json


def command(
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
    from caloscale.errors import InputError
    from caloscale.inference.export.files import check_file, export_model
    from caloscale.inference.export.runtimes import FILES, RECORD
    from caloscale.models.card import read_card
    from caloscale.tensorflow_import import load_tensorflow_quietly

    if check is not None:
        for name, value in (("--target", target), ("--output", output)):
            if value is not None:
                raise InputError("does not go with --check", field=name, value=str(value), remedy="leave it out")
        load_tensorflow_quietly()
        done = check_file(check, model)
        if as_json:
            typer.echo(done.model_dump_json(by_alias=True, indent=2))
        else:
            typer.echo(
                f"{done.file}: {done.target}, {done.showers} primaries, largest deviation {done.deviation:.1e} "
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
    if as_json:
        typer.echo(record.model_dump_json(by_alias=True, indent=2))
    else:
        file = next(name for name in FILES.values() if name in record.files)
        typer.echo(f"{output / file} for {target}, deviation {record.deviation:.1e}; {output / 'README.md'}, {RECORD}")
