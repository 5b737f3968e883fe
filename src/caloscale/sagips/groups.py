"""Groups of ranks, and their leaders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from caloscale.errors import ConfigurationError

if TYPE_CHECKING:
    from mpi4py import MPI

Groups = tuple[tuple[int, ...], ...]
"""The ranks of each group, ascending. Every rank is in one group."""
Leader = Literal["first", "random"]


def groups_of_sizes(sizes: Sequence[int], ranks: int) -> Groups:
    """Groups of consecutive ranks with these sizes. Raises ConfigurationError when they do not hold all ranks."""
    if min(sizes, default=0) < 1 or sum(sizes) != ranks:
        remedy = f"give sizes of at least 1 whose sum is {ranks}"
        raise ConfigurationError(f"sizes {list(sizes)} do not make {ranks} ranks", field="solver.groups", remedy=remedy)
    ends = np.cumsum(sizes).tolist()
    return tuple(tuple(range(end - size, end)) for size, end in zip(sizes, ends))


def equal_groups(count: int, ranks: int) -> Groups:
    """So many groups of consecutive ranks, as equal as possible. Raises ConfigurationError."""
    if not 1 <= count <= ranks:
        problem = f"{ranks} ranks cannot be divided into {count} groups"
        remedy = f"write a number from 1 to {ranks}"
        raise ConfigurationError(problem, field="solver.groups", value=count, remedy=remedy)
    return groups_of_sizes([ranks // count + (index < ranks % count) for index in range(count)], ranks)


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
