"""A training that begins on one's own machines and ends on a cloud: as cheap as its deadline allows.

The two follow each other: a synchronous training has one set of workers at a time. After some epochs on the own
machines the run is saved and resumes on the cloud, which costs a second start-up.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from caloscale.errors import ConfigurationError
from caloscale.planning.catalogue.measurements import Measurement
from caloscale.planning.catalogue.prices import Prices
from caloscale.planning.search.candidates import HOUR, Candidates, find_candidates
from caloscale.planning.search.choice import pareto_front
from caloscale.spec import Run
from caloscale.spec.block import Block

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Machines:
    """Machines that may train some of the epochs, one an element of each column."""

    start_up_seconds: Numbers
    """Before the first epoch, s."""
    epoch_seconds: Numbers
    """Epoch, with the expected interruptions, s."""
    usd_per_second: Numbers
    """US dollars per second; 0: without a price."""

    def seconds(self, epochs: int) -> Numbers:
        """Time of so many epochs, s."""
        return self.start_up_seconds + epochs * self.epoch_seconds


@dataclass(frozen=True)
class Mix:
    """Which machines train how many epochs."""

    own: int | None
    """Index of the own machines; None: they train nothing."""
    own_epochs: int
    """Epochs on them, the first ones."""
    cloud: int | None
    """Index of the cloud's machines; None: they train nothing."""
    seconds: float
    """Both, s."""
    usd: float
    """Both, US dollars."""


def find_mix(own: Machines, cloud: Machines, epochs: int, deadline_seconds: float) -> Mix | None:
    """The cheapest mix that ends by the deadline; of equal ones that with the most epochs on the own machines.

    None when no mix ends by the deadline. For each number of epochs the sum of two times is limited and the sum of two
    amounts of money is least, so that only the Pareto fronts of the two count.
    """
    best: Mix | None = None
    for own_epochs in range(epochs, -1, -1):
        first, first_seconds, first_usd = _front(own, own_epochs)
        second, second_seconds, second_usd = _front(cloud, epochs - own_epochs)
        seconds = np.add.outer(first_seconds, second_seconds)
        usd = np.where(seconds <= deadline_seconds, np.add.outer(first_usd, second_usd), np.inf)
        if not usd.size:
            continue
        cheapest = np.flatnonzero(usd == usd.min())
        i, j = np.unravel_index(cheapest[np.argmin(seconds.ravel()[cheapest])], usd.shape)
        if usd[i, j] < (np.inf if best is None else best.usd):
            best = Mix(first[i], own_epochs, second[j], float(seconds[i, j]), float(usd[i, j]))
    return best


def _front(machines: Machines, epochs: int) -> tuple[list[int | None], Numbers, Numbers]:
    """Machines that no other beats in both money and time of so many epochs, with time (s) and money (USD)."""
    if epochs == 0:
        return [None], np.zeros(1), np.zeros(1)
    seconds = machines.seconds(epochs)
    usd = seconds * machines.usd_per_second
    front = pareto_front(usd, seconds, np.ones(len(seconds), bool))
    return [int(i) for i in front], seconds[front], usd[front]


class Share(Block):
    """Epochs that one kind of machine trains."""

    cloud: str
    """Cloud; none: one's own machines."""
    accelerator: str
    """GPU model or TPU generation."""
    count: int
    """GPUs or TPU chips."""
    workers: int
    """Workers."""
    nodes: int
    """Nodes."""
    machine_type: str
    """Machine type of the nodes."""
    region: str
    """Region."""
    capacity_type: Literal["spot", "on-demand"]
    """spot or on-demand."""
    epochs: int
    """Epochs."""
    seconds: float
    """Expected time, start-up and interruptions included, s."""
    usd: float | None
    """Expected money, US dollars; null: machines of one's own without a price."""
    extrapolates: bool
    """Whether the time is outside the measurements."""


class Burst(Block):
    """The cheapest mix of one's own machines and a cloud that ends by the deadline."""

    network: str
    """Preset."""
    epochs: int
    """Epochs."""
    deadline_seconds: float
    """budget.deadline, s."""
    own_epochs_by_deadline: int
    """Epochs that the own machines alone end by the deadline."""
    shares: tuple[Share, ...]
    """What trains, in order of time: the own machines first. Empty: nothing ends by the deadline."""
    total_seconds: float | None
    """Expected time of all shares, s."""
    usd: float | None
    """Expected money of the shares that have a price, US dollars."""
    meets_limits: bool
    """Whether there is a mix, within budget.maxUsd where that is set."""
    as_of: dt.date
    """Day of the prices."""
    notes: tuple[str, ...]
    """What the mix rests on."""


def plan_burst(run: Run, rest: Run, prices: Prices, measurements: Sequence[Measurement], as_of: dt.date) -> Burst:
    """The mix of a run on its own machines (``hardware.cloud: none``) and of the same run on a cloud, ``rest``.

    Raises ConfigurationError (naming field and remedy) and PriceError (naming the row to add).
    """
    _check(run, rest)
    deadline = run.budget.deadline_seconds or 0.0
    found = [
        find_candidates(each, prices.no_older_than(each.budget.max_price_age_days), measurements, as_of, unpriced=own)
        for each, own in ((run, True), (rest, False))
    ]
    eligible = [np.flatnonzero(each.eligible) for each in found]
    own, cloud = (_machines(each, chosen, run.train.epochs) for each, chosen in zip(found, eligible, strict=True))
    mix = find_mix(own, cloud, run.train.epochs, deadline)
    alone = np.floor((deadline - own.start_up_seconds) / own.epoch_seconds).max(initial=0)
    shares: list[Share] = []
    if mix is not None:
        trained = (mix.own_epochs, run.train.epochs - mix.own_epochs)
        for each, chosen, index, epochs in zip(found, eligible, (mix.own, mix.cloud), trained, strict=True):
            if index is not None:
                machines = _machines(each, chosen, run.train.epochs)
                shares.append(_share(each, int(chosen[index]), machines, index, epochs))
    most = run.budget.max_usd
    return Burst(
        network=run.model.preset,
        epochs=run.train.epochs,
        deadline_seconds=deadline,
        own_epochs_by_deadline=int(min(alone, run.train.epochs)),
        shares=tuple(shares),
        total_seconds=None if mix is None else mix.seconds,
        usd=None if mix is None else mix.usd,
        meets_limits=mix is not None and (most is None or mix.usd <= most),
        as_of=as_of,
        notes=_notes(mix, shares, most),
    )


def _check(run: Run, rest: Run) -> None:
    if run.hardware is None or run.hardware.cloud != "none":
        raise ConfigurationError(
            "must be none: a mix begins on one's own machines",
            field="hardware.cloud",
            value=None if run.hardware is None else run.hardware.cloud,
            remedy="--set hardware.cloud=none, with hardware.accelerator, hardware.perNode and hardware.maxNodes",
        )
    if rest.hardware is None or rest.hardware.cloud in (None, "none"):
        raise ConfigurationError(
            "must be a cloud: a mix ends on one", field="--burst", remedy="--burst hardware.cloud=gcp (or azure)"
        )
    if run.budget.deadline_seconds is None:
        raise ConfigurationError(
            "is needed: without it one's own machines train everything",
            field="budget.deadline",
            remedy="--set budget.deadline=6h",
        )
    if run.train.max_minutes is not None:
        raise ConfigurationError(
            "ends the training after a time, so that its epochs cannot be divided",
            field="train.maxMinutes",
            value=run.train.max_minutes,
            remedy="leave it out, and set train.epochs",
        )
    if run.model_copy(update={"hardware": None}) != rest.model_copy(update={"hardware": None}):
        raise ConfigurationError(
            "changes more than the machines",
            field="--burst",
            remedy="give fields of hardware only, and other fields with --set",
        )


def _machines(found: Candidates, eligible: NDArray[np.intp], epochs: int) -> Machines:
    """The eligible candidates; interruptions lengthen all epochs alike."""
    seconds, start_up = found.seconds[eligible], found.start_up_seconds[eligible]
    priced = np.array([found.offers[i].rate is not None for i in found.offer[eligible]], bool)
    return Machines(start_up, (seconds - start_up) / epochs, np.where(priced, found.usd[eligible] / seconds, 0.0))


def _share(found: Candidates, index: int, machines: Machines, row: int, epochs: int) -> Share:
    offer = found.offers[found.offer[index]]
    nodes = int(found.setups.nodes[index])
    seconds = float(machines.seconds(epochs)[row])
    return Share(
        cloud=offer.provider,
        accelerator=offer.accelerator.accelerator,
        count=nodes * offer.per_node,
        workers=int(found.setups.workers[index]),
        nodes=nodes,
        machine_type=offer.hardware.machine_type,
        region=offer.region,
        capacity_type=offer.capacity_type,
        epochs=epochs,
        seconds=seconds,
        usd=None if offer.rate is None else seconds * float(machines.usd_per_second[row]),
        extrapolates=bool(found.extrapolates[index]),
    )


def _notes(mix: Mix | None, shares: Sequence[Share], most: float | None) -> tuple[str, ...]:
    if mix is None:
        return ("no mix ends by budget.deadline: raise it, or allow more machines (--burst hardware.maxNodes=8)",)
    notes = []
    if any(share.usd is None for share in shares):
        notes.append("own machines without a price count as 0 USD")
    if len(shares) == 2:
        notes.append("the nodes of the cloud are ordered early enough: the wait for them is not counted")
        notes.append(f"move to the cloud {shares[0].seconds / HOUR:.2f} h after the start")
        if shares[0].count != shares[1].count:
            notes.append("the number of replicas changes, and with it the global batch")
    if most is not None and mix.usd > most:
        notes.append(f"budget.maxUsd of {most:g} is not met: raise it or budget.deadline")
    return tuple(notes)
