"""Known vectors, and the exchanges that are tried on them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from caloscale.sagips.exchange import Groups, equal_groups

EPOCHS = 3
BROKEN_RANK, BROKEN_EPOCH = 2, 1
"""This rank's gradient is not finite in this epoch."""


def gradient(rank: int, epoch: int, size: int) -> np.ndarray:
    """Whole numbers, so that sums of them are exact; one infinity among them where it is broken."""
    vector = np.float32((np.arange(size) * (rank + 3) + 17 * epoch) % 101 - 50 * (rank % 2))
    if (rank, epoch) == (BROKEN_RANK, BROKEN_EPOCH):
        vector[size // 2] = np.inf if size % 2 else np.nan
    return vector


def groups_of_sizes(sizes: Iterable[int]) -> Groups:
    """Groups of consecutive ranks."""
    ends = list(accumulate(sizes))
    return tuple(tuple(range(first, end)) for first, end in zip([0, *ends], ends))


def whole(ranks: int) -> Groups:
    return groups_of_sizes([ranks])


def single(ranks: int) -> Groups:
    return groups_of_sizes([1] * ranks)


def uneven(ranks: int) -> Groups:
    """Groups of 1, 2, 3, ... ranks, and the rest."""
    sizes: list[int] = []
    while (left := ranks - sum(sizes)) > 0:
        sizes.append(min(len(sizes) + 1, left))
    return groups_of_sizes(sizes)


def pairs(ranks: int) -> Groups:
    return equal_groups((ranks + 1) // 2, ranks)


@dataclass(frozen=True)
class PlannedExchange:
    method: str
    groups: Callable[[int], Groups] = whole
    outer_every: int = 1
    leader: str = "first"
    seed: int = 0
    size: int = 37


PLANS = {
    "none": PlannedExchange("none"),
    "all-reduce": PlannedExchange("all-reduce"),
    "ring": PlannedExchange("ring", size=20),
    "ring-large": PlannedExchange("ring", size=20_001),
    **{method: PlannedExchange(method) for method in ("central", "chunked-ring")},
    "chunked-ring-short": PlannedExchange("chunked-ring", size=3),
    "hierarchical": PlannedExchange("hierarchical", groups=uneven),
    "grouped-ring-pairs": PlannedExchange("grouped-ring", groups=pairs),
    **{
        f"{method}-{name}": PlannedExchange(method, **options)
        for method in ("grouped-ring", "grouped-rma")
        for name, options in {
            "node": {"size": 20},
            "single": {"groups": single, "outer_every": 2},
            "uneven": {"groups": uneven, "outer_every": 3},
            "random": {"groups": uneven, "outer_every": 2, "leader": "random", "seed": 5},
        }.items()
    },
}
