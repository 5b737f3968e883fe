"""Known vectors, and the exchanges that are tried on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

EPOCHS = 3
BROKEN_RANK, BROKEN_EPOCH = 2, 1
"""This rank's gradient is not finite in this epoch."""


def gradient(rank: int, epoch: int, size: int) -> np.ndarray:
    """Whole numbers, so that sums of them are exact; one infinity among them where it is broken."""
    vector = np.float32((np.arange(size) * (rank + 3) + 17 * epoch) % 101 - 50 * (rank % 2))
    if (rank, epoch) == (BROKEN_RANK, BROKEN_EPOCH):
        vector[size // 2] = np.inf if size % 2 else np.nan
    return vector


def whole(ranks: int) -> list[int]:
    return [ranks]


def single(ranks: int) -> list[int]:
    return [1] * ranks


def uneven(ranks: int) -> list[int]:
    """Groups of 1, 2, 3, ... ranks, and the rest."""
    sizes: list[int] = []
    while (left := ranks - sum(sizes)) > 0:
        sizes.append(min(len(sizes) + 1, left))
    return sizes


def pairs(ranks: int) -> int:
    """A number of groups rather than their sizes."""
    return (ranks + 1) // 2


@dataclass(frozen=True)
class PlannedExchange:
    method: str
    sizes: Callable[[int], list[int] | int] | None = None
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
    "hierarchical": PlannedExchange("hierarchical", sizes=uneven),
    "grouped-ring-pairs": PlannedExchange("grouped-ring", sizes=pairs),
    **{
        f"{method}-{name}": PlannedExchange(method, **options)
        for method in ("grouped-ring", "grouped-rma")
        for name, options in {
            "node": {},
            "whole": {"sizes": whole, "size": 20},
            "single": {"sizes": single, "outer_every": 2},
            "uneven": {"sizes": uneven, "outer_every": 3},
            "random": {"sizes": uneven, "outer_every": 2, "leader": "random", "seed": 5},
        }.items()
    },
}
