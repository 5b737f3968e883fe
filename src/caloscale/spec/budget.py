"""Money."""

from __future__ import annotations

from typing import Literal

from caloscale.spec.block import Block


class PricedMachine(Block):
    """A machine type of the price catalogue."""

    machine_type: str = "n1-standard-2"
    """Name of the machine type in the catalogue."""
    region: str = "us-central1"
    """Region of the price."""
    purchase: Literal["on-demand", "spot"] = "on-demand"
    """spot: may be taken away at any time, cheaper."""


class Budget(Block):
    """What the run may cost, and what it is priced on."""

    priced_as: PricedMachine = PricedMachine()
    """A run on a machine of one's own has no bill; its measured seconds are priced on this machine type.
    Choose one with the same number of cores: seconds are not converted between machines."""
