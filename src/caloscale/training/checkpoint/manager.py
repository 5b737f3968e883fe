"""When checkpoints of a training are saved and restored, by which worker, and what all workers decide after a step."""

import hashlib
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from caloscale.errors import CheckpointError, ConfigurationError, PeerLostError, StorageError
from caloscale.spec import Checkpoint
from caloscale.storage.atomic import storage_error
from caloscale.storage.objects import is_remote
from caloscale.training.checkpoint.format import Arrays, encode
from caloscale.training.checkpoint.metadata import AttemptMark, Progress, ProgressMarker, next_attempt, read_marker
from caloscale.training.checkpoint.saver import Saver
from caloscale.training.checkpoint.store import BucketCopy, CheckpointFolder, Saved, read_content
from caloscale.training.coordination.failures import diverged
from caloscale.training.coordination.peers import Message, Peers
from caloscale.training.coordination.signals import StopSignals

log = logging.getLogger(__name__)

_OF_SELECTED = ("selected_epoch", "selected_step", "selected_deviation")
INTERRUPTED_SECONDS = 30.0
"""How long a training that was stopped waits for the bucket; after SIGTERM the grace period decides."""


class CheckpointManager:
    """Saves and restores a training, as a context around its steps.

    folder: of the checkpoints, on a disk of worker 0; the other workers write nothing and need no disk in common.
    identity: see `metadata.identity_of`; equal at all workers.
    """

    def __init__(
        self, settings: Checkpoint, folder: Path, identity: Mapping[str, Any], peers: Peers, signals: StopSignals
    ) -> None:
        self.every_seconds, self.peers, self.signals = settings.every_seconds, peers, signals
        remote = settings.uri is not None and is_remote(settings.uri)
        path = Path(settings.uri) if settings.uri is not None and not remote else folder
        self.folder = CheckpointFolder(path, keep=settings.keep, identity=identity)
        self.bucket = BucketCopy(settings.uri or "", keep=settings.keep, wait=signals.wait) if remote else None
        self.saver = Saver(self.folder, self.bucket)
        self.attempt = AttemptMark()
        self.before = Progress(step=0, seconds=0.0, core_seconds=0.0)
        self.seconds_saving, self.saves = 0.0, 0
        self._saved_at = time.monotonic()
        self._marker: ProgressMarker | None = None
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        messages = peers.all_gather({"identity": digest})
        different = [index for index, message in enumerate(messages) if message != messages[0]]
        if different:
            problem = f"worker {different[0]} has another run configuration or other showers than worker 0"
            raise ConfigurationError(problem, remedy="give all workers the same run configuration and the same shards")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """After an error: finish the last save, and let the other workers notice the failure."""
        if self._marker is not None:
            self._marker.close()
        if error is not None:
            self.peers.disconnect()
            try:
                self.saver.finish(self.signals.seconds_left(INTERRUPTED_SECONDS))
            except Exception as second:
                if second is not error:
                    log.warning("%s", second)
        if self.bucket is not None:
            self.bucket.release()

    def restore(self, variables: Mapping[str, Any]) -> Progress | None:
        """Set the variables of all workers to worker 0's newest intact checkpoint; None when there is none.

        Raises CheckpointError, StorageError, PeerLostError.
        """
        saved = self._newest() if self.peers.is_chief else None
        if self.peers.connections:
            content = encode(saved.arrays, saved.progress.model_dump_json(by_alias=True)) if saved else None
            content = self.peers.broadcast(content)
            saved = read_content(content, self.folder.path) if content else None
        if saved is not None:
            _assign(variables, saved)
        progress = saved.progress if saved else None
        if self.peers.is_chief:
            self.before = progress or self.before
            path = self.folder.path / "progress-marker"
            self.attempt = next_attempt(read_marker(path), progress)
            try:
                self._marker = ProgressMarker(path, self.attempt)
            except OSError as error:
                raise storage_error(error, path) from error
        return progress

    def restore_selected(self, variables: Mapping[str, Any]) -> Progress | None:
        """Set a generator's variables to the selected generator; None: there is none, or it is damaged."""
        self.saver.wait()
        saved = self.folder.selected()
        if saved is not None:
            _assign(variables, saved)
        return saved.progress if saved else None

    def save(self, variables: Mapping[str, Any], progress: Progress, *, selected: bool = False) -> None:
        """Save a checkpoint, or the selected generator, while the training continues. Raises StorageError when the save
        before it failed, and TrainingError, with nothing saved, when a value is not finite."""
        if self.peers.is_chief:
            started = time.monotonic()
            if not selected:
                self.saves += 1
            whole = progress.model_copy(update=self.figures())
            arrays = to_host(variables)
            broken = next((name for name, values in arrays.items() if not np.isfinite(values).all()), None)
            if broken is not None:  # the losses of a step do not show the result of its last update
                raise diverged(f"{broken} is", progress.step, self.folder.path)
            self.saver.save(arrays, whole, selected=selected)
            ended = time.monotonic()
            if not selected:
                self._saved_at = ended
            self.seconds_saving += ended - started

    def agree(self, step: int) -> tuple[bool, int | None]:
        """Whether worker 0 writes a checkpoint after this step, and the worker that got a stop signal: all stop then.

        A collective. Raises PeerLostError, and StorageError when a checkpoint could not be written.
        """
        self.signals.defer()
        self.saver.check()
        if self._marker is not None:
            self._marker.write(step)
        due = time.monotonic() - self._saved_at > self.every_seconds
        messages = self.peers.all_gather({"step": step, "save": due, "stop": self.signals.received is not None})
        if any(message["step"] != step for message in messages):
            raise PeerLostError(None, f"is at another step: {[message['step'] for message in messages]}")
        return messages[0]["save"], _stopped_by(messages)

    def stop(self, stopped_by: int) -> None:
        """End this process after a stop signal, when the last checkpoint is saved. Raises Terminated or
        KeyboardInterrupt or, when only another worker got the signal, PeerLostError.
        """
        try:
            self.saver.finish(self.signals.seconds_left(INTERRUPTED_SECONDS))
        except StorageError as error:
            log.error("%s", error)
        self.peers.close()
        self.signals.check()
        raise PeerLostError(stopped_by, "received a signal to stop")

    def finish(self) -> None:
        """Return when all is saved, in the bucket, too. Raises StorageError, and as `stop`, at all workers, when one of
        them got a stop signal since the last step: one that is started again would wait for others that have ended.
        """
        if self.peers.is_chief:
            self.saver.finish()
        # The other workers stay connected until worker 0 needs them no more.
        stopped_by = _stopped_by(self.peers.all_gather({"stop": self.signals.received is not None}))
        if stopped_by is not None:
            self.stop(stopped_by)

    def figures(self) -> dict[str, Any]:
        """Restarts, lost steps and the cost of saving, of all attempts, by the names of `Progress`."""
        return {
            "restarts": self.attempt.restarts,
            "steps_lost": self.attempt.steps_lost,
            "saves": self.before.saves + self.saves,
            "seconds_saving": self.before.seconds_saving + self.seconds_saving,
            "saved_bytes": self.before.saved_bytes + self.saver.saved_bytes,
        }

    def _newest(self) -> Saved | None:
        self.folder.clean()
        if self.bucket is not None:
            self.bucket.claim()
            self.bucket.fetch(self.folder)
            self.bucket.keep()
        saved = self.folder.newest()
        if saved is None or saved.progress.selected_epoch is None or self.folder.selected() is not None:
            return saved
        return replace(saved, progress=saved.progress.model_copy(update=dict.fromkeys(_OF_SELECTED)))


def to_host(variables: Mapping[str, Any]) -> Arrays:
    """Copies of the present values. variables: tf.Variables by name, mirrored or not."""
    return {name: np.array(variable.numpy()) for name, variable in variables.items()}


def from_host(variables: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Set all variables; ValueError, with nothing set, when a name is missing or left over or a shape differs."""
    missing, left_over = sorted(variables.keys() - arrays.keys()), sorted(arrays.keys() - variables.keys())
    if missing or left_over:
        raise ValueError(f"missing {missing[:3]}, left over {left_over[:3]}")
    for name, variable in variables.items():
        if tuple(variable.shape) != arrays[name].shape:
            raise ValueError(f"{name} has the shape {arrays[name].shape} instead of {tuple(variable.shape)}")
    for name, variable in variables.items():
        variable.assign(arrays[name])


def _stopped_by(messages: list[Message]) -> int | None:
    """Number of the first worker that got a stop signal."""
    return next((index for index, message in enumerate(messages) if message["stop"]), None)


def _assign(variables: Mapping[str, Any], saved: Saved) -> None:
    try:
        from_host(variables, saved.arrays)
    except ValueError as error:
        remedy = "train into another folder, or delete this one to train from the beginning"
        raise CheckpointError(f"does not fit the network: {error}", file=saved.path, remedy=remedy) from error
