"""The outer ring: the leaders of the groups exchange what their groups have averaged, every few epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caloscale.sagips.exchange.base import Floats
from caloscale.sagips.exchange.groups import Groups, Leader, leaders
from caloscale.sagips.exchange.message_ring import MessageRing

if TYPE_CHECKING:
    from mpi4py import MPI


class OuterRing:
    """A ring of messages over one leader of each group, when (epoch + 1) is a multiple of ``every``.

    Leaders do not pass the result to their groups, so the generators of the ranks differ. A group counts with the
    number of its gradients: the leaders' mean is that over all ranks, also of unequal groups.
    """

    def __init__(self, communicator: MPI.Comm, groups: Groups, every: int, leader: Leader, seed: int) -> None:
        self._communicator, self._groups = communicator, groups
        self._every, self._leader, self._seed = every, leader, seed

    def add_others(self, partial: Floats, epoch: int) -> None:
        """Add the sums of the other groups to ``partial``, in place, if this rank is a leader in this epoch."""
        if (epoch + 1) % self._every or len(self._groups) == 1:
            return
        members = leaders(self._groups, epoch, self._leader, self._seed)
        if self._communicator.rank in members:
            MessageRing(self._communicator, members).add_others(partial)
