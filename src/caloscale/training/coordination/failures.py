"""Errors of TensorFlow in a training: whether its input failed, and what the user can do."""

from pathlib import Path

import tensorflow as tf

from caloscale.errors import ShowerFileError, TrainingError

_OF_INPUT = (
    tf.errors.DataLossError, tf.errors.FailedPreconditionError, tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError, tf.errors.OutOfRangeError, tf.errors.PermissionDeniedError, tf.errors.UnknownError,
)  # fmt: skip


def is_of_input(error: tf.errors.OpError) -> bool:
    """Whether a batch could not be read: then nothing of its step was computed."""
    return isinstance(error, _OF_INPUT) and "IteratorGetNext" in str(error.message)


def brief(error: tf.errors.OpError) -> str:
    """The message in one line."""
    return " ".join(str(error.message).split())[:300]


def unreadable(folder: Path, error: tf.errors.OpError) -> ShowerFileError:
    """The error of shards that cannot be read at times, although each of them can be read now."""
    remedy = "check the disk, then run the same command: it resumes from the last checkpoint"
    return ShowerFileError(f"cannot be read: {brief(error)}", file=folder, remedy=remedy)


def failed(error: tf.errors.OpError) -> TrainingError:
    """The error of a step that TensorFlow could not make."""
    remedy = "run the same command again: it resumes from the last checkpoint"
    if isinstance(error, tf.errors.ResourceExhaustedError):
        remedy = "set train.maxBatchPerReplica lower: the same batch in smaller micro-batches takes less memory"
    return TrainingError(f"TensorFlow could not make a step: {brief(error)}", remedy=remedy)


def diverged(what: str, step: int, checkpoints: Path) -> TrainingError:
    """The error of a training whose numbers are NaN or infinite at a step. what: ``a loss was``, for example."""
    remedy = f"train into another folder with a lower train.learningRate, or delete the newest of {checkpoints}: "
    remedy += "the same command then resumes from an older one"
    return TrainingError(f"{what} not finite (NaN or infinite) at step {step}", remedy=remedy)
