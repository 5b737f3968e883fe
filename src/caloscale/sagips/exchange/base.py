"""What all exchanges share: the interface, the counts, and the vector that travels."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mpi4py import MPI

Floats = NDArray[np.float32]

TAIL = 2
"""Numbers behind a gradient that are added up with it: how many finite gradients the sum holds, and how many in all."""
_FINITE, _ALL = -2, -1


@dataclass(frozen=True)
class Counts:
    """What a rank's exchange has done so far."""

    exchanges: int = 0
    """Calls of `Exchange.average` that exchanged something."""
    contributions: int = 0
    """Finite gradients of other ranks that are in the averages."""
    dropped: int = 0
    """Gradients, own ones included, that were left out of this rank's averages because they were not finite."""
    stale: int = 0
    """Contributions from an earlier epoch than that of the average. They are used, once. Remote memory only."""
    repeated: int = 0
    """Slots that had not changed since they were read before. They are not used again. Remote memory only."""
    missing: int = 0
    """Slots into which nothing had been written yet. Remote memory only."""
    exchange_seconds: float = 0.0
    """Time that the caller spent in the exchange, s."""


class Exchange(Protocol):
    """Averages a flat gradient over ranks. All ranks call it for the same epochs in the same order."""

    @property
    def counts(self) -> Counts:
        """What has been done so far."""

    def average(self, gradient: Floats, epoch: int) -> Floats:
        """The mean of the ranks' gradients: a new array of the gradient's shape (size,), float32.

        epoch counts from 0; in epoch 0 only a `SynchronousExchange` exchanges. A gradient that is not finite is left
        out of the mean; the result is zero where none is left.
        """

    def close(self) -> None:
        """Free what MPI holds. All ranks call it, at the end; it waits for them, so a rank that fails must not."""


class SumExchange(ABC):
    """An exchange that adds up vectors: gradients, followed by their number (`TAIL`)."""

    first_epoch = 1
    """The first epoch with an exchange, as in the paper's public code."""

    def __init__(self) -> None:
        self._partial: Floats | None = None
        self._counts = Counts()

    @property
    def counts(self) -> Counts:
        """What has been done so far."""
        return self._counts

    def average(self, gradient: Floats, epoch: int) -> Floats:
        """See `Exchange.average`."""
        start = time.perf_counter()
        partial = self._own(gradient)
        own_finite = partial[_FINITE]
        exchanged = epoch >= self.first_epoch
        if exchanged:
            self.add_others(partial, epoch)
        finite, contributions = partial[_FINITE], partial[_ALL]
        mean = partial[:-TAIL] * np.float32(1 / max(finite, 1))
        before = self._counts
        self._counts = Counts(
            exchanges=before.exchanges + exchanged,
            contributions=before.contributions + int(finite - own_finite),
            dropped=before.dropped + int(contributions - finite),
            exchange_seconds=before.exchange_seconds + time.perf_counter() - start,
        )
        return mean

    def _own(self, gradient: Floats) -> Floats:
        """The vector of this rank: its gradient, or zeros if that is not finite, and the tail."""
        if self._partial is None:
            self._partial = np.empty(gradient.size + TAIL, np.float32)
        if gradient.size != self._partial.size - TAIL:
            raise ValueError(f"a gradient of {gradient.size} numbers after some of {self._partial.size - TAIL}")
        # A sum of finite numbers may overflow, so each is looked at.
        finite = bool(np.isfinite(gradient).all())
        self._partial[:-TAIL] = gradient if finite else 0
        self._partial[_FINITE], self._partial[_ALL] = finite, 1
        return self._partial

    @abstractmethod
    def add_others(self, partial: Floats, epoch: int) -> None:
        """Add the vectors of other ranks to ``partial``, in place: (size + TAIL,)."""

    @abstractmethod
    def close(self) -> None:
        """See `Exchange.close`."""


class MessageExchange(SumExchange):
    """A `SumExchange` whose messages have a communicator of their own. All ranks make it together."""

    def __init__(self, communicator: MPI.Intracomm) -> None:
        super().__init__()
        self.communicator = communicator.Dup()

    def close(self) -> None:
        """Free the communicator."""
        self.communicator.Free()


class SynchronousExchange(MessageExchange):
    """A `MessageExchange` after which all ranks have the same bits, in every epoch: their generators stay equal."""

    first_epoch = 0
