"""The record of a finished training, and its curves."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from caloscale.spec.block import Block
from caloscale.training.strategy import Kind, Name


class StartedFrom(Block):
    """The model whose weights a training began with."""

    model: str
    """Its folder, train.startFrom."""
    weights: int
    """Numbers that were taken from it."""
    new: tuple[str, ...]
    """Variables that began with random values, as they have other shapes, by network and layer."""

    def __str__(self) -> str:
        others = f"; {len(self.new)} variables of other shapes begin with random values" if self.new else ""
        return f"{self.weights} weights are taken from {self.model}{others}"


class TrainSummary(Block):
    """The training."""

    steps: int
    """Steps that were made, those before a resumption included."""
    epochs: int
    """Epochs that were finished: passes over the training showers."""
    showers_per_second: float
    """Real showers per second of wall time from the first step to the last of the last attempt that made two or more,
    validation and saving included; where none did, of all attempts with their start."""
    seconds: float
    """Wall time of all attempts, their start included, of earlier ones until their last checkpoint, s."""
    selected_epoch: int
    """Epoch whose generator is released, chosen by physics on validation showers."""
    stopped: Literal["epochs", "maxMinutes"]
    """What ended the training."""


class TrainingRecord(TrainSummary):
    """A finished training: its summary, and what else was recorded."""

    showers: int
    """Real showers that were trained on, repetitions counted."""
    core_seconds: float
    """Processor time of the attempts that `seconds` counts, of worker 0 alone, s."""
    seconds_first_step: float
    """Wall time from the start to the end of the first step of the last attempt (building and compiling), s."""
    strategy: Name
    """How the devices trained together."""
    loop: Literal["custom", "builtin"]
    """Our own loop, or Keras' fit."""
    device: Kind
    """What TensorFlow trained on."""
    workers: int
    """Processes that trained together."""
    replicas: int
    """Devices that trained together."""
    global_batch_size: int
    """Showers of a step of all replicas."""
    selected_deviation: float | None
    """Figure of merit of the selected epoch, see `selection`; null where its showers were not finite."""
    parameters: dict[str, int]
    """Trainable parameters of each network, by role."""
    started_from: StartedFrom | None = None
    """The model whose weights the first step began with; null for random weights, and after a resumption."""
    resumed_from_step: int | None
    """Step from which the last attempt resumed; null when it began at the first step."""
    restarts: int
    """Attempts before the last one."""
    steps_lost: int
    """Steps that were repeated after a restart, as far as this machine knows."""
    saves: int
    """Checkpoints that were saved."""
    seconds_saving: float
    """Wall time for which the training waited for saving, s; recovery.saveSeconds is this over the saves."""
    saved_bytes: int
    """Bytes of all checkpoints."""
    source: str
    """Origin of the showers: geant4, parametrised, generated or file."""
    versions: dict[str, str]
    """Versions of the software."""

    @property
    def metrics(self) -> dict[str, float]:
        """The figures of a metrics page, by name as in files."""
        shown = {"steps", "epochs", "seconds", "showers_per_second", "selected_epoch"}
        return {name: float(value) for name, value in self.model_dump(by_alias=True, include=shown).items()}


def add_point(curves: dict[str, Any], figures: Mapping[str, float]) -> None:
    """One more point of every curve, by name; what is not finite is null, as JSON has no infinity."""
    for name, value in figures.items():
        curves.setdefault(name, []).append(value if math.isfinite(value) else None)
