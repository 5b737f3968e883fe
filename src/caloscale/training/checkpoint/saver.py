"""Saving while the training continues: one thread writes, another uploads."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from caloscale.errors import StorageError, UnreachableError
from caloscale.training.checkpoint.format import Arrays
from caloscale.training.checkpoint.metadata import Progress
from caloscale.training.checkpoint.store import BucketCopy, CheckpointFolder, step_of

log = logging.getLogger(__name__)

FINAL_SECONDS = 300.0
"""How long a training that has ended waits for a bucket that does not answer, s."""
LONGEST_WAIT_SECONDS = 10.0
"""How long a save waits for the one before it, s."""
PAUSE_SECONDS = 10.0
"""Pause between two uploads when the bucket did not answer in one."""


class Saver:
    """Saves values that were copied to the host; its calls return before the values are on the disk.

    A save waits for the one before it, but not for a disk that is slow: then the newest checkpoint, and the newest
    selected generator, are written after it, and the training continues. Whatever error ends a thread, the next call
    raises it. A bucket that does not answer only makes warnings until `finish`: the newest checkpoint is tried again
    until it is there.
    """

    def __init__(self, folder: CheckpointFolder, bucket: BucketCopy | None = None) -> None:
        self.folder = folder
        self.saved_bytes = 0
        self.safe_step = 0
        """Step of the newest checkpoint of this process from which any machine can resume: in the bucket where there is
        one, else on the disk."""
        self._waiting: dict[bool, tuple[Arrays, Progress]] = {}
        self._is_writing, self._lock = False, threading.Lock()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._copies = None if bucket is None else _Copies(bucket, self._arrived)

    def save(self, arrays: Arrays, progress: Progress, *, selected: bool = False) -> None:
        """Save the checkpoint of a step, or the selected generator. Raises the error of the save before it
        (StorageError)."""
        self.wait(LONGEST_WAIT_SECONDS)
        with self._lock:
            self._waiting[selected] = arrays, progress
            if self._is_writing:
                return
            self._is_writing = True
        self._thread = threading.Thread(target=self._write_all, name="saves", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the error of the last save, if it failed; returns at once."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        if self._copies is not None:
            self._copies.check()

    def wait(self, seconds: float | None = None) -> None:
        """Return when the last save is on the disk, or after this time. Raises as `save`."""
        if self._thread is not None:
            self._thread.join(seconds)
        self.check()

    def finish(self, seconds: float | None = None) -> None:
        """Return when all is saved, in the bucket, too. StorageError: the bucket did not take it within ``seconds``;
        absent: it did not answer for FINAL_SECONDS."""
        self.wait()
        if self._copies is not None:
            self._copies.finish(seconds)

    def _write_all(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_writing = False
                    return
                selected = max(self._waiting)  # before a step that refers to it
                waiting = self._waiting.pop(selected)
            self._write(*waiting, selected)

    def _write(self, arrays: Arrays, progress: Progress, selected: bool) -> None:
        try:
            path = self.folder.write(arrays, progress, selected=selected)
            content = path.read_bytes()
            self.saved_bytes += len(content)
            if self._copies is not None:
                self._copies.put(path, content)
            else:
                self._arrived(path)
        except BaseException as error:
            self._error = error

    def _arrived(self, path: Path) -> None:
        step = step_of(path)
        if step is not None:
            self.safe_step = max(self.safe_step, step)


class _Copies:
    """The newest version of each file that is not yet in the bucket, and the thread that uploads them."""

    def __init__(self, bucket: BucketCopy, arrived: Callable[[Path], None]) -> None:
        self.bucket, self._arrived = bucket, arrived
        self._waiting: dict[str, tuple[Path, bytes]] = {}
        self._changed = threading.Condition()
        self._busy = False
        self._error: StorageError | None = None
        self._failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="copies", daemon=True)
        self.thread.start()

    def put(self, path: Path, content: bytes) -> None:
        """Upload a file; of the checkpoints of steps only the newest."""
        kind = "step" if path.name.startswith("step-") else path.name
        with self._changed:
            self._waiting[kind] = path, content
            self._changed.notify_all()

    def check(self) -> None:
        """Raise what ended the thread, if anything has; returns at once."""
        if self._failure is not None:
            raise self._failure
        self.bucket.check()

    def finish(self, limit: float | None) -> None:
        """Wait until all is uploaded, as `Saver.finish`. Raises StorageError, and the error that ended the thread."""
        seconds = FINAL_SECONDS if limit is None else limit
        with self._changed:
            # Without an error the bucket takes it, however slowly.
            while not self._changed.wait_for(self._has_ended, seconds) and limit is None and self._error is None:
                pass
            self.check()
            if not self._has_ended():
                # A bucket that refuses needs the user; one that is slow or does not answer may recover.
                refused = type(self._error) is StorageError
                error = StorageError if refused else UnreachableError
                problem = f"the last checkpoint was not uploaded within {seconds:g} s: {self._error or 'no answer yet'}"
                remedy = "the checkpoint is on this machine; run the same command when the bucket answers"
                raise error(problem, file=self.bucket.uri, remedy=remedy) from self._error

    def _has_ended(self) -> bool:
        return self._failure is not None or not (self._waiting or self._busy)

    def _run(self) -> None:
        try:
            while True:
                self._copy_next()
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _copy_next(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting))
            kind = min(self._waiting)  # the selected generator before a step that refers to it
            path, content = self._waiting.pop(kind)
            self._busy = True
        try:
            self.bucket.upload(path, content)
            self._error = None
            self._arrived(path)
        except StorageError as error:
            log.warning("%s\n  the training continues; the upload of %s is repeated", error, path.name)
            self._error = error
            with self._changed:
                self._waiting.setdefault(kind, (path, content))
            time.sleep(PAUSE_SECONDS)
        with self._changed:
            self._busy = False
            self._changed.notify_all()
