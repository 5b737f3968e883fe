"""caloscale plan: which machines, how long, for how much."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from caloscale.cli.options import (
    AsOf,
    Configuration,
    Json,
    Measurements,
    Overrides,
    Preset,
    Prices,
    Speeds,
    Wide,
    day_of,
    resolve,
)
from caloscale.errors import InputError, StorageError

if TYPE_CHECKING:
    from caloscale.planning.search.burst import Burst
    from caloscale.planning.search.plan import Plan

NO_PLAN = 8
"""Exit code when no candidate can be chosen, or none meets the limits."""
FIGURES = (".svg", ".png", ".pdf")


def command(
    configuration: Configuration = None,
    preset: Preset = None,
    overrides: Overrides = None,
    prices: Prices = None,
    measurements: Measurements = None,
    as_of: AsOf = None,
    generate: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Also plan making N showers, beside Monte Carlo.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="First measure this machine, in about two minutes, and plan with it.")
    ] = False,
    speeds: Speeds = None,
    burst: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE",
            help="Own machines (hardware.cloud=none) first, the rest on the cloud of these fields of hardware.",
        ),
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw money against time into a file (svg, png or pdf).")] = None,
    wide: Wide = False,
    as_json: Json = False,
) -> None:
    """Choose machines for a run: accelerator, number, layout, spot or on demand; with time, money and the reasons.

    The machine at hand counts, too, when it was measured (--measure, or caloscale calibrate of a run here). Exit code 8
    when nothing can be chosen, or nothing meets budget.maxUsd and budget.deadline.
    """
    from caloscale.planning.catalogue.measurements import load_measurements
    from caloscale.planning.catalogue.prices import load_prices
    from caloscale.planning.search.plan import plan
    from caloscale.report.plan import describe_speed, is_met
    from caloscale.stages.planning import keep_speeds, load_speeds

    if figure is not None and figure.suffix not in FIGURES:
        raise StorageError("is no kind of figure", file=figure, remedy=f"end its name with one of {', '.join(FIGURES)}")
    run = resolve(configuration, preset, overrides, ".")
    if burst:
        if figure is not None or generate is not None or measure:
            raise InputError("is planned alone", field="--burst", remedy="leave out --figure, --generate and --measure")
        from caloscale.planning.search.burst import plan_burst

        rest = resolve(configuration, preset, [*(overrides or ()), *burst], ".")
        mix = plan_burst(run, rest, load_prices(prices or ()), load_measurements(measurements or ()), day_of(as_of))
        if as_json:
            typer.echo(mix.model_dump_json(by_alias=True, indent=2))
        else:
            _show_burst(mix, wide)
        if not mix.meets_limits:
            raise typer.Exit(NO_PLAN)
        return
    if measure:
        from caloscale.bench.own_machine import measure_machine

        own = measure_machine(run)
        kept = keep_speeds([own], speeds)
        typer.echo(f"{describe_speed(own)}\nmachines: {kept}", err=as_json)
    made = plan(
        run,
        load_prices(prices or ()),
        load_measurements(measurements or ()),
        day_of(as_of),
        speeds=load_speeds(speeds),
        generate=generate,
    )
    if figure is not None:
        _draw(made, figure)
    if as_json:
        typer.echo(made.model_dump_json(by_alias=True, indent=2))
    else:
        _show(made, wide)
        if figure is not None:
            typer.echo(f"figure: {figure}")
    if not is_met(made):
        raise typer.Exit(NO_PLAN)


def _draw(made: Plan, figure: Path) -> None:
    from caloscale.report.plan import draw_plan
    from caloscale.storage.atomic import atomic_writer

    with atomic_writer(figure) as temporary:
        draw_plan(made, temporary)


def _show(made: Plan, wide: bool) -> None:
    from caloscale.cli.tables import console, surplus, table
    from caloscale.report.plan import FRONT_COLUMNS, WIDE_COLUMNS, headline, making_in_words, remarks, tables, verdict

    out = console()
    out.print(verdict(made), style="bold", soft_wrap=True)
    out.print(headline(made), soft_wrap=True)
    if made.making is not None:
        out.print(making_in_words(made.making), soft_wrap=True)
    for shown in tables(made):
        rows = shown.texts()
        only_wide = WIDE_COLUMNS if shown.columns == FRONT_COLUMNS else ()
        left_out = () if wide else surplus(shown.columns, rows, ("hours", "USD", "basis"), only_wide)
        out.print()
        out.print(table(shown.caption, shown.columns, rows, left_out))
    out.print()
    for remark in remarks(made):
        out.print(f"- {remark}", soft_wrap=True)


def _show_burst(mix: Burst, wide: bool) -> None:
    from caloscale.cli.tables import console, surplus, table

    out = console()
    out.print(
        f"{mix.network}, {mix.epochs} epochs within {mix.deadline_seconds / 3600:g} h: own machines alone train "
        f"{mix.own_epochs_by_deadline}",
        soft_wrap=True,
    )
    columns = ("accelerators", "nodes", "capacity", "region", "epochs", "hours", "USD")
    rows = [
        (
            f"{share.count} x {share.accelerator}",
            f"{share.nodes} x {share.machine_type}",
            "own" if share.cloud == "none" else str(share.capacity_type),
            "" if share.cloud == "none" else share.region,
            f"{share.epochs}",
            f"{share.seconds / 3600:.2f}",
            "no price" if share.usd is None else f"{share.usd:.2f}",
        )
        for share in mix.shares
    ]
    if mix.total_seconds is not None:
        rows.append(("together", "", "", "", f"{mix.epochs}", f"{mix.total_seconds / 3600:.2f}", f"{mix.usd:.2f}"))
        left_out = () if wide else surplus(columns, rows, ("epochs", "hours", "USD"), ("nodes",))
        out.print(table("own machines first", columns, rows, left_out))
    for note in mix.notes:
        out.print(f"- {note}", soft_wrap=True)
