"""caloscale prices: the catalogue of prices and machines."""

from __future__ import annotations

from typing import Annotated

import typer

from caloscale.cli.options import AsOf, Json, Prices, Wide, day_of
from caloscale.errors import InputError


def command(
    prices: Prices = None,
    as_of: AsOf = None,
    region: Annotated[str | None, typer.Option(help="Only this region.")] = None,
    sku: Annotated[str | None, typer.Option(help="Only what has this in its name, such as v100.")] = None,
    machines: Annotated[bool, typer.Option("--machines", help="List the machine types instead.")] = False,
    wide: Wide = False,
    as_json: Json = False,
) -> None:
    """List the prices in effect on a day, with when and where each was seen."""
    if machines:
        for option, value in (("--prices", prices), ("--as-of", as_of), ("--region", region)):
            if value:
                raise InputError(
                    "does not belong to --machines: machine types are the same everywhere and have no prices",
                    field=option,
                    remedy=f"leave out {option} or --machines",
                )
        _show_machines((sku or "").lower(), wide, as_json)
        return
    from caloscale.cli.tables import console, table
    from caloscale.planning.catalogue.prices import list_prices, load_prices

    listed = list_prices(load_prices(prices or ()), day_of(as_of), region=region, sku=sku)
    if as_json:
        typer.echo(listed.model_dump_json(by_alias=True, indent=2))
        return
    rows = [
        (
            row.provider,
            row.region,
            row.sku,
            row.sku_kind,
            "included" if row.includes_host else "",
            row.capacity_type,
            f"{row.usd_per_unit_hour:g}",
            f"{row.effective_from} to {row.effective_to or 'now'}",
            str(row.observed_on),
            f"{row.source}{'' if row.confidence == 'list' else f' ({row.confidence})'}",
        )
        for row in listed.rows
    ]
    columns = ("cloud", "region", "sku", "kind", "host", "capacity", "USD/hour", "in effect", "seen", "source")
    out = console()
    out.print(
        table(f"prices of {listed.as_of}", columns, rows, () if wide else ("cloud", "host", "in effect", "source"))
    )
    if listed.warnings:
        out.print(f"{len(listed.warnings)} of {len(rows)} prices are stale (spot: 90 days, on demand: 365), such as")
        out.print(f"- {listed.warnings[0]}", soft_wrap=True)


def _show_machines(name: str, wide: bool, as_json: bool) -> None:
    import json

    from caloscale.cli.tables import console, table
    from caloscale.planning.catalogue.machines import load_machines
    from caloscale.planning.catalogue.slices import load_slices

    wanted = [m for m in load_machines() if name in m.title.lower()]
    slices = [s for s in load_slices() if name in s.title.lower()]
    if as_json:
        made = {
            "machines": [m.model_dump(mode="json", by_alias=True) for m in wanted],
            "slices": [s.model_dump(mode="json", by_alias=True) for s in slices],
        }
        typer.echo(json.dumps(made, indent=2))
        return
    rows = [
        (m.provider, m.machine_type, f"{m.per_node} x {m.accelerator}" if m.accelerator else "", str(m.vcpus),
         f"{m.memory_gib:g}", str(m.observed_on), m.source)
        for m in wanted
    ]  # fmt: skip
    narrow = () if wide else ("source",)
    columns = ("cloud", "machine type", "accelerators", "vCPU", "GiB", "seen", "source")
    out = console()
    out.print(table("machines", columns, rows, narrow))
    rows_of_slices = [
        (s.accelerator, s.topology, str(s.chips), f"{s.hosts} x {s.machine_type}", str(s.observed_on), s.source)
        for s in slices
    ]
    out.print(table("TPU slices", ("TPU", "topology", "chips", "hosts", "seen", "source"), rows_of_slices, narrow))
