"""The grouped asynchronous ring (ARAR): messages within the groups in every epoch, and between leaders in some."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caloscale.sagips.exchange.base import Floats, MessageExchange
from caloscale.sagips.exchange.groups import Groups, Leader, group_of
from caloscale.sagips.exchange.message_ring import MessageRing
from caloscale.sagips.exchange.outer import OuterRing

if TYPE_CHECKING:
    from mpi4py import MPI


class GroupedRing(MessageExchange):
    """A `MessageRing` over the rank's group, then the `OuterRing`."""

    def __init__(
        self, communicator: MPI.Intracomm, groups: Groups, *, outer_every: int, leader: Leader, seed: int
    ) -> None:
        super().__init__(communicator)
        self._inner = MessageRing(self.communicator, group_of(communicator.rank, groups))
        self._outer = OuterRing(self.communicator, groups, outer_every, leader, seed)

    def add_others(self, partial: Floats, epoch: int) -> None:
        """Add the vectors of the group, and in some epochs those of the other groups."""
        self._inner.add_others(partial)
        self._outer.add_others(partial, epoch)
