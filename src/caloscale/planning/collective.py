"""What it costs that workers must agree: all-reduces by the alpha-beta model, and waiting for the slowest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

Numbers = NDArray[np.float64]


def ring_seconds(size_bytes: float, members: int, alpha_seconds: float, bytes_per_second: float) -> float:
    """Time of a ring all-reduce: 2(n-1) alpha + 2((n-1)/n) S/beta.

    Patarasuk and Yuan, J. Parallel Distrib. Comput. 69 (2009) 117. One member needs none.
    """
    hops = 2 * (members - 1)
    return hops * alpha_seconds + hops / members * size_bytes / bytes_per_second


def transfer_seconds(sizes_bytes: Sequence[float], members: Numbers, bytes_per_second: float) -> Numbers:
    """Bandwidth part of the ring all-reduces of a step, s, for arrays of members."""
    return np.asarray(2 * (members - 1) / members * sum(sizes_bytes) / bytes_per_second)


def expected_maximum(members: Numbers) -> Numbers:
    """Expected maximum of n standard normal numbers: a synchronous step waits for the slowest worker.

    Blom's approximation, the normal quantile of (n - 3/8)/(n + 1/4): right within five per cent from n = 2 on, where
    the asymptotic form sqrt(2 ln n) is twice too large. Source: G. Blom, Statistical Estimates (1958).
    """
    return np.asarray(ndtri((members - 0.375) / (members + 0.25)))
