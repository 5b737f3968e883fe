"""The plan: from a run configuration to machines, layout, time and money, with the reasons."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np

from caloscale.errors import PriceError
from caloscale.planning.catalogue.hardware import SPOT_ONLY, load_machines
from caloscale.planning.catalogue.measurements import Measurement
from caloscale.planning.catalogue.prices import SECONDS_PER_HOUR, Prices, RatePart, cluster_rate, node_rate
from caloscale.planning.search.candidates import (
    Candidates,
    Limit,
    Money,
    choose,
    find_candidates,
    micro_batch,
    pareto_front,
    work_seconds,
)
from caloscale.planning.search.own_machine import (
    MachineSpeed,
    Making,
    OwnTraining,
    plan_making,
    plan_training,
    rates_used,
)
from caloscale.planning.search.spot import NEVER_SECONDS, break_even_rate
from caloscale.planning.step_time.layout import Layout, describe_division, memory_doubt, rank_layouts
from caloscale.spec import Run
from caloscale.spec.block import Block
from caloscale.spec.hardware import Hardware

LISTED = 100
"""Cheapest of the candidates that may be chosen that a plan lists after its Pareto front; all are considered."""


class Candidate(Block):
    """A placement with its predicted time and money."""

    cloud: str
    """Cloud; none: machines that are not in the catalogue."""
    accelerator: str
    count: int
    workers: int
    accelerators_per_worker: int
    nodes: int
    machine_type: str
    topology: str | None
    region: str
    capacity_type: Literal["spot", "on-demand"]
    batch_per_replica: int
    """Showers in a replica's batch (a replica is a GPU or a TPU core)."""
    step_seconds: float
    """Mean step, s."""
    steps_per_epoch: int
    """Steps of an epoch, floor(showers / global batch)."""
    epochs: float
    """Epochs that are trained: those of the run configuration, or as many as train.maxMinutes allows."""
    epoch_seconds: float
    """Epoch with test pass and fixed cost, s."""
    epoch_seconds_interval: tuple[float, float]
    """Its 90% interval for a new run, s."""
    start_up_seconds: float
    """Building, tracing and first step, s."""
    total_seconds: float
    """Expected time from the first machine to the end, interruptions included, s."""
    total_seconds_interval: tuple[float, float]
    """The same at the ends of the epoch's interval, s."""
    node_hours: float
    """Expected hours of all nodes together."""
    accelerator_hours: float
    """Expected hours of all GPUs or TPU chips together."""
    usd_per_hour: float | None
    """All nodes, US dollars per hour; null, here and below: machines of one's own without a price."""
    usd: float | None
    """Expected money, US dollars."""
    usd_interval: tuple[float, float] | None
    """The same at the ends of the epoch's interval."""
    usd_per_epoch: float | None
    checkpoint_seconds: float
    """Training between two checkpoints, s: Daly's best under interruptions, else that of the run configuration."""
    expected_interruptions: float | None
    """Interruptions until the end; null: their rate is not known, and none is counted."""
    interruptions_per_node_hour: float | None
    """Rate that was assumed; null: not known."""
    break_even_per_node_hour: float | None
    """Interruptions of a node per hour up to which this is cheaper than the same on demand; null: not computed
    (on demand, or not on the Pareto front), or never."""
    measured: bool
    """Whether the network was measured on this accelerator; otherwise an estimate, never chosen unless named."""
    extrapolates: bool
    """Whether it is outside the measurements; the reasons state how far."""
    reasons: tuple[str, ...]
    """Why, and on what it rests."""


class PricesUsed(Block):
    """What the prices of a plan are."""

    as_of: dt.date
    """Day for which they were asked."""
    observed_on: dt.date | None
    """Day on which the oldest of ``parts`` was seen; null: there are none."""
    parts: tuple[RatePart, ...] = ()
    """The prices of the choice, of the machine at hand and of making showers, per machine and hour, each with the day
    on which it was seen."""
    warnings: tuple[str, ...]
    """Those of them that are stale or doubtful."""
    unpriced: tuple[str, ...]
    """Machines that were left out because no price of theirs is in effect on the day."""


class Plan(Block):
    """What to run on, what else there is, and why."""

    network: str
    showers: int
    """Training showers of an epoch."""
    epochs: int
    chosen: Candidate | None
    """The choice; null when nothing meets the limits."""
    nearest: Candidate | None
    """What comes nearest to the limits when nothing meets them."""
    binding: Limit | None
    """The limit that nothing meets."""
    candidates: tuple[Candidate, ...]
    """The Pareto front, the cheapest others that may be chosen, of each accelerator in each way of buying the cheapest
    and the fastest, and of each cloud the cheapest that is not slower than the choice; cheapest first."""
    considered: int
    """Candidates in all."""
    pareto: tuple[Candidate, ...]
    """Candidates that no other beats in both money and time, of those that may be chosen, cheapest first."""
    layouts: tuple[Layout, ...]
    """Divisions of the chosen (or nearest) GPUs into workers and nodes, fastest first."""
    prices: PricesUsed
    """Day and warnings of the prices."""
    notes: tuple[str, ...]
    """What a reader should know of the whole."""
    own_training: OwnTraining | None = None
    """The training on the machine at hand; null: it was not measured, or not asked for."""
    making: Making | None = None
    """Making showers; null: not asked for."""


def plan(
    run: Run,
    prices: Prices,
    measurements: Sequence[Measurement],
    as_of: dt.date,
    *,
    speeds: Sequence[MachineSpeed] = (),
    generate: int | None = None,
    unpriced: bool = False,
) -> Plan:
    """The plan of a run at the prices of a day.

    ``speeds``: measured machines at hand; ``generate``: showers that are to be made by the trained generator;
    ``unpriced``: machines may have no price, as those of hardware.cloud none always may: without a budget in dollars
    they are chosen by the hours of their accelerators.

    Pure: nothing is read or written. The choice is the cheapest that meets ``budget.deadline``; with
    ``budget.maxUsd`` alone the fastest within it; without limits the cheapest.
    Raises ConfigurationError (naming field, value and remedy) and PriceError (naming the row to add).
    """
    prices = prices.no_older_than(run.budget.max_price_age_days)
    hours_only = unpriced or (run.hardware is not None and run.hardware.cloud == "none")
    hours_only = hours_only and run.budget.max_usd is None
    found = find_candidates(run, prices, measurements, as_of, unpriced=hours_only)
    limits = {"max_usd": run.budget.max_usd, "deadline_seconds": run.budget.deadline_seconds}
    best, binding = choose(found.expected.usd, found.expected.seconds, found.eligible, **limits)
    front = pareto_front(found.expected.usd, found.expected.seconds, found.eligible)
    describe = _Describer(run, found, prices, measurements, as_of)
    offer = None if best is None else found.offer_of(best)
    rate, rented = (None, ()) if offer is None else (offer.rate, (offer.hardware.machine_type,))
    on_front = {int(i): describe(int(i), on_front=True) for i in front}
    listed = sorted(
        {*on_front, *_notable(found, best)}, key=lambda i: (found.expected.usd[i], found.expected.seconds[i], i)
    )
    own = plan_training(run, speeds, prices, as_of)
    described = None if best is None else on_front[best]
    chosen, nearest = (described, None) if binding is None else (None, described)
    own_counts = own is not None and chosen is None and (own.meets_limits or described is None)
    trained = own if own_counts else described
    making = None
    if generate is not None:
        usd, planned = (None, False) if trained is None else (trained.usd, True)
        making = plan_making(run, generate, speeds, prices, as_of, rented=rented, training_usd=usd, is_planned=planned)
    rates = ([] if rate is None else [rate]) + rates_used(run, own, making, prices, as_of)
    if offer is not None and run.hardware is not None and run.hardware.control_plane:
        rates.append(cluster_rate(prices, offer.hardware.provider, offer.region, as_of))
    return Plan(
        network=run.model.network,
        showers=run.data.showers or 0,
        epochs=run.train.epochs,
        chosen=chosen,
        nearest=nearest,
        binding=binding,
        candidates=tuple(on_front.get(i) or describe(i) for i in listed),
        considered=len(found),
        pareto=tuple(on_front.values()),
        layouts=() if best is None else _layouts(found, best, run, measurements),
        prices=PricesUsed(
            as_of=as_of,
            observed_on=min((used.observed_on for used in rates), default=None),
            parts=tuple(part for used in rates for part in used.parts),
            warnings=tuple(dict.fromkeys(warning for used in rates for warning in used.warnings)),
            unpriced=tuple(found.unpriced),
        ),
        notes=_notes(found, binding, run.budget.max_usd),
        own_training=own,
        making=making,
    )


def _notable(found: Candidates, best: int | None) -> set[int]:
    """The cheapest that may be chosen; of each accelerator, bought in each way, the cheapest and the fastest; of each
    cloud the cheapest that is not slower than the best."""
    order = np.lexsort((found.expected.seconds, found.expected.usd))
    notable = {int(i) for i in order[found.eligible[order]][:LISTED]}
    kinds = [(offer.accelerator.accelerator, offer.capacity_type) for offer in found.offers]
    kind = np.array([kinds.index(k) for k in kinds])[found.offer]
    for one in np.unique(kind):
        alike = order[kind[order] == one]
        notable |= {int(alike[0]), int(alike[np.argmin(found.expected.seconds[alike])])}
    if best is not None:
        fast = order[found.expected.seconds[order] <= found.expected.seconds[best]]
        clouds = [found.offer_of(int(i)).hardware.provider for i in fast]
        notable |= {int(fast[clouds.index(cloud)]) for cloud in set(clouds)}
    return notable


class _Describer:
    """Candidates as blocks, with their reasons."""

    def __init__(
        self, run: Run, found: Candidates, prices: Prices, measurements: Sequence[Measurement], as_of: dt.date
    ) -> None:
        self._run, self._found, self._prices, self._as_of = run, found, prices, as_of
        self._measurements = measurements

    def __call__(self, index: int, *, on_front: bool = False) -> Candidate:
        found = self._found
        offer, times, spent = found.offer_of(index), found.times, found.expected
        workers, nodes = int(found.setups.workers[index]), int(found.setups.nodes[index])
        count, seconds = nodes * offer.hardware.per_node, _finite(spent.seconds[index])
        timing = found.timings.of(*offer.key)
        interruptions, rate = spent.interruptions[index], found.money.rate[index]
        break_even = self._break_even(index) if on_front and offer.capacity_type == "spot" else None
        epochs, priced = self._epochs(index), offer.rate is not None
        return Candidate(
            cloud=offer.hardware.provider,
            accelerator=offer.accelerator.accelerator,
            count=count,
            workers=workers,
            accelerators_per_worker=count // workers,
            nodes=nodes,
            machine_type=offer.hardware.machine_type,
            topology=offer.hardware.topology,
            region=offer.region,
            capacity_type=offer.capacity_type,
            batch_per_replica=int(found.setups.batch[index]),
            step_seconds=float(times.step_seconds[index]),
            steps_per_epoch=int(times.steps[index]),
            epochs=epochs,
            epoch_seconds=float(times.epoch_seconds[index]),
            epoch_seconds_interval=(float(times.epoch_low[index]), float(times.epoch_high[index])),
            start_up_seconds=float(times.start_up_seconds[index]),
            total_seconds=seconds,
            total_seconds_interval=(_finite(found.low.seconds[index]), _finite(found.high.seconds[index])),
            node_hours=nodes * seconds / SECONDS_PER_HOUR,
            accelerator_hours=count * seconds / SECONDS_PER_HOUR,
            usd_per_hour=float(found.money.usd_per_hour[index]) if priced else None,
            usd=_finite(spent.usd[index]) if priced else None,
            usd_interval=(_finite(found.low.usd[index]), _finite(found.high.usd[index])) if priced else None,
            usd_per_epoch=_finite(spent.usd[index]) / epochs if priced and epochs else None,
            checkpoint_seconds=float(spent.checkpoint_seconds[index]),
            expected_interruptions=None if np.isnan(interruptions) else _finite(interruptions),
            interruptions_per_node_hour=None if np.isnan(rate) else float(rate),
            break_even_per_node_hour=break_even,
            measured=timing.measured,
            extrapolates=bool(times.outside[index]),
            reasons=tuple(self._reasons(index, break_even)),
        )

    def _reasons(self, index: int, break_even: float | None) -> list[str]:
        found = self._found
        offer = found.offer_of(index)
        workers, nodes = int(found.setups.workers[index]), int(found.setups.nodes[index])
        timing = found.timings.of(*offer.key)
        outside = timing.extrapolations(found.setups[index : index + 1])
        reasons = [timing.basis, *(f"extrapolates: {reason}" for reason in outside), *offer.notes]
        reasons.append(describe_division(offer.hardware.per_node, nodes * offer.hardware.per_node // workers))
        if (hosts := offer.hardware.hosts) > 1:
            reasons.append(f"a slice of {hosts} hosts: planned, but the TensorFlow engine runs on one-host slices only")
        epochs = self._epochs(index)
        if epochs < self._run.train.epochs:
            reasons.append(f"train.maxMinutes ends the training after {epochs:.1f} of {self._run.train.epochs} epochs")
        batch = int(found.setups.batch[index])
        at_once = micro_batch(self._run, batch)
        if at_once < batch:
            reasons.append(f"{batch // at_once} micro-batches of {at_once}: timed as one batch of {batch}")
        if self._run.train.precision == "bfloat16" and offer.accelerator.kind == "gpu":
            reasons.append("train.precision bfloat16: timed as float32, which was measured")
        doubt = memory_doubt(offer.accelerator, found.timings.network, at_once, self._measurements)
        if doubt:
            reasons.append(doubt)
        if offer.capacity_type == "spot" and np.isnan(found.money.rate[index]):
            reasons.append(
                "the rate of interruptions is not known (hardware.interruptionsPerNodeHour, or own bills): "
                "time and money are those without any"
            )
        if found.expected.seconds[index] >= NEVER_SECONDS:
            reasons.append("interrupted faster than it gets on: it never ends, so it is never chosen")
        if break_even is not None:
            reasons.append(f"cheaper than on demand up to {break_even:.3g} interruptions per node and hour")
        return reasons

    def _epochs(self, index: int) -> float:
        epochs = self._work_seconds(index) / float(self._found.times.epoch_seconds[index])
        return min(round(epochs, 6), self._run.train.epochs)

    def _work_seconds(self, index: int) -> float:
        return float(work_seconds(self._run, self._found.times.epoch_seconds[index]))

    def _break_even(self, index: int) -> float | None:
        """Rate up to which spot is cheaper than the same on demand; None where that is not sold, or never."""
        found, hardware = self._found, self._run.hardware or Hardware()
        offer, one = found.offer_of(index), slice(index, index + 1)
        if offer.rate is None or offer.hardware.machine_type in SPOT_ONLY:
            return None
        try:
            listed = node_rate(self._prices, offer.hardware, offer.region, "on-demand", self._as_of, hardware.disk_gib)
        except PriceError:
            return None

        def usd(money: Money, per_node_hour: float) -> float:
            money.rate = np.array([per_node_hour])
            spent = money.spend(found.times.start_up_seconds[one], np.array([self._work_seconds(index)]))
            return float(spent.usd[0]) if spent.seconds[0] < NEVER_SECONDS else np.inf

        nodes, known = found.setups.nodes[one], self._measurements
        spot, on_demand = (
            Money(self._run, hardware, self._prices, self._as_of, [bought], np.array([0]), nodes, known)
            for bought in (offer, replace(offer, capacity_type="on-demand", rate=listed))
        )
        return break_even_rate(partial(usd, spot), usd(on_demand, 0))


def _layouts(found: Candidates, index: int, run: Run, measurements: Sequence[Measurement]) -> tuple[Layout, ...]:
    """Layouts of the same GPUs on all nodes that there are for them; a TPU slice has one."""
    offer = found.offer_of(index)
    if offer.hardware.topology is not None:
        return ()
    sizes = [machine.per_node for machine in load_machines() if (machine.provider, machine.accelerator) == offer.key]
    return tuple(
        rank_layouts(
            found.timings.of(*offer.key),
            offer.accelerator,
            measurements,
            count=int(found.setups.nodes[index]) * offer.hardware.per_node,
            node_sizes=sizes or [offer.hardware.per_node],
            batch=int(found.setups.batch[index]),
            showers=run.data.showers or 0,
        )
    )


def _notes(found: Candidates, binding: Limit | None, max_usd: float | None) -> tuple[str, ...]:
    notes = [*found.dropped]
    if found.too_old:
        notes.append(f"left out, with prices older than budget.maxPriceAge on the day: {', '.join(found.too_old)}")
    endless = int((found.expected.seconds >= NEVER_SECONDS).sum())
    if endless:
        notes.append(
            f"{endless} of {len(found)} candidates are interrupted faster than they get on, and never chosen "
            "(hardware.interruptionsPerNodeHour, or own bills)"
        )
    if not found.eligible.any() and endless < len(found):
        notes.append(
            "no accelerator was measured and none named: name hardware.accelerator to choose an estimate; caloscale "
            "plan --measure measures the machine at hand"
        )
    if binding == "both":  # each limit can be met, but not with the other; or neither can
        both = "or" if (found.expected.usd[found.eligible] <= (max_usd or 0)).any() else "and"
        notes.append(f"no candidate meets both limits: raise budget.maxUsd {both} budget.deadline")
    elif binding is not None:
        notes.append(f"no candidate meets budget.{binding}: raise it, or see what comes nearest")
    return tuple(notes)


def _finite(value: float) -> float:
    """JSON has no infinity: a job that never ends takes a thousand years."""
    return float(min(value, 1000 * 365 * 24 * SECONDS_PER_HOUR))
