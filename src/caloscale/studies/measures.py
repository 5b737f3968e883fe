"""What a point of a sweep computes from its inputs."""

from __future__ import annotations

import copy
import datetime as dt
import functools
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from caloscale import __version__
from caloscale.errors import CaloscaleError, ConfigurationError
from caloscale.planning.catalogue.measurements import Measurement, load_measurements
from caloscale.planning.catalogue.prices import CapacityType, Prices, load_prices
from caloscale.planning.search.plan import Candidate, plan
from caloscale.spec import Run, build_run, dump_run
from caloscale.spec.block import Block
from caloscale.studies.epochs import EpochCost, cost_ratio, epoch_cost


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


def _run(inputs: Mapping[str, Any], _: Context, folder: Path) -> dict[str, Any]:
    """All stages of the run configuration in a process of its own, in the point's folder; it resumes, too.

    The input ``cores`` is the number of cores to which the process is pinned (absent: all). Result: summary.json, and
    in ``training`` the figures of the training stage. Raises CaloscaleError with the exit code of the run.
    """
    fields = {name: value for name, value in inputs.items() if name != "cores"}
    run = configured_run(fields)
    folder.mkdir(parents=True, exist_ok=True)
    configuration = folder.with_suffix(".yaml")
    configuration.write_text(dump_run(run), encoding="utf-8")
    words = ["run", str(configuration), "--name", folder.name, "--runs", str(folder.parent)]
    log = folder.with_suffix(".log")
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "caloscale.cli.main", *words], stdout=output, stderr=subprocess.STDOUT
        )
        _pin(process, inputs.get("cores"))
        code = _finish(process)
    if code:
        tail = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()][-2:]
        error = type("", (CaloscaleError,), {"exit_code": code})
        raise error(" ".join(line.strip() for line in tail) or "the run failed", remedy=f"read {log}")
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    training = json.loads((folder / "stages" / "train.json").read_text(encoding="utf-8"))["figures"]
    return {**summary, "training": training}


def _pin(process: subprocess.Popen[bytes], cores: int | None) -> None:
    """Let a process use so many of this one's cores; raises ConfigurationError when there are fewer."""
    if cores is None:
        return
    available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if not isinstance(cores, int) or not 0 < cores <= len(available):
        process.kill()
        process.wait()
        raise ConfigurationError(
            f"must be 1 to {len(available)} cores, those that this machine has", field="cores", value=cores
        )
    os.sched_setaffinity(process.pid, available[:cores])


def _finish(process: subprocess.Popen[bytes]) -> int:
    """Exit code of a process; when this one is interrupted that one is terminated first, so that both resume."""
    try:
        return process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise


def configured_run(inputs: Mapping[str, Any]) -> Run:
    """The run configuration of dotted inputs; raises ConfigurationError."""
    return build_run(nested(inputs))


def nested(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted inputs as blocks; raises ConfigurationError."""
    raw: dict[str, Any] = {}
    for name, value in sorted(inputs.items(), key=lambda item: item[0].count(".")):  # whole blocks first
        *blocks, field = name.split(".")
        block = raw
        for depth, part in enumerate(blocks, start=1):
            block = block.setdefault(part, {})
            if not isinstance(block, dict):
                above = ".".join(blocks[:depth])
                raise ConfigurationError(
                    f"is no block, but {name} is given, too", field=above, value=block, remedy=f"leave out {above}"
                )
        block[field] = copy.deepcopy(value)
    return raw


def _solve(inputs: Mapping[str, Any], _: Context, folder: Path) -> dict[str, Any]:
    """An ensemble of solver runs; points share the runs that they have in common."""
    from caloscale.studies.solver import OWN_INPUTS, solve_ensemble

    fields = {name: value for name, value in inputs.items() if name not in OWN_INPUTS}
    return solve_ensemble(inputs, nested(fields), folder.parent)


MEASURES: dict[str, Measure] = {
    "epochCost": Measure(_epoch_cost, "priced", lambda context: context.catalogues),
    "epochRatio": Measure(_epoch_ratio, "priced", lambda context: context.catalogues),
    "plan": Measure(_plan, "modelled", lambda context: context.catalogues),
    "run": Measure(_run, "measured", lambda _: __version__),
    "solve": Measure(_solve, "measured", lambda _: __version__),
}
"""By the name in a sweep's configuration."""
