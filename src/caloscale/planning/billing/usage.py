"""What a run really used: the input of the bill, and what the planner is calibrated with."""

import datetime as dt
from typing import Any, Self

from pydantic import Field, model_validator

from caloscale.errors import InvalidValueError
from caloscale.planning.catalogue.hardware import Provider, find_accelerator
from caloscale.planning.catalogue.measurements import Measurement
from caloscale.planning.catalogue.prices import SECONDS_PER_HOUR, CapacityType
from caloscale.spec.block import Block

WALL_TOLERANCE_SECONDS = 1.0
"""Activities may exceed the time that nodes were held by this much: clocks of different machines."""

ACTIVITIES = ("training", "evaluation", "shower", "validation", "start_up", "waiting", "lost")


class NodeUse(Block):
    """Equal nodes that were held for some time."""

    provider: Provider = "gcp"
    machine_type: str = Field(min_length=1)
    accelerator: str = ""
    """GPU model or TPU generation; empty: none."""
    per_node: int = Field(default=0, ge=0)
    topology: str | None = None
    """Topology, when the nodes are the hosts of a TPU slice."""
    region: str = Field(min_length=1)
    capacity_type: CapacityType
    nodes: int = Field(ge=1)
    seconds: float = Field(ge=0)
    """How long each was held and paid, s."""
    disk_gib: float = Field(default=0, ge=0)
    """Boot disk of a node, GiB, that is billed with it; 0: none."""
    control_plane_seconds: float = Field(default=0, ge=0)
    """How long the control plane of their cluster was paid for them, s; 0: it is not billed."""


class Attempt(Block):
    """A run from its start, or from an interruption, to its end or the next interruption."""

    run: str = ""
    """uid of its TrainingRun; empty: it is of none."""
    nodes: tuple[NodeUse, ...] = Field(min_length=1)
    """Nodes that were held."""
    training_seconds: float = Field(default=0, ge=0)
    """Steps whose work was kept, s of wall time, with comparisons and saving; on a cluster steps x mean step."""
    evaluation_seconds: float = Field(default=0, ge=0)
    """Test passes, s; on a cluster not timed."""
    shower_seconds: float = Field(default=0, ge=0)
    """Simulating and preparing showers, s; on a cluster by worker 0, not in steps of a pipeline."""
    validation_seconds: float = Field(default=0, ge=0)
    """Comparing the trained generator with Monte Carlo, s; as showerSeconds."""
    start_up_seconds: float = Field(default=0, ge=0)
    """Start of the training to the end of its first step, s."""
    waiting_seconds: float = Field(default=0, ge=0)
    """First node to last worker, s."""
    lost_seconds: float = Field(default=0, ge=0)
    """Steps since the last checkpoint that were lost in an interruption, s."""
    used_share: float = Field(default=1, gt=0, le=1)
    """Part of the nodes' accelerators that belonged to workers."""
    count: int = Field(default=1, ge=1)
    """Attempts that it sums up."""
    interruptions: int = Field(default=0, ge=0)
    """Losses of machines that ended it, or those that it sums up."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.active_seconds > self.held_seconds + WALL_TOLERANCE_SECONDS:
            problem = f"activities take {self.active_seconds:.0f} s, the nodes were held for {self.held_seconds:.0f} s"
            raise InvalidValueError(problem, remedy="give wall seconds, not summed over nodes")
        return self

    @property
    def active_seconds(self) -> float:
        """All activities, s."""
        return float(sum(getattr(self, f"{activity}_seconds") for activity in ACTIVITIES))

    @property
    def held_seconds(self) -> float:
        """Longest time that a node was held, s."""
        return max(use.seconds for use in self.nodes)


class MeasuredTraining(Block):
    """What the training measured of itself."""

    network: str
    """Preset."""
    workers: int = Field(ge=1)
    batch_per_replica: int = Field(ge=1)
    """Showers in a replica's batch."""
    showers: int = Field(ge=1)
    """Training showers of an epoch."""
    epochs: int = Field(ge=1)
    """Complete epochs after the first, of the last attempt."""
    step_seconds: float = Field(gt=0)
    """Mean step after the first, s; a cluster's run has comparisons and saving in it, as it times both together."""
    first_step_seconds: float | None = Field(default=None, gt=0)
    """Start of an attempt to the end of its first step, s."""

    @model_validator(mode="before")
    @classmethod
    def _as_earlier_versions_wrote_it(cls, given: Any) -> Any:
        """Without nulls: files of earlier versions have some of fields that there are no longer."""
        return {name: each for name, each in given.items() if each is not None} if isinstance(given, dict) else given


class RunUse(Block):
    """What a run used from its first machine to its last."""

    name: str = Field(min_length=1)
    day: dt.date
    """Day for which prices are taken: that of the first launch on a cluster, else of the first stage."""
    attempts: tuple[Attempt, ...] = Field(min_length=1)
    """First start and restarts."""
    own_machine: bool = False
    """It ran on a machine of one's own: the nodes are what its seconds are priced as."""
    epochs: float = Field(ge=0)
    """Epochs that were done, with the fraction of the running one."""
    slower_than_aligned: float = Field(default=0, ge=0)
    """Step over that of the aligned layout, minus 1, as the plan of the placement predicts."""
    observed: MeasuredTraining | None = None
    """What the training measured, for later plans."""


def measurement_of(use: RunUse) -> Measurement | None:
    """The row that a run adds to the measurements (`caloscale calibrate`); None when the training measured nothing.

    The nodes are those of the last attempt, which must be of one kind. Node hours and interruptions are summed over the
    attempts whose spot nodes were all of that provider, accelerator and region; the row's note states those of other
    attempts on spot. Raises ValueError when the nodes are of several kinds, or the figures do not add up.
    """
    seen = use.observed
    if seen is None:
        return None
    last = use.attempts[-1].nodes
    if len({(held.provider, held.machine_type, held.accelerator, held.per_node, held.region) for held in last}) > 1:
        raise ValueError("the nodes of the last attempt are of several kinds, and a step has the time of the slowest")
    nodes, count = last[0], sum(held.nodes * held.per_node for held in last)
    replicas = count * find_accelerator(nodes.accelerator, field="accelerator").replicas
    market = (nodes.provider, nodes.accelerator, nodes.region)
    hours, interruptions = {True: 0.0, False: 0.0}, {True: 0, False: 0}
    for attempt in use.attempts:
        spot = [held for held in attempt.nodes if held.capacity_type == "spot"]
        counts = {(held.provider, held.accelerator, held.region) for held in spot} == {market}
        hours[counts] += sum(held.nodes * held.seconds for held in spot) / SECONDS_PER_HOUR
        interruptions[counts] += attempt.interruptions if spot else 0
    row = {
        **seen.values_of(*MeasuredTraining.model_fields),
        **nodes.values_of("provider", "machine_type", "accelerator", "capacity_type", "region"),
        "count": count,
        "nodes": sum(held.nodes for held in last),
        "source": f"run {use.name}",
        "observed_on": use.day,
        "steps": seen.showers // (replicas * seen.batch_per_replica),
    }
    if hours[True] > 0:
        row["node_hours"], row["interruptions"], row["capacity_type"] = hours[True], interruptions[True], "spot"
    if hours[False] > 0:
        row["note"] = (
            f"{interruptions[False]} interruptions in {hours[False]:.4g} hours of spot nodes are not counted: these "
            "attempts had spot nodes on another accelerator or in another region"
        )
    return Measurement.model_validate(row, by_name=True)
