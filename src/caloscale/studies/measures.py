"""What a point of a sweep computes from its inputs; measured epochs at the prices of a day."""

import datetime as dt
import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module, resources
from pathlib import Path
from typing import Any, Literal

from caloscale import __version__
from caloscale.errors import ConfigurationError
from caloscale.planning.catalogue.hardware import find_machine, find_slices, load_accelerators
from caloscale.planning.catalogue.measurements import Measurement, load_measurements
from caloscale.planning.catalogue.prices import CapacityType, Key, Prices, Rate, add_up, load_prices, node_rate
from caloscale.planning.search.plan import Candidate, plan
from caloscale.spec import Run
from caloscale.spec.block import Block
from caloscale.studies.points import configured_run, validated


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
    rate, number_of, title = _accelerators(measured, prices, region, capacity_type, as_of)
    usd_per_hour, observed_on = number_of * rate.usd_per_hour, rate.observed_on
    assumption = "hosts in the price" if rate.includes_host else "without hosts"
    if host is not None:
        number = hosts or measured.nodes
        rented = node_rate(prices, find_machine(host), region, capacity_type, as_of)
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
) -> tuple[Rate, int, str]:
    """A rate, how many times it is paid, and for what."""
    if load_accelerators()[measured.accelerator].kind == "tpu":
        row = find_slices(measured.accelerator, chips=measured.count)[0]
        return node_rate(prices, row, region, capacity_type, as_of), row.hosts, row.price_sku
    row_of_gpu = prices.find(Key(measured.provider, region, "gpu", measured.accelerator, capacity_type), as_of)
    title = f"{measured.count} x {measured.accelerator}"
    return add_up(title, [(row_of_gpu, measured.count)], as_of, prices.added), 1, title


@dataclass(frozen=True)
class Context:
    """What all points of a study share."""

    as_of: dt.date
    """Day that `today` stands for."""
    prices: tuple[Path, ...] = ()
    """Files of prices with precedence over the catalogue."""
    measurements: tuple[Path, ...] = ()
    """Files of measurements beside the study's."""

    @functools.cached_property
    def price_list(self) -> Prices:
        """The prices."""
        return load_prices(self.prices)

    @functools.cached_property
    def measured(self) -> tuple[Measurement, ...]:
        """The measurements."""
        return load_measurements(self.measurements)

    @functools.cached_property
    def catalogues(self) -> str:
        """Hash of everything in catalogues and files that a point may rest on."""
        digest = hashlib.sha256(__version__.encode())
        folder = resources.files("caloscale.planning.catalogue").joinpath("data")
        files = sorted((file for file in folder.iterdir() if file.name.endswith(".csv")), key=lambda file: file.name)
        for file in (*files, *self.prices, *self.measurements):
            digest.update(file.read_bytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Measure:
    """A way of computing points."""

    compute: Callable[[Mapping[str, Any], Context, Path], dict[str, Any]]
    """Result, JSON-able, from the inputs; the folder is the point's own, for what takes long."""
    kind: Literal["measured", "modelled", "priced"]
    """Its figures: measured on this machine, modelled by the planner, or published times with prices."""
    rests_on: Callable[[Context], str]
    """What besides its inputs a point depends on; a finished point of another value is computed again."""


class EpochInputs(Block):
    """Which measured run, and at which prices."""

    network: str = "variable-angle"
    """Preset."""
    provider: str = "gcp"
    """Cloud that it ran on."""
    accelerator: str
    """GPU model or TPU generation."""
    count: int
    """GPUs, or TPU chips."""
    nodes: int | None = None
    """Nodes; absent: any."""
    workers: int | None = None
    """Workers; absent: any."""
    batch_per_replica: int | None = None
    """Showers in a replica's batch; absent: any."""
    region: str
    """Region of the prices."""
    capacity_type: CapacityType
    """spot or on-demand."""
    as_of: dt.date
    """Day of the prices."""
    host: str | None = None
    """Machine type that is rented for the accelerators; absent: none."""
    hosts: int | None = None
    """How many; absent: one a node."""
    with_test: bool = False
    """With the test pass."""


def _epoch_cost(inputs: Mapping[str, Any], context: Context, _: Path) -> dict[str, Any]:
    return _cost_of(inputs, context).as_values()


def _epoch_ratio(inputs: Mapping[str, Any], context: Context, _: Path) -> dict[str, Any]:
    """Two epochs: inputs that begin with ``one.`` and ``other.`` differ, the rest is shared."""
    shared = {name: value for name, value in inputs.items() if "." not in name}
    costs = [
        _cost_of(shared | {k.removeprefix(side): v for k, v in inputs.items() if k.startswith(side)}, context)
        for side in ("one.", "other.")
    ]
    return cost_ratio(*costs).as_values()


def _cost_of(inputs: Mapping[str, Any], context: Context) -> EpochCost:
    asked = validated(EpochInputs, inputs)
    include = {"network", "provider", "accelerator", "count", "nodes", "workers", "batch_per_replica"}
    wanted = asked.model_dump(include=include, exclude_none=True)
    found = [m for m in context.measured if all(getattr(m, name) == value for name, value in wanted.items())]
    if not found:
        raise ConfigurationError("no such run was measured", field="given", value=wanted, remedy="see measurements.csv")
    if len(found) > 1:
        remedy = "give nodes, workers and batchPerReplica"
        raise ConfigurationError(f"{len(found)} measured runs are like this", value=wanted, remedy=remedy)
    more = asked.values_of("host", "hosts", "with_test")
    return epoch_cost(found[0], context.price_list, asked.region, asked.capacity_type, asked.as_of, **more)


def _plan(inputs: Mapping[str, Any], context: Context, _: Path) -> dict[str, Any]:
    """The candidate that is chosen (or nearest), and what was measured in exactly that layout."""
    rest = dict(inputs)
    as_of = rest.pop("asOf")
    try:
        day = dt.date.fromisoformat(str(as_of))
    except ValueError as error:
        remedy = "write 2026-11-21, or today"
        raise ConfigurationError("is not a day", field="asOf", value=as_of, remedy=remedy) from error
    run = configured_run(rest)
    made = plan(run, context.price_list, context.measured, day)
    best = made.chosen or made.nearest
    if best is None:
        raise ConfigurationError("nothing can be chosen", value=dict(rest), remedy="name hardware.accelerator")
    return {
        **best.as_values(),
        "prices": made.prices.as_values(),
        "measured": _measured(best, run, context),
        "epochs": run.train.epochs,
        "totalHours": best.total_seconds / 3600,
    }


def _measured(best: Candidate, run: Run, context: Context) -> dict[str, Any] | None:
    placed = ("accelerator", "count", "nodes", "workers", "batch_per_replica")
    wanted = (run.model.network, best.cloud, run.data.showers, *best.values_of(*placed).values())
    rows = [m for m in context.measured if (m.network, m.provider, m.showers, *m.values_of(*placed).values()) == wanted]
    if not rows:
        return None
    first = rows[0]
    return {
        "trainSeconds": first.train_seconds,
        "testSeconds": first.test_seconds,
        "stepCv": first.step_cv,
        "source": first.source,
        "observedOn": str(first.observed_on),
    }


def _late(module: str, name: str, folder: Literal["none", "own", "all"] = "none") -> Measure:
    """A measure of this machine by a function of a module that is loaded when it is needed: it may load TensorFlow.

    folder: what the function gets beside the inputs: nothing, the point's own folder, or that of all points, in which
    points share what they have in common.
    """

    def compute(inputs: Mapping[str, Any], _: Context, own: Path) -> dict[str, Any]:
        places = {"none": (), "own": (own,), "all": (own.parent,)}[folder]
        made: dict[str, Any] = getattr(import_module(f"caloscale.studies.{module}"), name)(inputs, *places)
        return made

    compute.__qualname__ = f"{module}.{name}"
    return Measure(compute, "measured", lambda _: __version__)


MEASURES: dict[str, Measure] = {
    "classifier": _late("images", "time_classifier"),
    "elastic": _late("recovery", "train_elastic", "own"),
    "elasticTraining": _late("elastic_training", "train_elastically", "own"),
    "ensemble": _late("search", "ensemble", "own"),
    "epochCost": Measure(_epoch_cost, "priced", lambda context: context.catalogues),
    "epochRatio": Measure(_epoch_ratio, "priced", lambda context: context.catalogues),
    "exchange": _late("exchange", "time_exchange"),
    "exchangedTraining": _late("exchanged_training", "train_exchanging", "own"),
    "exchangeEvents": replace(_late("exchange", "model_events"), kind="modelled"),
    "exchangeModel": replace(_late("exchange_model", "model_step"), kind="modelled"),
    "generate": _late("contenders", "time_generation"),
    "imageInput": _late("images", "time_input", "all"),
    "layout": _late("layouts", "time_layout"),
    "nodes": replace(_late("exchange_model", "model_nodes", "all"), kind="modelled"),
    "parallelism": _late("parallelism", "time_parallelism"),
    "plan": Measure(_plan, "modelled", lambda context: context.catalogues),
    "run": _late("whole_run", "whole_run", "own"),
    "search": _late("search", "search", "own"),
    "solve": _late("solver", "solve_ensemble", "all"),
    "solverEpoch": _late("contenders", "time_solver_epoch"),
    "step": _late("contenders", "time_steps"),
}
"""By the name in a sweep's configuration."""
