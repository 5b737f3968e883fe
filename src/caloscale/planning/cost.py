"""What a run on one's own machine would have cost on a priced one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal

from pydantic import Field

from caloscale.errors import InputError
from caloscale.planning.machines import find_machine
from caloscale.planning.money import split_exactly
from caloscale.planning.prices import Prices, Purchase
from caloscale.planning.rates import Rate, RatePart, machine_rate
from caloscale.spec.block import Block
from caloscale.spec.budget import PricedMachine

RESOLUTION = Decimal("0.0001")
"""Stages of a small run cost less than a cent: they are stated to a hundredth of one."""
SECONDS_PER_HOUR = 3600
SHOWERS = 1_000_000


class StageUse(Block):
    """What a stage used."""

    name: str
    """Name of the stage."""
    seconds: float = Field(ge=0)
    """Wall time, s: what a rented machine is paid for."""
    core_seconds: float = Field(ge=0)
    """Processor time, s."""


class StageCost(StageUse):
    """A stage with its price."""

    usd: float
    """seconds x rate, US dollars; the stages add up to the total exactly."""


class PerMillionShowers(Block):
    """US dollars for a million showers on the priced machine."""

    generated_usd: float | None = None
    """Generating them; null when the speed of the generator was not measured."""
    training_usd: float | None = None
    """Price of the whole run that made the generator, as far as it is spread over this million."""
    generated_with_training_usd: float | None = None
    """Both together."""
    monte_carlo_usd: float | None = None
    """Simulating them instead; null when no simulation was measured."""
    break_even_showers: float | None = None
    """Showers from which on training and generating are cheaper than simulating; null: never, or unknown."""


class Cost(Block):
    """The bill of a run, priced on a machine of the catalogue."""

    machine_type: str
    """Machine type of the catalogue that the run is priced on."""
    region: str
    """Region of the prices."""
    purchase: Purchase
    """on-demand or spot."""
    usd_per_hour: float
    """Rate of the machine, US dollars per hour."""
    rate_parts: tuple[RatePart, ...]
    """The price rows that the rate is made of."""
    as_of: dt.date
    """Day for which the prices were asked."""
    prices_observed_on: dt.date
    """Day on which the oldest of the prices was seen."""
    stages: tuple[StageCost, ...]
    """The stages; their usd add up to usd."""
    usd: float
    """The whole run, US dollars."""
    per_million_showers: PerMillionShowers | None = None
    """What a million showers cost; null when neither speed was measured."""
    note: str
    """What the figures do not say."""
    warnings: tuple[str, ...] = ()
    """Prices that are stale or doubtful."""


def price_run(
    stages: Sequence[StageUse],
    priced_as: PricedMachine,
    prices: Prices,
    as_of: dt.date,
    *,
    generated_per_second: float | None = None,
    monte_carlo_per_second: float | None = None,
) -> Cost:
    """Price the measured stages of a run as if they had run on a rented machine.

    usd of a stage = wall seconds / 3600 x rate, the stages one after the other. ``generated_per_second`` and
    ``monte_carlo_per_second`` (showers per second of wall time, all cores) give the price of a million showers,
    rate / (3600 x showers per second) x 10^6, the run itself amortised over the million.
    Raises PriceError (a price is missing: the row to add) and InputError (unknown machine type, speed not positive).
    """
    for name, speed in (
        ("generated_per_second", generated_per_second),
        ("monte_carlo_per_second", monte_carlo_per_second),
    ):
        if speed is not None and not speed > 0:
            raise InputError("must be positive", field=name, value=speed, remedy="leave it out when not measured")
    machine = find_machine(priced_as.machine_type)
    rate = machine_rate(prices, machine, priced_as.region, priced_as.purchase, as_of)
    total, parts = split_exactly([use.seconds / SECONDS_PER_HOUR * rate.usd_per_hour for use in stages], RESOLUTION)
    return Cost(
        machine_type=priced_as.machine_type,
        region=rate.region,
        purchase=rate.purchase,
        usd_per_hour=rate.usd_per_hour,
        rate_parts=rate.parts,
        as_of=as_of,
        prices_observed_on=rate.observed_on,
        stages=tuple(
            StageCost(name=use.name, seconds=use.seconds, core_seconds=use.core_seconds, usd=float(usd))
            for use, usd in zip(stages, parts)
        ),
        usd=float(total),
        per_million_showers=_per_million(rate, float(total), generated_per_second, monte_carlo_per_second),
        note=(
            f"Measured wall seconds at the rate of {machine.title} ({machine.vcpus} vCPU, {machine.memory_gib:g} GiB); "
            "seconds are not converted between machines. Disks, network and a cluster's control plane are not in it."
        ),
        warnings=rate.warnings,
    )


def _per_million(
    rate: Rate, run_usd: float, generated_per_second: float | None, monte_carlo_per_second: float | None
) -> PerMillionShowers | None:
    if generated_per_second is None and monte_carlo_per_second is None:
        return None
    generated = usd_per_million(rate.usd_per_hour, generated_per_second) if generated_per_second else None
    monte_carlo = usd_per_million(rate.usd_per_hour, monte_carlo_per_second) if monte_carlo_per_second else None
    break_even = None
    if generated is not None and monte_carlo is not None and monte_carlo > generated:
        break_even = run_usd / (monte_carlo - generated) * SHOWERS
    return PerMillionShowers(
        generated_usd=generated,
        training_usd=None if generated is None else run_usd,
        generated_with_training_usd=None if generated is None else generated + run_usd,
        monte_carlo_usd=monte_carlo,
        break_even_showers=break_even,
    )


def usd_per_million(usd_per_hour: float, showers_per_second: float) -> float:
    """US dollars for a million showers: rate / 3600 / speed x 10^6 (= rate x ms per shower / 3.6)."""
    return usd_per_hour / SECONDS_PER_HOUR / showers_per_second * SHOWERS
