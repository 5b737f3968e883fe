"""What a node costs per hour: its host and its accelerators, each from a dated row."""

from __future__ import annotations

import datetime as dt

from caloscale.errors import PriceError
from caloscale.planning.catalogue.machines import OWN, Machine
from caloscale.planning.catalogue.prices import WITH_FILE, CapacityType, Key, PriceRow, Prices, stale_warning
from caloscale.spec.block import Block


class RatePart(Block):
    """One row of the catalogue in a rate."""

    sku: str
    """What is paid for."""
    kind: str
    """gpu, vcpu, mem_gib, vm, tpu_slice, tpu_chip, disk_gib or control_plane."""
    quantity: float
    """Units of it."""
    usd_per_unit_hour: float
    """Price of a unit, US dollars per hour."""
    usd_per_hour: float
    """quantity x usdPerUnitHour."""
    observed_on: dt.date
    """Day on which the price was seen."""
    source: str
    """Where it was seen."""


class Rate(Block):
    """What something costs per hour, and of what that is made."""

    title: str
    """What it is, with its host."""
    region: str
    """Region of the prices."""
    capacity_type: CapacityType
    """on-demand or spot."""
    usd_per_hour: float
    """Sum of the parts, US dollars per hour."""
    parts: tuple[RatePart, ...]
    """The rows that it is made of."""
    as_of: dt.date
    """Day for which the prices were asked."""
    observed_on: dt.date
    """Day on which the oldest of them was seen."""
    warnings: tuple[str, ...] = ()
    """Prices that are stale or doubtful."""


def machine_rate(prices: Prices, machine: Machine, region: str, capacity_type: CapacityType, as_of: dt.date) -> Rate:
    """The rate of a node: n1 as vCPU + GiB (+ GPUs), a2/a3/g2 as host + GPUs, Azure sizes as a whole, a machine
    that is not in the catalogue by a row of its machine type or of its GPUs.

    Raises PriceError naming the row to add when a part has no price on that day.
    """
    wanted: list[tuple[str, str, float]] = []
    if machine.priced_by == "own":
        return add_up(machine.title, [_own_row(prices, machine, region, capacity_type, as_of)], as_of, prices.added)
    if machine.priced_by == "none":
        raise PriceError(
            "has no price: it is a machine of your own",
            field="machineType",
            value=machine.machine_type,
            remedy="price the run as a machine of the catalogue: budget.pricedAs.machineType",
        )
    if machine.priced_by == "parts":
        wanted += [("vcpu", machine.price_sku, machine.vcpus), ("mem_gib", machine.price_sku, machine.memory_gib)]
    else:
        wanted.append(("vm", machine.price_sku, machine.price_units))
    if machine.priced_by != "whole" and machine.accelerator:
        wanted.append(("gpu", machine.accelerator, machine.per_node))
    rows = [
        (prices.find(Key(machine.provider, region, kind, sku, capacity_type), as_of), units)
        for kind, sku, units in wanted
    ]
    return add_up(machine.title, rows, as_of, prices.added)


def _own_row(
    prices: Prices, machine: Machine, region: str, capacity_type: CapacityType, as_of: dt.date
) -> tuple[PriceRow, float]:
    """The row of the machine type, else that of its GPUs; of the region, else of no region."""
    skus = [("vm", machine.machine_type, 1.0), ("gpu", machine.accelerator, float(machine.per_node))]
    keys = [
        (Key(machine.provider, where, kind, sku, capacity_type), units)
        for where in dict.fromkeys((region, OWN))
        for kind, sku, units in skus
        if sku
    ]
    for key, units in keys:
        try:
            return prices.find(key, as_of), units
        except PriceError as error:
            if error.field == "budget.maxPriceAge":
                raise
    return prices.find(keys[0][0], as_of), 1.0


def add_up(title: str, rows: list[tuple[PriceRow, float]], as_of: dt.date, added: str = WITH_FILE) -> Rate:
    """The rate that price rows, each with its number of units, make together (at least one); ``added``: see Prices."""
    parts = tuple(
        RatePart(
            sku=row.sku,
            kind=row.sku_kind,
            quantity=units,
            usd_per_unit_hour=row.usd_per_unit_hour,
            usd_per_hour=row.usd_per_unit_hour * units,
            observed_on=row.observed_on,
            source=row.source,
        )
        for row, units in rows
    )
    first = rows[0][0]
    doubtful = [
        f"the price of {row.sku} in {row.region} is doubtful: {row.note}"
        for row, _ in rows
        if row.confidence == "suspect"
    ]
    return Rate(
        title=title,
        region=first.region,
        capacity_type=first.capacity_type,
        usd_per_hour=sum(part.usd_per_hour for part in parts),
        parts=parts,
        as_of=as_of,
        observed_on=min(part.observed_on for part in parts),
        warnings=(*doubtful, *stale_warning((row for row, _ in rows), as_of, added)),
    )
