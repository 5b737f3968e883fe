"""Groups of ranks, and their leaders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI

Groups = tuple[tuple[int, ...], ...]
"""The ranks of each group, ascending. Every rank is in one group."""
Leader = Literal["first", "random"]


def equal_groups(count: int, ranks: int) -> Groups:
    """So many groups of consecutive ranks, as equal as possible."""
    return tuple(tuple(group.tolist()) for group in np.array_split(np.arange(ranks), count))


def node_groups(communicator: MPI.Comm) -> Groups:
    """A group for each node: ranks that share memory. All ranks call it."""
    from mpi4py import MPI

    node = communicator.Split_type(MPI.COMM_TYPE_SHARED, communicator.rank)
    first = node.bcast(communicator.rank)
    node.Free()
    firsts = communicator.allgather(first)
    return tuple(tuple(rank for rank, other in enumerate(firsts) if other == first) for first in dict.fromkeys(firsts))


def group_of(rank: int, groups: Groups) -> tuple[int, ...]:
    """The group that holds a rank."""
    return next(group for group in groups if rank in group)


def leaders(groups: Groups, epoch: int, choice: Leader, seed: int) -> tuple[int, ...]:
    """One rank of each group: the first, or one drawn for this epoch. All ranks draw the same."""
    if choice == "first":
        return tuple(group[0] for group in groups)
    draw = np.random.default_rng([seed, epoch])
    return tuple(group[draw.integers(len(group))] for group in groups)
