"""caloscale bill: what a run cost, and how that differs from the estimate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from caloscale.cli.options import Json, Prices, Wide

if TYPE_CHECKING:
    from caloscale.planning.billing.bill import AgainstEstimate, Bill, PerMillionShowers


def command(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or its usage file.")],
    prices: Prices = None,
    wide: Wide = False,
    as_json: Json = False,
) -> None:
    """Say what a run cost, where the money went, and how that differs from the estimate and why."""
    from caloscale.stages.planning import bill_of

    made = bill_of(run, prices or ())
    if as_json:
        typer.echo(made.model_dump_json(by_alias=True, indent=2))
    else:
        _show(made, wide)


def _show(made: Bill, wide: bool) -> None:
    from caloscale.cli.tables import console, table
    from caloscale.planning.billing.bill import SMALL_BILL_USD
    from caloscale.stages.planning import NO_SPEED

    out = console()
    digits = 4 if made.usd < SMALL_BILL_USD else 2
    epoch = "no epoch finished" if made.usd_per_epoch is None else f"{made.usd_per_epoch:.{digits + 1}f} USD an epoch"
    out.print(
        f"run {made.name}: {made.usd:.{digits}f} USD at the prices of {made.as_of} "
        f"(seen on {made.prices_observed_on}), "
        f"{made.attempts} {'start' if made.attempts == 1 else 'starts'}, {made.interruptions} interruptions, {epoch}"
        + ("" if made.co2_kg is None else f", at most {made.co2_kg:.1f} kg CO2 of the accelerators"),
        style="bold",
        soft_wrap=True,
    )
    rows = [
        (
            f"{n.title}\n{n.region} {n.capacity_type}",
            f"{n.node_hours:.{digits}f}",
            f"{n.usd_per_node_hour:.4f}",
            f"{n.usd:.{digits}f}",
        )
        for n in made.nodes
    ]
    out.print(table("nodes", ("node", "node hours", "USD/hour", "USD"), rows))
    parts: list[tuple[str, str, str, str]] = [
        (p.purpose, f"{p.usd:.{digits}f}", f"{p.share:.1%}", p.meaning) for p in made.parts
    ]
    parts.append(("all", f"{made.usd:.{digits}f}", "", ""))
    out.print(
        table("where the money went", ("purpose", "USD", "share", "what it is"), parts, () if wide else ("what it is",))
    )
    if made.against_estimate is None:
        out.print("no estimate: the run's folder holds no plan.json")
    else:
        _show_difference(made.against_estimate, digits)
    if made.per_million_showers is not None:
        out.print(_per_million(made.per_million_showers))
    if made.own_machine:
        out.print(
            "- ran on a machine of one's own: its seconds at the rate of the machine above, not converted between "
            "machines; what the training does not time (comparisons during it, saving) is in training",
            soft_wrap=True,
        )
    elif made.per_million_showers is None:
        out.print(f"- {NO_SPEED}", soft_wrap=True)
    for warning in made.warnings:
        out.print(f"- warning: {warning}", soft_wrap=True)


def _show_difference(against: AgainstEstimate, digits: int) -> None:
    from caloscale.cli.tables import console, table

    low, high = against.estimated_interval
    title = (
        f"estimate {against.estimated_usd:.2f} USD ({low:.2f} to {high:.2f}); "
        f"the bill lies {'in' if against.inside else 'outside'} that interval"
    )
    rows = [(cause.cause, f"{cause.usd:+.{digits}f}") for cause in against.causes]
    console().print(
        table(title, ("cause of the difference", "USD"), [*rows, ("all", f"{against.difference_usd:+.{digits}f}")])
    )


def _per_million(price: PerMillionShowers) -> str:
    said = {
        "generated": price.generated_usd,
        "with the run": price.generated_with_training_usd,
        "by Monte Carlo": price.monte_carlo_usd,
    }
    parts = [f"{usd:.2f} USD {name}" for name, usd in said.items() if usd is not None]
    more = "" if price.break_even_showers is None else f"; cheaper from {price.break_even_showers:,.0f} showers on"
    return f"a million showers: {', '.join(parts)}{more}"
