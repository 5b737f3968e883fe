"""The grouped ring with remote memory access (RMA-ARAR): within a group nobody waits for anybody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mpi4py import MPI

Floats = NDArray[np.float32]

EMPTY = -1
"""Sequence number of a slot into which nothing has been written."""
_HEADER_BYTES = 64
"""Sequence number (int64) in front of a slot's vector; a cache line, so that vectors are aligned."""


@dataclass
class Counts:
    """What a rank's exchange has done so far."""

    exchanges: int = 0
    """Calls of `exchange.Exchange.average` that exchanged something."""
    contributions: int = 0
    """Finite gradients of other ranks that are in the averages."""
    dropped: int = 0
    """Gradients, own ones included, that were left out of this rank's averages because they were not finite."""
    stale: int = 0
    """Contributions from an earlier epoch than that of the average. They are used, once. Remote memory only."""
    age: int = 0
    """Epochs between them and the averages that they are in, added up."""
    repeated: int = 0
    """Slots that had not changed since they were read before. They are not used again. Remote memory only."""
    missing: int = 0
    """Slots into which nothing had been written yet. Remote memory only."""
    exchange_seconds: float = 0.0
    """Time that the caller spent in the exchange, s."""

    @classmethod
    def total(cls, counts: Sequence[Counts]) -> Counts:
        """The sum of several."""
        return Counts(**{name: sum(getattr(one, name) for one in counts) for name in vars(Counts())})


class WindowRing:
    """A ring in which each member writes into its own memory and reads its left neighbour's.

    A window has a slot for each of the n - 1 steps. In a step a member puts a vector into its slot (at first its own,
    then what it read in the step before), and gets the left neighbour's slot of this step. Whatever is there is taken:
    in front of each vector stands its sequence number, the epoch of the gradient in it, so a vector of an earlier epoch
    is noticed (stale) and one that was read before is not added again (repeated). A get is looked at only after its
    unlock; locks are held for one copy. All members make the window together, at the first call.

    Source: arXiv 2407.00051 (RMA-ARAR); sequence numbers are an addition.
    """

    def __init__(self, communicator: MPI.Intracomm, counts: Counts) -> None:
        """counts: of what is found in the left neighbour's slots."""
        self.counts = counts
        self._communicator, self._steps = communicator, communicator.size - 1
        self._left = (communicator.rank - 1) % communicator.size
        self._window: MPI.Win | None = None
        self._read = [EMPTY] * self._steps
        """Sequence number that was last read, for each step."""

    def add_others(self, partial: Floats, epoch: int) -> None:
        """Add to ``partial``, in place, what has arrived of the other members since the last call."""
        if self._steps == 0:
            return
        if self._window is None:
            self._window = self._allocate(partial)
        self._put(0, epoch, partial)
        for step in range(self._steps):
            sequence = self._get(step, epoch)
            if sequence is None:
                continue
            partial += self._vector
            if step + 1 < self._steps:
                self._put(step + 1, sequence, self._vector)

    def close(self) -> None:
        """Free the window. All members call it."""
        if self._window is not None:
            self._window.Free()

    def _allocate(self, partial: Floats) -> MPI.Win:
        from mpi4py import MPI

        size = _HEADER_BYTES * (1 + -(-partial.nbytes // _HEADER_BYTES))
        window = MPI.Win.Allocate(size * self._steps, 1, comm=self._communicator)
        memory = np.ndarray((self._steps, size), np.uint8, buffer=window.tomemory().cast("B"))
        self._own = [_views(slot, partial.size) for slot in memory]
        self._slot = np.empty(size, np.uint8)
        self._sequence, self._vector = _views(self._slot, partial.size)
        window.Lock(self._communicator.rank)
        for sequence, _ in self._own:
            sequence[0] = EMPTY
        window.Unlock(self._communicator.rank)
        self._communicator.Barrier()
        return window

    def _put(self, step: int, sequence: int, vector: Floats) -> None:
        """Write into the own slot."""
        assert self._window is not None
        self._window.Lock(self._communicator.rank)
        self._own[step][0][0] = sequence
        self._own[step][1][:] = vector
        self._window.Unlock(self._communicator.rank)

    def _get(self, step: int, epoch: int) -> int | None:
        """Read the left neighbour's slot into the own vector; its sequence number, or None if it holds nothing new."""
        self._fetch(step, self._slot[:_HEADER_BYTES])
        if self._sequence[0] == self._read[step]:
            if self._sequence[0] == EMPTY:
                self.counts.missing += 1
            else:
                self.counts.repeated += 1
            return None
        # The slot may have been written once more since: its number comes with the vector.
        self._fetch(step, self._slot)
        self._read[step] = sequence = int(self._sequence[0])
        self.counts.stale += sequence < epoch
        self.counts.age += max(0, epoch - sequence)
        return sequence

    def _fetch(self, step: int, target: NDArray[np.uint8]) -> None:
        """Get the beginning of the left neighbour's slot. It is there when the lock is gone."""
        from mpi4py import MPI

        assert self._window is not None
        self._window.Lock(self._left, MPI.LOCK_SHARED)
        self._window.Get([target, MPI.BYTE], self._left, (step * self._slot.size, target.size, MPI.BYTE))
        self._window.Unlock(self._left)


def _views(slot: NDArray[np.uint8], size: int) -> tuple[NDArray[np.int64], Floats]:
    """Sequence number (1,) and vector (size,) of a slot's memory."""
    end = _HEADER_BYTES + size * np.dtype(np.float32).itemsize
    return slot[:8].view(np.int64), slot[_HEADER_BYTES:end].view(np.float32)
