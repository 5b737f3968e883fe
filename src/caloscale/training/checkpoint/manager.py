"""What lets a training go on: checkpoints, the agreement of its workers on when to save and stop, and its lives."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import tensorflow as tf

from caloscale.errors import CheckpointError, ConfigurationError, PeerLostError, StorageError
from caloscale.spec import Checkpoint, Run
from caloscale.storage.atomic import storage_error
from caloscale.storage.objects import is_remote
from caloscale.training.checkpoint.description import Progress
from caloscale.training.checkpoint.format import Arrays, encode
from caloscale.training.checkpoint.progress_marker import Life, Mark, next_life, read_mark
from caloscale.training.checkpoint.saver import Saver
from caloscale.training.checkpoint.snapshot import from_host, not_finite, to_host
from caloscale.training.checkpoint.store import BucketCopy, CheckpointFolder, Saved, read_content
from caloscale.training.coordination.failures import diverged
from caloscale.training.coordination.peers import Peers, meet
from caloscale.training.coordination.signals import StopSignals
from caloscale.training.strategy import Engine, open_engine, worker_of

log = logging.getLogger(__name__)

_OF_SELECTED = ("selected_epoch", "selected_step", "selected_deviation")
ALARM_SECONDS = 120
"""How long TensorFlow may take to connect workers that are all there; then the kernel ends the process (142)."""
INTERRUPTED_SECONDS = 30.0
"""How long a training that was stopped waits for the bucket; after SIGTERM the grace period decides."""


@dataclass(frozen=True)
class Decision:
    """What all workers do behind a step."""

    save: bool = False
    """Worker 0 writes a checkpoint."""
    stopped_by: int | None = None
    """Number of a worker that was told to stop; all stop."""


class Continuity:
    """Everything about a training that outlives its process. Enter it around the steps.

    folder: the checkpoints', on a disk of worker 0; the other workers write nothing and need no disk in common.
    """

    def __init__(
        self,
        settings: Checkpoint,
        folder: Path,
        identity: Mapping[str, Any],
        peers: Peers,
        signals: StopSignals,
    ) -> None:
        self.every_seconds, self.peers, self.signals = settings.every_seconds, peers, signals
        remote = settings.uri is not None and is_remote(settings.uri)
        path = Path(settings.uri) if settings.uri is not None and not remote else folder
        self.folder = CheckpointFolder(path, keep=settings.keep, identity=identity)
        self.bucket = BucketCopy(settings.uri or "", keep=settings.keep) if remote else None
        self.saver = Saver(self.folder, self.bucket)
        self.life = Life()
        self.before = Progress(step=0, seconds=0.0, core_seconds=0.0)
        self.seconds_saving, self.saves = 0.0, 0
        self._saved_at = time.monotonic()
        self._mark: Mark | None = None
        self._agree_on(identity)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Let the last save end, and the other workers know."""
        if self._mark is not None:
            self._mark.close()
        if error is None:
            return
        self.peers.abandon()
        try:
            self.saver.finish(self.signals.seconds_left(INTERRUPTED_SECONDS))
        except Exception as second:
            if second is not error:
                log.warning("%s", second)

    def restore(self, variables: Mapping[str, Any]) -> Progress | None:
        """Set the variables of all workers to worker 0's newest intact checkpoint; None when there is none.

        Raises CheckpointError, StorageError, PeerLostError.
        """
        saved = self._newest() if self.peers.is_chief else None
        if self.peers.connections:
            content = encode(saved.arrays, saved.progress.model_dump_json(by_alias=True)) if saved else None
            content = self.peers.share(content)
            saved = read_content(content, self.folder.path) if content else None
        if saved is not None:
            _set(variables, saved)
        if self.peers.is_chief:
            known = None
            if saved is not None:
                self.before = saved.progress
                known = Life(self.before.restarts, self.before.steps_lost, self.before.step)
            mark = self.folder.path / "mark"
            self.life = next_life(read_mark(mark), known)
            try:
                self._mark = Mark(mark, self.life)
            except OSError as error:
                raise storage_error(error, mark) from error
        return saved.progress if saved else None

    def restore_selected(self, variables: Mapping[str, Any]) -> Progress | None:
        """Set a generator's variables to the selected generator; None: there is none, or it is damaged."""
        self.saver.wait()
        saved = self.folder.selected()
        if saved is not None:
            _set(variables, saved)
        return saved.progress if saved else None

    def save(self, variables: Mapping[str, Any], progress: Progress) -> None:
        """Save a checkpoint beside the training. Raises StorageError when the save before it failed, and TrainingError,
        with nothing saved, when a value is not finite.
        """
        if self.peers.is_chief:
            started = time.monotonic()
            self.saves += 1
            self.saver.save(self._sound(variables, progress), progress.model_copy(update=self.figures()))
            self._saved_at = time.monotonic()
            self.seconds_saving += self._saved_at - started

    def save_selected(self, variables: Mapping[str, Any], progress: Progress) -> None:
        """Save the selected generator. Raises as `save`."""
        if self.peers.is_chief:
            started = time.monotonic()
            self.saver.save_selected(self._sound(variables, progress), progress.model_copy(update=self.figures()))
            self.seconds_saving += time.monotonic() - started

    def agree(self, step: int) -> Decision:
        """What all workers do behind this step; each of them asks behind each step.

        Raises PeerLostError, and StorageError when a checkpoint could not be written.
        """
        self.signals.defer()
        self.saver.check()
        if self._mark is not None:
            self._mark.step(step)
        due = time.monotonic() - self._saved_at > self.every_seconds
        words = self.peers.gather({"step": step, "save": due, "stop": self.signals.received is not None})
        if any(word["step"] != step for word in words):
            raise PeerLostError(None, f"is at another step: {[word['step'] for word in words]}")
        return Decision(words[0]["save"], _stopped_by(words))

    def stop(self, stopped_by: int) -> None:
        """End this process as told, the last checkpoint being on its way: raises Terminated, KeyboardInterrupt or, when
        only another worker was told to, PeerLostError.
        """
        try:
            self.saver.finish(self.signals.seconds_left(INTERRUPTED_SECONDS))
        except StorageError as error:
            log.error("%s", error)
        self.peers.close()
        self.signals.act()
        raise PeerLostError(stopped_by, "was told to stop")

    def finish(self) -> None:
        """All is saved, in the bucket, too. Raises StorageError, and as `stop` when one was told to stop since the last
        step: all workers then, as one that is started again finds none that have ended well.
        """
        if self.peers.is_chief:
            self.saver.finish()
        # The others stay until worker 0 has all it needs of them.
        words = self.peers.gather({"done": True, "stop": self.signals.received is not None})
        stopped_by = _stopped_by(words)
        if stopped_by is not None:
            self.stop(stopped_by)

    def figures(self) -> dict[str, Any]:
        """Restarts, lost steps and what saving took, all lives together, by the names of `Progress`."""
        return {
            "restarts": self.life.restarts,
            "steps_lost": self.life.steps_lost,
            "saves": self.before.saves + self.saves,
            "seconds_saving": self.before.seconds_saving + self.seconds_saving,
            "saved_bytes": self.before.saved_bytes + self.saver.saved_bytes,
        }

    def _sound(self, variables: Mapping[str, Any], progress: Progress) -> Arrays:
        """Copies on the host. The losses of a step were computed before its last update, which these have seen."""
        arrays = to_host(variables)
        name = not_finite(arrays)
        if name is not None:
            raise diverged(f"{name} is", progress.step, self.folder.path)
        return arrays

    def _newest(self) -> Saved | None:
        self.folder.clean()
        if self.bucket is not None:
            self.bucket.fetch(self.folder)
        saved = self.folder.newest()
        if saved is None or saved.progress.selected_epoch is None or self.folder.selected() is not None:
            return saved
        return replace(saved, progress=saved.progress.model_copy(update=dict.fromkeys(_OF_SELECTED)))

    def _agree_on(self, identity: Mapping[str, Any]) -> None:
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        words = self.peers.gather({"identity": digest})
        different = [index for index, word in enumerate(words) if word != words[0]]
        if different:
            raise ConfigurationError(
                f"worker {different[0]} has another document or other showers than worker 0",
                remedy="give all workers the same document and the same shards",
            )


def _stopped_by(words: list[dict[str, Any]]) -> int | None:
    """Number of the first worker that was told to stop."""
    return next((index for index, word in enumerate(words) if word["stop"]), None)


@contextmanager
def among_peers(run: Run, signals: StopSignals) -> Iterator[tuple[Engine, Peers]]:
    """The engine of this worker, and its connections to the others.

    What TensorFlow raises in here because another worker is gone is a PeerLostError.
    """
    index, workers = worker_of(os.environ)
    cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"] if workers > 1 else []
    # TensorFlow would wait for the others for an hour, and no Python would run meanwhile.
    peers = meet(cluster, index)
    try:
        with _alarm(ALARM_SECONDS if workers > 1 else 0):
            engine = open_engine(run, os.environ)
        signals.renew()
        peers.settle()
        yield engine, peers
    except tf.errors.OpError as error:
        peers.abandon()
        if workers == 1:
            raise
        raise PeerLostError(peers.lost, f"is gone: {' '.join(str(error.message).split())[:200]}") from error
    except BaseException:
        peers.abandon()
        raise
    peers.close()


@contextmanager
def _alarm(seconds: int) -> Iterator[None]:
    """The kernel ends the process by SIGALRM when the block takes longer; 0: it may take any time."""
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def _set(variables: Mapping[str, Any], saved: Saved) -> None:
    try:
        from_host(variables, saved.arrays)
    except ValueError as error:
        raise CheckpointError(
            f"does not fit the network: {error}",
            file=saved.path,
            remedy="train into another folder, or delete this one to train from the beginning",
        ) from error
