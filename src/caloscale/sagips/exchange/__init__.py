"""Exchange of the generator's gradient between ranks, one module a method.

The gradient is one flat float32 array in host memory. Methods: see `METHODS`. None of them needs TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from caloscale.errors import ConfigurationError
from caloscale.sagips.exchange.all_reduce import AllReduce
from caloscale.sagips.exchange.base import Counts, Exchange
from caloscale.sagips.exchange.grouped_ring import GroupedRing
from caloscale.sagips.exchange.grouped_rma import GroupedRma
from caloscale.sagips.exchange.groups import Groups, Leader, equal_groups, groups_of_sizes, node_groups
from caloscale.sagips.exchange.none import NoExchange
from caloscale.sagips.exchange.ring import Ring

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["METHODS", "Counts", "Exchange", "make_exchange"]

METHODS = ("none", "all-reduce", "ring", "grouped-ring", "grouped-rma")
"""Names of the methods."""


def make_exchange(
    method: str,
    communicator: MPI.Intracomm,
    groups: Sequence[int] | int | None = None,
    *,
    outer_every: int = 1,
    leader: Leader = "first",
    seed: int = 0,
) -> Exchange:
    """An exchange over the ranks of a communicator. All ranks call it, with the same arguments.

    groups: sizes of groups of consecutive ranks, or their number, or None: a group is the ranks of a node. outer_every:
    epochs between two exchanges of the group leaders. seed: that of random leaders. Raises ConfigurationError.
    """
    simple: dict[str, Callable[[], Exchange]] = {
        "none": NoExchange,
        "all-reduce": lambda: AllReduce(communicator),
        "ring": lambda: Ring(communicator),
    }
    grouped = {"grouped-ring": GroupedRing, "grouped-rma": GroupedRma}
    if method in simple:
        return simple[method]()
    if method in grouped:
        if outer_every < 1:
            raise ConfigurationError(
                "must be at least 1", field="solver.outerEvery", value=outer_every, remedy="write 1 or more"
            )
        return grouped[method](
            communicator, _groups(groups, communicator), outer_every=outer_every, leader=leader, seed=seed
        )
    raise ConfigurationError(
        "is not a method of exchange",
        field="solver.exchange",
        value=method,
        remedy=f"write one of {', '.join(METHODS)}",
    )


def _groups(groups: Sequence[int] | int | None, communicator: MPI.Intracomm) -> Groups:
    if groups is None:
        return node_groups(communicator)
    if isinstance(groups, int):
        return equal_groups(groups, communicator.size)
    return groups_of_sizes(groups, communicator.size)
