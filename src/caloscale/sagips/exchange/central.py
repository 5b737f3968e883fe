"""One central generator: rank 0 gathers the gradients, averages them and distributes the result. For comparison."""

from __future__ import annotations

from caloscale.sagips.exchange.base import Floats, SynchronousExchange
from caloscale.sagips.exchange.waiting import wait


class Central(SynchronousExchange):
    """Messages between rank 0 and each other rank: all ranks apply the gradient of one generator.

    Rank 0 receives and sends (n - 1) vectors one after another, so its time grows with the number of ranks.
    """

    def add_others(self, partial: Floats, epoch: int) -> None:
        """Add the vectors of all other ranks."""
        others = range(1, self.communicator.size)
        if self.communicator.rank:
            wait([self.communicator.Isend(partial, 0)])
            wait([self.communicator.Irecv(partial, 0)])
            return
        received = partial.copy()
        for rank in others:
            wait([self.communicator.Irecv(received, rank)])
            partial += received
        wait([self.communicator.Isend(partial, rank) for rank in others])
