"""The bill: what a run really cost, where the money went, and how that compares with the estimate."""

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Literal

from caloscale.planning.billing.usage import Attempt, NodeUse, RunUse
from caloscale.planning.catalogue.hardware import Machine, Slice, find_kind, load_accelerators, load_carbon, own_machine
from caloscale.planning.catalogue.prices import (
    CENT,
    SECONDS_PER_HOUR,
    SMALL_UNIT,
    Prices,
    Rate,
    RatePart,
    cluster_rate,
    node_rate,
    split_exactly,
    usd_of,
)
from caloscale.planning.search.plan import Plan
from caloscale.spec.block import Block

Purpose = Literal[
    "showers", "training", "evaluation", "startUp", "waiting", "lostWork", "misalignment", "unallocated", "idle"
]
PURPOSES: dict[Purpose, str] = {
    "showers": "simulating and preparing the showers",
    "training": "steps whose work was kept, as fast as the aligned layout makes them",
    "evaluation": "test passes, and the comparison of the generator with Monte Carlo",
    "startUp": "building, tracing and first steps, of restarts too",
    "waiting": "waiting for peers and machines",
    "lostWork": "steps that were lost in an interruption",
    "misalignment": "what the steps took longer than in the aligned layout",
    "unallocated": "accelerators that belonged to no worker",
    "idle": "idle and drain: held, and none of the above",
}
SMALL_BILL_USD = 1.0
"""Bills below are stated to a hundredth of a cent: a run of some minutes costs less than a cent or two."""


class BillPart(Block):
    """Money for one purpose."""

    purpose: Purpose
    """What it was spent on."""
    usd: float
    """US dollars; the parts add up to the bill to the cent."""
    share: float
    """Part of the bill, before it is rounded to cents or, where it is small, to hundredths of a cent."""
    meaning: str
    """The purpose in words."""


class BilledNodes(Block):
    """Node hours of one kind."""

    title: str
    """The node or slice."""
    region: str
    capacity_type: Literal["spot", "on-demand"]
    node_hours: float
    """Hours of all nodes together, restarts summed."""
    usd_per_node_hour: float
    """Rate."""
    rate_parts: tuple[RatePart, ...]
    """The price rows that the rate is made of."""
    usd: float
    """US dollars; the kinds add up to the bill to the cent."""


class Cause(Block):
    """Part of the difference between bill and estimate."""

    cause: str
    usd: float
    """US dollars more (or less) than estimated; the causes add up to the difference to the cent."""


class AgainstEstimate(Block):
    """The bill compared with the estimate."""

    estimated_usd: float
    """Estimate of the plan."""
    estimated_interval: tuple[float, float]
    """Its interval."""
    inside: bool
    """Whether the bill lies in it, both rounded as the bill is."""
    difference_usd: float
    """Bill minus estimate."""
    causes: tuple[Cause, ...]
    """Where the difference comes from."""


class PerMillionShowers(Block):
    """US dollars for a million showers."""

    generated_usd: float | None = None
    """Generating them; null when the speed of the generator was not measured."""
    training_usd: float | None = None
    """Price of the whole run that made the generator, as far as it is spread over this million."""
    generated_with_training_usd: float | None = None
    """Both together."""
    monte_carlo_usd: float | None = None
    """Simulating them instead; null when no simulation was measured."""
    break_even_showers: float | None = None
    """Showers from which on the run and generating are cheaper than simulating, the Monte Carlo showers of the run
    included also where they came from the cache; null: never, or unknown."""


Speed = tuple[NodeUse, float]
"""A machine, without seconds of its own, and the showers that it makes in a second of wall time."""


class Bill(Block):
    """What a run really cost."""

    name: str
    as_of: dt.date
    """Day of the prices."""
    prices_observed_on: dt.date
    """Day on which the oldest price was seen."""
    usd: float
    """US dollars of machines, and of disks and control plane where these are counted; storage, network traffic,
    discounts and taxes are not in it."""
    nodes: tuple[BilledNodes, ...]
    """Node hours by kind and capacity type; the control plane, where it is billed, in hours of the cluster."""
    parts: tuple[BillPart, ...]
    """The bill by purpose."""
    attempts: int
    """Starts, the first and those after interruptions."""
    interruptions: int
    """Interruptions; of a run on a cluster, losses of machines."""
    epochs: float
    """Epochs that were completed."""
    usd_per_epoch: float | None
    """US dollars an epoch, of the bill before it is rounded; null before the first."""
    own_machine: bool
    """Whether it ran on a machine of one's own: then the nodes are what its seconds are priced as."""
    per_million_showers: PerMillionShowers | None
    """Price of a million showers, the bill amortised over them; null when no speed was given."""
    co2_kg: float | None
    """kg CO2 equivalent of the accelerators at their thermal design power, an upper limit for them; hosts and cooling
    are not in it. null where the power or the region's intensity is not in the catalogue."""
    against_estimate: AgainstEstimate | None
    """Compared with the plan; null when there was none."""
    warnings: tuple[str, ...]
    """Stale or doubtful prices."""


def bill(
    use: RunUse,
    prices: Prices,
    *,
    plan: Plan | None = None,
    generation: Speed | None = None,
    monte_carlo: Speed | None = None,
    reused_showers: int = 0,
) -> Bill:
    """The bill of what a run used, at the prices of its day; generation, monte_carlo: how fast showers were made;
    reused_showers: Monte Carlo showers of the run that were simulated before it.

    Money of an attempt = node hours x rate. ``1 - usedShare`` of it is unallocated; the rest is divided by the wall
    seconds of the activities, the rest of the time of the nodes is idle, and training is divided into
    what the aligned layout would have taken and misalignment. Raises PriceError naming the row to add.
    """
    rates = {held: rates_of_use(held, prices, use.day) for attempt in use.attempts for held in attempt.nodes}
    money = dict.fromkeys(PURPOSES, 0.0)
    for attempt in use.attempts:
        _spend(attempt, sum(usd_of_use(held, rates[held]) for held in attempt.nodes), use.slower_than_aligned, money)
    exact = sum(money.values())
    unit = SMALL_UNIT if exact < SMALL_BILL_USD else CENT
    total, parts = split_exactly(list(money.values()), unit)
    return Bill(
        name=use.name,
        as_of=use.day,
        prices_observed_on=min(rate.observed_on for pair in rates.values() for rate in pair if rate is not None),
        usd=float(total),
        nodes=_nodes(use, rates, total, unit),
        parts=tuple(
            BillPart(purpose=p, usd=float(usd), share=spent / exact if exact else 0.0, meaning=PURPOSES[p])
            for (p, spent), usd in zip(money.items(), parts)
        ),
        attempts=sum(attempt.count for attempt in use.attempts),
        interruptions=sum(attempt.interruptions for attempt in use.attempts),
        epochs=use.epochs,
        usd_per_epoch=exact / use.epochs if use.epochs else None,
        own_machine=use.own_machine,
        per_million_showers=_per_million(exact, generation, monte_carlo, reused_showers, prices, use.day),
        co2_kg=_co2_kg(use),
        against_estimate=None if plan is None else _against(use, rates, total, plan, unit),
        warnings=tuple(dict.fromkeys(w for pair in rates.values() for rate in pair if rate for w in rate.warnings)),
    )


Rates = tuple[Rate, Rate | None]
"""Of a node, and of the control plane of its cluster where that is billed."""


def rates_of_use(held: NodeUse, prices: Prices, day: dt.date) -> Rates:
    """The rate of a node that was held, a slice divided among its hosts, and that of the control plane.

    Raises PriceError naming the row to add.
    """
    if held.provider == "none":
        kind: Machine | Slice = own_machine(held.machine_type, held.accelerator, held.per_node)
    else:
        kind = find_kind(**held.values_of("machine_type", "accelerator", "per_node", "topology"))
    rate = node_rate(prices, kind, held.region, held.capacity_type, day, held.disk_gib)
    counted = held.control_plane_seconds > 0
    return rate, cluster_rate(prices, held.provider, held.region, day) if counted else None


def usd_of_use(held: NodeUse, rates: Rates) -> float:
    """What nodes that were held cost, US dollars, with their disks and the control plane."""
    rate, cluster = rates
    usd = usd_of(rate.usd_per_hour, held.nodes * held.seconds)
    return usd if cluster is None else usd + usd_of(cluster.usd_per_hour, held.control_plane_seconds)


def _spend(attempt: Attempt, usd: float, slower: float, money: dict[Purpose, float]) -> None:
    """Add the money of an attempt to the purposes."""
    used = usd * attempt.used_share
    money["unallocated"] += usd - used
    whole = max(attempt.held_seconds, attempt.active_seconds)
    if not whole:
        return
    aligned = attempt.training_seconds / (1 + slower)
    seconds: dict[Purpose, float] = {
        "training": aligned,
        "misalignment": attempt.training_seconds - aligned,
        "showers": attempt.shower_seconds,
        "evaluation": attempt.evaluation_seconds + attempt.validation_seconds,
        "startUp": attempt.start_up_seconds,
        "waiting": attempt.waiting_seconds,
        "lostWork": attempt.lost_seconds,
        "idle": whole - attempt.active_seconds,
    }
    for purpose, part in seconds.items():
        money[purpose] += used * max(part, 0.0) / whole


def _nodes(use: RunUse, rates: dict[NodeUse, Rates], total: Decimal, unit: Decimal) -> tuple[BilledNodes, ...]:
    kinds: dict[tuple[Rate, str, Literal["spot", "on-demand"]], float] = {}
    for held in (held for attempt in use.attempts for held in attempt.nodes):
        rate, cluster = rates[held]
        billed = [(rate, held.capacity_type, held.nodes * held.seconds)]
        billed += [(cluster, "on-demand", held.control_plane_seconds)] if cluster is not None else []
        for priced, capacity_type, seconds in billed:
            key = (priced, held.region, capacity_type)
            kinds[key] = kinds.get(key, 0.0) + seconds / SECONDS_PER_HOUR
    _, parts = split_exactly([hours * rate.usd_per_hour for (rate, *_), hours in kinds.items()], unit)
    return tuple(
        BilledNodes(
            title=rate.title,
            region=region,
            capacity_type=capacity_type,
            node_hours=hours,
            usd_per_node_hour=rate.usd_per_hour,
            rate_parts=rate.parts,
            usd=float(usd),
        )
        for ((rate, region, capacity_type), hours), usd in zip(kinds.items(), _exact(parts, total))
    )


def _exact(parts: Sequence[Decimal], total: Decimal) -> list[Decimal]:
    """Parts whose rounding remainder, a cent or so, is added to the largest."""
    fixed = list(parts)
    largest = max(range(len(fixed)), key=lambda i: abs(fixed[i]))
    fixed[largest] += total - sum(fixed, Decimal(0))
    return fixed


def _per_million(
    run_usd: float,
    generation: Speed | None,
    monte_carlo: Speed | None,
    reused_showers: int,
    prices: Prices,
    day: dt.date,
) -> PerMillionShowers | None:
    if generation is None and monte_carlo is None:
        return None
    generated, simulated = (None if s is None else _usd_per_million(s, prices, day) for s in (generation, monte_carlo))
    break_even = None
    if generated is not None and simulated is not None and simulated > generated:
        break_even = (1_000_000 * run_usd + reused_showers * simulated) / (simulated - generated)
    return PerMillionShowers(
        generated_usd=generated,
        training_usd=None if generated is None else run_usd,
        generated_with_training_usd=None if generated is None else generated + run_usd,
        monte_carlo_usd=simulated,
        break_even_showers=break_even,
    )


def _usd_per_million(speed: Speed, prices: Prices, day: dt.date) -> float:
    machine, per_second = speed
    held = machine.model_copy(update={"seconds": 1_000_000 / per_second})
    return usd_of_use(held, rates_of_use(held, prices, day))


def _co2_kg(use: RunUse) -> float | None:
    grams = 0.0
    for attempt in use.attempts:
        for held in attempt.nodes:
            chip, grid = load_accelerators().get(held.accelerator), load_carbon().get(held.region)
            if chip is None or chip.watts is None or grid is None:
                return None
            kwh = held.nodes * held.per_node * chip.watts / 1000 * held.seconds / SECONDS_PER_HOUR
            grams += kwh * grid.grams_per_kwh
    return grams / 1000


def _against(
    use: RunUse, rates: Mapping[NodeUse, Rates], total: Decimal, plan: Plan, unit: Decimal
) -> AgainstEstimate | None:
    """The difference, cause by cause: the price of an hour of all nodes first, then the hours at the price that was
    paid. Nodes that are missing for a part of the time belong to the interruptions, in the estimate as in the bill."""
    estimate = plan.chosen or plan.nearest
    if estimate is None or estimate.usd is None or estimate.usd_per_hour is None or estimate.usd_interval is None:
        return None
    held = sum(attempt.held_seconds for attempt in use.attempts)
    paid_throughout = sum(
        usd_of_use(nodes.model_copy(update={"seconds": attempt.held_seconds}), rates[nodes])
        for attempt in use.attempts
        for nodes in attempt.nodes
    )
    paid_per_second = paid_throughout / held if held else 0.0
    planned_throughout = usd_of(estimate.usd_per_hour, estimate.total_seconds)
    missing = (planned_throughout - estimate.usd) - (paid_throughout - float(total))
    done = sum(a.training_seconds + a.evaluation_seconds for a in use.attempts)
    started = sum(a.start_up_seconds for a in use.attempts)
    lost = sum(a.lost_seconds + a.waiting_seconds for a in use.attempts)
    not_planned = sum(a.shower_seconds + a.validation_seconds for a in use.attempts)
    planned_work = use.epochs * estimate.epoch_seconds
    not_run = (estimate.epochs - use.epochs) * estimate.epoch_seconds
    planned_lost = estimate.total_seconds - estimate.start_up_seconds - estimate.epochs * estimate.epoch_seconds
    causes = {
        "price of an hour": paid_per_second * estimate.total_seconds - planned_throughout,
        "epochs that were planned and not run": -paid_per_second * not_run,
        "seconds of an epoch": paid_per_second * (done - planned_work),
        "start-up": paid_per_second * (started - estimate.start_up_seconds),
        "interruptions: lost work and waiting": paid_per_second * (lost - planned_lost) + missing,
        "showers and validation, which are not in the estimate": paid_per_second * not_planned,
        "idle and drain": paid_per_second * (held - done - started - lost - not_planned),
    }
    estimated = _rounded(estimate.usd, unit)
    rounded = _exact([_rounded(usd, unit) for usd in causes.values()], total - estimated)
    low, high = estimate.usd_interval
    return AgainstEstimate(
        estimated_usd=float(estimated),
        estimated_interval=(low, high),
        inside=_rounded(low, unit) <= total <= _rounded(high, unit),
        difference_usd=float(total - estimated),
        # + 0.0: no minus zero
        causes=tuple(Cause(cause=cause, usd=float(usd) + 0.0) for cause, usd in zip(causes, rounded)),
    )


def _rounded(usd: float, unit: Decimal) -> Decimal:
    return Decimal(repr(float(usd))).quantize(unit)
