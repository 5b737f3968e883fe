"""Calibration with own runs: predictions against measurements."""

from collections.abc import Sequence

from caloscale.errors import InputError
from caloscale.planning.billing.usage import RunUse, measurement_of
from caloscale.planning.catalogue.hardware import network_of_preset
from caloscale.planning.catalogue.measurements import Measurement, interruption_rate
from caloscale.planning.search.own_machine import MachineSpeed
from caloscale.planning.step_time.throughput import LEVEL, setups_of
from caloscale.planning.step_time.timing import Timings
from caloscale.spec.block import Block


class Residual(Block):
    """A run, and the prediction for it without its own measurement."""

    source: str
    accelerator: str
    count: int
    step_seconds: float
    """Measured step, s."""
    predicted_seconds: float
    """Predicted step, s."""
    predicted_interval: tuple[float, float]
    """Its 90% interval, s."""
    error: float
    """Predicted over measured, minus 1."""
    inside: bool
    """Whether the measurement lies in the interval."""


class InterruptionRate(Block):
    """Interruptions that were counted on own spot runs."""

    cloud: str
    accelerator: str
    region: str
    per_node_hour: float
    """Interruptions of a node per hour, (k + 1/2) / hours."""


class Calibration(Block):
    """What own runs add to the measurements."""

    level: float = LEVEL
    """Level of the intervals."""
    residuals: tuple[Residual, ...] = ()
    """The runs on rented machines, each with its prediction."""
    interruptions: tuple[InterruptionRate, ...] = ()
    own_machines: tuple[MachineSpeed, ...] = ()
    """What runs on machines at hand measured."""
    warnings: tuple[str, ...] = ()
    """Interruptions that are not counted, and runs that are left out."""


def calibrate(uses: Sequence[RunUse], measurements: Sequence[Measurement]) -> Calibration:
    """What finished runs add to ``measurements``.

    Raises InputError for runs whose figures do not add up, and when none of them measured anything.
    """
    rows, left_out = [], []
    for use in uses:
        try:
            row = measurement_of(use)
        except ValueError as problem:
            remedy = "check its usage file"
            raise InputError(f"does not add up: {problem}", file=f"run {use.name}", remedy=remedy) from problem
        if row is None:
            left_out.append(f"run {use.name} measured no training (observed in docs/bill.md): it is left out")
        else:
            rows.append(row)
    if not rows:
        remedy = "give fetched runs on rented accelerators whose last attempt completed two epochs (observed in "
        remedy += "docs/bill.md), or runs on this machine whose training succeeded"
        raise InputError("no run measured its training", field="observed", remedy=remedy)
    residuals = []
    for row in rows:
        network = network_of_preset(row.network)
        if network is None:
            remedy = f"leave {row.source} out"
            raise InputError("is not a preset", field="observed.network", value=row.network, remedy=remedy)
        timing = Timings(measurements, network).of(row.provider, row.accelerator)
        predicted = timing.models[0].predict(setups_of([row]))
        seconds, low, high = (float(each[0]) for each in (predicted.seconds, predicted.low, predicted.high))
        residuals.append(
            Residual(
                **row.values_of("source", "accelerator", "count", "step_seconds"),
                predicted_seconds=seconds,
                predicted_interval=(low, high),
                error=seconds / row.step_seconds - 1,
                inside=low <= row.step_seconds <= high,
            )
        )
    everything = (*measurements, *rows)
    markets = dict.fromkeys((row.provider, row.accelerator, row.region) for row in rows)
    rates = [(market, interruption_rate(everything, *market)) for market in markets]
    return Calibration(
        residuals=tuple(residuals),
        interruptions=tuple(
            InterruptionRate(cloud=cloud, accelerator=accelerator, region=region, per_node_hour=rate)
            for (cloud, accelerator, region), rate in rates
            if rate is not None
        ),
        warnings=(*(f"{row.source}: {row.note}" for row in rows if row.note), *left_out),
    )
