"""The all-reduce on a two-dimensional torus. For comparison."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from caloscale.sagips.exchange.base import Floats, SynchronousExchange
from caloscale.sagips.exchange.chunked_ring import ChunkRing

if TYPE_CHECKING:
    from mpi4py import MPI


def torus_shape(ranks: int) -> tuple[int, int]:
    """Rows and columns, as equal as the divisors of the number allow; one row for a prime number."""
    rows = next(rows for rows in range(math.isqrt(ranks), 0, -1) if ranks % rows == 0)
    return rows, ranks // rows


class Torus(SynchronousExchange):
    """Chunks are added up along the rows, then along the columns, then gathered along the rows.

    Source: Mikami et al., arXiv 1811.05233.
    """

    def __init__(self, communicator: MPI.Intracomm) -> None:
        super().__init__(communicator)
        _, columns = torus_shape(communicator.size)
        row, column = divmod(communicator.rank, columns)
        self._row = ChunkRing(self.communicator, range(row * columns, (row + 1) * columns))
        self._column = ChunkRing(self.communicator, range(column, communicator.size, columns))

    def add_others(self, partial: Floats, epoch: int) -> None:
        """Add the vectors of all other ranks."""
        self._column.add_others(self._row.scatter(partial))
        self._row.gather(partial)
