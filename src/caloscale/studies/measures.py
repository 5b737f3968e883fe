"""What a point of a sweep computes from its inputs."""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from caloscale import __version__
from caloscale.errors import ConfigurationError
from caloscale.planning.catalogue.measurements import Measurement, load_measurements
from caloscale.planning.catalogue.prices import CapacityType, Prices, load_prices
from caloscale.planning.search.plan import Candidate, plan
from caloscale.spec import Run
from caloscale.spec.block import Block
from caloscale.studies.epochs import EpochCost, cost_ratio, epoch_cost
from caloscale.studies.exchange_model import model_nodes, model_step, time_ring
from caloscale.studies.inputs import configured_run, nested
from caloscale.studies.whole_run import whole_run


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
    return _cost_of(inputs, context).model_dump(mode="json", by_alias=True)


def _epoch_ratio(inputs: Mapping[str, Any], context: Context, _: Path) -> dict[str, Any]:
    """Two epochs: inputs that begin with ``one.`` and ``other.`` differ, the rest is shared."""
    shared = {name: value for name, value in inputs.items() if "." not in name}
    costs = [
        _cost_of(shared | {k.removeprefix(side): v for k, v in inputs.items() if k.startswith(side)}, context)
        for side in ("one.", "other.")
    ]
    return cost_ratio(*costs).model_dump(mode="json", by_alias=True)


def _cost_of(inputs: Mapping[str, Any], context: Context) -> EpochCost:
    try:
        asked = EpochInputs.model_validate(inputs, by_alias=True, by_name=False)
    except ValidationError as problems:
        first = problems.errors(include_url=False)[0]
        names = ", ".join(field.alias or name for name, field in EpochInputs.model_fields.items())
        field = ".".join(map(str, first["loc"]))
        value = first["input"] if isinstance(first["input"], str | int | float) else None
        raise ConfigurationError(
            first["msg"], field=field, value=value, remedy=f"inputs of an epoch are {names}"
        ) from problems
    wanted = asked.model_dump(
        include={"network", "provider", "accelerator", "count", "nodes", "workers", "batch_per_replica"},
        exclude_none=True,
    )
    found = [m for m in context.measured if all(getattr(m, name) == value for name, value in wanted.items())]
    if not found:
        raise ConfigurationError("no such run was measured", field="given", value=wanted, remedy="see measurements.csv")
    if len(found) > 1:
        raise ConfigurationError(
            f"{len(found)} measured runs are like this", value=wanted, remedy="give nodes, workers and batchPerReplica"
        )
    return epoch_cost(
        found[0],
        context.price_list,
        asked.region,
        asked.capacity_type,
        asked.as_of,
        host=asked.host,
        hosts=asked.hosts,
        with_test=asked.with_test,
    )


def _plan(inputs: Mapping[str, Any], context: Context, _: Path) -> dict[str, Any]:
    """The candidate that is chosen (or nearest), and what was measured in exactly that layout."""
    rest = dict(inputs)
    as_of = rest.pop("asOf")
    try:
        day = dt.date.fromisoformat(str(as_of))
    except ValueError as error:
        raise ConfigurationError(
            "is not a day", field="asOf", value=as_of, remedy="write 2026-11-21, or today"
        ) from error
    run = configured_run(rest)
    made = plan(run, context.price_list, context.measured, day)
    best = made.chosen or made.nearest
    if best is None:
        raise ConfigurationError("nothing can be chosen", value=dict(rest), remedy="name hardware.accelerator")
    return {
        **best.model_dump(mode="json", by_alias=True),
        "prices": made.prices.model_dump(mode="json", by_alias=True),
        "measured": _measured(best, run, context),
        "epochs": run.train.epochs,
        "totalHours": best.total_seconds / 3600,
    }


def _measured(best: Candidate, run: Run, context: Context) -> dict[str, Any] | None:
    rows = [
        m
        for m in context.measured
        if (m.network, m.provider, m.accelerator, m.count, m.nodes, m.workers, m.batch_per_replica, m.showers)
        == (
            run.model.preset,
            best.cloud,
            best.accelerator,
            best.count,
            best.nodes,
            best.workers,
            best.batch_per_replica,
            run.data.showers,
        )
    ]
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


def _solve(inputs: Mapping[str, Any], _: Context, folder: Path) -> dict[str, Any]:
    """An ensemble of solver runs; points share the runs that they have in common."""
    from caloscale.studies.solver import OWN_INPUTS, solve_ensemble

    fields = {name: value for name, value in inputs.items() if name not in OWN_INPUTS}
    return solve_ensemble(inputs, nested(fields), folder.parent)


def _step(inputs: Mapping[str, Any], _: Context, __: Path) -> dict[str, Any]:
    from caloscale.studies.contenders import time_steps  # loads the benches

    return time_steps(inputs)


def _classifier(inputs: Mapping[str, Any], _: Context, __: Path) -> dict[str, Any]:
    from caloscale.studies.images import time_classifier

    return time_classifier(inputs)


def _images(inputs: Mapping[str, Any], _: Context, folder: Path) -> dict[str, Any]:
    from caloscale.studies.images import time_input

    return time_input(inputs, folder.parent)


def _layout(inputs: Mapping[str, Any], _: Context, __: Path) -> dict[str, Any]:
    from caloscale.studies.layouts import time_layout

    return time_layout(inputs)


def _parallelism(inputs: Mapping[str, Any], _: Context, __: Path) -> dict[str, Any]:
    from caloscale.studies.parallelism import time_parallelism

    return time_parallelism(inputs)


def _elastic(inputs: Mapping[str, Any], _: Context, folder: Path) -> dict[str, Any]:
    from caloscale.studies.recovery import train_elastic

    return train_elastic(inputs, folder)


def _search(inputs: Mapping[str, Any], _: Context, folder: Path) -> dict[str, Any]:
    from caloscale.studies.search import search

    return search(inputs, folder)


def _ensemble(inputs: Mapping[str, Any], _: Context, folder: Path) -> dict[str, Any]:
    from caloscale.studies.search import ensemble

    return ensemble(inputs, folder)


def _exchange(inputs: Mapping[str, Any], _: Context, __: Path) -> dict[str, Any]:
    from caloscale.studies.exchange import time_exchange

    return time_exchange(inputs)


def _exchange_events(inputs: Mapping[str, Any], _: Context, __: Path) -> dict[str, Any]:
    from caloscale.studies.exchange import model_events

    return model_events(inputs)


def _solver_epoch(inputs: Mapping[str, Any], _: Context, __: Path) -> dict[str, Any]:
    from caloscale.studies.contenders import time_solver_epoch

    return time_solver_epoch(inputs)


def _generate(inputs: Mapping[str, Any], _: Context, __: Path) -> dict[str, Any]:
    from caloscale.studies.contenders import time_generation

    return time_generation(inputs)


MEASURES: dict[str, Measure] = {
    "classifier": Measure(_classifier, "measured", lambda _: __version__),
    "elastic": Measure(_elastic, "measured", lambda _: __version__),
    "ensemble": Measure(_ensemble, "measured", lambda _: __version__),
    "epochCost": Measure(_epoch_cost, "priced", lambda context: context.catalogues),
    "epochRatio": Measure(_epoch_ratio, "priced", lambda context: context.catalogues),
    "exchange": Measure(_exchange, "measured", lambda _: __version__),
    "exchangeEvents": Measure(_exchange_events, "modelled", lambda _: __version__),
    "exchangeModel": Measure(lambda inputs, _, __: model_step(inputs), "modelled", lambda _: __version__),
    "generate": Measure(_generate, "measured", lambda _: __version__),
    "imageInput": Measure(_images, "measured", lambda _: __version__),
    "layout": Measure(_layout, "measured", lambda _: __version__),
    "parallelism": Measure(_parallelism, "measured", lambda _: __version__),
    "nodes": Measure(lambda inputs, _, folder: model_nodes(inputs, folder.parent), "modelled", lambda _: __version__),
    "plan": Measure(_plan, "modelled", lambda context: context.catalogues),
    "ring": Measure(lambda inputs, _, __: time_ring(inputs), "measured", lambda _: __version__),
    "run": Measure(lambda inputs, _, folder: whole_run(inputs, folder), "measured", lambda _: __version__),
    "search": Measure(_search, "measured", lambda _: __version__),
    "solve": Measure(_solve, "measured", lambda _: __version__),
    "solverEpoch": Measure(_solver_epoch, "measured", lambda _: __version__),
    "step": Measure(_step, "measured", lambda _: __version__),
}
"""By the name in a sweep's configuration."""
