"""What can be rented: machines and slices with their price by region, within the run configuration."""

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from caloscale.errors import ConfigurationError, PriceError
from caloscale.planning.catalogue.hardware import (
    OWN,
    SPOT_ONLY,
    Accelerator,
    Machine,
    Slice,
    find_accelerator,
    find_machine,
    find_slices,
    load_accelerators,
    load_machines,
    load_slices,
    own_machine,
)
from caloscale.planning.catalogue.prices import CapacityType, Prices, Rate, cluster_rate, node_rate
from caloscale.spec import Hardware


@dataclass(frozen=True)
class Offer:
    """One kind of node, or one slice, in a region, bought in one way."""

    accelerator: Accelerator
    hardware: Machine | Slice
    """The node or the slice."""
    region: str
    capacity_type: CapacityType
    rate: Rate | None
    """Of a node: a TPU slice is divided among its hosts; None: one's own machines without a price."""
    control_plane: Rate | None
    """Of the cluster's control plane; None: it is not counted, or the machines have no price."""
    node_counts: tuple[int, ...]
    """Numbers of nodes to consider."""
    notes: tuple[str, ...]
    """What its price rests on."""

    @property
    def key(self) -> tuple[str, str]:
        """Cloud and accelerator, by which times are measured."""
        return self.hardware.provider, self.accelerator.accelerator


def find_offers(
    hardware: Hardware, prices: Prices, as_of: dt.date, *, unpriced: bool = False
) -> tuple[list[Offer], list[str], list[str]]:
    """All offers that the run configuration allows, what has no price, and what has none that is young enough.

    ``unpriced``: where nothing has a price, the offers without one.

    Raises ConfigurationError for an accelerator, machine type or topology that does not exist or a count that no layout
    reaches, PriceError (naming the row to add) when none of the others has a price and ``unpriced`` is false.
    """
    accelerator = find_accelerator(hardware.accelerator) if hardware.accelerator else None
    offers: list[Offer] = []
    without: list[Offer] = []
    missing: dict[str, PriceError] = {}
    unsold: list[PriceError] = []
    old: set[str] = set()
    kinds = [*_machines(hardware, accelerator), *_slices(hardware, accelerator)]
    either = hardware.capacity_type is None and hardware.cloud != "none"
    ways: tuple[CapacityType, ...] = ("spot", "on-demand") if either else (hardware.capacity_type or "on-demand",)
    both_named = hardware.machine_type is not None and hardware.capacity_type is not None  # as of a pool of a cluster
    for kind, counts in kinds:
        chip = load_accelerators()[kind.accelerator]
        regions = [hardware.region] if hardware.region else prices.regions(kind)
        for region, capacity_type in product(regions, ways):
            if capacity_type == "on-demand" and kind.machine_type in SPOT_ONLY and not both_named:
                problem, remedy = f"{kind.machine_type} is not sold on demand", "choose spot, or hardware.perNode=8"
                unsold.append(PriceError(problem, field="hardware.capacityType", value=capacity_type, remedy=remedy))
                continue
            try:
                rate = node_rate(prices, kind, region, capacity_type, as_of, hardware.disk_gib)
                cluster = cluster_rate(prices, kind.provider, region, as_of) if hardware.control_plane else None
            except PriceError as error:
                missing.setdefault(kind.title, error)
                if error.field == "budget.maxPriceAge":
                    old.add(kind.title)
                note = f"{error.problem}: node hours and accelerator hours are counted"
                without.append(Offer(chip, kind, region, capacity_type, None, None, counts, (note,)))
                continue
            notes = _notes(hardware, kind, rate)
            offers.append(Offer(chip, kind, region, capacity_type, rate, cluster, counts, notes))
    if not kinds:
        value = hardware.model_dump(exclude_none=True, exclude_defaults=True)
        remedy = "leave some of its fields out"
        raise ConfigurationError("leaves no machine of the catalogue", field="hardware", value=value, remedy=remedy)
    if not offers:
        if unpriced:
            return without, [], []
        raise [*missing.values(), *unsold][0]
    priced = {offer.hardware.title for offer in offers}
    left_out = [title for title in missing if title not in priced]
    return offers, [title for title in left_out if title not in old], [title for title in left_out if title in old]


Kind = tuple["Machine | Slice", tuple[int, ...]]


def _machines(hardware: Hardware, accelerator: Accelerator | None) -> Iterator[Kind]:
    if hardware.topology is not None or (accelerator is not None and accelerator.kind != "gpu"):
        return
    if hardware.cloud == "none":
        if accelerator is None or hardware.per_node is None:
            field = "hardware.accelerator" if accelerator is None else "hardware.perNode"
            remedy = "give hardware.accelerator and hardware.perNode, the GPUs of a machine"
            problem = "is needed to plan on machines that are not in the catalogue"
            raise ConfigurationError(problem, field=field, remedy=remedy)
        machine = own_machine(hardware.machine_type or OWN, accelerator.accelerator, hardware.per_node)
        yield machine, _node_counts(hardware, machine.per_node)
        return
    accelerated = {s.machine_type for s in load_slices()} | {m.machine_type for m in load_machines() if m.accelerator}
    if hardware.machine_type is not None and hardware.machine_type not in accelerated:
        find_machine(hardware.machine_type)
        problem = "is no machine type with accelerators in the catalogue"
        remedy = "choose one that has (caloscale prices --machines), or remove it: accelerator and perNode suffice"
        raise ConfigurationError(problem, field="hardware.machineType", value=hardware.machine_type, remedy=remedy)
    fitting = [
        m
        for m in load_machines()
        if m.accelerator
        and hardware.cloud in (None, m.provider)
        and (accelerator is None or m.accelerator == accelerator.accelerator)
        and (m.machine_type == hardware.machine_type if hardware.machine_type else m.usual)
    ]
    sized = [m for m in fitting if hardware.per_node in (None, m.per_node)]
    sizes = ", ".join(str(size) for size in sorted({m.per_node for m in sized or fitting}))
    if fitting and not sized:
        problem = "is not a number of accelerators that a node has"
        remedy = f"nodes of this kind have {sizes}"
        raise ConfigurationError(problem, field="hardware.perNode", value=hardware.per_node, remedy=remedy)
    counted: list[Kind] = [(m, counts) for m in sized if (counts := _node_counts(hardware, m.per_node))]
    if sized and not counted and accelerator is not None and hardware.count is not None:
        problem = "is reached by no layout: nodes are equal and whole"
        remedy = f"choose a multiple of the accelerators of a node; nodes have {sizes}"
        raise ConfigurationError(problem, field="hardware.count", value=hardware.count, remedy=remedy)
    yield from counted


def _slices(hardware: Hardware, accelerator: Accelerator | None) -> Iterator[Kind]:
    if accelerator is not None and accelerator.kind != "tpu":
        if hardware.topology is not None:
            problem = f"belongs to TPU slices, not to {accelerator.accelerator}"
            raise ConfigurationError(problem, field="hardware.topology", value=hardware.topology, remedy="leave it out")
        return
    if hardware.cloud not in (None, "gcp"):
        return
    if accelerator is not None:
        candidates = find_slices(accelerator.accelerator, topology=hardware.topology, chips=hardware.count)
    else:
        candidates = [s for s in load_slices() if hardware.topology in (None, s.topology)]
        if hardware.topology is not None and not candidates:
            known = ", ".join(dict.fromkeys(s.topology for s in load_slices()))
            problem = "is not a topology of any TPU"
            remedy = f"one of {known}"
            raise ConfigurationError(problem, field="hardware.topology", value=hardware.topology, remedy=remedy)
    for row in candidates:
        if (
            hardware.count in (None, row.chips)
            and hardware.per_node in (None, row.per_node)
            and hardware.machine_type in (None, row.machine_type)
            and (
                row.hosts == hardware.nodes if hardware.nodes else row.hosts <= hardware.max_nodes or hardware.topology
            )
        ):
            yield row, (row.hosts,)


def _node_counts(hardware: Hardware, per_node: int) -> tuple[int, ...]:
    if hardware.count is not None:
        nodes = hardware.count // per_node
        whole = hardware.count % per_node == 0 and hardware.nodes in (None, nodes)
        return (nodes,) if whole else ()
    return (hardware.nodes,) if hardware.nodes else tuple(range(1, hardware.max_nodes + 1))


def _notes(hardware: Hardware, kind: Machine | Slice, rate: Rate) -> tuple[str, ...]:
    """What the rate of a node with the disk of the run configuration rests on."""
    more = f" ({kind.note})" if isinstance(kind, Machine) and kind.note else ""
    if isinstance(kind, Slice) and not rate.includes_host:
        more = ", without the user VM that TPU nodes of 2020 needed"
    if kind.machine_type in SPOT_ONLY and rate.capacity_type == "on-demand":
        more += ", which is sold as spot and flex-start only: at the on-demand prices of its parts"
    disk = (f"with a boot disk of {hardware.disk_gib:g} GiB a node",) if hardware.disk_gib else ()
    return (f"priced as {kind.title}{more}", *disk)
