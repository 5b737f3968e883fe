"""Sections of a report about the run itself: training, speed, money, plan, provenance."""

from collections.abc import Mapping, Sequence
from typing import Any

from caloscale.planning.billing.bill import Bill
from caloscale.planning.search.plan import Candidate, Plan
from caloscale.profiling.result import Profile
from caloscale.report.blocks import Block, Cell, Details, Fact, Facts, Figure, Notice, Section, Table, Text, Values
from caloscale.report.plan import money
from caloscale.report.run_figures import StageUse, profile_table


def training_section(figures: Sequence[Figure], training: Mapping[str, Any]) -> Section | None:
    """What was trained, with its figures; None where nothing was. training: names and values."""
    if not figures and not training:
        return None
    return Section("Training", (*((Values(training),) if training else ()), *figures))


def profile_section(profile: Profile, figures: Sequence[Figure]) -> Section:
    """Where the time of a training step goes."""
    facts = Facts(
        (
            Fact(
                "achieved by the step",
                f"{profile.gflops:.3g} GFLOP/s",
                f"{profile.gflop_per_step:.3g} GFLOP in {profile.seconds_per_step:.3g} s",
            ),
            Fact(
                "in convolutions and matrix products",
                f"{profile.matrix_gflops:.3g} GFLOP/s",
                f"in the {100 * profile.matrix_share:.0f} % of the busy time that they take",
            ),
            Fact(
                "peak of the machine",
                f"{profile.peak_gflops:.3g} GFLOP/s",
                f"a large matrix product in {profile.precision}, measured",
            ),
        )
    )
    return Section("Profile of the training step", (Text(profile.statement), facts, profile_table(profile), *figures))


def speed_section(speeds: Sequence[Fact], stages: Sequence[StageUse], figures: Sequence[Figure]) -> Section:
    """How fast the run was, and what its stages took."""
    rows = tuple(
        (
            stage.name,
            Cell(stage.outcome, "" if stage.outcome == "succeeded" else "bad"),
            f"{stage.seconds:.1f}",
            f"{stage.core_seconds:.1f}",
            f"{stage.peak_memory_mib:.0f}" if stage.peak_memory_mib else "",
        )
        for stage in stages
    )
    columns = ("stage", "outcome", "wall seconds", "core seconds", "peak memory, MiB")
    blocks: list[Block] = [Facts(tuple(speeds))] if speeds else []
    if rows:
        blocks.append(Table("Stages of the run", columns, rows))
    return Section("Speed", (*blocks, *figures))


def bill_blocks(bill: Bill, note: str = "") -> tuple[Block, ...]:
    """The machines of a run, and what the money was spent on. note: what the bill does not contain."""
    rows = [
        (n.title, f"{n.region}, {n.capacity_type}", f"{n.node_hours:.4f}", f"{n.usd_per_node_hour:.4f}", f"{n.usd:.4f}")
        for n in bill.nodes
    ]
    rows.append(("all", "", f"{sum(n.node_hours for n in bill.nodes):.4f}", "", f"{bill.usd:.4f}"))
    columns = ("machines", "region, capacity type", "node hours", "USD per node hour", "USD")
    parts = tuple((part.meaning, f"{part.share:.1%}", f"{part.usd:.4f}") for part in bill.parts if part.usd)
    return (
        Table(
            "Machine that the run is priced as" if bill.own_machine else "Machines that the run held",
            columns,
            tuple(rows),
            total=True,
        ),
        Table("Cost by purpose", ("purpose", "share", "USD"), parts),
        Text(
            f"{bill.attempts} attempt{'' if bill.attempts == 1 else 's'}, {bill.interruptions} interrupted; prices as "
            f"of {bill.as_of} (the oldest seen on {bill.prices_observed_on})."
        ),
        *((Text(note, "pale"),) if note else ()),
        *(Notice(warning) for warning in bill.warnings),
    )


def money_section(money: Bill | str, note: str = "") -> Section:
    """What the run cost, or why it has no price. note: what the bill does not contain."""
    if isinstance(money, str):
        return Section("Bill", (Notice(f"There is no bill: {money}"),))
    blocks: tuple[Block | Section, ...] = bill_blocks(money, note)
    if money.per_million_showers:
        values = money.per_million_showers.as_values()
        blocks += (Section("A million showers, USD", (Values(values),)),)
    prices = {n.title: [part.as_values() for part in n.rate_parts] for n in money.nodes}
    blocks += (Details("The prices that the rates come from", (Values(prices),)),)
    return Section("Cost on a rented machine" if money.own_machine else "Bill", blocks)


def plan_section(plan: Plan, bill: Bill | None, *, headline: str, verdict: str, remarks: Sequence[str]) -> Section:
    """What was planned, compared with what was measured. headline, verdict, remarks: the plan in words."""
    best = plan.chosen or plan.nearest
    blocks: list[Block] = [Text(headline), Text(verdict)]
    if best is not None:
        blocks.append(_planned_and_measured(best, bill))
    if bill is not None and bill.against_estimate is not None:
        against = bill.against_estimate
        own = (
            "The run did not use the planned machines: its seconds on its own machine are priced at the rate of the "
            "machine in budget.pricedAs. "
            if bill.own_machine
            else ""
        )
        blocks.append(Text(f"{own}The bill is {'in' if against.inside else 'outside'} the interval of the estimate."))
        causes = [(cause.cause, f"{cause.usd:+.4f}") for cause in against.causes]
        rows = (*causes, ("bill minus estimate", f"{against.difference_usd:+.4f}"))
        blocks.append(Table("Difference between bill and estimate, by cause", ("cause", "USD"), rows, total=True))
    if remarks:
        blocks.append(Details("Reasons and sources of the plan", tuple(Text(remark) for remark in remarks)))
    return Section("Plan and outcome", tuple(blocks))


def _planned_and_measured(best: Candidate, bill: Bill | None) -> Table:
    hours = [best.nodes * seconds / 3600 for seconds in (best.total_seconds, *best.total_seconds_interval)]
    topology = f" {best.topology}" if best.topology else ""
    rows = [
        ("machines", f"{best.count} x {best.accelerator}{topology}, {best.nodes} x {best.machine_type}"),
        ("region, capacity type", f"{best.region}, {best.capacity_type}"),
        ("layout", f"{best.workers} workers x {best.accelerators_per_worker}"),
        ("node hours", f"{hours[0]:.3g} ({hours[1]:.3g} to {hours[2]:.3g})"),
        ("USD", money(best).replace(" USD", "")),
        ("USD per epoch", "" if best.usd_per_epoch is None else f"{best.usd_per_epoch:.4f}"),
    ]
    if bill is None:
        return Table("The plan", ("quantity", "planned"), tuple(rows))
    titles = ", ".join(dict.fromkeys(n.title for n in bill.nodes))
    measured = (
        f"{titles} (own machine, priced as this)" if bill.own_machine else titles,
        "; ".join(f"{n.region}, {n.capacity_type}" for n in bill.nodes),
        "one process" if bill.own_machine else "",
        f"{sum(n.node_hours for n in bill.nodes):.3g}",
        f"{bill.usd:.4f}",
        "no epoch was completed" if bill.usd_per_epoch is None else f"{bill.usd_per_epoch:.4f}",
    )
    columns = ("quantity", "planned", "measured")
    return Table("The plan and the bill", columns, tuple((*row, m) for row, m in zip(rows, measured)))


def provenance_section(provenance: Mapping[str, Any]) -> Section:
    """What is needed to repeat the run: nested names and values."""
    return Section("Provenance", (Values(provenance),))
