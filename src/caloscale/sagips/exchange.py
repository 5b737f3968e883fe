"""Groups of ranks, and the exchange of the generator's gradient between ranks.

The gradient is one flat float32 array in host memory. No method needs TensorFlow.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from caloscale.sagips.remote_memory import Counts, Floats, WindowRing

if TYPE_CHECKING:
    from mpi4py import MPI


Groups = tuple[tuple[int, ...], ...]
"""The ranks of each group, ascending. Every rank is in one group."""
Leader = Literal["first", "random"]


def equal_groups(count: int, ranks: int) -> Groups:
    """So many groups of consecutive ranks, as equal as possible."""
    return tuple(tuple(group.tolist()) for group in np.array_split(np.arange(ranks), count))


def node_groups(communicator: MPI.Comm) -> Groups:
    """A group for each node: ranks that share memory. All ranks call it."""
    from mpi4py import MPI

    node = communicator.Split_type(MPI.COMM_TYPE_SHARED, communicator.rank)
    first = node.bcast(communicator.rank)
    node.Free()
    firsts = communicator.allgather(first)
    return tuple(tuple(rank for rank, other in enumerate(firsts) if other == first) for first in dict.fromkeys(firsts))


def group_of(rank: int, groups: Groups) -> tuple[int, ...]:
    """The group that holds a rank."""
    return next(group for group in groups if rank in group)


def leaders(groups: Groups, epoch: int, choice: Leader, seed: int) -> tuple[int, ...]:
    """One rank of each group: the first, or one drawn for this epoch. All ranks draw the same."""
    if choice == "first":
        return tuple(group[0] for group in groups)
    draw = np.random.default_rng([seed, epoch])
    return tuple(group[draw.integers(len(group))] for group in groups)


NAP_SECONDS = 20e-6
"""Time between two looks; Linux adds about 50 us."""
_CROWDED = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1")) > len(os.sched_getaffinity(0))
"""Whether this machine has more ranks than cores for them."""


def wait(requests: Sequence[MPI.Request]) -> None:
    """Return when all requests are done.

    MPI waits with a busy core, which takes microseconds where every rank has its own core. Otherwise the rank that
    is waited for needs the core: then this one sleeps between two looks.
    """
    from mpi4py import MPI

    if not _CROWDED:
        MPI.Request.Waitall(requests)
        return
    while not MPI.Request.Testall(requests):
        time.sleep(NAP_SECONDS)


TAIL = 2
"""Numbers behind a gradient that are added up with it: how many finite gradients the sum holds, and how many in all."""
_FINITE, _ALL = -2, -1


class Exchange:
    """Averages a flat gradient over ranks by adding up vectors: gradients, followed by their number (`TAIL`). All ranks
    call it for the same epochs in the same order. By itself it adds none: each rank keeps its own gradient.
    """

    first_epoch = 1
    """The first epoch with an exchange, as in the paper's public code."""

    def __init__(self) -> None:
        self._partial: Floats | None = None
        self.counts = Counts()

    def average(self, gradient: Floats, epoch: int) -> Floats:
        """The mean of the ranks' gradients: a new array of the gradient's shape (size,), float32.

        epoch counts from 0; in epoch 0 only a `SynchronousExchange` exchanges. A gradient that is not finite is left
        out of the mean; the result is zero where none is left.
        """
        start, counts = time.perf_counter(), self.counts
        if self._partial is None:
            self._partial = np.empty(gradient.size + TAIL, np.float32)
        # A sum of finite numbers may overflow, so each is looked at.
        partial, own_finite = self._partial, bool(np.isfinite(gradient).all())
        partial[:-TAIL] = gradient if own_finite else 0
        partial[_FINITE], partial[_ALL] = own_finite, 1
        if epoch >= self.first_epoch:
            self._add_others(partial, epoch)
            counts.exchanges += 1
        finite, contributions = partial[_FINITE], partial[_ALL]
        mean = partial[:-TAIL] * np.float32(1 / max(finite, 1))
        counts.contributions += int(finite - own_finite)
        counts.dropped += int(contributions - finite)
        counts.exchange_seconds += time.perf_counter() - start
        return mean

    def _add_others(self, partial: Floats, epoch: int) -> None:
        """Add the vectors of other ranks to ``partial``, in place: (size + TAIL,)."""

    def close(self) -> None:
        """Free what MPI holds. All ranks call it, at the end; it waits for them, so a rank that fails must not."""


class MessageExchange(Exchange):
    """An `Exchange` whose messages have a separate communicator. All ranks make it together."""

    def __init__(self, communicator: MPI.Intracomm) -> None:
        super().__init__()
        self.communicator = communicator.Dup()

    def close(self) -> None:
        """Free the communicator."""
        self.communicator.Free()


class SynchronousExchange(MessageExchange):
    """A `MessageExchange` after which all ranks have the same bits, in every epoch: their generators stay equal."""

    first_epoch = 0


class MessageRing:
    """Adds up the vectors of its members.

    n - 1 times a member receives a vector from its left neighbour, adds it to its sum and sends it on to the right.
    There is no barrier: a member waits for its neighbours only. Source: arXiv 2407.00051, section on the
    asynchronous ring all-reduce.
    """

    def __init__(self, communicator: MPI.Comm, members: Sequence[int]) -> None:
        position = list(members).index(communicator.rank)
        self._communicator, self._steps = communicator, len(members) - 1
        self._left, self._right = members[position - 1], members[(position + 1) % len(members)]

    def add_others(self, partial: Floats, _: int) -> None:
        """Add the vectors of the other members to ``partial``, in place."""
        if self._steps == 0:
            return
        sent, received = partial.copy(), np.empty_like(partial)
        for step in range(self._steps):
            requests = [self._communicator.Irecv(received, self._left), self._communicator.Isend(sent, self._right)]
            if step:
                # While it is sent on: what arrived in the step before.
                partial += sent
            wait(requests)
            sent, received = received, sent
        partial += sent


class AllReduce(SynchronousExchange):
    """MPI_Allreduce; Open MPI chooses the algorithm."""

    def _add_others(self, partial: Floats, epoch: int) -> None:
        from mpi4py import MPI

        wait([self.communicator.Iallreduce(MPI.IN_PLACE, partial)])


class GroupedRing(MessageExchange):
    """A `MessageRing` over the rank's group; when (epoch + 1) is a multiple of ``outer_every``, then one over a leader
    of each group. Of one group: one ring over all ranks.

    Leaders do not pass the result to their groups, so the generators of the ranks differ. A group counts with the
    number of its gradients: the leaders' mean is that over all ranks, also of unequal groups.
    """

    _inner: MessageRing | WindowRing

    def __init__(
        self, communicator: MPI.Intracomm, groups: Groups, *, outer_every: int, leader: Leader, seed: int
    ) -> None:
        super().__init__(communicator)
        self._groups, self._every, self._leader, self._seed = groups, outer_every, leader, seed
        self._inner = MessageRing(self.communicator, group_of(communicator.rank, groups))

    def _add_others(self, partial: Floats, epoch: int) -> None:
        self._inner.add_others(partial, epoch)
        if (epoch + 1) % self._every or len(self._groups) == 1:
            return
        members = leaders(self._groups, epoch, self._leader, self._seed)
        if self.communicator.rank in members:
            MessageRing(self.communicator, members).add_others(partial, epoch)


class GroupedRma(GroupedRing):
    """As `GroupedRing`, with a `WindowRing` over the rank's group."""

    _inner: WindowRing

    def __init__(self, communicator: MPI.Intracomm, groups: Groups, **options: Any) -> None:
        super().__init__(communicator, groups, **options)
        own = group_of(communicator.rank, groups)
        self._group = cast("MPI.Intracomm", self.communicator.Split(groups.index(own), communicator.rank))
        self._inner = WindowRing(self._group, self.counts)

    def close(self) -> None:
        """Free window and communicators."""
        self._inner.close()
        self._group.Free()
        super().close()


class Central(SynchronousExchange):
    """Messages between rank 0 and each other rank: all ranks apply the gradient of one generator.

    Rank 0 receives and sends (n - 1) vectors one after another, so its time grows with the number of ranks.
    """

    def _add_others(self, partial: Floats, epoch: int) -> None:
        others = range(1, self.communicator.size)
        if self.communicator.rank:
            wait([self.communicator.Isend(partial, 0)])
            wait([self.communicator.Irecv(partial, 0)])
            return
        received = partial.copy()
        for rank in others:
            wait([self.communicator.Irecv(received, rank)])
            partial += received
        wait([self.communicator.Isend(partial, rank) for rank in others])


class ChunkedRing(SynchronousExchange):
    """A ring in which chunks of the vectors travel: 2 (n - 1) messages of 1/n of the vector.

    Source: Patarasuk and Yuan, J. Parallel Distrib. Comput. 69 (2009) 117.
    """

    def _add_others(self, partial: Floats, epoch: int) -> None:
        rank, count = self.communicator.rank, self.communicator.size
        ends = [partial.size * index // count for index in range(count + 1)]  # fewer numbers than ranks are possible
        chunks = [partial[first:end] for first, end in pairwise(ends)]
        received = np.empty(-(-partial.size // count), np.float32)
        for step in range(count - 1):
            target = chunks[(rank - 2 - step) % count]
            part = received[: target.size]
            self._exchange(chunks[(rank - 1 - step) % count], part)
            target += part
        for step in range(count - 1):
            self._exchange(chunks[(rank - step) % count], chunks[(rank - 1 - step) % count])

    def _exchange(self, sent: Floats, received: Floats) -> None:
        rank, count = self.communicator.rank, self.communicator.size
        wait([self.communicator.Irecv(received, (rank - 1) % count), self.communicator.Isend(sent, (rank + 1) % count)])


class Hierarchical(SynchronousExchange):
    """Reduce to the first rank of each group, all-reduce over these, broadcast within the groups.

    Source: Jia et al., arXiv 1807.11205.
    """

    def __init__(self, communicator: MPI.Intracomm, groups: Groups) -> None:
        from mpi4py import MPI

        super().__init__(communicator)
        own = group_of(communicator.rank, groups)
        self._group = self.communicator.Split(groups.index(own), communicator.rank)
        leading = self._group.rank == 0
        self._leaders = self.communicator.Split(0 if leading else MPI.UNDEFINED, communicator.rank)

    def _add_others(self, partial: Floats, epoch: int) -> None:
        from mpi4py import MPI

        if self._group.rank:
            wait([self._group.Ireduce(partial, None)])
        else:
            wait([self._group.Ireduce(MPI.IN_PLACE, partial)])
            wait([self._leaders.Iallreduce(MPI.IN_PLACE, partial)])
        wait([self._group.Ibcast(partial)])

    def close(self) -> None:
        """Free the communicators."""
        if self._group.rank == 0:
            self._leaders.Free()
        self._group.Free()
        super().close()


def make_exchange(
    method: str,
    communicator: MPI.Intracomm,
    groups: Groups = (),
    *,
    outer_every: int = 1,
    leader: Leader = "first",
    seed: int = 0,
) -> Exchange:
    """An exchange by one of the methods of `spec.solver.Exchange`. All ranks call it, with the same arguments.

    groups: of a method in groups. outer_every: epochs between two exchanges of the group leaders. seed: of random
    leaders.
    """
    if method == "none":
        return Exchange()
    over_all: dict[str, Callable[[MPI.Intracomm], Exchange]] = {
        "all-reduce": AllReduce, "central": Central, "chunked-ring": ChunkedRing,
    }  # fmt: skip
    if method in over_all:
        return over_all[method](communicator)
    if method == "hierarchical":
        return Hierarchical(communicator, groups)
    grouped = {"ring": GroupedRing, "grouped-ring": GroupedRing, "grouped-rma": GroupedRma}
    if method == "ring":
        groups = equal_groups(1, communicator.size)
    return grouped[method](communicator, groups, outer_every=outer_every, leader=leader, seed=seed)
