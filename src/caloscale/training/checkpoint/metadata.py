"""Content of a checkpoint in addition to the weights: how far the training is, and its identity."""

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
