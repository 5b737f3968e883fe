"""The plan: from a run configuration to machines, layout, time and money, with the reasons."""

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np

from caloscale.errors import PriceError
from caloscale.planning.catalogue.hardware import SPOT_ONLY, load_machines
from caloscale.planning.catalogue.measurements import Measurement
from caloscale.planning.catalogue.prices import SECONDS_PER_HOUR, Prices, RatePart, node_rate, usd_of
from caloscale.planning.search import own_machine
from caloscale.planning.search.candidates import (
    Basis,
    Candidates,
    Limit,
    Money,
    choose,
    find_candidates,
    names_accelerator,
    pareto_front,
    work_seconds,
)
from caloscale.planning.search.spot import NEVER_SECONDS, break_even_rate
from caloscale.planning.step_time.layout import Layout, describe_division
from caloscale.planning.step_time.throughput import Setups
from caloscale.spec import Run
from caloscale.spec.block import Block
from caloscale.spec.train import divisors

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
    """Expected hours of all nodes together that are paid: a missing node is not."""
    accelerator_hours: float
    """The same of all GPUs or TPU chips."""
    usd_per_hour: float | None
    """All nodes, US dollars per hour; null, here and below: machines of one's own without a price."""
    usd: float | None
    """Expected money, US dollars; where the time is ten years or more, with the hours of missing nodes."""
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
    own_training: own_machine.OwnTraining | None = None
    """The training on the machine at hand; null: it was not measured, or not asked for."""
    making: own_machine.Making | None = None
    """Making showers; null: not asked for."""


def plan(
    run: Run,
    prices: Prices,
    measurements: Sequence[Measurement],
    as_of: dt.date,
    *,
    speeds: Sequence[own_machine.MachineSpeed] = (),
    generate: int | None = None,
    unpriced: bool = False,
) -> Plan:
    """The plan of a run at the prices of a day.

    ``speeds``: measured machines at hand; ``generate``: showers that are to be made by the trained generator;
    ``unpriced``: machines may have no price, as those of hardware.cloud none always may: without a budget in dollars
    they are chosen by the hours of their accelerators.

    Pure: nothing is read or written. The choice is the cheapest that meets ``budget.deadline``; with
    ``budget.maxUsd`` alone the fastest within it; without limits the cheapest.
    Raises ConfigurationError (naming field, value and remedy), PriceError (naming the row to add), and InputError for
    a machine type in budget.pricedAs that does not exist, where seconds are priced as it.
    """
    prices = prices.no_older_than(run.budget.max_price_age_days)
    basis = Basis(run, prices, measurements, as_of)
    if speeds or generate is not None:
        own_machine.priced_machine(run)
    hours_only = run.budget.max_usd is None and (unpriced or basis.hardware.cloud == "none")
    candidates = find_candidates(basis, unpriced=hours_only)
    limits = {"max_usd": run.budget.max_usd, "deadline_seconds": run.budget.deadline_seconds}
    usd, seconds = candidates.expected.usd, candidates.expected.seconds
    best, binding = choose(usd, seconds, candidates.eligible, **limits)
    front = pareto_front(usd, seconds, candidates.eligible)
    offer = None if best is None else candidates.offer_of(best)
    rented = [machine.name for machine in load_machines() if offer is not None and machine == offer.hardware]
    on_front = {int(i): _describe(candidates, int(i), on_front=True) for i in front}
    listed = sorted({*on_front, *_notable(candidates, best)}, key=lambda i: (usd[i], seconds[i], i))
    own = own_machine.plan_training(basis, speeds)
    described = None if best is None else on_front[best]
    chosen, nearest = (described, None) if binding is None else (None, described)
    own_counts = own is not None and chosen is None and (own.meets_limits or described is None)
    trained = own if own_counts else described
    making = None
    if generate is not None:
        cost, planned = (None, False) if trained is None else (trained.usd, True)
        making = own_machine.plan_making(basis, generate, speeds, rented=rented, training_usd=cost, is_planned=planned)
    of_choice = () if offer is None else (offer.rate, offer.control_plane)
    rates = [rate for rate in of_choice if rate is not None] + own_machine.rates_used(basis, own, making)
    return Plan(
        network=run.model.network,
        showers=run.data.showers or 0,
        epochs=run.train.epochs,
        chosen=chosen,
        nearest=nearest,
        binding=binding,
        candidates=tuple(on_front.get(i) or _describe(candidates, i) for i in listed),
        considered=len(candidates),
        pareto=tuple(on_front.values()),
        layouts=() if best is None else _layouts(candidates, best),
        prices=PricesUsed(
            as_of=as_of,
            observed_on=min((used.observed_on for used in rates), default=None),
            parts=tuple(part for used in rates for part in used.parts),
            warnings=tuple(dict.fromkeys(warning for used in rates for warning in used.warnings)),
            unpriced=tuple(candidates.unpriced),
        ),
        notes=_notes(candidates, binding),
        own_training=own,
        making=making,
    )


def _notable(candidates: Candidates, best: int | None) -> set[int]:
    """The cheapest that may be chosen; of each accelerator, bought in each way, the cheapest and the fastest; of each
    cloud the cheapest that is not slower than the best."""
    order = np.lexsort((candidates.expected.seconds, candidates.expected.usd))
    notable = {int(i) for i in order[candidates.eligible[order]][:LISTED]}
    kinds = [(offer.accelerator.accelerator, offer.capacity_type) for offer in candidates.offers]
    kind = np.array([kinds.index(k) for k in kinds])[candidates.offer]
    for one in np.unique(kind):
        alike = order[kind[order] == one]
        notable |= {int(alike[0]), int(alike[np.argmin(candidates.expected.seconds[alike])])}
    if best is not None:
        fast = order[candidates.expected.seconds[order] <= candidates.expected.seconds[best]]
        clouds = [candidates.offer_of(int(i)).hardware.provider for i in fast]
        notable |= {int(fast[clouds.index(cloud)]) for cloud in set(clouds)}
    return notable


def _describe(candidates: Candidates, index: int, *, on_front: bool = False) -> Candidate:
    """A candidate as a block, with its reasons."""
    offer, times, spent = candidates.offer_of(index), candidates.times, candidates.expected
    workers, nodes = int(candidates.setups.workers[index]), int(candidates.setups.nodes[index])
    count, seconds = nodes * offer.hardware.per_node, _finite(spent.seconds[index])
    node_hours = min(float(spent.node_seconds[index]), nodes * seconds) / SECONDS_PER_HOUR
    timing = candidates.timings.of(*offer.key)
    interruptions, rate = spent.interruptions[index], candidates.money.rate[index]
    break_even = _break_even(candidates, index) if on_front and offer.capacity_type == "spot" else None
    epochs, priced = _epochs(candidates, index), offer.rate is not None
    usd_per_hour = float(candidates.money.usd_per_hour[index])
    usd, least_usd, most_usd = (  # where that of missing nodes is not known: of all nodes throughout
        min(float(each.usd[index]), usd_of(usd_per_hour, _finite(each.seconds[index])))
        for each in (spent, candidates.low, candidates.high)
    )
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
        batch_per_replica=int(candidates.setups.batch[index]),
        step_seconds=float(times.step_seconds[index]),
        steps_per_epoch=int(times.steps[index]),
        epochs=epochs,
        epoch_seconds=float(times.epoch_seconds[index]),
        epoch_seconds_interval=(float(times.epoch_low[index]), float(times.epoch_high[index])),
        start_up_seconds=float(times.start_up_seconds[index]),
        total_seconds=seconds,
        total_seconds_interval=(_finite(candidates.low.seconds[index]), _finite(candidates.high.seconds[index])),
        node_hours=node_hours,
        accelerator_hours=node_hours * offer.hardware.per_node,
        usd_per_hour=usd_per_hour if priced else None,
        usd=usd if priced else None,
        usd_interval=(least_usd, most_usd) if priced else None,
        usd_per_epoch=usd / epochs if priced and epochs else None,
        checkpoint_seconds=float(spent.checkpoint_seconds[index]),
        expected_interruptions=None if np.isnan(interruptions) else _finite(interruptions),
        interruptions_per_node_hour=None if np.isnan(rate) else float(rate),
        break_even_per_node_hour=break_even,
        measured=timing.measured,
        extrapolates=bool(times.outside[index]),
        reasons=tuple(_reasons(candidates, index, break_even)),
    )


def _reasons(candidates: Candidates, index: int, break_even: float | None) -> list[str]:
    run, offer = candidates.basis.run, candidates.offer_of(index)
    workers, nodes = int(candidates.setups.workers[index]), int(candidates.setups.nodes[index])
    timing = candidates.timings.of(*offer.key)
    outside = timing.extrapolations(candidates.setups[index : index + 1])
    reasons = [timing.basis, *(f"extrapolates: {reason}" for reason in outside), *offer.notes]
    reasons.append(describe_division(offer.hardware.per_node, nodes * offer.hardware.per_node // workers))
    if (hosts := offer.hardware.hosts) > 1:
        reasons.append(f"a slice of {hosts} hosts: planned, but the TensorFlow engine runs on one-host slices only")
    if offer.accelerator.kind == "tpu" and run.cluster.image is None:
        reasons.append("the image for TPUs is needed: name it in cluster.image where the operator's is for GPUs")
    epochs = _epochs(candidates, index)
    if epochs < run.train.epochs:
        reasons.append(f"train.maxMinutes ends the training after {epochs:.1f} of {run.train.epochs} epochs")
    batch = int(candidates.setups.batch[index])
    at_once = batch // run.train.micro_batches(batch)
    if at_once < batch:
        reasons.append(f"{batch // at_once} micro-batches of {at_once}: timed as one batch of {batch}")
    if run.train.precision == "bfloat16" and offer.accelerator.kind == "gpu":
        reasons.append("train.precision bfloat16: timed as float32, which was measured")
    kind = candidates.timings.network.network, offer.accelerator.accelerator
    run_before = (m.batch_per_replica for m in candidates.basis.measurements if (m.network, m.accelerator) == kind)
    if at_once > max(run_before, default=0):
        reasons.append(f"no batch of {at_once} has been run on {offer.accelerator.accelerator}: memory unproven")
    if offer.capacity_type == "spot" and np.isnan(candidates.money.rate[index]):
        ends = " but the ends of hardware.nodeLifetime" if candidates.basis.hardware.node_lifetime else ""
        reasons.append(
            "the rate of interruptions is not known (hardware.interruptionsPerNodeHour, or own bills): "
            f"time and money are those without any{ends}"
        )
    best, every = float(candidates.expected.checkpoint_seconds[index]), run.checkpoint.every_seconds
    if not math.isclose(best, every, rel_tol=0.2):  # the optimum is flat
        setting = f"checkpoint.everySeconds={best:{'.0f' if best >= 10 else '.2g'}}"
        reasons.append(f"time and money are those with {setting}, the best interval: the run saves every {every:g} s")
    if candidates.expected.seconds[index] >= NEVER_SECONDS:
        reasons.append("takes ten years, or is interrupted before it makes progress: never chosen")
    if break_even is not None:
        reasons.append(f"cheaper than on demand up to {break_even:.3g} interruptions per node and hour")
    return reasons


def _epochs(candidates: Candidates, index: int) -> float:
    run, times = candidates.basis.run, candidates.times
    epoch_seconds = times.epoch_seconds[index]
    work = work_seconds(run, times.start_up_seconds[index], epoch_seconds)
    return min(round(float(work / epoch_seconds), 6), run.train.epochs)


def _break_even(candidates: Candidates, index: int) -> float | None:
    """Rate up to which spot is cheaper than the same on demand; None where that is not sold, or never."""
    basis, times = candidates.basis, candidates.times
    offer, one = candidates.offer_of(index), slice(index, index + 1)
    if offer.rate is None or offer.hardware.machine_type in SPOT_ONLY:
        return None
    try:
        disk_gib = basis.hardware.disk_gib
        listed = node_rate(basis.prices, offer.hardware, offer.region, "on-demand", basis.as_of, disk_gib)
    except PriceError:
        return None

    def usd(money: Money, per_node_hour: float) -> float:
        money.rate = np.array([per_node_hour])
        work = work_seconds(basis.run, times.start_up_seconds[one], times.epoch_seconds[one])
        return float(money.spend(times.start_up_seconds[one], work).usd[0])

    spot, on_demand = (
        Money(basis, [bought], np.array([0]), candidates.setups.nodes[one])
        for bought in (offer, replace(offer, capacity_type="on-demand", rate=listed))
    )
    return break_even_rate(partial(usd, spot), usd(on_demand, 0))


def _layouts(candidates: Candidates, index: int) -> tuple[Layout, ...]:
    """Divisions of the same GPUs into workers on all nodes that there are for them, fastest first, steadier first where
    equal; a TPU slice has one."""
    offer, basis = candidates.offer_of(index), candidates.basis
    if offer.hardware.topology is not None:
        return ()
    count = int(candidates.setups.nodes[index]) * offer.hardware.per_node
    own = {machine.per_node for machine in load_machines() if (machine.provider, machine.accelerator) == offer.key}
    sizes = [size for size in sorted(own or {offer.hardware.per_node}, reverse=True) if count % size == 0]
    divided = [(count // size, size, part) for size in sizes for part in divisors(size)[::-1]]
    replicas, batch = count * offer.accelerator.replicas, candidates.setups.batch[index]
    setups = Setups(*np.array([(replicas, count // part, nodes, batch) for nodes, _, part in divided], float).T)
    timing = candidates.timings.of(*offer.key)
    times = timing.predict(setups, basis.run.data.showers or 0)
    kind = (basis.run.model.network, *offer.key)
    here = [m for m in basis.measurements if (m.network, m.provider, m.accelerator) == kind]
    scatter: list[float | None] = []
    for nodes, _, part in divided:
        wanted = (count, count // part, nodes)
        known = [m.step_cv for m in here if (m.count, m.workers, m.nodes) == wanted and m.step_cv is not None]
        scatter.append(float(np.mean(known)) if known else None)
    order = sorted(range(len(divided)), key=lambda i: (times.epoch_seconds[i], scatter[i] or np.inf))
    ranked = []
    for each in order:
        nodes, size, part = divided[each]
        reasons = [describe_division(size, part)]
        if nodes > 1 and size == 1:
            reasons.append("single accelerators: every hop of the ring crosses the network, and steps were unsteady")
        reasons += [f"extrapolates: {reason}" for reason in timing.extrapolations(setups[each : each + 1])]
        ranked.append(
            Layout(
                workers=count // part,
                accelerators_per_worker=part,
                nodes=nodes,
                per_node=size,
                aligned=part == size,
                epoch_seconds=float(times.epoch_seconds[each]),
                epoch_seconds_interval=(float(times.epoch_low[each]), float(times.epoch_high[each])),
                slower_than_best=float(times.epoch_seconds[each] / times.epoch_seconds[order[0]] - 1),
                step_scatter=scatter[each],
                reasons=tuple(reasons),
            )
        )
    return tuple(ranked)


def _notes(candidates: Candidates, binding: Limit | None) -> tuple[str, ...]:
    notes = [*candidates.dropped]
    if candidates.too_old:
        notes.append(f"left out, with prices older than budget.maxPriceAge on the day: {', '.join(candidates.too_old)}")
    endless = int((candidates.expected.seconds >= NEVER_SECONDS).sum())
    if endless:
        notes.append(
            f"{endless} of {len(candidates)} candidates take ten years, or are interrupted before they make progress, "
            "and are never chosen (train.epochs, hardware.interruptionsPerNodeHour, or own bills)"
        )
    hardware = candidates.basis.hardware
    if not candidates.eligible.any() and endless < len(candidates):
        notes.append(
            "no accelerator was measured and none named: name hardware.accelerator to choose an estimate; caloscale "
            "plan --measure measures the machine at hand"
            if not names_accelerator(hardware)
            else "slices of several hosts alone are left: name hardware.topology, count or nodes to choose one"
        )
    if binding == "both":  # each limit can be met, but not with the other; or neither can
        max_usd = candidates.basis.run.budget.max_usd or 0
        both = "or" if (candidates.expected.usd[candidates.eligible] <= max_usd).any() else "and"
        notes.append(f"no candidate meets both limits: raise budget.maxUsd {both} budget.deadline")
    elif binding is not None:
        notes.append(f"no candidate meets budget.{binding}: raise it, or see what comes nearest")
    return tuple(notes)


def _finite(value: float) -> float:
    """JSON has no infinity: a job that never ends takes a thousand years."""
    return float(min(value, 1000 * 365 * 24 * SECONDS_PER_HOUR))
