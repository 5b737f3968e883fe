"""The all-reduce on two binary trees, half of the vector on each. For comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from caloscale.sagips.exchange.base import Floats, SynchronousExchange
from caloscale.sagips.exchange.waiting import wait

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True)
class Node:
    """A rank in a tree."""

    parent: int | None
    children: tuple[int, ...]


def parents(ranks: int) -> tuple[list[int | None], list[int | None]]:
    """The parent of each rank in both trees; None for the root.

    Odd ranks are the leaves of the first tree. The second one is the first with the order of ranks reversed, or shifted
    by one if their number is odd, so that a rank (but for one) is a leaf in one of the trees and sends and receives no
    more than the others. Source: Sanders, Speck and Traeff, Parallel Computing 35 (2009) 581; the numbering is that of
    NCCL 2.4.
    """
    first = [_parent(rank, ranks) for rank in range(ranks)]
    second: list[int | None] = [None] * ranks
    for rank, parent in enumerate(first):
        second[_other(rank, ranks)] = None if parent is None else _other(parent, ranks)
    return first, second


def _parent(rank: int, ranks: int) -> int | None:
    if rank == 0:
        return None
    lowest = rank & -rank
    parent = (rank ^ lowest) | (lowest << 1)
    return parent if parent < ranks else rank ^ lowest


def _other(rank: int, ranks: int) -> int:
    """The rank of the second tree that corresponds to a rank of the first."""
    return (rank + 1) % ranks if ranks % 2 else ranks - 1 - rank


def node(tree: list[int | None], rank: int) -> Node:
    """A rank's parent and children."""
    return Node(tree[rank], tuple(other for other, parent in enumerate(tree) if parent == rank))


class DoubleBinaryTree(SynchronousExchange):
    """Sums go up both trees at the same time, and down again."""

    def __init__(self, communicator: MPI.Intracomm) -> None:
        super().__init__(communicator)
        self._nodes = [node(tree, communicator.rank) for tree in parents(communicator.size)]

    def add_others(self, partial: Floats, epoch: int) -> None:
        """Add the vectors of all other ranks."""
        halves = np.array_split(partial, len(self._nodes))
        arriving = []
        for tag, (at, half) in enumerate(zip(self._nodes, halves)):
            buffers = [np.empty_like(half) for _ in at.children]
            requests = [self.communicator.Irecv(b, child, tag) for b, child in zip(buffers, at.children)]
            arriving.append((requests, buffers))
        sent: list[MPI.Request] = []
        for tag, (at, half, (requests, buffers)) in enumerate(zip(self._nodes, halves, arriving)):
            for request, buffer in zip(requests, buffers):
                wait([request])
                half += buffer
            if at.parent is not None:
                sent.append(self.communicator.Isend(half, at.parent, tag))
        wait(sent)
        sent = []
        for tag, (at, half) in enumerate(zip(self._nodes, halves)):
            if at.parent is not None:
                wait([self.communicator.Irecv(half, at.parent, tag)])
            sent += [self.communicator.Isend(half, child, tag) for child in at.children]
        wait(sent)
