"""Measured training steps: the study's runs as facts with their source, and the user's own."""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from caloscale.errors import InputError, InvalidValueError, shorten
from caloscale.planning.catalogue.hardware import Provider, load_accelerators
from caloscale.planning.catalogue.rows import SourcedRow, builtin, read_rows
from caloscale.spec.problem import suggest


class Measurement(SourcedRow):
    """Steady training of one run: what ran where, and how long a step took."""

    network: str = Field(min_length=1)
    provider: Provider
    """Cloud that it ran on."""
    machine_type: str = ""
    """Machine type of the nodes; empty: not published."""
    accelerator: str
    count: int = Field(ge=1)
    """GPUs, or TPU chips."""
    nodes: int = Field(ge=1)
    workers: int = Field(ge=1)
    """Workers, a whole number on each node."""
    batch_per_replica: int = Field(ge=1)
    """Showers in a replica's batch."""
    showers: int = Field(ge=1)
    """Training showers of an epoch."""
    steps: int = Field(ge=1)
    """Steps of an epoch, floor(showers / global batch)."""
    step_seconds: float = Field(gt=0, le=3600)
    """Mean step of the epochs after the first, s."""
    step_cv: float | None = Field(default=None, ge=0, le=5)
    """Standard deviation of the steps over their mean."""
    test_seconds: float | None = Field(default=None, ge=0)
    """Test pass at the end of an epoch, s."""
    first_step_seconds: float | None = Field(default=None, gt=0)
    """First step of the run with building and tracing, s; also the cost of a restart."""
    epochs: int = Field(default=1, ge=1)
    """Epochs that the figures come from."""
    capacity_type: Literal["", "on-demand", "spot"] = ""
    """How the machines were bought, spot where node hours are given; empty: not published."""
    region: str = ""
    """Region; empty: not published."""
    node_hours: float | None = Field(default=None, gt=0)
    """Hours of all spot nodes together during which interruptions were counted."""
    interruptions: int | None = Field(default=None, ge=0)
    """Nodes that were preempted in these hours."""
    provisioning_seconds: float | None = Field(default=None, ge=0)
    """Mean time until a node was replaced and ready, s."""
    note: str = ""

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        known = load_accelerators()
        if self.accelerator not in known:
            problem = f"{shorten(self.accelerator)} is not an accelerator of the catalogue"
            raise InvalidValueError(problem, remedy=suggest(self.accelerator, known) or "see accelerators.csv")
        if self.count % self.workers or self.workers % self.nodes:
            problem = f"{self.count} accelerators, {self.workers} workers and {self.nodes} nodes do not divide"
            raise InvalidValueError(problem, remedy="count is a multiple of workers, workers of nodes")
        expected = self.showers // (self.replicas * self.batch_per_replica)
        if self.steps != expected:
            problem = f"{self.steps} steps, but floor(showers / (replicas x batch)) is {expected}"
            raise InvalidValueError(problem, remedy="check showers, count and batch_per_replica")
        if (self.node_hours is None) != (self.interruptions is None):
            raise InvalidValueError("node_hours and interruptions belong together", remedy="give both or neither")
        return self

    @property
    def replicas(self) -> int:
        """Replicas of the network."""
        return self.count * load_accelerators()[self.accelerator].replicas

    @property
    def train_seconds(self) -> float:
        """Training part of an epoch, s."""
        return self.steps * self.step_seconds


def load_measurements(extra_files: Iterable[str | Path] = ()) -> tuple[Measurement, ...]:
    """The study's measurements and those of the user's files, of equal rows one: a file may be given twice, or hold
    another. Raises InputError naming file, line and column.
    """
    files = (builtin("measurements.csv"), *map(Path, extra_files))
    return tuple(dict.fromkeys(row for file in files for _, row in read_rows(file, Measurement, InputError)))


def interruption_rate(
    measurements: Iterable[Measurement], provider: str, accelerator: str, region: str
) -> float | None:
    """Interruptions per node and hour seen on own spot runs there; None where none ran.

    (k + 1/2) / hours, the mean of the posterior of a Poisson rate with Jeffreys' prior: no interruption in few hours
    is not a rate of zero.
    """
    rows = [
        (m.interruptions, m.node_hours)
        for m in measurements
        if (m.provider, m.accelerator, m.region, m.capacity_type) == (provider, accelerator, region, "spot")
        if m.interruptions is not None and m.node_hours is not None
    ]
    if not rows:
        return None
    return (sum(k for k, _ in rows) + 0.5) / sum(hours for _, hours in rows)
