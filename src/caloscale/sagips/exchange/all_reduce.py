"""Synchronous all-reduce over all ranks: the baseline, after which all ranks have the same generator."""

from __future__ import annotations

from caloscale.sagips.exchange.base import Floats, SynchronousExchange
from caloscale.sagips.exchange.waiting import wait


class AllReduce(SynchronousExchange):
    """MPI_Allreduce; Open MPI chooses the algorithm."""

    def add_others(self, partial: Floats, epoch: int) -> None:
        """Add the vectors of all other ranks."""
        from mpi4py import MPI

        wait([self.communicator.Iallreduce(MPI.IN_PLACE, partial)])
