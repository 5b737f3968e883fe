"""A plan in words and tables, for a terminal and for Markdown, and as a figure."""

from collections.abc import Container, Sequence
from pathlib import Path

from caloscale.planning.search.own_machine import MachineSpeed, Making, OwnTraining
from caloscale.planning.search.plan import Candidate, Plan
from caloscale.report.blocks import Block, Table, Text

OTHER_CLOUD = 0.2
"""Of its price by which the cheapest of another cloud must differ from the choice to be shown."""
_HOUR = 3600  # s
_NOT_TIMED = "start-up, test passes and the calibration of a flow are not in it"


def headline(plan: Plan) -> str:
    """What was planned, with the dates of the prices."""
    seen = f", seen on {plan.prices.observed_on}" if plan.prices.observed_on else ""
    return (
        f"{plan.network}, {plan.epochs} epochs of {plan.showers:,} showers: {plan.considered:,} candidates, "
        f"prices of {plan.prices.as_of}{seen}"
    )


def verdict(plan: Plan) -> str:
    """The choice in a sentence, or what comes nearest and which limit binds; a cap on the training comes first."""
    best = _best(plan)
    if best is None:
        unmeasured = not any(candidate.measured for candidate in plan.candidates)
        why = f": {plan.network} was measured on no machine, and hardware.accelerator names none" if unmeasured else ""
        return f"nothing can be chosen{why}"
    limits = {"maxUsd": "budget.maxUsd", "deadline": "budget.deadline", "both": "budget.maxUsd and budget.deadline"}
    limit = "the limits" if plan.binding is None else limits[plan.binding]
    start, word = ("", "chosen") if is_met(plan) else (f"nothing meets {limit}; ", "nearest")
    text = in_words(best) if isinstance(best, Candidate) else _own_in_words(best, plan)
    return f"{start}{cap(plan, best)}{word}: {text}"


def is_met(plan: Plan) -> bool:
    """Whether a rented machine, the machine at hand, or else the reference machine meets the limits."""
    best = _best(plan)
    return best.meets_limits if isinstance(best, OwnTraining) else plan.chosen is not None


def _best(plan: Plan) -> Candidate | OwnTraining | None:
    """The choice or what comes nearest: a rented machine, the machine at hand, or the reference machine."""
    own = plan.own_training
    if plan.chosen is None and own is not None and (own.meets_limits or plan.nearest is None):
        return own
    return plan.chosen or plan.nearest or (None if plan.making is None else plan.making.training_reference)


def _own_in_words(own: OwnTraining, plan: Plan) -> str:
    """The training on the machine at hand, or on the reference machine, in a sentence."""
    if own is not plan.own_training:
        return (
            f"the reference machine ({own.machine_type}, {own.processor}); {own.seconds / _HOUR:.2g} h, "
            f"{_price(own.usd)}; {_NOT_TIMED}; no rented machine was measured with {plan.network}, and "
            "hardware.accelerator names none"
        )
    return (
        f"this machine ({own.processor}); {_digits(own.seconds / _HOUR)} h, {_price(own.usd)} as {own.machine_type}, "
        f"from batches of {own.batch}; {_NOT_TIMED}"
    )


def making_in_words(making: Making) -> str:
    """The cheapest generation in a sentence, and Monte Carlo."""
    text = f"making {making.showers:,} showers"
    for method in ("generator", "Monte Carlo"):
        offer = next((offer for offer in making.offers if offer.method == method), None)
        if offer is None or offer.hours is None:
            text += f"; by {method}: not measured"
            continue
        hours = f"{offer.hours:.3g} h" if offer.hours >= 0.01 else f"{offer.hours * _HOUR:.2g} s"
        known = " (speed of the reference machine)" if offer.reference else ""
        text += f"; by {method}: {hours} on {offer.machines} x {offer.machine_type}{known}, {_price(offer.usd)}"
    return text


def break_even_in_words(making: Making) -> str:
    """From how many showers on the generator is cheaper than Monte Carlo, in a sentence."""
    if making.break_even_showers is None:
        if len({offer.method for offer in making.offers if offer.usd is not None}) < 2 or making.training_usd is None:
            return "when the generator is cheaper than Monte Carlo is not known: a price or a speed is missing"
        return "the generator is never cheaper than Monte Carlo: a shower of it costs more"
    where = " on the reference machine" if making.training_reference else ""
    training = f"training{where} {_price(making.training_usd)}"
    if making.training_showers_usd:
        training += f", Monte Carlo showers for it {_price(making.training_showers_usd)}"
    return f"cheaper than Monte Carlo from {making.break_even_showers:,} showers on: {training}"


def _digits(value: float) -> str:
    """Two decimals, and two significant digits of what would be zero."""
    return f"{value:.2g}" if 0 < value < 0.01 else f"{value:.2f}"


def _price(usd: float | None) -> str:
    return "no price" if usd is None else f"{_digits(usd)} USD"


def _making_table(making: Making) -> Table:
    def number(value: float | None) -> str:
        return "" if value is None else f"{value:,.3g}" if value < 100 else f"{value:,.0f}"

    rows = [
        {
            "method": offer.method,
            "machine": offer.machine_type + (" (reference)" if offer.reference else ""),
            "showers/s": number(offer.showers_per_second) or "not measured",
            "machines": "" if offer.machines is None else str(offer.machines),
            "hours": number(offer.hours),
            "USD": "" if offer.usd is None else _digits(offer.usd),
        }
        for offer in making.offers
    ]
    return Table.of("Making showers on each machine", rows)


def describe_speed(speed: MachineSpeed) -> str:
    """What was measured on a machine at hand."""
    measured = (
        (f"trains {speed.network} with batches of {speed.batch}", speed.trained_per_second),
        ("generates", speed.generated_per_second),
        ("simulates with Geant4", speed.simulated_per_second),
    )
    rates = ", ".join(f"{name}: {value:.3g} showers/s" for name, value in measured if value is not None)
    machine = f"{speed.processor}, {speed.cores} cores, priced as {speed.machine_type}"
    return f"{machine}; showers of {speed.cells} cells; {rates}"


def cap(plan: Plan, candidate: Candidate | OwnTraining) -> str:
    """That train.maxMinutes ends the training early; empty when it does not."""
    if candidate.epochs >= plan.epochs:
        return ""
    return f"train.maxMinutes ends the training after {candidate.epochs:.2g} of {plan.epochs} epochs; "


def in_words(candidate: Candidate) -> str:
    """A candidate in a sentence."""
    workers = "1 worker" if candidate.workers == 1 else f"{candidate.workers} workers"
    expected, between = candidate.expected_interruptions, candidate.checkpoint_seconds
    ends = "rate of interruptions not known" if expected is None else f"{expected:.1f} interruptions expected"
    return (
        f"{accelerators(candidate)} on {candidate.nodes} x {candidate.machine_type}, {candidate.region}, "
        f"{candidate.capacity_type}, {workers} x {candidate.accelerators_per_worker}; "
        f"{_digits(candidate.total_seconds / _HOUR)} h, {money(candidate)}, "
        f"a checkpoint every {between:{'.0f' if between >= 10 else '.2g'}} s, {ends}"
    )


def money(candidate: Candidate) -> str:
    """What a candidate costs: US dollars or, where its machines have no price, hours of its accelerators."""
    if candidate.usd is None or candidate.usd_interval is None:
        return f"{_digits(candidate.accelerator_hours)} accelerator hours (no price)"
    low, high = candidate.usd_interval
    return f"{_price(candidate.usd)} ({_digits(low)} to {_digits(high)})"


def accelerators(candidate: Candidate) -> str:
    """Number and kind of accelerators, with the topology of a slice."""
    return f"{candidate.count} x {candidate.accelerator}" + (f" {candidate.topology}" if candidate.topology else "")


def _cloud_rows(plan: Plan) -> list[tuple[str, ...]]:
    """The cheapest candidate of each other cloud that is not slower than the choice, or the cheapest of all, where its
    price differs from the price of the choice by more than `OTHER_CLOUD`."""
    best = plan.chosen or plan.nearest
    if best is None or best.usd is None:
        return []
    priced = [(c.usd, c) for c in plan.candidates if c.usd is not None and c.cloud != best.cloud]
    rows = []
    for cloud in sorted({candidate.cloud for _, candidate in priced}):
        own = [(usd, c) for usd, c in priced if c.cloud == cloud]
        fast = [(usd, c) for usd, c in own if c.total_seconds <= best.total_seconds] or own
        usd, cheapest = min(fast, key=lambda one: one[0])
        if abs(usd / best.usd - 1) > OTHER_CLOUD:
            accelerator, *others = _row(cheapest)
            rows.append((f"{cloud}: {accelerator}", *others))
    return rows


def _row(candidate: Candidate, is_marked: bool = False) -> tuple[str, ...]:
    low, high = candidate.usd_interval or (None, None)
    return (
        accelerators(candidate) + " *" * is_marked,
        f"{candidate.nodes} x {candidate.machine_type}",
        candidate.capacity_type,
        candidate.region,
        _digits(candidate.total_seconds / _HOUR),
        "no price" if candidate.usd is None else _digits(candidate.usd),
        "" if low is None or high is None else f"{_digits(low)} to {_digits(high)}",
        f"{candidate.epoch_seconds:.1f}",
        "" if candidate.usd_per_epoch is None else f"{candidate.usd_per_epoch:.4g}",
        "" if not candidate.extrapolates else "extrapolated" if candidate.measured else "unmeasured",
    )


def remarks(plan: Plan) -> list[str]:
    """Reasons of the choice, notes and warnings."""
    best, own, prices = plan.chosen or plan.nearest, plan.own_training, plan.prices
    texts = []
    if own is not None:
        texts += [_own_in_words(own, plan)] if best else []
        texts.append(f"the speed of this machine: {own.source}")
    if plan.making is not None:
        texts += dict.fromkeys(f"{o.method}, {o.machine_type}: {o.basis}" for o in plan.making.offers)
    texts += best.reasons if best else ()
    for part in prices.parts:
        price, age = f"{part.usd_per_unit_hour:g} USD an hour", (prices.as_of - part.observed_on).days
        seen = f"{age} days old" if age >= 0 else f"seen {-age} days later"
        texts.append(f"price: {price} of {part.sku} ({part.kind}), {seen}")
    if best is not None and best.usd is not None and best.cloud != "none":
        texts.append(f"not in it: {not_billed({part.kind for part in prices.parts})}")
    texts += plan.notes
    if prices.unpriced:
        texts.append(f"left out, without a price on the day: {', '.join(prices.unpriced)}")
    return texts + [f"warning: {warning}" for warning in dict.fromkeys(prices.warnings)]


def not_billed(kinds: Container[str]) -> str:
    """What a cloud also charges for and prices of these kinds do not include."""
    fields = {"disk_gib": "boot disks (hardware.diskGib)", "control_plane": "control plane (hardware.controlPlane)"}
    unset = [text for kind, text in fields.items() if kind not in kinds]
    idle = "nodes without a worker (before it starts, after it ends, and those of the cluster itself)"
    return ", ".join((*unset, "buckets and other storage", "network traffic", "logs", idle, "discounts", "taxes"))


def plan_blocks(plan: Plan) -> tuple[Block, ...]:
    """The choice, making showers, the tables of candidates and layouts that have rows, and the reasons."""
    making, best = plan.making, plan.chosen or plan.nearest
    # of each accelerator on which the network was not measured, and which nothing names, the cheapest candidate
    cheapest: dict[str, Candidate] = {}
    named = {candidate.accelerator for candidate in plan.pareto if not candidate.measured}
    for candidate in plan.candidates:
        if not candidate.measured and candidate.accelerator not in named:
            cheapest.setdefault(candidate.accelerator, candidate)
    unmeasured = [_row(candidate) for candidate in cheapest.values()]
    front = [_row(candidate, candidate == best) for candidate in plan.pareto]
    tables = [
        _front(f"Candidates that none beats in both time and money; * {'chosen' if plan.chosen else 'nearest'}", front),
        _front(f"Cheapest of another cloud, where the price differs by more than {OTHER_CLOUD:.0%}", _cloud_rows(plan)),
        _front("Not measured; chosen only if hardware.accelerator names them", unmeasured),
    ]
    blocks: list[Block] = [Text(verdict(plan), "strong"), Text(headline(plan))]
    if making is not None:
        blocks += [Text(making_in_words(making)), Text(break_even_in_words(making)), _making_table(making)]
    blocks += [table for table in tables if table.rows]
    if len(plan.layouts) > 1:
        rows = [
            {
                "workers x GPUs": f"{one.workers} x {one.accelerators_per_worker}{' (aligned)' if one.aligned else ''}",
                "nodes": f"{one.nodes} x {one.per_node}",
                "epoch s": f"{one.epoch_seconds:.1f}",
                "slower": f"{one.slower_than_best:+.1%}",
                "steps scatter": "" if one.step_scatter is None else f"{one.step_scatter:.1%}",
            }
            for one in plan.layouts
        ]
        blocks.append(Table.of("Layouts of the same accelerators", rows))
    return (*blocks, Text("\n".join(f"- {remark}" for remark in remarks(plan))))


def _front(caption: str, rows: Sequence[tuple[str, ...]]) -> Table:
    left, wide = ("capacity", "region", "hours", "USD"), ("USD, 90%", "epoch s", "epoch USD")
    columns = ("accelerators", "nodes", *left, *wide, "basis")
    return Table(caption, columns, tuple(rows), wide=("nodes", *wide))


def draw_plan(plan: Plan, path: str | Path) -> None:
    """Draw the candidates, the Pareto front and the choice into a file; its suffix is the format (svg, png, pdf).

    Raises StorageError.
    """
    from caloscale.report.drawing import figure_writer, new_page, own_style  # slow: they import Matplotlib

    with own_style({}):
        figure = new_page(7, 5)
        axes = figure.add_subplot()
        for measured, label, colour in ((True, "measured", "tab:blue"), (False, "estimated", "tab:grey")):
            if alike := [c for c in plan.candidates if c.measured is measured]:
                axes.scatter(*_places(alike), s=9, color=colour, alpha=0.5, label=label)
        axes.step(*_places(plan.pareto), where="post", label="Pareto front")
        best = plan.chosen or plan.nearest
        if best is not None:
            name = "chosen" if plan.chosen else "nearest to the limits"
            usd, hours = _cost(best), best.total_seconds / _HOUR
            (low, high), (soon, late) = best.usd_interval or (usd, usd), best.total_seconds_interval
            axes.errorbar(
                usd,
                hours,
                xerr=[[usd - low], [high - usd]],
                yerr=[[hours - soon / _HOUR], [late / _HOUR - hours]],
                fmt="*",
                markersize=14,
                color="tab:red",
                label=f"{name}: {best.count} x {best.accelerator}, {best.region}, {best.capacity_type}",
            )
        unit = "accelerator hours" if best is not None and best.usd is None else "money, US dollars"
        axes.set(xscale="log", yscale="log", xlabel=unit, ylabel="time, hours")
        axes.set_title(
            f"{plan.network}, {plan.epochs} epochs of {plan.showers:,} showers, prices of {plan.prices.as_of}"
        )
        axes.legend(fontsize="small")
        with figure_writer(path) as file:
            kind = Path(path).suffix[1:]
            figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else None)


def _cost(candidate: Candidate) -> float:
    """US dollars or, without a price, hours of the accelerators."""
    return candidate.accelerator_hours if candidate.usd is None else candidate.usd


def _places(candidates: Sequence[Candidate]) -> tuple[list[float], list[float]]:
    """Cost and hours."""
    return [_cost(c) for c in candidates], [c.total_seconds / _HOUR for c in candidates]
