"""How far a training is: content of a checkpoint in addition to the weights, with its identity, and the progress marker
of an attempt."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from caloscale.showers.tfrecord.manifest import Manifest
from caloscale.spec import Run
from caloscale.spec.block import Block

CHANGEABLE: dict[str, Any] = {
    "data": {"simulation": {"processes"}},
    "train": {
        "accumulate", "batch_per_replica", "convolutions", "deterministic", "epochs", "global_batch_size", "gpus",
        "loop", "max_batch_per_replica", "max_minutes", "one_dnn", "pin", "strategy", "threads", "workers_per_node",
    },
}  # fmt: skip
"""Fields that may change between restarts of a training; the global batch that follows from them may not."""


class Progress(Block):
    """How far a training is: content of a checkpoint in addition to the weights."""

    format: Literal[3] = 3
    """Version of the content of a checkpoint."""
    step: int
    """Steps that were made."""
    seconds: float
    """Wall time so far, s."""
    core_seconds: float
    """Processor time of worker 0 so far, s."""
    showers_per_second: float = 0.0
    """Real showers per second, see `TrainingRecord`."""
    selected_epoch: int | None = None
    """Epoch of the selected generator."""
    selected_step: int | None = None
    """Its step."""
    selected_deviation: float | None = None
    """Its figure of merit; null where its showers were not finite."""
    history: dict[str, Any] = {}
    """Losses and physics so far."""
    restarts: int = 0
    """Attempts of the training before the one that wrote this."""
    steps_lost: int = 0
    """Steps that were repeated, in all attempts before it."""
    saves: int = 0
    """Checkpoints that were saved, this one included."""
    seconds_saving: float = 0.0
    """Time for which the training waited for saving, s."""
    saved_bytes: int = 0
    """Bytes that were written."""
    identity: dict[str, Any] = {}
    """The fields of the run configuration that the weights depend on, and the showers."""


def weights_configuration(run: Run) -> dict[str, Any]:
    """The fields that the weights depend on, by block: those that may not change in a training."""
    return run.model_dump(mode="json", by_alias=True, include={"model", "data", "train"}, exclude=CHANGEABLE)


def identity_of(run: Run, manifest: Manifest, global_batch: int) -> dict[str, Any]:
    """What a checkpoint depends on: run configuration (without CHANGEABLE), training shards and global batch."""
    return {**weights_configuration(run), "globalBatch": global_batch, "showers": manifest.train_sha256}


def first_difference(theirs: Any, ours: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """Dotted path of the first value that differs, and both values; None when all are equal."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = dict.fromkeys([*ours, *theirs])
        inner = (first_difference(theirs.get(key), ours.get(key), f"{path}.{key}".lstrip(".")) for key in keys)
        return next(filter(None, inner), None)
    return None if theirs == ours else (path, theirs, ours)


@dataclass(frozen=True)
class AttemptMark:
    """One attempt of a training, from its start until it ends or is killed."""

    restarts: int = 0
    """Attempts before it."""
    steps_lost: int = 0
    """Steps that were repeated in all attempts before it."""
    step: int = 0
    """The last step that it made."""


def read_marker(path: Path) -> AttemptMark | None:
    """The attempt that wrote this file; None when there is none, or it cannot be read."""
    with suppress(OSError, ValueError):
        restarts, lost, step = (int(number) for number in path.read_text(encoding="ascii").split())
        return AttemptMark(restarts, lost, step)
    return None


def next_attempt(last: AttemptMark | None, saved: Progress | None) -> AttemptMark:
    """The attempt that begins now. last: by the progress marker. saved: by the checkpoint from which it resumes."""
    known = [attempt for attempt in (last, saved) if attempt is not None]
    if not known:
        return AttemptMark()
    start = saved.step if saved else 0
    repeated = max(0, last.step - start) if last else 0
    restarts, lost = max(each.restarts for each in known), max(each.steps_lost for each in known)
    return AttemptMark(restarts + 1, lost + repeated, start)


class ProgressMarker:
    """The file of the present attempt, written at every step.

    It is in the page cache of the machine, so it survives the process, not the machine. It costs microseconds and
    serves only the count of lost steps in the bill; the training itself resumes from a checkpoint.
    """

    def __init__(self, path: Path, attempt: AttemptMark) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._attempt = attempt
        self.write(attempt.step)

    def write(self, step: int) -> None:
        """This step is made. An error is ignored: the training does not depend on this file."""
        numbers = (self._attempt.restarts, self._attempt.steps_lost, step)
        with suppress(OSError):
            os.pwrite(self._file, " ".join(f"{number:12d}" for number in numbers).encode(), 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
