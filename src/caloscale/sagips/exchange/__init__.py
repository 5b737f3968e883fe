"""Exchange of the generator's gradient between ranks, one module a method.

The gradient is one flat float32 array in host memory. Methods: see `METHODS`. None of them needs TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from caloscale.errors import ConfigurationError
from caloscale.sagips.exchange.all_reduce import AllReduce
from caloscale.sagips.exchange.base import Counts, Exchange
from caloscale.sagips.exchange.central import Central
from caloscale.sagips.exchange.chunked_ring import ChunkedRing
from caloscale.sagips.exchange.double_binary_tree import DoubleBinaryTree
from caloscale.sagips.exchange.grouped_ring import GroupedRing
from caloscale.sagips.exchange.grouped_rma import GroupedRma
from caloscale.sagips.exchange.groups import Groups, Leader, equal_groups, groups_of_sizes, node_groups
from caloscale.sagips.exchange.hierarchical import Hierarchical
from caloscale.sagips.exchange.none import NoExchange
from caloscale.sagips.exchange.ring import Ring
from caloscale.sagips.exchange.torus import Torus

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["COMPARED", "METHODS", "Counts", "Exchange", "make_exchange", "make_groups"]

_OVER_ALL: dict[str, Callable[[MPI.Intracomm], Exchange]] = {
    "all-reduce": AllReduce,
    "ring": Ring,
    "central": Central,
    "chunked-ring": ChunkedRing,
    "double-binary-tree": DoubleBinaryTree,
    "torus": Torus,
}
METHODS = ("none", "all-reduce", "ring", "grouped-ring", "grouped-rma")
"""Methods of the paper, and the synchronous baseline."""
COMPARED = ("central", "chunked-ring", "double-binary-tree", "torus", "hierarchical")
"""Other synchronous methods, for comparison."""


def make_exchange(
    method: str,
    communicator: MPI.Intracomm,
    groups: Groups | Sequence[int] | int | None = None,
    *,
    outer_every: int = 1,
    leader: Leader = "first",
    seed: int = 0,
) -> Exchange:
    """An exchange over the ranks of a communicator. All ranks call it, with the same arguments.

    groups: as `make_groups` takes them, or what it has made. outer_every: epochs between two exchanges of the group
    leaders. seed: that of random leaders. Raises ConfigurationError.
    """
    if outer_every < 1:
        raise ConfigurationError(
            "must be at least 1", field="solver.outerEvery", value=outer_every, remedy="write 1 or more"
        )
    if method == "none":
        return NoExchange()
    if method in _OVER_ALL:
        return _OVER_ALL[method](communicator)
    if method == "hierarchical":
        return Hierarchical(communicator, make_groups(groups, communicator))
    grouped = {"grouped-ring": GroupedRing, "grouped-rma": GroupedRma}
    if method in grouped:
        return grouped[method](
            communicator, make_groups(groups, communicator), outer_every=outer_every, leader=leader, seed=seed
        )
    raise ConfigurationError(
        "is not a method of exchange",
        field="solver.exchange",
        value=method,
        remedy=f"write one of {', '.join((*METHODS, *COMPARED))}",
    )


def make_groups(groups: Groups | Sequence[int] | int | None, communicator: MPI.Intracomm) -> Groups:
    """The ranks of each group. All ranks call it. Raises ConfigurationError.

    groups: sizes of groups of consecutive ranks, or their number, or None: a group is the ranks of a node. Groups that
    are made already come back as they are.
    """
    if groups is None:
        return node_groups(communicator)
    if isinstance(groups, int):
        return equal_groups(groups, communicator.size)
    sizes = [group for group in groups if isinstance(group, int)]
    return groups_of_sizes(sizes, communicator.size) if sizes or not groups else cast("Groups", groups)
