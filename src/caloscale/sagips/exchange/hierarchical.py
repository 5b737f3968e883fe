"""The all-reduce in three steps: within groups, between their leaders, and back. For comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caloscale.sagips.exchange.base import Floats, SynchronousExchange
from caloscale.sagips.exchange.groups import Groups, group_of
from caloscale.sagips.exchange.waiting import wait

if TYPE_CHECKING:
    from mpi4py import MPI


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

    def add_others(self, partial: Floats, epoch: int) -> None:
        """Add the vectors of all other ranks."""
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
