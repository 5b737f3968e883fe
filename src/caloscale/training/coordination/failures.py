"""Errors of TensorFlow in a training: which are those of its input, and what the user can do."""

from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from caloscale.errors import ShowerFileError, TrainingError

PAUSES_SECONDS = (1.0, 5.0, 15.0)
"""Pauses before showers that could not be read are read again; then the training stops."""
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
    remedy = f"lower train.learningRate, or delete the newest of {checkpoints} to resume from an older one"
    return TrainingError(f"{what} not finite (NaN or infinite) at step {step}", remedy=remedy)


class Retries:
    """Counts failures at the same step. wait: waits for some seconds; true: the training is asked to stop."""

    def __init__(self, wait: Callable[[float], bool]) -> None:
        self._wait = wait
        self._step, self._failures = -1, 0

    def pause(self, step: int) -> bool:
        """Wait before another attempt at this step; False: there were enough, or the training is asked to stop."""
        self._failures = self._failures + 1 if step == self._step else 1
        self._step = step
        return self._failures <= len(PAUSES_SECONDS) and not self._wait(PAUSES_SECONDS[self._failures - 1])
