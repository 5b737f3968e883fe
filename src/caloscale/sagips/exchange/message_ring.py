"""A ring of messages over some ranks of a communicator: each vector travels once around."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from caloscale.sagips.exchange.base import Floats
from caloscale.sagips.exchange.waiting import wait

if TYPE_CHECKING:
    from mpi4py import MPI


class MessageRing:
    """Adds up the vectors of its members.

    n - 1 times a member receives a vector from its left neighbour, adds it to its sum and sends it on to the right.
    There is no barrier: a member waits for its neighbours only. Source: arXiv 2407.00051, section on the
    asynchronous ring all-reduce.
    """

    def __init__(self, communicator: MPI.Comm, members: Sequence[int]) -> None:
        position = list(members).index(communicator.rank)
        self._communicator, self._steps = communicator, len(members) - 1
        self._left, self._right = members[position - 1], members[(position + 1) % len(members)]

    def add_others(self, partial: Floats) -> None:
        """Add the vectors of the other members to ``partial``, in place."""
        if self._steps == 0:
            return
        sent, received = partial.copy(), np.empty_like(partial)
        for step in range(self._steps):
            requests = [self._communicator.Irecv(received, self._left), self._communicator.Isend(sent, self._right)]
            if step:
                # While it is sent on: what arrived in the step before.
                partial += sent
            wait(requests)
            sent, received = received, sent
        partial += sent
