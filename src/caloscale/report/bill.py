"""A bill in words and tables, for a terminal, for Markdown and for the page of a run; the plan compared with it."""

import math

from caloscale.planning.billing.bill import SMALL_BILL_USD, AgainstEstimate, Bill, BilledNodes, PerMillionShowers
from caloscale.planning.search.plan import Candidate, Plan
from caloscale.report.blocks import Block, Details, Notice, Section, Table, Text, Values, markdown
from caloscale.report.plan import accelerators, headline, money, not_billed, remarks, verdict

NO_SPEED = (
    "A million showers have no price: no worker on a machine of this bill measured how fast they are made, or "
    "budget.pricedAs has no price, which Monte Carlo needs."
)
"""Why the bill of rented machines does not price showers."""
OWN_MACHINE = (
    "The run was on a machine of one's own: measured wall seconds at the rate of the machine above (budget.pricedAs); "
    "seconds are not converted between machines. Disks, network and a cluster's control plane are not in it. What the "
    "training does not time (comparisons during it, saving) is in training."
)
"""What the bill of a run on a machine at hand is."""
LEAST_SHARE = 0.0005
"""Of a bill from which on a purpose is shown whose money is rounded to nothing: .1% as it is printed."""


def bill_blocks(bill: Bill) -> tuple[Block, ...]:
    """The sum, the machines, what the money was spent on, why that differs from the estimate, what is not in it."""
    digits = 4 if bill.usd < SMALL_BILL_USD else 2
    epoch = "no epoch finished" if bill.usd_per_epoch is None else f"{bill.usd_per_epoch:.4g} USD an epoch"
    co2 = "" if bill.co2_kg is None else f", at most {math.ceil(10 * bill.co2_kg) / 10:.1f} kg CO2 of the accelerators"
    whole = (
        f"run {bill.name}: {bill.usd:.{digits}f} USD at the prices of {bill.as_of} (seen on "
        f"{bill.prices_observed_on}), {bill.attempts} {'start' if bill.attempts == 1 else 'starts'}, "
        f"{bill.interruptions} interruptions, {epoch}{co2}"
    )
    nodes = [
        (
            f"{n.title}\n{n.region}, {n.capacity_type}",
            f"{n.node_hours:.4f}",
            f"{n.usd_per_node_hour:.4f}",
            f"{n.usd:.{digits}f}",
        )
        for n in bill.nodes
    ]
    nodes.append(("all", f"{sum(n.node_hours for n in _machines(bill)):.4f}", "", f"{bill.usd:.{digits}f}"))
    shown = [part for part in bill.parts if part.usd or part.share >= LEAST_SHARE]
    parts = [(part.purpose, f"{part.usd:.{digits}f}", f"{part.share:.1%}", part.meaning) for part in shown]
    held = "Machine that the run is priced as" if bill.own_machine else "Machines that the run held"
    against, million = bill.against_estimate, bill.per_million_showers
    others = not_billed({part.kind for n in bill.nodes for part in n.rate_parts})
    notes = [OWN_MACHINE] if bill.own_machine else [*([NO_SPEED] if million is None else []), f"Not in it: {others}."]
    return (
        Text(whole, "strong"),
        Table(held, ("machines", "node hours", "USD/hour", "USD"), tuple(nodes), total=True),
        Table("Cost by purpose", ("purpose", "USD", "share", "what it is"), tuple(parts)),
        *((_difference(against, digits),) if against is not None else ()),
        *((_per_million(million),) if million is not None else ()),
        *(Text(note, "pale") for note in notes),
        *(Notice(warning) for warning in bill.warnings),
    )


def _machines(bill: Bill) -> list[BilledNodes]:
    """The rows of machines: that of the control plane has hours of the cluster, not of a node."""
    return [nodes for nodes in bill.nodes if nodes.rate_parts[0].kind != "control_plane"]


def _difference(against: AgainstEstimate, digits: int) -> Table:
    low, high = against.estimated_interval
    title = (
        f"Estimate {against.estimated_usd:.{digits}f} USD ({low:.{digits}f} to {high:.{digits}f}); the bill lies "
        f"{'in' if against.inside else 'outside'} that interval"
    )
    causes = [(cause.cause, f"{cause.usd:+.{digits}f}") for cause in against.causes]
    rows = (*causes, ("bill minus estimate", f"{against.difference_usd:+.{digits}f}"))
    return Table(title, ("cause of the difference", "USD"), rows, total=True)


def _per_million(price: PerMillionShowers) -> Text:
    prices = {
        "generated": price.generated_usd,
        "with the run": price.generated_with_training_usd,
        "by Monte Carlo": price.monte_carlo_usd,
    }
    parts = [f"{usd:.4g} USD {name}" for name, usd in prices.items() if usd is not None]
    text = f"A million showers: {', '.join(parts)}."
    if price.break_even_showers is not None:
        text += (
            f" From {price.break_even_showers:,.0f} showers on, the run (its Monte Carlo showers included) and the "
            "generation together are cheaper than Monte Carlo."
        )
    return Text(text)


def bill_markdown(money: Bill | str) -> str:
    """The bill as Markdown, or why there is none."""
    return f"There is no bill: {money}\n" if isinstance(money, str) else markdown(*bill_blocks(money))


def money_section(money: Bill | str) -> Section:
    """What the run cost, or why it has no price."""
    if isinstance(money, str):
        return Section("Bill", (Notice(f"There is no bill: {money}"),))
    prices = {
        f"{n.title}, {n.region}, {n.capacity_type}": [part.as_values() for part in n.rate_parts] for n in money.nodes
    }
    blocks = (*bill_blocks(money), Details("The prices that the rates come from", (Values(prices),)))
    return Section("Cost on a rented machine" if money.own_machine else "Bill", blocks)


def plan_section(plan: Plan, bill: Bill | None) -> Section:
    """What was planned, compared with what was measured."""
    best = plan.chosen or plan.nearest
    blocks: list[Block] = [Text(headline(plan)), Text(verdict(plan))]
    if best is not None:
        blocks.append(_planned_and_measured(best, bill))
    if reasons := remarks(plan):
        blocks.append(Details("Reasons and sources of the plan", tuple(Text(remark) for remark in reasons)))
    return Section("Plan and outcome", tuple(blocks))


def _planned_and_measured(best: Candidate, bill: Bill | None) -> Table:
    paid = best.node_hours / best.total_seconds  # a node that is missing is not
    hours = [paid * seconds for seconds in (best.total_seconds, *best.total_seconds_interval)]
    rows = [
        ("machines", f"{accelerators(best)}, {best.nodes} x {best.machine_type}"),
        ("region, capacity type", f"{best.region}, {best.capacity_type}"),
        ("layout", f"{best.workers} workers x {best.accelerators_per_worker}"),
        ("node hours", f"{hours[0]:.3g} ({hours[1]:.3g} to {hours[2]:.3g})"),
        ("USD", money(best).replace(" USD", "")),
        ("USD per epoch", "" if best.usd_per_epoch is None else f"{best.usd_per_epoch:.4g}"),
    ]
    if bill is None:
        return Table("The plan", ("quantity", "planned"), tuple(rows))
    machines = _machines(bill)
    titles = ", ".join(dict.fromkeys(n.title for n in machines))
    measured = (
        f"{titles} (own machine, priced as this)" if bill.own_machine else titles,
        "; ".join(dict.fromkeys(f"{n.region}, {n.capacity_type}" for n in machines)),
        "one process" if bill.own_machine else "",
        f"{sum(n.node_hours for n in machines):.3g}",
        f"{bill.usd:.4f}",
        "no epoch was completed" if bill.usd_per_epoch is None else f"{bill.usd_per_epoch:.4g}",
    )
    columns = ("quantity", "planned", "measured")
    return Table("The plan and the bill", columns, tuple((*row, m) for row, m in zip(rows, measured)))
