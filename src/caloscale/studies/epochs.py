"""What measured epochs cost at the prices of a day, with the assumption about the hosts."""

import datetime as dt

from caloscale.planning.catalogue.hardware import find_machine, find_slices, load_accelerators
from caloscale.planning.catalogue.measurements import Measurement
from caloscale.planning.catalogue.prices import CapacityType, Key, Prices, Rate, add_up, machine_rate
from caloscale.planning.search.offers import slice_rate
from caloscale.spec.block import Block


class EpochCost(Block):
    """What an epoch of a measured run costs."""

    title: str
    """The accelerators."""
    host: str
    """What is assumed about their hosts."""
    region: str
    """Region of the prices."""
    capacity_type: CapacityType
    """spot or on-demand."""
    seconds: float
    """The epoch, s."""
    seconds_are: str
    """What is in it."""
    usd_per_hour: float
    """Accelerators and hosts, US dollars per hour."""
    usd: float
    """US dollars for the epoch."""
    as_of: dt.date
    """Day of the prices."""
    observed_on: dt.date
    """Day on which the oldest of them was seen."""
    source: str
    """Where the measurement is from."""


class CostRatio(Block):
    """Two epochs beside each other: a ratio is nothing without its dates and hosts."""

    cheaper: EpochCost
    more_expensive: EpochCost
    ratio: float
    """Ratio of the two prices of an epoch."""
    statement: str
    """The ratio in a sentence, with region, capacity type, date and hosts."""


def epoch_cost(
    measured: Measurement,
    prices: Prices,
    region: str,
    capacity_type: CapacityType,
    as_of: dt.date,
    *,
    host: str | None = None,
    hosts: int | None = None,
    with_test: bool = False,
) -> EpochCost:
    """What an epoch of a measured run costs at the prices of a day.

    ``host``: a machine type that is rented for the accelerators, ``hosts`` of them (absent: one a node of the run);
    absent: the accelerators alone, or what their price includes. ``with_test``: the test pass as well.
    Raises PriceError naming the row to add.
    """
    rate, title, included = _accelerators(measured, prices, region, capacity_type, as_of)
    usd_per_hour, observed_on = rate.usd_per_hour, rate.observed_on
    assumption = "hosts in the price" if included else "without hosts"
    if host is not None:
        number = hosts or measured.nodes
        rented = machine_rate(prices, find_machine(host), region, capacity_type, as_of)
        usd_per_hour += number * rented.usd_per_hour
        observed_on = min(observed_on, rented.observed_on)
        assumption = f"with {number} x {host}"
    seconds = measured.train_seconds + (measured.test_seconds or 0.0 if with_test else 0.0)
    return EpochCost(
        title=title,
        host=assumption,
        region=region,
        capacity_type=capacity_type,
        seconds=seconds,
        seconds_are="training and test pass" if with_test else "training",
        usd_per_hour=usd_per_hour,
        usd=seconds / 3600 * usd_per_hour,
        as_of=as_of,
        observed_on=observed_on,
        source=measured.source,
    )


def cost_ratio(one: EpochCost, other: EpochCost) -> CostRatio:
    """Which of two epochs costs less, and by how much."""
    cheaper, more_expensive = sorted((one, other), key=lambda cost: cost.usd)
    ratio = more_expensive.usd / cheaper.usd

    def describe(cost: EpochCost) -> str:
        return f"{cost.title} ({cost.capacity_type}, {cost.region}, {cost.host}, prices of {cost.as_of})"

    return CostRatio(
        cheaper=cheaper,
        more_expensive=more_expensive,
        ratio=ratio,
        statement=f"an epoch ({cheaper.seconds_are}) on {describe(cheaper)} costs 1/{ratio:.2f} of that on "
        f"{describe(more_expensive)}",
    )


def _accelerators(
    measured: Measurement, prices: Prices, region: str, capacity_type: CapacityType, as_of: dt.date
) -> tuple[Rate, str, bool]:
    if load_accelerators()[measured.accelerator].kind == "tpu":
        row = find_slices(measured.accelerator, chips=measured.count)[0]
        rate, included = slice_rate(prices, row, region, capacity_type, as_of)
        return rate, f"{row.price_sku}", included
    row_of_gpu = prices.find(Key(measured.provider, region, "gpu", measured.accelerator, capacity_type), as_of)
    title = f"{measured.count} x {measured.accelerator}"
    return add_up(title, [(row_of_gpu, measured.count)], as_of, prices.added), title, row_of_gpu.includes_host
