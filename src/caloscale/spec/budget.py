"""Money."""

from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field, PlainSerializer, WithJsonSchema

from caloscale.spec.block import Block
from caloscale.spec.values import Duration, seconds_of

USD_PATTERN = r"^[0-9]{1,12}([.][0-9]{1,20})?$"
INT_OR_STRING = "x-kubernetes-int-or-string"


def _as_text(usd: float) -> str:
    return format(Decimal(repr(float(usd))), "f").removesuffix(".0")


Usd = Annotated[
    float,
    PlainSerializer(_as_text, when_used="json"),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": USD_PATTERN}], INT_OR_STRING: True}
    ),
]
"""US dollars, a decimal string in files and in custom resources, as the conventions of Kubernetes ask for."""


class PricedMachine(Block):
    """A machine type of the price catalogue."""

    machine_type: str = "n1-standard-2"
    """Name of the machine type in the catalogue. GPUs that are added to it (n1) are named with it:
    n1-standard-8 with 1 x nvidia-tesla-t4."""
    region: str = "us-central1"
    """Region of the price."""
    capacity_type: Literal["on-demand", "spot"] = "on-demand"
    """spot: may be preempted at any time, cheaper."""


class Budget(Block):
    """What the run may cost, how long it may take, and what it is priced on."""

    max_usd: Usd | None = Field(default=None, gt=0)
    """Most that the run may cost, US dollars, such as 400 or "99.50"; absent: no limit."""
    deadline: Duration | None = None
    """Longest time from the start of the machines to the end of the training, such as 6h; absent: no limit."""
    max_price_age: Duration = "730d"
    """Prices that were seen longer ago than this are not planned with. Younger ones of more than 90 days are used with
    a warning, as is any age in a bill: its money has been spent."""
    priced_as: PricedMachine = PricedMachine()
    """A run on a machine of one's own has no bill; its measured seconds are priced on this machine type.
    Choose one with the same number of cores: seconds are not converted between machines."""

    @property
    def max_price_age_days(self) -> float:
        """The largest age of a price in days."""
        return seconds_of(self.max_price_age) / 86_400

    @property
    def deadline_seconds(self) -> float | None:
        """The deadline in seconds."""
        return None if self.deadline is None else seconds_of(self.deadline)
