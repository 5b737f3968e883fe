"""The ring all-reduce in chunks, which sends the least that an all-reduce can send. For comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from caloscale.sagips.exchange.base import Floats, SynchronousExchange
from caloscale.sagips.exchange.waiting import wait

if TYPE_CHECKING:
    from mpi4py import MPI


class ChunkRing:
    """A ring over some ranks of a communicator, in which chunks of the vectors travel.

    2 (n - 1) messages of 1/n of the vector for each member. Source: Patarasuk and Yuan, J. Parallel Distrib. Comput. 69
    (2009) 117.
    """

    def __init__(self, communicator: MPI.Comm, members: Sequence[int]) -> None:
        self._communicator, self._count = communicator, len(members)
        self._position = list(members).index(communicator.rank)
        self._left = members[self._position - 1]
        self._right = members[(self._position + 1) % self._count]

    def chunk(self, vector: Floats, index: int) -> Floats:
        """A member's chunk of the vector, a view; the vector may have fewer numbers than there are members."""
        index %= self._count
        return vector[vector.size * index // self._count : vector.size * (index + 1) // self._count]

    def scatter(self, vector: Floats) -> Floats:
        """Add up chunks; returns the own one, a view, which then holds the sum over the members."""
        received = np.empty(-(-vector.size // self._count), np.float32)
        for step in range(self._count - 1):
            target = self.chunk(vector, self._position - 2 - step)
            part = received[: target.size]
            self._exchange(self.chunk(vector, self._position - 1 - step), part)
            target += part
        return self.chunk(vector, self._position)

    def gather(self, vector: Floats) -> None:
        """Replace all other chunks by those of the members that own them."""
        for step in range(self._count - 1):
            self._exchange(self.chunk(vector, self._position - step), self.chunk(vector, self._position - 1 - step))

    def add_others(self, vector: Floats) -> None:
        """Add the vectors of the other members, in place."""
        self.scatter(vector)
        self.gather(vector)

    def _exchange(self, sent: Floats, received: Floats) -> None:
        wait([self._communicator.Irecv(received, self._left), self._communicator.Isend(sent, self._right)])


class ChunkedRing(SynchronousExchange):
    """One `ChunkRing` over all ranks."""

    def __init__(self, communicator: MPI.Intracomm) -> None:
        super().__init__(communicator)
        self._ring = ChunkRing(self.communicator, range(communicator.size))

    def add_others(self, partial: Floats, epoch: int) -> None:
        """Add the vectors of all other ranks."""
        self._ring.add_others(partial)
