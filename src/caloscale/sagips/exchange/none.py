"""No exchange: an ensemble of independent ranks."""

from __future__ import annotations

from caloscale.sagips.exchange.base import Floats, SumExchange


class NoExchange(SumExchange):
    """Each rank keeps its own gradient; one that is not finite is replaced by zeros."""

    def add_others(self, partial: Floats, epoch: int) -> None:
        """Add nothing."""

    def close(self) -> None:
        """Nothing is held."""
