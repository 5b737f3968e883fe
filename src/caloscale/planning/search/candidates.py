"""All placements of a run with their predicted time and money, as columns, and the choice among them."""

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from caloscale.errors import ConfigurationError, InvalidValueError
from caloscale.planning.catalogue.hardware import load_machines, network_of
from caloscale.planning.catalogue.measurements import Measurement, interruption_rate
from caloscale.planning.catalogue.prices import SECONDS_PER_HOUR, Prices, usd_of
from caloscale.planning.search.offers import Offer, find_offers
from caloscale.planning.search.spot import NEVER_SECONDS, expected
from caloscale.planning.step_time.layout import memory_problem
from caloscale.planning.step_time.throughput import Numbers, Setups
from caloscale.planning.step_time.timing import RunTimes, Timings
from caloscale.spec import Run, seconds_of
from caloscale.spec.family import find_family
from caloscale.spec.hardware import Hardware
from caloscale.spec.train import divisors

Indices = NDArray[np.intp]
Limit = Literal["maxUsd", "deadline", "both"]


def pareto_front(usd: Numbers, seconds: Numbers, eligible: NDArray[np.bool_]) -> Indices:
    """Indices of the candidates that no other beats in both money and time, cheapest first; of equals the first."""
    known = np.flatnonzero(eligible & np.isfinite(usd) & np.isfinite(seconds))
    order = known[np.lexsort((known, seconds[known], usd[known]))]
    fastest = np.minimum.accumulate(np.concatenate([[np.inf], seconds[order]]))[:-1]
    return order[seconds[order] < fastest]


def choose(
    usd: Numbers,
    seconds: Numbers,
    eligible: NDArray[np.bool_],
    *,
    max_usd: float | None = None,
    deadline_seconds: float | None = None,
) -> tuple[int | None, Limit | None]:
    """Index of the cheapest that meets the deadline; with a budget alone, of the fastest within it.

    Without limits the cheapest; with both the cheapest that meets the deadline, if it is within the budget. More budget
    never makes the choice slower, a later deadline never makes it more expensive: what is allowed only grows.
    Where none meets the limits: the one that exceeds its worst limit by the smallest factor, and the limit that none
    meets (both: neither is met, or each of them but never the two together). None where nothing may be chosen.
    """
    front = pareto_front(usd, seconds, eligible)
    if not len(front):
        return None, None
    most_usd = np.inf if max_usd is None else max_usd
    most_seconds = np.inf if deadline_seconds is None else deadline_seconds
    affordable, in_time = usd[front] <= most_usd, seconds[front] <= most_seconds
    allowed = front[affordable & in_time]
    if len(allowed):
        fastest = deadline_seconds is None and max_usd is not None
        return int(allowed[-1 if fastest else 0]), None
    excess = np.maximum(usd[front] / most_usd, seconds[front] / most_seconds)
    binding: Limit = "both" if affordable.any() == in_time.any() else "deadline" if affordable.any() else "maxUsd"
    return int(front[np.argmin(excess)]), binding


@dataclass(frozen=True)
class Basis:
    """What a plan rests on."""

    run: Run
    prices: Prices
    measurements: Sequence[Measurement]
    as_of: dt.date
    """Day of the prices."""

    @property
    def hardware(self) -> Hardware:
        """The machines that the run configuration allows."""
        return self.run.hardware or Hardware()


@dataclass(frozen=True)
class Spent:
    """Expected time, s, and money, US dollars, to the end of candidates, one an element."""

    seconds: Numbers
    usd: Numbers
    node_seconds: Numbers
    """Paid, of all nodes together, s."""
    checkpoint_seconds: Numbers
    """Training between two checkpoints, s."""
    interruptions: Numbers
    """Not a number where the rate is not known."""


@dataclass(frozen=True)
class Candidates:
    """Placements, one an element of each column.

    Where an offer has no price, hours of an accelerator stand for dollars in all columns of money.
    """

    basis: Basis
    offers: list[Offer]
    """What is rented; ``offer`` points into it."""
    offer: Indices
    """Index of the offer."""
    setups: Setups
    timings: Timings
    """Times of the network of the run on every accelerator."""
    money: "Money"
    """Rates, and what they make of seconds."""
    times: RunTimes
    """Predicted times of a training."""
    expected: Spent
    """To the end of the run."""
    low: Spent
    """The same with the lower end of the 90% interval of the epoch."""
    high: Spent
    """With its upper end."""
    eligible: NDArray[np.bool_]
    """Whether it may be chosen: measured or asked for, run by the engine or asked for, and with an end."""
    unpriced: list[str]
    """Machines of the catalogue that have no price on the day."""
    too_old: list[str]
    """Machines whose prices on the day are older than budget.maxPriceAge."""
    dropped: list[str]
    """Why others are not in the list."""

    def __len__(self) -> int:
        return len(self.offer)

    def offer_of(self, index: int) -> Offer:
        """What a candidate rents."""
        return self.offers[self.offer[index]]


def find_candidates(basis: Basis, *, unpriced: bool = False) -> Candidates:
    """All placements that the run configuration allows and the catalogue has; ``unpriced``: see `find_offers`.

    Raises ConfigurationError (naming field, value, remedy) and PriceError (naming the row to add).
    """
    run, hardware = basis.run, basis.hardware
    if run.data.showers is None:
        problem = "is needed to plan: the data are not available here"
        remedy = "--set data.showers=124950 (the training showers of an epoch)"
        raise ConfigurationError(problem, field="data.showers", remedy=remedy)
    timings = Timings(basis.measurements, network_of(run))
    offers, priceless, too_old = find_offers(hardware, basis.prices, basis.as_of, unpriced=unpriced)
    family, found = find_family(run.model.family), len(offers)
    offers = [offer for offer in offers if family.trains_on_tpus or offer.accelerator.kind != "tpu"]
    unfit = f"TPUs do not train the family {family.name}: XLA cannot compile its step"
    if not offers:
        named = hardware.accelerator or hardware.machine_type or hardware.topology
        raise ConfigurationError(unfit, field="hardware", value=named, remedy="name a GPU in hardware.accelerator")
    left_out = [unfit] if len(offers) < found else []
    rows, dropped = _divide(basis, offers, timings)
    index = np.array([row[0] for row in rows], np.intp)
    setups = Setups(*np.array(rows, float).T[1:])
    times = _predict(run.data.showers, offers, index, setups, timings)
    money = Money(basis, offers, index, setups.nodes)
    expectation, low, high = (
        money.spend(times.start_up_seconds, work_seconds(run, times.start_up_seconds, epoch))
        for epoch in (times.epoch_seconds, times.epoch_low, times.epoch_high)
    )
    return Candidates(
        basis=basis,
        offers=offers,
        offer=index,
        setups=setups,
        timings=timings,
        money=money,
        times=times,
        expected=expectation,
        low=low,
        high=high,
        eligible=np.array([_is_eligible(offer, hardware, timings) for offer in offers])[index]
        & (expectation.seconds < NEVER_SECONDS),
        unpriced=priceless,
        too_old=too_old,
        dropped=[*left_out, *dropped],
    )


def work_seconds(run: Run, start_up: Numbers, epoch_seconds: Numbers) -> Numbers:
    """Training of all epochs, or as much of it as train.maxMinutes, which begin with the start-up, allow, s."""
    most = np.inf if run.train.max_minutes is None else 60 * run.train.max_minutes
    return np.minimum(run.train.epochs * epoch_seconds, np.maximum(most - start_up, 0.0))


def _predict(showers: int, offers: Sequence[Offer], index: Indices, setups: Setups, timings: Timings) -> RunTimes:
    """Predicted times of all candidates, accelerator by accelerator."""
    keys = [offer.key for offer in offers]
    of_key = np.array([keys.index(key) for key in keys])[index]
    groups = [np.flatnonzero(of_key == first) for first in np.unique(of_key)]
    parts = [timings.of(*keys[of_key[group[0]]]).predict(setups[group], showers) for group in groups]
    order = np.argsort(np.concatenate(groups))
    return RunTimes(*(np.concatenate([getattr(p, f.name) for p in parts])[order] for f in fields(RunTimes)))


def names_accelerator(hardware: Hardware) -> bool:
    """Whether the run configuration names the accelerator, or a machine type that has no other."""
    added = {machine.accelerator for machine in load_machines() if machine.machine_type == hardware.machine_type} - {""}
    return hardware.accelerator is not None or (hardware.machine_type is not None and len(added) < 2)


def _is_eligible(offer: Offer, hardware: Hardware, timings: Timings) -> bool:
    """Measured or named, and for a TPU one host (what the TensorFlow engine runs) or asked for: a number alone may be
    one of GPUs."""
    named = names_accelerator(hardware)
    numbered = hardware.count is not None or hardware.nodes is not None
    asked_for = hardware.topology is not None or (named and numbered)
    return (named or timings.of(*offer.key).measured) and (asked_for or offer.hardware.hosts == 1)


class Money:
    """Time and money of candidates under the interruptions of their offers; all arrays have one element of each."""

    def __init__(self, basis: Basis, offers: Sequence[Offer], index: Indices, nodes: Numbers) -> None:
        """``index``: the offer of each candidate."""

        def column(value: Callable[[Offer], float]) -> Numbers:
            return np.array([value(offer) for offer in offers], float)[index]

        self.rate = column(lambda offer: _interruption_rate(basis, offer))
        """Interruptions of a node per hour that are assumed; not a number where unknown."""
        self._provisioning = _provisioning_seconds(basis)
        self._run, self._nodes = basis.run, nodes
        longest = seconds_of(basis.hardware.node_lifetime) if basis.hardware.node_lifetime else np.inf
        self._lifetime = column(lambda offer: longest if offer.capacity_type == "spot" else np.inf)
        self._usd_per_node_hour = column(lambda o: o.rate.usd_per_hour if o.rate else o.hardware.per_node)
        self._missing = np.where(column(lambda offer: offer.hardware.topology is not None), nodes, 1.0)
        """Nodes that are not paid while one is replaced: a slice is replaced as a whole."""
        self._control_plane = column(lambda offer: offer.control_plane.usd_per_hour if offer.control_plane else 0.0)
        self.usd_per_hour = nodes * self._usd_per_node_hour + self._control_plane
        """All nodes and the control plane, US dollars per hour."""

    def spend(self, start_up: Numbers, work: Numbers) -> Spent:
        """Expected time and money for ``work`` seconds of epochs after the start-up."""
        rate = np.nan_to_num(self.rate)
        with np.errstate(divide="ignore"):
            between = np.where(rate > 0, SECONDS_PER_HOUR / (self._nodes * rate), np.inf)
        run = expected(
            work,
            between,
            self._run.recovery.save_seconds,
            start_up,
            lifetime_seconds=self._lifetime,
            provisioning_seconds=self._provisioning,
            awaited=self._missing / self._nodes,
        )
        seconds = start_up + run.seconds
        with np.errstate(over="ignore", invalid="ignore"):
            node_seconds = self._nodes * seconds - self._missing * run.interruptions * self._provisioning
            usd = usd_of(self._usd_per_node_hour, node_seconds) + usd_of(self._control_plane, seconds)
        # The difference of two huge times may have any value.
        is_known = (seconds < NEVER_SECONDS) | (run.waiting_seconds == 0)
        unknown = np.isnan(self.rate) & np.isinf(self._lifetime)
        every_seconds = self._run.checkpoint.every_seconds
        return Spent(
            seconds=seconds,
            usd=np.where(is_known, usd, np.inf),
            node_seconds=np.where(is_known, node_seconds, np.inf),
            checkpoint_seconds=np.where(np.isfinite(run.checkpoint_seconds), run.checkpoint_seconds, every_seconds),
            interruptions=np.where(unknown, np.nan, run.interruptions),
        )


def _interruption_rate(basis: Basis, offer: Offer) -> float:
    if offer.capacity_type == "on-demand":
        return 0.0
    if basis.hardware.interruptions_per_node_hour is not None:
        return basis.hardware.interruptions_per_node_hour
    measured = interruption_rate(basis.measurements, *offer.key, offer.region)
    return np.nan if measured is None else measured


def _provisioning_seconds(basis: Basis) -> float:
    """That of the run configuration, else of own measurements, else recovery.waitForCapacity as its upper limit."""
    if basis.hardware.provisioning:
        return seconds_of(basis.hardware.provisioning)
    measured = [m.provisioning_seconds for m in basis.measurements if m.provisioning_seconds is not None]
    return float(np.mean(measured)) if measured else seconds_of(basis.run.recovery.wait_for_capacity)


def _divide(
    basis: Basis, offers: Sequence[Offer], timings: Timings
) -> tuple[list[tuple[int, int, int, int, int]], list[str]]:
    """Offers, replicas, workers, nodes and batch of every division; and why others are excluded."""
    rows: list[tuple[int, int, int, int, int]] = []
    dropped: dict[str, None] = {}
    hardware = basis.hardware
    for index, offer in enumerate(offers):
        parts = _parts(hardware, offer)
        for nodes in offer.node_counts:
            count = nodes * offer.hardware.per_node
            replicas = count * offer.accelerator.replicas
            batch, problem = _batch(basis.run, offer, replicas, timings)
            if problem:
                dropped[problem] = None
                continue
            workers = [count // part for part in parts if hardware.workers in (None, count // part)]
            suitable = [number for number in workers if _suits(basis.run, offer, replicas, number)]
            if suitable != workers:
                strategy = basis.run.train.strategy
                dropped[f"train.strategy {strategy} does not train on all accelerators of every placement"] = None
            rows += [(index, replicas, number, nodes, batch) for number in suitable]
    if not rows:
        problem = f"leaves nothing to run on: {'; '.join(dropped) or 'no layout has that many workers'}"
        remedy = "change train.batchPerReplica, train.globalBatchSize, train.maxBatchPerReplica (micro-batches of a "
        remedy += "batch that is too large for the memory), train.accumulate, train.strategy, data.showers or hardware"
        value = hardware.model_dump(exclude_none=True, exclude_defaults=True)
        raise ConfigurationError(problem, field="hardware", value=value, remedy=remedy)
    return rows, list(dropped)


def _suits(run: Run, offer: Offer, replicas: int, workers: int) -> bool:
    """Whether the strategy that the run configuration sets trains on all accelerators."""
    on_tpu = offer.accelerator.kind == "tpu"
    known = {
        "one-device": not on_tpu and replicas == 1,
        "mirrored": not on_tpu and workers == 1,
        "multi-worker": not on_tpu,
        "tpu": on_tpu,
    }
    return known.get(run.train.strategy, True)


def _batch(run: Run, offer: Offer, replicas: int, timings: Timings) -> tuple[int, str | None]:
    """The batch of a replica, and why it cannot be."""
    showers = run.data.showers or 0
    whole = run.train.global_batch_size
    if whole is not None and whole % replicas:
        return 0, f"globalBatchSize {whole} cannot be divided among every number of replicas"
    batch = run.train.replica_batch(replicas)
    if replicas * batch > showers:
        return 0, f"with {batch} showers a replica, large counts have a batch beyond the {showers} showers of an epoch"
    try:
        at_once = batch // run.train.micro_batches(batch)
    except InvalidValueError as error:
        return 0, error.problem
    return batch, memory_problem(offer.accelerator, timings.network, at_once, run.train.precision)


def _parts(hardware: Hardware, offer: Offer) -> list[int]:
    """Accelerators of a worker to consider; a TPU host is always one worker."""
    if hardware.placement == "Aligned" or offer.hardware.topology is not None:
        sizes = [offer.hardware.per_node]
    else:
        sizes = divisors(offer.hardware.per_node)[::-1]  # the first is aligned
    return [size for size in sizes if hardware.accelerators_per_worker in (None, size)]
