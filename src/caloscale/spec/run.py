"""The run configuration: one model that is the YAML file, the custom resource's spec and the pipeline's parameter."""

from typing import Self

from pydantic import model_validator

from caloscale.errors import InvalidValueError
from caloscale.spec.block import Block
from caloscale.spec.budget import Budget
from caloscale.spec.cluster import GRACE_SECONDS, Checkpoint, Cluster, Recovery
from caloscale.spec.data import Data
from caloscale.spec.hardware import Hardware
from caloscale.spec.model import Model
from caloscale.spec.train import Train
from caloscale.spec.validation import Validation


class Run(Block):
    """Everything that a run depends on."""

    model: Model = Model()
    """The network."""
    data: Data
    """The showers."""
    train: Train = Train()
    """The training."""
    hardware: Hardware | None = None
    """The machines; absent: train here, in this process."""
    checkpoint: Checkpoint = Checkpoint()
    """What is saved, for resuming."""
    recovery: Recovery = Recovery()
    """What happens when machines are preempted or lost."""
    validation: Validation = Validation()
    """How the generator is validated."""
    budget: Budget = Budget()
    """Money."""
    cluster: Cluster = Cluster()
    """The cluster."""

    def __repr__(self) -> str:
        """One line: network, showers, epochs, machines."""
        showers = f"{self.data.showers} showers" if self.data.source == "simulate" else f"showers of {self.data.source}"
        where = self.hardware.accelerator if self.hardware is not None else "this machine"
        return f"Run({self.model.preset}, {showers}, {self.train.epochs} epochs, {where})"

    @model_validator(mode="after")
    def _has_its_workers_on_nodes_or_on_this_machine(self) -> Self:
        several = self.train.workers_per_node if self.train.workers_per_node > 1 else None
        for name, value, instead in (
            ("train.workersPerNode", several, "hardware.workers gives their number"),
            ("train.gpus", self.train.gpus, "hardware has accelerator and count"),
        ):
            if value is not None and self.hardware is not None:
                problem = f"{name} {value} is for this machine, and the run has hardware"
                raise InvalidValueError(problem, remedy=f"leave out {name} ({instead}), or hardware")
        if several and self.train.strategy not in ("auto", "multi-worker"):
            problem = f"train.workersPerNode {self.train.workers_per_node} needs the strategy multi-worker, not "
            problem += f"{self.train.strategy}"
            remedy = "set train.strategy to auto, or train.workersPerNode to 1"
            raise InvalidValueError(problem, remedy=remedy)
        return self

    @model_validator(mode="after")
    def _has_a_backend_that_keeps_it(self) -> Self:
        backend, seconds = self.cluster.backend, self.cluster.termination_grace_period_seconds
        if backend == "MPIJob":
            remedy = "leave cluster.backend out"
            raise InvalidValueError("cluster.backend MPIJob is for the ranks of a solver", remedy=remedy)
        queued = self.hardware is not None and self.hardware.queue is not None
        if queued and backend == "TrainJob" and seconds != GRACE_SECONDS:
            remedy = f"leave it out ({GRACE_SECONDS} s), or set cluster.backend: TFJob or JobSet"
            raise InvalidValueError("a queue loses cluster.terminationGracePeriodSeconds of a TrainJob", remedy=remedy)
        return self

    @model_validator(mode="after")
    def _check_that_the_maximum_can_differ(self) -> Self:
        layers = self.data.shape[2]
        for gate in self.validation.judging:
            if gate.quantity == "showerMaximum" and gate.limit >= layers - 1:
                drop = "drop it: validation.gates=[{quantity: showerMaximum, drop: true}]"
                problem = f"a gate with tolerance {gate.limit:g} could not fail: in {layers} layers the shower maximum "
                problem += f"differs by at most {layers - 1}"
                raise InvalidValueError(problem, remedy="set a tolerance such as 0.5" if layers > 1 else drop)
        return self
