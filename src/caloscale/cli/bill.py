"""caloscale bill: what a run cost, and how that differs from the estimate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from caloscale.cli.options import Json
from caloscale.cli.plan_options import Prices
from caloscale.errors import InputError

if TYPE_CHECKING:
    from caloscale.planning.bill import AgainstEstimate, Bill
    from caloscale.planning.cost import PerMillionShowers


def command(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or its usage file.")],
    prices: Prices = None,
    as_json: Json = False,
) -> None:
    """Say what a run cost, where the money went, and how that differs from the estimate and why."""
    from caloscale.stages.planning import USAGE_FILE, bill_of

    if run.is_dir() and not (run / USAGE_FILE).is_file():
        _of_own_machine(run, as_json)
        return
    made = bill_of(run, prices or ())
    if as_json:
        typer.echo(made.model_dump_json(by_alias=True, indent=2))
    else:
        _show(made)


def _show(made: Bill) -> None:
    from caloscale.cli.tables import console, table

    out = console()
    out.print(
        f"run {made.name}: {made.usd:.2f} USD at the prices of {made.as_of} (seen on {made.prices_observed_on}), "
        f"{made.attempts} starts, {made.interruptions} interruptions, {made.usd_per_epoch:.3f} USD an epoch"
        + ("" if made.co2_kg is None else f", at most {made.co2_kg:.1f} kg CO2 of the accelerators"),
        style="bold",
        soft_wrap=True,
    )
    rows = [
        (n.title, n.region, n.purchase, f"{n.node_hours:.2f}", f"{n.usd_per_node_hour:.4f}", f"{n.usd:.2f}")
        for n in made.nodes
    ]
    out.print(table("nodes", ("node", "region", "purchase", "node hours", "USD/hour", "USD"), rows))
    parts = [(p.purpose, f"{p.usd:.2f}", f"{p.share:.1%}", p.meaning) for p in made.parts]
    out.print(table("where the money went", ("purpose", "USD", "share", "what it is"), parts))
    if made.against_estimate is None:
        out.print("no estimate: the run's folder holds no plan.json")
    else:
        _show_difference(made.against_estimate)
    if made.per_million_showers is not None:
        out.print(_per_million(made.per_million_showers))
    for warning in made.warnings:
        out.print(f"- warning: {warning}", soft_wrap=True)


def _show_difference(against: AgainstEstimate) -> None:
    from caloscale.cli.tables import console, table

    low, high = against.estimated_interval
    title = (
        f"estimate {against.estimated_usd:.2f} USD ({low:.2f} to {high:.2f}); "
        f"the bill lies {'in' if against.inside else 'outside'} that interval"
    )
    rows = [(cause.cause, f"{cause.usd:+.2f}") for cause in against.causes]
    console().print(
        table(title, ("cause of the difference", "USD"), [*rows, ("all", f"{against.difference_usd:+.2f}")])
    )


def _of_own_machine(folder: Path, as_json: bool) -> None:
    """A run without rented machines: its measured seconds on the machine that the document prices it as."""
    from caloscale.cli.tables import console, table
    from caloscale.planning.cost import Cost
    from caloscale.stages.planning import read_plan

    file = folder / "bill.json"
    if not file.is_file():
        raise InputError("holds no bill", file=folder, remedy=f"caloscale report --workspace {folder} writes it")
    try:
        cost = Cost.model_validate_json(file.read_bytes())
    except ValueError as problem:
        remedy = f"caloscale report --workspace {folder} writes it anew"
        raise InputError("is damaged", file=file, remedy=remedy) from problem
    plan = read_plan(folder)
    best = None if plan is None else plan.chosen or plan.nearest
    why = (
        "no estimate: the document has no hardware block, the run trained where the command ran"
        if best is None
        else f"estimate: {best.usd:.2f} USD on {best.count} x {best.accelerator}; the run did not use these machines, "
        "so the two are not subtracted"
    )
    if as_json:
        estimate = None if best is None else best.model_dump(mode="json", by_alias=True)

        bill = cost.model_dump(mode="json", by_alias=True)
        typer.echo(json.dumps({"bill": bill, "estimate": estimate, "difference": None, "why": why}, indent=2))
        return
    out = console()
    out.print(
        f"{folder}: {cost.usd:.4f} USD as {cost.machine_type}, {cost.region}, {cost.purchase}, at the prices of "
        f"{cost.as_of} (seen on {cost.prices_observed_on})",
        style="bold",
        soft_wrap=True,
    )
    rows = [(s.name, f"{s.seconds:.1f}", f"{s.core_seconds:.1f}", f"{s.usd:.4f}") for s in cost.stages]
    out.print(table("where the money went", ("stage", "wall s", "core s", "USD"), rows))
    if cost.per_million_showers is not None:
        out.print(_per_million(cost.per_million_showers))
    for line in (why, cost.note, *(f"warning: {warning}" for warning in cost.warnings)):
        out.print(f"- {line}", soft_wrap=True)


def _per_million(price: PerMillionShowers) -> str:
    said = {
        "generated": price.generated_usd,
        "with the run": price.generated_with_training_usd,
        "by Monte Carlo": price.monte_carlo_usd,
    }
    parts = [f"{usd:.2f} USD {name}" for name, usd in said.items() if usd is not None]
    more = "" if price.break_even_showers is None else f"; cheaper from {price.break_even_showers:,.0f} showers on"
    return f"a million showers: {', '.join(parts)}{more}"
