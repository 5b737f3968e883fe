"""caloscale bench: ours beside a reference, measured."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from caloscale.cli.options import Json, Overrides


class What(StrEnum):
    """What can be measured."""

    STEP = "step"
    CONVOLUTIONS = "convolutions"
    GENERATE = "generate"
    INPUT = "input"
    ALLREDUCE = "allreduce"
    EXCHANGE = "exchange"


class Precision(StrEnum):
    """Arithmetic of the layers; int8: of convolutions when showers are generated."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"


def command(
    what: Annotated[
        What,
        typer.Argument(
            help="A training step, its 3D convolutions, generation, the input pipeline, all-reduces, or the solver's "
            "exchanges."
        ),
    ],
    preset: Annotated[str, typer.Option(help="compact, par04, variable-angle or fixed-angle.")] = "variable-angle",
    precision: Annotated[
        Precision | None, typer.Option(help="Absent: that of the preset; for generate all that a runtime offers.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Showers of a batch. Absent: 8 of the published networks, 32 of compact.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds. Absent: as many as fit into two minutes; convolutions: 7.")
    ] = None,
    streams: Annotated[
        int | None, typer.Option(min=1, help="generate: batches computed at once. Absent: as `caloscale generate`.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="generate: threads of a runtime. Absent: one per core.")
    ] = None,
    dataset: Annotated[Path | None, typer.Option(help="input: folder of shards. Absent: parametrised showers.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Also write the JSON into this file.")] = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Measure ours and the reference alternately, each in a process of its own.

    All convolutions are measured in one process.
    """
    from caloscale.bench.tables import Bench, bench_tables, machine_text
    from caloscale.cli.tables import console, table
    from caloscale.spec import load_run
    from caloscale.storage.atomic import atomic_writer

    # int8 is a precision of generation alone; for anything else the run configuration refuses it.
    of_training = precision is not None and (what, precision) != (What.GENERATE, Precision.INT8)
    chosen = [*(overrides or ()), *([f"train.precision={precision}"] if of_training else [])]
    run = load_run(preset=preset, overrides=chosen)
    size = batch or (32 if run.model.is_compact else 8)
    # Only what is asked for is loaded.
    made: Bench
    if what is What.STEP:
        from caloscale.bench.training import bench_step

        made = bench_step(run, size, rounds=rounds)
    elif what is What.CONVOLUTIONS:
        from caloscale.bench.convolutions import bench_convolutions

        made = bench_convolutions(run, size, rounds=rounds)
    elif what is What.GENERATE:
        from caloscale.bench.generate import bench_generate

        precisions = (precision.value,) if precision else tuple(Precision)
        made = bench_generate(run, size, precisions=precisions, streams=streams, threads=threads, rounds=rounds)
    elif what is What.INPUT:
        from caloscale.bench.training import bench_input

        made = bench_input(run, size, dataset=dataset, rounds=rounds)
    elif what is What.ALLREDUCE:
        from caloscale.bench.allreduce import bench_allreduce

        made = bench_allreduce(run, rounds=rounds)
    else:
        from caloscale.bench.exchange import bench_exchange

        made = bench_exchange(rounds=rounds)
    text = made.model_dump_json(by_alias=True, indent=2)
    if output is not None:
        with atomic_writer(output) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")
    if as_json:
        typer.echo(text)
        return
    out = console()
    for shown in bench_tables(made):
        out.print(table(shown.caption, shown.columns, shown.texts()))
        out.print(shown.note, soft_wrap=True)
    out.print(machine_text(made.machine), soft_wrap=True)
