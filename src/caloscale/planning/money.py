"""Money in parts that add up."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

CENT = Decimal("0.01")
SMALL_UNIT = Decimal("0.0001")
"""Parts of a small run cost less than a cent: they are stated to a hundredth of one."""
SECONDS_PER_HOUR = 3600
MoneyT = TypeVar("MoneyT", float, NDArray[np.float64])


def usd_of(usd_per_hour: MoneyT, seconds: MoneyT) -> MoneyT:
    """US dollars of a number of seconds at a rate; estimates, bills and showers are all priced by it."""
    return usd_per_hour * seconds / SECONDS_PER_HOUR


def held_usd(
    usd_per_node_hour: MoneyT, node_seconds: MoneyT, usd_per_cluster_hour: MoneyT, cluster_seconds: MoneyT
) -> MoneyT:
    """US dollars of nodes that are held and of their cluster's control plane: estimates and bills price both by it."""
    return usd_of(usd_per_node_hour, node_seconds) + usd_of(usd_per_cluster_hour, cluster_seconds)


def split_exactly(amounts: Sequence[float], unit: Decimal = CENT) -> tuple[Decimal, list[Decimal]]:
    """The total of non-negative amounts, rounded to ``unit``, and parts, rounded too, that add up to it exactly.

    Largest remainder (Hamilton): every part is rounded down, and the units that are missing go to the largest
    remainders, so that no part is off by more than one unit. Raises ValueError for a negative amount.
    """
    if any(amount < 0 for amount in amounts):
        raise ValueError(f"amounts must not be negative: {list(amounts)}")
    exact = [Decimal(repr(float(amount))) / unit for amount in amounts]
    total = sum(exact, Decimal(0)).quantize(Decimal(1), ROUND_HALF_UP)
    parts = [Decimal(int(amount)) for amount in exact]
    missing = int(total - sum(parts, Decimal(0)))
    by_remainder = sorted(range(len(exact)), key=lambda i: (parts[i] - exact[i], i))
    for index in by_remainder[:missing]:
        parts[index] += 1
    return total * unit, [part * unit for part in parts]
