"""Choosing among candidates by money and time. All functions work on arrays, one element a candidate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Indices = NDArray[np.intp]
Limit = Literal["maxUsd", "deadline", "both"]


@dataclass(frozen=True)
class Choice:
    """What was chosen, or what comes nearest."""

    chosen: int | None
    """Index of the candidate; None when none meets the limits."""
    nearest: int | None
    """The one that exceeds its worst limit by the smallest factor, when none meets them; None otherwise."""
    binding: Limit | None
    """The limit that no candidate meets; both: neither is met, or each of them but never the two together."""


def pareto_front(usd: Numbers, seconds: Numbers, eligible: NDArray[np.bool_]) -> Indices:
    """Indices of the candidates that no other beats in both money and time, cheapest first; of equals the first."""
    known = np.flatnonzero(eligible & np.isfinite(usd) & np.isfinite(seconds))
    order = known[np.lexsort((known, seconds[known], usd[known]))]
    fastest = np.minimum.accumulate(np.concatenate([[np.inf], seconds[order]]))[:-1]
    return order[seconds[order] < fastest]


def choose(
    usd: Numbers,
    seconds: Numbers,
    eligible: NDArray[np.bool_],
    *,
    max_usd: float | None = None,
    deadline_seconds: float | None = None,
) -> Choice:
    """The cheapest that meets the deadline; with a budget alone, the fastest within it; without limits, the cheapest.

    With both limits: the cheapest that meets the deadline, if it is within the budget. More budget never makes the
    choice slower, a later deadline never makes it more expensive: the candidates that are allowed only grow.
    """
    front = pareto_front(usd, seconds, eligible)
    if not len(front):
        return Choice(None, None, None)
    affordable = usd[front] <= (np.inf if max_usd is None else max_usd)
    in_time = seconds[front] <= (np.inf if deadline_seconds is None else deadline_seconds)
    allowed = front[affordable & in_time]
    if len(allowed):
        fastest = deadline_seconds is None and max_usd is not None
        return Choice(int(allowed[-1 if fastest else 0]), None, None)
    excess = np.maximum(
        usd[front] / max_usd if max_usd is not None else 0.0,
        seconds[front] / deadline_seconds if deadline_seconds is not None else 0.0,
    )
    binding: Limit = "both" if affordable.any() == in_time.any() else "deadline" if affordable.any() else "maxUsd"
    return Choice(None, int(front[np.argmin(excess)]), binding)
