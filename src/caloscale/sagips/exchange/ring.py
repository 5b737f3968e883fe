"""The conventional asynchronous ring: messages around all ranks in every epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caloscale.sagips.exchange.base import Floats, MessageExchange
from caloscale.sagips.exchange.message_ring import MessageRing

if TYPE_CHECKING:
    from mpi4py import MPI


class Ring(MessageExchange):
    """One `MessageRing` over all ranks."""

    def __init__(self, communicator: MPI.Intracomm) -> None:
        super().__init__(communicator)
        self._ring = MessageRing(self.communicator, range(communicator.size))

    def add_others(self, partial: Floats, epoch: int) -> None:
        """Add the vectors of all other ranks."""
        self._ring.add_others(partial)
