"""Commands of machines and money: plan, bill, prices, calibration, node pools."""

import datetime as dt
import json
import re
from pathlib import Path
from typing import Annotated

import typer

from caloscale.cli import options
from caloscale.errors import InputError, StorageError
from caloscale.spec import Hardware
from caloscale.spec.model import FIRST_PRESET


def plan(
    configuration: options.Configuration = None,
    preset: options.Preset = None,
    overrides: options.Overrides = None,
    prices: options.Prices = None,
    measurements: options.Measurements = None,
    as_of: options.AsOf = None,
    generate: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Also plan making N showers, and the same by Monte Carlo.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="First measure this machine, in about two minutes, and plan with it.")
    ] = False,
    speeds: options.Speeds = None,
    figure: Annotated[Path | None, typer.Option(help="Draw money against time into a file (svg, png or pdf).")] = None,
    wide: options.Wide = False,
    as_json: options.Json = False,
) -> None:
    """Choose machines for a run: accelerator, number, layout, spot or on demand; with time, money and the reasons.

    The machine at hand counts, too, when it was measured (--measure, or caloscale calibrate of a run here). Exit code 8
    when nothing can be chosen, or nothing meets budget.maxUsd and budget.deadline.
    """
    from caloscale.cli.tables import show
    from caloscale.report.plan import describe_speed, draw_plan, is_met, plan_blocks
    from caloscale.stages.planning import keep_speeds, load_speeds

    if figure is not None and figure.suffix not in options.FIGURES:
        remedy = f"end its name with one of {', '.join(options.FIGURES)}"
        raise StorageError("is no kind of figure", file=figure, remedy=remedy)
    run = options.resolve(configuration, preset, overrides, ".", fallback=FIRST_PRESET if generate else None)
    if not generate:
        options.warn_of_schedule(run)
    if measure:
        from caloscale.bench.benches import measure_machine

        own = measure_machine(run)
        kept = keep_speeds([own], speeds)
        typer.echo(f"{describe_speed(own)}\nmachines: {kept}", err=as_json)
    result = options.planned(run, prices, measurements, as_of, speeds=load_speeds(speeds), generate=generate)
    if figure is not None:
        draw_plan(result, figure)
    if as_json:
        typer.echo(result.as_json())
    else:
        show(*plan_blocks(result), wide=wide, keep=("hours", "USD", "basis"))
        if figure is not None:
            typer.echo(f"figure: {figure}")
    if not is_met(result):
        raise typer.Exit(8)


def bill(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or its usage file.")],
    prices: options.Prices = None,
    wide: options.Wide = False,
    as_json: options.Json = False,
) -> None:
    """Show what a run cost, by purpose, and why that differs from the estimate."""
    from caloscale.cli.tables import show
    from caloscale.report.bill import bill_blocks
    from caloscale.stages.planning import bill_of

    result = bill_of(run, options.read_prices(prices))
    if as_json:
        typer.echo(result.as_json())
    else:
        show(*bill_blocks(result), wide=wide)


def prices(
    context: typer.Context,
    prices: options.Prices = None,
    as_of: options.AsOf = None,
    region: Annotated[str | None, typer.Option(help="Only this region.")] = None,
    sku: Annotated[str | None, typer.Option(help="Only what has this in its name, such as v100.")] = None,
    machines: Annotated[bool, typer.Option("--machines", help="List the machine types instead.")] = False,
    wide: options.Wide = False,
    as_json: options.Json = False,
) -> None:
    """List the prices in effect on a day, with when and where each was seen."""
    if context.invoked_subcommand is not None:
        for one in context.command.params:
            if one.name in context.params and context.params[one.name] not in (None, False, [], ()):
                problem = f"has no effect on caloscale prices {context.invoked_subcommand}"
                raise InputError(problem, field=one.opts[-1], remedy="leave it out")
        return
    if machines:
        for option, value in (("--prices", prices), ("--as-of", as_of), ("--region", region)):
            if value:
                problem = "does not belong to --machines: machine types are the same everywhere and have no prices"
                raise InputError(problem, field=option, remedy=f"leave out {option} or --machines")
        _show_machines((sku or "").lower(), wide, as_json)
        return
    from caloscale.cli.tables import show
    from caloscale.planning.catalogue.prices import STALE_AFTER_DAYS, list_prices
    from caloscale.report.blocks import Table, Text

    listed = list_prices(options.read_prices(prices), options.day_of(as_of), region=region, sku=sku)
    if as_json:
        typer.echo(listed.as_json())
        return
    rows = [
        {
            "cloud": row.provider,
            "region": row.region,
            "sku": row.sku,
            "kind": row.sku_kind,
            "host": "included" if row.includes_host else "",
            "capacity": row.capacity_type,
            "USD/hour": f"{row.usd_per_unit_hour:g}",
            "in effect": f"{row.effective_from} to {row.effective_to or 'now'}",
            "seen": str(row.observed_on),
            "source": f"{row.source}{'' if row.confidence == 'list' else f' ({row.confidence})'}",
        }
        for row in listed.rows
    ]
    narrow = ("cloud", "host", "in effect", "source")
    old = f"{len(listed.warnings)} of {len(rows)} prices were seen more than {STALE_AFTER_DAYS} days before, such as"
    notes = [Text(f"{old}\n- {listed.warnings[0]}")] if listed.warnings else []
    show(Table.of(f"prices of {listed.as_of}", rows, wide=narrow), *notes, wide=wide, keep=rows[0])


def import_prices(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="JSON of Google's Cloud Billing Catalog (skus) or of Azure's Retail Prices (Items); pages."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="CSV that is written, for --prices.")] = Path(
        "prices.csv"
    ),
    seen: Annotated[
        dt.datetime | None,
        typer.Option(
            formats=["%Y-%m-%d"], metavar="DATE", help="Day of the export; absent: when each file was written."
        ),
    ] = None,
) -> None:
    """Turn price lists that a cloud exported into a CSV for --prices: what the catalogue knows, in US dollars.

    Example: caloscale prices import skus.json -o google.csv
    """
    from caloscale.planning.catalogue.price_exports import import_prices
    from caloscale.planning.catalogue.prices import PriceRow
    from caloscale.planning.catalogue.rows import rows_csv
    from caloscale.storage.atomic import write_text

    imported = import_prices(files, seen.date() if seen else None)
    write_text(output, rows_csv(PriceRow, imported.rows))
    days = sorted({row.observed_on for row in imported.rows})
    typer.echo(f"{output}: {len(imported.rows)} prices, seen on {' and '.join(map(str, days))}; use --prices {output}")
    for reason, number in imported.left_out.most_common():
        typer.echo(f"left out, {reason}: {number}")
    if imported.continues:
        typer.echo("warning: each page names one that follows: export the last, too, and give all files", err=True)


def _show_machines(name: str, wide: bool, as_json: bool) -> None:
    from caloscale.cli.tables import show
    from caloscale.planning.catalogue.hardware import load_machines, load_slices
    from caloscale.report.blocks import Table

    machines = [m for m in load_machines() if name in m.title.lower()]
    slices = [s for s in load_slices() if name in s.title.lower()]
    if as_json:
        listed = {"machines": [m.as_values() for m in machines], "slices": [s.as_values() for s in slices]}
        typer.echo(json.dumps(listed, indent=2))
        return
    rows = tuple(
        (m.provider, m.machine_type, f"{m.per_node} x {m.accelerator}" if m.accelerator else "", str(m.vcpus),
         f"{m.memory_gib:g}", str(m.observed_on), m.source)
        for m in machines
    )  # fmt: skip
    rows_of_slices = tuple(
        (s.accelerator, s.topology, str(s.chips), f"{s.hosts} x {s.machine_type}", str(s.observed_on), s.source)
        for s in slices
    )
    columns = ("cloud", "machine type", "accelerators", "vCPU", "GiB", "seen", "source")
    of_slices = ("TPU", "topology", "chips", "hosts", "seen", "source")
    narrow = ("source",)
    tables = Table("machines", columns, rows, wide=narrow), Table("TPU slices", of_slices, rows_of_slices, wide=narrow)
    show(*tables, wide=wide, keep={*columns, *of_slices})


def calibrate(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or their usage files.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="CSV that plans read with --measurements, for runs on rented machines; other runs in it stay.",
        ),
    ] = None,
    measurements: options.Measurements = None,
    speeds: options.Speeds = None,
    wide: options.Wide = False,
    as_json: options.Json = False,
) -> None:
    """Turn finished runs into measurements for plans: rented machines into --output, this one into --speeds."""
    from caloscale.cli.tables import show
    from caloscale.report.blocks import Table
    from caloscale.report.plan import describe_speed
    from caloscale.stages.planning import calibrate_runs, speeds_file

    result = calibrate_runs(runs, output, measurements or (), speeds=speeds)
    if as_json:
        typer.echo(result.as_json())
        return
    for own in result.own_machines:
        typer.echo(describe_speed(own))
    if result.own_machines:
        typer.echo(f"machines: {speeds or speeds_file()}")
    if not result.residuals:
        return
    rows = [
        {
            "run": row.source,
            "accelerators": f"{row.count} x {row.accelerator}",
            "step s": f"{row.step_seconds:.3f}",
            "predicted": f"{row.predicted_seconds:.3f}",
            f"{result.level:.0%} interval": f"{row.predicted_interval[0]:.3f} to {row.predicted_interval[1]:.3f}",
            "error": f"{row.error:+.1%}",
            "is": "in" if row.inside else "outside",
        }
        for row in result.residuals
    ]
    title = "steps, and what had been predicted without them"
    show(Table.of(title, rows, wide=("predicted",)), wide=wide, keep=rows[0])
    for rate in result.interruptions:
        typer.echo(f"{rate.accelerator}, {rate.region}: {rate.per_node_hour:.4f} interruptions of a spot node per hour")
    for warning in result.warnings:
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(f"measurements: {output}")


def node_pools(
    configuration: options.Configuration = None,
    preset: options.Preset = None,
    overrides: options.Overrides = None,
    cluster: Annotated[str, typer.Option(help="Name of the GKE cluster.")] = "caloscale",
    location: Annotated[
        str | None, typer.Option(help="Zone or region of the cluster; absent: the region of the plan.")
    ] = None,
    prices: options.Prices = None,
    measurements: options.Measurements = None,
    as_of: options.AsOf = None,
) -> None:
    """Print the gcloud commands that make the node pools of a run: machines, spot taints, placement, network."""
    from caloscale.cluster.capacity.gke_pools import NodePool, gcloud_command
    from caloscale.planning.catalogue.hardware import find_kind

    run = options.resolve(configuration, preset, overrides, ".")
    if location is not None:
        region, hardware = re.sub(r"(-[a-z]+\d+)-\w+$", r"\1", location), run.hardware or Hardware()
        if hardware.region not in (None, region):
            remedy = f"a zone of {hardware.region}, or --set hardware.region={region}"
            raise InputError("is not in hardware.region of the run", field="--location", value=location, remedy=remedy)
        run = run.model_copy(update={"hardware": hardware.model_copy(update={"region": region})})
    result = options.planned(run, prices, measurements, as_of)
    best = result.chosen
    if best is None:
        raise InputError("nothing was chosen", field="budget", remedy="; ".join(result.notes) or "see caloscale plan")
    if best.cloud != "gcp":
        remedy = "--set hardware.cloud=gcp"
        raise InputError("is planned on another cloud", field="hardware.cloud", value=best.cloud, remedy=remedy)
    kind = find_kind(**best.values_of("machine_type", "accelerator", "topology"), per_node=best.count // best.nodes)
    pool = NodePool(kind, best.capacity_type, best.nodes)
    typer.echo(f"# {best.nodes} nodes, about {best.usd:.2f} USD for the whole run")
    disk_gib = run.hardware.disk_gib if run.hardware is not None else 0
    typer.echo(gcloud_command(pool, cluster=cluster, location=location or best.region, disk_gib=disk_gib))
