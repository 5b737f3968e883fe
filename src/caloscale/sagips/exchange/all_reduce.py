"""Synchronous all-reduce over all ranks: the baseline, as Horovod does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caloscale.sagips.exchange.base import Floats, SumExchange

if TYPE_CHECKING:
    from mpi4py import MPI


class AllReduce(SumExchange):
    """MPI_Allreduce; Open MPI chooses the algorithm."""

    def __init__(self, communicator: MPI.Intracomm) -> None:
        super().__init__()
        self._communicator = communicator.Dup()

    def add_others(self, partial: Floats, epoch: int) -> None:
        """Add the vectors of all other ranks."""
        from mpi4py import MPI

        self._communicator.Allreduce(MPI.IN_PLACE, partial)

    def close(self) -> None:
        """Free the communicator."""
        self._communicator.Free()
