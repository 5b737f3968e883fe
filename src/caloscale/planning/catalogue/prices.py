"""Dated prices, what a node costs per hour from them, and money in parts that add up."""

import copy
import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, Self, TypeVar

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator, model_validator

from caloscale.errors import InvalidValueError, PriceError
from caloscale.planning.catalogue.hardware import OWN, Machine, Slice, load_accelerators, load_machines, load_slices
from caloscale.planning.catalogue.rows import SourcedRow, builtin, read_rows
from caloscale.spec.block import Block
from caloscale.spec.problem import suggest

CapacityType = Literal["on-demand", "spot"]
Kind = Literal["gpu", "tpu_slice", "tpu_chip", "vcpu", "mem_gib", "vm", "disk_gib", "control_plane"]

UNITS: dict[Kind, str] = {
    "gpu": "gpu", "tpu_slice": "slice", "tpu_chip": "chip", "vcpu": "vcpu", "mem_gib": "gib", "vm": "vm",
    "disk_gib": "gib", "control_plane": "cluster",
}  # fmt: skip
"""What one unit of a kind is: prices of other units, such as a second of a GPU, are not converted."""
CATALOGUE = builtin("prices.csv")
"""Prices that come with the package."""
WITH_FILE = "with --prices FILE"
"""How a row is added to the prices of a command."""
STALE_AFTER_DAYS = 90
"""Spot prices change up to once a month, list prices less often; a reader should know the age of both."""


class PriceRow(SourcedRow):
    """A price: US dollars for one unit and one hour, in a region, for a way of buying, in a period."""

    provider: Literal["gcp", "azure", "none"]
    """Cloud that sells it; none: machines that are not in the catalogue, one's own for example."""
    region: str = Field(min_length=2)
    """Region of the price; own: of machines without a region."""
    sku_kind: Kind
    """What is sold: gpu, tpu_slice, tpu_chip, vcpu, mem_gib, vm (a machine, or the host part of a GPU machine),
    disk_gib, control_plane."""
    sku: str = Field(min_length=1)
    """Name of what is sold: an accelerator, a family (n1), a machine type."""
    unit: str = Field(min_length=1)
    """What one unit is: gpu, slice, chip, vcpu, gib, vm, cluster."""
    capacity_type: CapacityType
    """on-demand, or spot (preemptible, low priority)."""
    usd_per_unit_hour: float = Field(gt=0, le=10_000)
    """US dollars for one unit and one hour; a price that is zero is a price that is missing."""
    includes_host: bool = False
    """Whether the machine around the accelerator is in the price."""
    effective_from: dt.date
    """First day on which the price is valid."""
    effective_to: dt.date | None = None
    """Last day; empty: until further notice."""
    confidence: Literal["list", "derived", "suspect"] = "list"
    """list: as published; derived: computed from published prices; suspect: doubtful, see the note."""
    retired: bool = False
    """No longer sold; the row prices old runs."""
    waiver: str = ""
    """Why a spot price that is not below the on-demand price is right all the same."""
    note: str = ""

    @field_validator("sku")
    @classmethod
    def _is_sold(cls, sku: str, info: ValidationInfo) -> str:
        provider, kind = info.data.get("provider"), info.data.get("sku_kind")
        if provider in (None, "none") or kind is None:
            return sku
        known = _sold(kind)
        if sku not in known:
            remedy = suggest(sku, known) or f"{kind} is one of {', '.join(sorted(known))}"
            raise InvalidValueError(f"prices nothing that the catalogue has as {kind}", remedy=remedy)
        return sku

    @field_validator("unit")
    @classmethod
    def _is_of_its_kind(cls, unit: str, info: ValidationInfo) -> str:
        known = UNITS.get(info.data.get("sku_kind", ""), unit)
        if unit != known:
            raise InvalidValueError("is another unit", remedy=f"write {known}, and dollars for one of it and one hour")
        return unit

    @field_validator("includes_host")
    @classmethod
    def _is_not_added_to_a_host(cls, included: bool, info: ValidationInfo) -> bool:
        if included and info.data.get("sku_kind") == "gpu" and info.data.get("provider") != "none":
            remedy = "give the price of the GPU alone, and no"
            raise InvalidValueError("the machine around a GPU has rows that are added to it", remedy=remedy)
        return included

    @field_validator("usd_per_unit_hour")
    @classmethod
    def _is_known(cls, usd: float) -> float:
        if usd == 700.0:  # SkyPilot's catalogues write so
            raise InvalidValueError("700.0 marks an unknown price", remedy="leave the row out")
        return usd

    @model_validator(mode="after")
    def _has_a_period(self) -> Self:
        if self.last_day < self.effective_from:
            raise InvalidValueError("effective_to is before effective_from", remedy="give the last day of the period")
        return self

    @property
    def key(self) -> "Key":
        """What the price is asked for by."""
        return Key(self.provider, self.region, self.sku_kind, self.sku, self.capacity_type)

    @property
    def last_day(self) -> dt.date:
        """Last day on which the price is in effect."""
        return self.effective_to or dt.date.max

    def is_in_effect(self, day: dt.date) -> bool:
        """Whether the price is that of a day."""
        return self.effective_from <= day <= self.last_day

    def overlaps(self, other: Self) -> bool:
        """Whether there is a day on which both are in effect."""
        return max(self.effective_from, other.effective_from) <= min(self.last_day, other.last_day)


class Key(NamedTuple):
    """What a price is asked for by."""

    provider: str
    region: str
    sku_kind: str
    sku: str
    capacity_type: str


class Prices:
    """All rows of the catalogue, searched by key and day. Later files have precedence."""

    def __init__(self, layers: Iterable[Iterable[tuple[str, PriceRow]]], added: str = WITH_FILE) -> None:
        """``layers``: per file its rows with their sources; ``added``: how a person adds a row, for remedies.

        Raises PriceError for rows that contradict each other.
        """
        self.added = added
        self._max_age_days: float | None = None
        self._rows: dict[Key, list[PriceRow]] = {}
        """Those of the files with precedence first."""
        for layer in layers:
            rows = list(layer)
            own, others = _by_key(rows), self._rows
            self._rows = {key: own.get(key, []) + others.get(key, []) for key in {**own, **others}}
            _refuse_dear_spot(rows, self._rows)

    @property
    def rows(self) -> list[PriceRow]:
        """All rows, those of the files with precedence first."""
        return [row for known in self._rows.values() for row in known]

    def no_older_than(self, days: float) -> Self:
        """The same prices, of which those are refused that were seen more than ``days`` before they are used."""
        limited = copy.copy(self)
        limited._max_age_days = days
        return limited

    def find(self, key: Key, as_of: dt.date) -> PriceRow:
        """The price in effect on a day.

        Raises PriceError that names the row to add: no price, or one that is too old. A missing price is never zero.
        """
        row = next((one for one in self._rows.get(key, ()) if one.is_in_effect(as_of)), None)
        if row is None:
            raise _missing(key, as_of, self._rows, self.added)
        age_days, most = (as_of - row.observed_on).days, self._max_age_days
        if most is not None and age_days > most:
            sold = f"the {row.capacity_type} price of {row.sku_kind} {row.sku} in {row.region}"
            remedy = f"add a row seen after {row.observed_on} {self.added}, or raise budget.maxPriceAge"
            problem = f"{sold} is {age_days} days old on {as_of}"
            raise PriceError(problem, field="budget.maxPriceAge", value=f"{most:g}d", remedy=remedy)
        return row

    def regions(self, kind: Machine | Slice) -> list[str]:
        """Regions of which the cloud has any price; of a machine of one's own those with a price of it, or `OWN`."""
        keys = [key for key in self._rows if key.provider == kind.provider]
        if kind.provider != "none":
            return sorted({key.region for key in keys})
        regions = {key.region for key in keys if (key.sku_kind, key.sku) in _own_skus(kind)} or {OWN}
        return sorted(regions, key=lambda region: (region != OWN, region))

    def doubtful_regions(self) -> list[str]:
        """Warnings of regions of clouds that may be mistyped: where no machine of the catalogue has all its prices, and
        those that regions.yaml does not have, which the cloud may have opened since.
        """
        sold: dict[tuple[str, str], set[tuple[str, str]]] = {}
        for key in self._rows:
            sold.setdefault((key.provider, key.region), set()).add((key.sku_kind, key.sku))
        doubts, clouds = [], yaml.safe_load(builtin("regions.yaml").read_text("utf-8"))
        for (provider, region), there in sorted(sold.items()):
            nodes = [parts for cloud, parts in _nodes_of_clouds() if cloud == provider]
            known = clouds.get(provider, "").split()
            if nodes and not any(parts <= there for parts in nodes):
                problem = f"no machine of the catalogue has all its prices in the region {region}"
                doubts.append(f"{problem}, so its rows are not used; correct the region, or add the missing rows")
            elif known and region not in known:
                remedy = suggest(region, known) or "correct it if it is mistyped"
                doubts.append(f"{region} is no region of {provider} that is known, and its rows are used: {remedy}")
        return doubts


def today() -> dt.date:
    """The day whose prices count where none is named: that of UTC, as in the status and the bill of a run."""
    return dt.datetime.now(dt.UTC).date()


def load_prices(extra_files: Iterable[str | Path] = (), *, added: str = WITH_FILE) -> Prices:
    """The catalogue of the package and, before it, the user's files (the last has precedence).

    ``added``: how a person adds a row to these files, as remedies state it.

    Raises PriceError naming file, line, column and remedy: zeros, missing dates, duplicates (two rows for the
    same thing, capacity type and day in one file), a spot price that is not below the on-demand price found on the same
    day without a waiver.
    """
    files = (CATALOGUE, *map(Path, extra_files))
    return Prices((read_rows(file, PriceRow, PriceError) for file in files), added)


class PriceList(Block):
    """Prices in effect on a day, for a person or a program."""

    as_of: dt.date
    rows: tuple[PriceRow, ...]
    """The prices, by provider, region, kind, sku and capacity type."""
    warnings: tuple[str, ...]
    """Prices that are stale."""


def list_prices(prices: Prices, as_of: dt.date, *, region: str | None = None, sku: str | None = None) -> PriceList:
    """The prices in effect on a day, of a region and of names that contain ``sku`` where these are given.

    Raises PriceError when there are none.
    """
    keys = sorted({row.key for row in prices.rows})
    regions = sorted({key.region for key in keys})
    if region is not None and region not in regions:
        remedy = f"one of {', '.join(regions)}"
        raise PriceError("is no region of the catalogue", field="--region", value=region, remedy=remedy)
    named = [key for key in keys if region in (None, key.region)]
    matching = [key for key in named if (sku or "").lower() in key.sku.lower()]
    if not matching:
        problem = f"is in no name of what is sold{f' in {region}' if region else ''}"
        remedy = f"a part of {', '.join(sorted({key.sku for key in named}))}"
        raise PriceError(problem, field="--sku", value=sku, remedy=remedy)
    rows = []
    for key in matching:
        with suppress(PriceError):  # it has ended, or not begun
            rows.append(prices.find(key, as_of))
    if not rows:
        filters = "".join(f" --{name} {value}" for name, value in (("region", region), ("sku", sku)) if value)
        problem = f"no price{' of' if filters else ''}{filters} is in effect"
        raise PriceError(problem, field="prices", value=str(as_of), remedy="give another date")
    return PriceList(as_of=as_of, rows=tuple(rows), warnings=tuple(stale_warning(rows, as_of, prices.added)))


def stale_warning(rows: Iterable[PriceRow], as_of: dt.date, added: str = WITH_FILE) -> list[str]:
    """What a reader should be warned of: prices that were seen long before the day they are used for."""
    return [
        f"the {row.capacity_type} price of {row.sku} in {row.region} was seen on {row.observed_on}, "
        f"{(as_of - row.observed_on).days} days before {as_of}: caloscale prices import, or add a fresh row {added}"
        for row in rows
        if (as_of - row.observed_on).days > STALE_AFTER_DAYS
    ]


@cache
def _sold(kind: Kind) -> frozenset[str]:
    """All of a kind that nodes of the catalogue, their disks and clusters are priced by."""
    if kind == "gpu":
        return frozenset(name for name, chip in load_accelerators().items() if chip.kind == "gpu")
    others = {("disk_gib", "boot"), ("control_plane", "cluster")}
    sold = {sku for part, sku in others.union(*(parts for _, parts in _nodes_of_clouds())) if part == kind}
    if kind in ("vcpu", "mem_gib"):  # imported lists have those of hosts, too, from which the price of a host is made
        sold |= {
            machine.machine_type.partition("-")[0].upper() for machine in load_machines() if machine.priced_by == "host"
        }
    return frozenset(sold)


@cache
def _nodes_of_clouds() -> tuple[tuple[str, frozenset[tuple[str, str]]], ...]:
    """Of each node and slice of a cloud the cloud, and kind and name of all that it is priced by."""
    nodes: tuple[Machine | Slice, ...] = (
        *(machine for machine in load_machines() if machine.priced_by != "none"),
        *load_slices(),
    )
    return tuple((node.provider, frozenset((kind, sku) for kind, sku, _ in _parts(node))) for node in nodes)


def _by_key(rows: list[tuple[str, PriceRow]]) -> dict[Key, list[PriceRow]]:
    """The rows of a file. Raises PriceError where two are in effect on the same day."""
    seen: dict[Key, list[tuple[str, PriceRow]]] = {}
    for source, row in rows:
        for other_place, other in seen.setdefault(row.key, []):
            if row.overlaps(other):
                problem = f"prices {row.sku} ({row.region}, {row.capacity_type}) a second time for the same days"
                remedy = f"end the row at {other_place} with effective_to, or remove one of the two"
                day = str(row.effective_from)
                raise PriceError(problem, file=source, field="effective_from", value=day, remedy=remedy)
        seen[row.key].append((source, row))
    return {key: [row for _, row in known] for key, known in seen.items()}


def _refuse_dear_spot(rows: list[tuple[str, PriceRow]], known: Mapping[Key, list[PriceRow]]) -> None:
    """Rows of the newest file against those of the other capacity type that are found on the same days, in all files.
    What is found changes only where a row begins and after it has ended."""
    for source, row in sorted(rows, key=lambda placed: placed[1].capacity_type, reverse=True):  # spot first
        key = row.key._replace(capacity_type="on-demand" if row.capacity_type == "spot" else "spot")
        others = known.get(key, [])
        days = {row.effective_from, *(other.effective_from for other in others)}
        days |= {other.last_day + dt.timedelta(days=1) for other in others if other.last_day < dt.date.max}
        for day in sorted(filter(row.is_in_effect, days)):
            other = next((one for one in others if one.is_in_effect(day)), None)
            if other is None:
                continue
            spot, listed = (row, other) if row.capacity_type == "spot" else (other, row)
            if not spot.waiver and spot.usd_per_unit_hour >= listed.usd_per_unit_hour:
                relation = "below on demand" if row is spot else "above spot"
                problem = f"{row.capacity_type} price of {row.sku} in {row.region} is not {relation}"
                problem += f" ({other.usd_per_unit_hour:g}) on {day}"
                remedy = "correct it, or give the reason in the column waiver of the spot price"
                usd = row.usd_per_unit_hour
                raise PriceError(problem, file=source, field="usd_per_unit_hour", value=usd, remedy=remedy)


def _missing(key: Key, as_of: dt.date, rows: Mapping[Key, list[PriceRow]], added: str) -> PriceError:
    new_row = f"{key.provider},{key.region},{key.sku_kind},{key.sku},...,{key.capacity_type}"
    if known := rows.get(key):
        periods = ", ".join(f"{row.effective_from} to {row.effective_to or 'now'}" for row in known)
        hint = f"there are prices for {periods}: choose such a date, or add a row '{new_row}' in effect on {as_of}"
        hint += f", {added}"
    else:
        regions = sorted({k.region for k in rows if k._replace(region=key.region) == key})
        near = suggest(key.sku, {k.sku for k in rows if k.sku_kind == key.sku_kind} - {key.sku})
        hint = f"add a row '{new_row}' in effect on {as_of} with its source, {added}"
        if regions:
            hint += f"; the catalogue has it in {', '.join(regions)}"
        elif near and key.sku not in {machine.machine_type for machine in load_machines()}:
            hint += f"; {near}"
    problem = f"no {key.capacity_type} price of {key.sku_kind} {key.sku} in {key.region} on {as_of}"
    return PriceError(problem, field="prices", remedy=hint)


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
    capacity_type: CapacityType
    usd_per_hour: float
    """Sum of the parts, US dollars per hour."""
    parts: tuple[RatePart, ...]
    includes_host: bool
    """Whether the machine around an accelerator is in the price."""
    observed_on: dt.date
    """Day on which the oldest of them was seen."""
    warnings: tuple[str, ...] = ()
    """Prices that are stale or doubtful."""


def node_rate(
    prices: Prices,
    kind: Machine | Slice,
    region: str,
    capacity_type: CapacityType,
    as_of: dt.date,
    disk_gib: float = 0.0,
) -> Rate:
    """The rate of a node with its boot disk; a slice is divided among its hosts. Estimates and bills price nodes by it.

    n1 is priced as vCPU + GiB (+ GPUs), a2/a3/g2 as host + GPUs, Azure sizes as a whole, the host of a slice as its
    part of it, a machine that is not in the catalogue by a row of its machine type or of its GPUs. Raises PriceError
    naming the row to add when a part has no price on that day.
    """
    if isinstance(kind, Machine) and kind.priced_by == "none":
        problem = "has no price: it is a machine of your own"
        remedy = "price the run as a machine of the catalogue: budget.pricedAs.machineType"
        raise PriceError(problem, field="machineType", value=kind.machine_type, remedy=remedy)
    if isinstance(kind, Machine) and kind.priced_by == "own":
        # the row of the machine type, else that of its GPUs; of the region, else of no region
        keys = [Key(kind.provider, region, part, sku, capacity_type) for part, sku in _own_skus(kind)]
        row = _find(prices, keys, as_of)
        rows = [(row, float(kind.per_node) if row.sku_kind == "gpu" else 1.0)]
    else:
        parts = ((Key(kind.provider, region, part, sku, capacity_type), units) for part, sku, units in _parts(kind))
        rows = [(prices.find(key, as_of), units) for key, units in parts]
    if disk_gib:
        rows.append((_find(prices, [Key(kind.provider, region, "disk_gib", "boot", "on-demand")], as_of), disk_gib))
    return add_up(kind.title, rows, as_of, prices.added)


def cluster_rate(prices: Prices, provider: str, region: str, as_of: dt.date) -> Rate:
    """The rate of a cluster's control plane; raises PriceError naming the row to add."""
    row = _find(prices, [Key(provider, region, "control_plane", "cluster", "on-demand")], as_of)
    return add_up("control plane of the cluster", [(row, 1)], as_of, prices.added)


def _parts(node: Machine | Slice) -> list[tuple[str, str, float]]:
    """Kind, name and units of all that a node of a cloud is priced by."""
    if isinstance(node, Slice):
        return [(node.price_kind, node.price_sku, (1 if node.price_kind == "tpu_slice" else node.chips) / node.hosts)]
    parts: list[tuple[str, str, float]] = [("vm", node.price_sku, node.price_units)]
    if node.priced_by == "parts":
        parts = [("vcpu", node.price_sku, node.vcpus), ("mem_gib", node.price_sku, node.memory_gib)]
    if node.priced_by != "whole" and node.accelerator:
        parts.append(("gpu", node.accelerator, node.per_node))
    return parts


def _own_skus(machine: Machine | Slice) -> list[tuple[str, str]]:
    """Kind and name of what a machine of one's own may be priced by."""
    return [("vm", machine.machine_type), *([("gpu", machine.accelerator)] if machine.accelerator else [])]


def _find(prices: Prices, keys: Sequence[Key], as_of: dt.date) -> PriceRow:
    """The row of the first key that has one: those of no region come last, and belong to one's own machines."""
    of_no_region = [key._replace(region=OWN) for key in keys if key.provider == "none"]
    for key in (*keys, *of_no_region):
        try:
            return prices.find(key, as_of)
        except PriceError as error:
            if error.field == "budget.maxPriceAge":
                raise
    return prices.find(keys[0], as_of)


def add_up(title: str, rows: list[tuple[PriceRow, float]], as_of: dt.date, added: str = WITH_FILE) -> Rate:
    """The rate that price rows, each with its number of units, make together (at least one); ``added``: see Prices."""
    parts = tuple(
        RatePart(
            kind=row.sku_kind,
            quantity=units,
            usd_per_hour=row.usd_per_unit_hour * units,
            **row.values_of("sku", "usd_per_unit_hour", "observed_on", "source"),
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
        **first.values_of("region", "capacity_type", "includes_host"),
        usd_per_hour=sum(part.usd_per_hour for part in parts),
        parts=parts,
        observed_on=min(part.observed_on for part in parts),
        warnings=(*doubtful, *stale_warning((row for row, _ in rows), as_of, added)),
    )


CENT = Decimal("0.01")
SMALL_UNIT = Decimal("0.0001")
"""Parts of a small run cost less than a cent: they are stated to a hundredth of one."""
SECONDS_PER_HOUR = 3600
MoneyT = TypeVar("MoneyT", float, NDArray[np.float64])


def usd_of(usd_per_hour: MoneyT, seconds: MoneyT) -> MoneyT:
    """US dollars of a number of seconds at a rate; estimates, bills and showers are all priced by it."""
    return usd_per_hour * seconds / SECONDS_PER_HOUR


def split_exactly(amounts: Sequence[float], unit: Decimal = CENT) -> tuple[Decimal, list[Decimal]]:
    """The total of non-negative amounts, rounded to ``unit``, and parts, rounded too, that add up to it exactly.

    Largest remainder (Hamilton): every part is rounded down, and the units that are missing go to the largest
    remainders, so that no part is off by more than one unit.
    """
    exact = [Decimal(repr(float(amount))) / unit for amount in amounts]
    total = sum(exact, Decimal(0)).quantize(Decimal(1), ROUND_HALF_UP)
    parts = [Decimal(int(amount)) for amount in exact]
    missing = int(total - sum(parts, Decimal(0)))
    by_remainder = sorted(range(len(exact)), key=lambda i: (parts[i] - exact[i], i))
    for index in by_remainder[:missing]:
        parts[index] += 1
    return total * unit, [part * unit for part in parts]
