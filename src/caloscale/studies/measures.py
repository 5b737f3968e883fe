"""What a point of a sweep computes from its inputs; measured epochs at the prices of a day."""

import datetime as dt
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from caloscale import __version__
from caloscale.errors import ConfigurationError
from caloscale.planning.catalogue.hardware import find_machine, find_slices, load_accelerators
from caloscale.planning.catalogue.measurements import Measurement, load_measurements
from caloscale.planning.catalogue.prices import CapacityType, Key, Prices, Rate, add_up, load_prices, node_rate
from caloscale.planning.catalogue.rows import builtin
from caloscale.planning.search.plan import Candidate, plan
from caloscale.spec import Run
from caloscale.spec.block import Block
from caloscale.studies.points import configured_run, validated

Kind = Literal["measured", "modelled", "priced"]


@dataclass(frozen=True)
class Context:
    """What all points of a study share."""

    as_of: dt.date
    """Day that `today` stands for."""
    prices: Prices = field(default_factory=load_prices)
    measured: Sequence[Measurement] = field(default_factory=load_measurements)

    @functools.cached_property
    def catalogues(self) -> str:
        """Hash of everything in prices, measurements and the catalogues of the package that a point may rest on."""
        digest = hashlib.sha256(repr((__version__, self.prices.rows, self.measured)).encode())
        for file in sorted(builtin("").iterdir(), key=lambda file: file.name):
            digest.update(file.read_bytes() if file.is_file() else b"")
        return digest.hexdigest()


@dataclass(frozen=True)
class Measure:
    """A way of computing points."""

    compute: Callable[[Mapping[str, Any], Context, Path], dict[str, Any]]
    """Result, JSON-able, from the inputs; the folder is the point's own, for what takes long."""
    kind: Kind
    """Its figures: measured on this machine, modelled by the planner, or published times with prices."""
    rests_on: Callable[[Context], str]
    """What besides its inputs a point depends on; a finished point of another value is computed again."""
    takes_fields: bool = False
    """Whether its inputs are fields of the run configuration, too."""
    repeats: bool = True
    """Whether it computes equal inputs again; otherwise its points share what was computed once."""


class EpochInputs(Block):
    """Which measured run, and at which prices."""

    network: str = "variable-angle"
    """Preset."""
    provider: str = "gcp"
    accelerator: str
    """GPU model or TPU generation."""
    count: int
    """GPUs, or TPU chips."""
    nodes: int | None = None
    """Absent: any."""
    workers: int | None = None
    """Absent: any."""
    batch_per_replica: int | None = None
    """Absent: any."""
    region: str
    """Of the prices."""
    capacity_type: CapacityType
    """Of the prices."""
    as_of: dt.date
    """Day of the prices."""
    host: str | None = None
    """Machine type that is rented for the accelerators; absent: none."""
    hosts: int | None = None
    """How many; absent: one a node."""
    with_test: bool = False
    """With the test pass."""


def _epoch_cost(inputs: Mapping[str, Any], context: Context, _: Path) -> dict[str, Any]:
    """What an epoch of a measured run costs at the prices of a day. Raises PriceError naming the row to add."""
    asked = validated(EpochInputs, inputs)
    measured = _run_like(asked, context)
    seconds = measured.train_seconds
    if asked.with_test:
        if measured.test_seconds is None:
            problem = f"the test pass of this run was not measured ({measured.source})"
            raise ConfigurationError(problem, field="withTest", value=True, remedy="write withTest: false")
        seconds += measured.test_seconds
    rate, number_of, title = _accelerators(measured, asked, context.prices)
    usd_per_hour, observed_on = number_of * rate.usd_per_hour, rate.observed_on
    host = "hosts in the price" if rate.includes_host else "without hosts"
    if asked.host is not None:
        hosts = asked.hosts or measured.nodes
        rented = node_rate(context.prices, find_machine(asked.host), asked.region, asked.capacity_type, asked.as_of)
        usd_per_hour += hosts * rented.usd_per_hour
        observed_on = min(observed_on, rented.observed_on)
        host = f"with {hosts} x {asked.host}"
    return {
        "title": title,
        "host": host,
        "seconds": seconds,
        "secondsAre": "training and test pass" if asked.with_test else "training",
        "usdPerHour": usd_per_hour,
        "usd": seconds / 3600 * usd_per_hour,
        "observedOn": str(observed_on),
    }


def _epoch_ratio(inputs: Mapping[str, Any], context: Context, folder: Path) -> dict[str, Any]:
    """Two epochs: inputs that begin with ``one.`` and ``other.`` differ, the rest is shared."""
    sides = ("one.", "other.")
    shared = {name: value for name, value in inputs.items() if not name.startswith(sides)}
    one, other = (
        _epoch_cost(
            shared | {k.removeprefix(side): v for k, v in inputs.items() if k.startswith(side)}, context, folder
        )
        for side in sides
    )
    return {
        "oneCost": one,
        "otherCost": other,
        "ratio": one["usd"] / other["usd"],
        "observedOn": min(one["observedOn"], other["observedOn"]),
    }


def _run_like(asked: EpochInputs, context: Context) -> Measurement:
    include = {"network", "provider", "accelerator", "count", "nodes", "workers", "batch_per_replica"}
    fields = asked.model_dump(include=include, exclude_none=True)
    runs = [m for m in context.measured if all(getattr(m, name) == value for name, value in fields.items())]
    if not runs:
        raise ConfigurationError("no such run was measured", field="given", value=fields, remedy="see measurements.csv")
    if len(runs) > 1:
        remedy = "give nodes, workers and batchPerReplica"
        raise ConfigurationError(f"{len(runs)} measured runs are like this", value=fields, remedy=remedy)
    return runs[0]


def _accelerators(measured: Measurement, asked: EpochInputs, prices: Prices) -> tuple[Rate, int, str]:
    """A rate, how many times it is paid, and for what."""
    region, capacity_type, as_of = asked.region, asked.capacity_type, asked.as_of
    if load_accelerators()[measured.accelerator].kind == "tpu":
        row = find_slices(measured.accelerator, chips=measured.count)[0]
        return node_rate(prices, row, region, capacity_type, as_of), row.hosts, row.price_sku
    row_of_gpu = prices.find(Key(measured.provider, region, "gpu", measured.accelerator, capacity_type), as_of)
    title = f"{measured.count} x {measured.accelerator}"
    return add_up(title, [(row_of_gpu, measured.count)], as_of, prices.added), 1, title


def _plan(inputs: Mapping[str, Any], context: Context, _: Path) -> dict[str, Any]:
    """The candidate that is chosen (or nearest, with the limit that binds), and what was measured in that layout."""
    rest = dict(inputs)
    as_of = rest.pop("asOf")
    try:
        day = dt.date.fromisoformat(str(as_of))
    except ValueError as error:
        remedy = "write 2026-11-21, or today"
        raise ConfigurationError("is not a day", field="asOf", value=as_of, remedy=remedy) from error
    run = configured_run(rest)
    made = plan(run, context.prices, context.measured, day)
    best = made.chosen or made.nearest
    if best is None:
        raise ConfigurationError("nothing can be chosen", value=dict(rest), remedy="name hardware.accelerator")
    return {
        **best.as_values(),
        "binding": made.binding,
        "prices": made.prices.as_values(),
        "measured": _measured(best, run, context),
        "epochs": min(run.train.epochs, best.epochs),  # of equal ones the first, which is whole
        "totalHours": best.total_seconds / 3600,
    }


def _measured(best: Candidate, run: Run, context: Context) -> dict[str, Any] | None:
    placed = ("accelerator", "count", "nodes", "workers", "batch_per_replica")
    wanted = (run.model.network, best.cloud, run.data.showers, *best.values_of(*placed).values())
    rows = [m for m in context.measured if (m.network, m.provider, m.showers, *m.values_of(*placed).values()) == wanted]
    return {**rows[0].as_values(), "trainSeconds": rows[0].train_seconds} if rows else None


def _late(
    module: str,
    name: str,
    folder: Literal["none", "own", "all"] = "none",
    *,
    kind: Kind = "measured",
    takes_fields: bool = True,
) -> Measure:
    """A measure by a function of a module that is loaded when it is needed: it may load TensorFlow.

    folder: what the function gets in addition to the inputs: nothing, the point's own folder, or that of all points,
    in which points share what they have in common.
    """

    def compute(inputs: Mapping[str, Any], _: Context, own: Path) -> dict[str, Any]:
        places = {"none": (), "own": (own,), "all": (own.parent,)}[folder]
        return getattr(import_module(f"caloscale.studies.{module}"), name)(inputs, *places)

    compute.__qualname__ = f"{module}.{name}"
    return Measure(compute, kind, lambda _: __version__, takes_fields)


MEASURES: dict[str, Measure] = {
    "classifier": _late("images", "time_classifier", takes_fields=False),
    "elastic": _late("recovery", "train_elastic", "own"),
    "elasticTraining": _late("elastic_training", "train_elastically", "own"),
    "ensemble": _late("search", "ensemble", "own"),
    "epochCost": Measure(_epoch_cost, "priced", lambda context: context.catalogues),
    "epochRatio": Measure(_epoch_ratio, "priced", lambda context: context.catalogues),
    "exchange": _late("exchange", "time_exchange", takes_fields=False),
    "exchangedTraining": _late("exchanged_training", "train_exchanging", "own"),
    "exchangeEvents": _late("exchange", "model_events", kind="modelled", takes_fields=False),
    "exchangeModel": _late("exchange_model", "model_step", kind="modelled", takes_fields=False),
    "generate": _late("contenders", "time_generation"),
    "imageInput": _late("images", "time_input", "all", takes_fields=False),
    "layout": _late("layouts", "time_layout", takes_fields=False),
    "nodes": _late("exchange_model", "model_nodes", "all", kind="modelled"),
    "parallelism": _late("parallelism", "time_parallelism", takes_fields=False),
    "plan": Measure(_plan, "modelled", lambda context: context.catalogues, takes_fields=True),
    "run": _late("whole_run", "whole_run", "own"),
    "search": _late("search", "search", "own"),
    "solve": replace(_late("solver", "solve_ensemble", "all"), repeats=False),
    "step": _late("contenders", "time_steps"),
}
"""By the name in a sweep's configuration."""
