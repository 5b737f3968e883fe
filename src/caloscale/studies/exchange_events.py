"""A model of the exchanges on many ranks: when each rank ends its epochs, and what it finds in remote memory.

A message of S bytes takes alpha + S / beta (Hockney, Parallel Computing 20 (1994) 389). The computing times of the
epochs are given, stragglers included. Exchanges of messages are recurrences over the ranks; the remote-memory ring is
simulated event by event, as what a rank reads depends on what its neighbour has written until then.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caloscale.sagips.exchange import Groups, leaders
from caloscale.sagips.remote_memory import EMPTY, Counts
from caloscale.studies.exchange_model import ring

Times = NDArray[np.float64]


@dataclass(frozen=True)
class Link:
    """What a message between two ranks takes."""

    alpha_seconds: float
    """Time of an empty message, s."""
    bytes_per_second: float

    def seconds(self, size_bytes: float) -> float:
        """Time of a message, s."""
        return self.alpha_seconds + size_bytes / self.bytes_per_second


@dataclass(frozen=True)
class Network:
    """What communication takes. Ranks of a group are on one node."""

    within: Link
    between: Link
    """Messages between ranks of different groups."""
    window: Link
    """Remote memory of a rank of the same group: alpha is that of a lock, a get and an unlock, and a copy has this
    bandwidth."""


@dataclass(frozen=True)
class ExchangePlan:
    """How ranks exchange."""

    method: str
    """none, all-reduce, ring, grouped-ring or grouped-rma."""
    groups: Groups
    size_bytes: int
    """Size of the vector."""
    outer_every: int
    """Epochs between two outer rings of the first ranks of the groups."""


@dataclass(frozen=True)
class Outcome:
    """What became of the epochs."""

    ended: Times
    """When each rank ended each epoch, s: (epochs, ranks)."""
    computing: Times
    """The given computing times, s: (epochs, ranks)."""
    counts: Counts
    """Of the slots of remote memory that all ranks have read."""

    @property
    def seconds_per_epoch(self) -> float:
        """Time of the job over its epochs, s."""
        return float(self.ended[-1].max()) / len(self.ended)

    @property
    def slots(self) -> int:
        """All that were read."""
        return self.counts.contributions + self.counts.repeated + self.counts.missing


def simulate(plan: ExchangePlan, computing: Times, network: Network) -> Outcome:
    """The epochs of all ranks. computing: (epochs, ranks), s. Its first row is epoch 1, the first with an exchange."""
    if plan.method == "grouped-rma":
        return _RemoteMemory(plan, computing, network).run()
    ended, now = np.empty_like(computing), np.zeros(computing.shape[1])
    for row, times in enumerate(computing):
        now = _after_messages(plan, now + times, row + 1, network)
        ended[row] = now
    return Outcome(ended, computing, Counts())


def _after_messages(plan: ExchangePlan, ready: Times, epoch: int, network: Network) -> Times:
    """When each rank has exchanged, if it was ready then: (ranks,), s."""
    if plan.method == "none":
        return ready
    everyone = tuple(range(len(ready)))
    if plan.method == "all-reduce":
        link = network.within if len(plan.groups) == 1 else network.between
        exchange = ring(plan.size_bytes, len(ready), link.alpha_seconds, link.bytes_per_second)
        return np.full_like(ready, ready.max() + sum(exchange))
    if plan.method == "ring":
        return _after_ring(ready, (everyone,), plan, network)
    done = _after_ring(ready, plan.groups, plan, network)
    if (epoch + 1) % plan.outer_every == 0:
        done = _after_ring(done, (leaders(plan.groups, epoch, "first", 0),), plan, network)
    return done


def _after_ring(ready: Times, rings: Groups, plan: ExchangePlan, network: Network) -> Times:
    """When each rank has exchanged in its ring of messages; ranks of no ring keep their times.

    In a step a rank receives from the left and sends to the right. Large messages are handed over when both sides are
    ready, so a step begins with the latest of the three.
    """
    group_of = np.empty(len(ready), int)
    for index, group in enumerate(plan.groups):
        group_of[list(group)] = index
    left, right, steps = np.arange(len(ready)), np.arange(len(ready)), np.zeros(len(ready), int)
    for group in rings:
        members = np.array(group)
        left[members], right[members], steps[members] = np.roll(members, 1), np.roll(members, -1), len(group) - 1
    within, between = (link.seconds(plan.size_bytes) for link in (network.within, network.between))
    cost = np.where(group_of[left] == group_of, within, between)
    done = ready.copy()
    for step in range(int(steps.max(initial=0))):
        latest = np.maximum(done, np.maximum(done[left], done[right]))
        done = np.where(step < steps, latest + cost, done)
    return done


class _RemoteMemory:
    """The grouped ring with remote memory, event by event: see `caloscale.sagips.remote_memory.WindowRing`."""

    def __init__(self, plan: ExchangePlan, computing: Times, network: Network) -> None:
        self.plan, self.computing, self.network = plan, computing, network
        ranks = computing.shape[1]
        self.left, self.steps = [0] * ranks, [0] * ranks
        for group in plan.groups:
            for position, rank in enumerate(group):
                self.left[rank], self.steps[rank] = group[position - 1], len(group) - 1
        self.slots = [[EMPTY] * steps for steps in self.steps]
        self.read = [[EMPTY] * steps for steps in self.steps]
        self.carried: list[int | None] = [None] * ranks
        self.copy_seconds = plan.size_bytes / network.window.bytes_per_second
        self.events: list[tuple[float, int, int, int]] = []
        """Time, rank, epoch, step: the rank has written its slot of this step and reads its neighbour's."""
        self.waiting: dict[int, dict[int, float]] = {}
        """Leaders of an epoch that are ready for the outer ring, and since when."""
        self.ended = np.empty_like(computing)
        self.counts = Counts()

    def run(self) -> Outcome:
        for rank in range(len(self.left)):
            self._begin(0.0, rank, 1)
        while self.events:
            now, rank, epoch, step = heapq.heappop(self.events)
            if step < self.steps[rank]:
                heapq.heappush(self.events, (now + self._step(rank, epoch, step), rank, epoch, step + 1))
            else:
                self._outer(now, rank, epoch)
        return Outcome(self.ended, self.computing, self.counts)

    def _begin(self, now: float, rank: int, epoch: int) -> None:
        """Compute, and write the own slot."""
        if epoch > len(self.computing):
            return
        self.carried[rank] = epoch
        ready = now + float(self.computing[epoch - 1, rank]) + (self.copy_seconds if self.steps[rank] else 0.0)
        heapq.heappush(self.events, (ready, rank, epoch, 0))

    def _step(self, rank: int, epoch: int, step: int) -> float:
        """Write what is carried, read the neighbour's slot; the time until the next step, s."""
        carried = self.carried[rank]
        if carried is not None:
            self.slots[rank][step] = carried
        found = self.slots[self.left[rank]][step]
        if found == self.read[rank][step]:
            self.carried[rank] = None
            self.counts.missing += found == EMPTY
            self.counts.repeated += found != EMPTY
            return self.network.window.alpha_seconds
        self.carried[rank] = self.read[rank][step] = found
        self.counts.contributions += 1
        self.counts.stale += found < epoch
        # A header, then a slot; the vector is copied, added, and copied into the own slot, if there is a next step.
        copies = 3 if step + 1 < self.steps[rank] else 2
        return 2 * self.network.window.alpha_seconds + copies * self.copy_seconds

    def _outer(self, now: float, rank: int, epoch: int) -> None:
        """End the epoch, after the outer ring where the rank takes part in it."""
        plan = self.plan
        members: Sequence[int] = ()
        if (epoch + 1) % plan.outer_every == 0 and len(plan.groups) > 1:
            members = leaders(plan.groups, epoch, "first", 0)
        if rank not in members:
            self._end(now, rank, epoch)
            return
        waiting = self.waiting.setdefault(epoch, {})
        waiting[rank] = now
        if len(waiting) < len(members):
            return
        ready = np.zeros(len(self.left))
        for leader, since in self.waiting.pop(epoch).items():
            ready[leader] = since
        done = _after_ring(ready, (tuple(members),), plan, self.network)
        for leader in members:
            self._end(float(done[leader]), leader, epoch)

    def _end(self, now: float, rank: int, epoch: int) -> None:
        self.ended[epoch - 1, rank] = now
        self._begin(now, rank, epoch + 1)
