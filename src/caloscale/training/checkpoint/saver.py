"""Saving beside the training: one thread writes, another copies to the bucket."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from caloscale.errors import CaloscaleError, StorageError, UnreachableError
from caloscale.training.checkpoint.format import Arrays
from caloscale.training.checkpoint.metadata import Progress
from caloscale.training.checkpoint.store import BucketCopy, CheckpointFolder, step_of

log = logging.getLogger(__name__)

FINAL_SECONDS = 300.0
"""How long the end of a training waits for the bucket."""
PAUSE_SECONDS = 10.0
"""Between two attempts at a bucket that did not answer for as long as one attempt lasts."""


class Saver:
    """Takes values that were copied to the host, and returns before they are on the disk.

    A save waits for the one before it. Whatever error ends a thread, the next call raises it. A bucket that does not
    answer only makes warnings until `finish`: the newest checkpoint is tried again until it is there.
    """

    def __init__(self, folder: CheckpointFolder, bucket: BucketCopy | None = None) -> None:
        self.folder = folder
        self.saved_bytes = 0
        self.safe_step = 0
        """Step of the newest checkpoint of this process that is where it will be looked for, in the bucket if there is
        one."""
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._copies = None if bucket is None else _Copies(bucket, self._arrived)

    def save(self, arrays: Arrays, progress: Progress) -> None:
        """Save the checkpoint of a step. Raises what the save before it failed with (StorageError)."""
        self._start(lambda: self.folder.write(arrays, progress))

    def save_selected(self, arrays: Arrays, progress: Progress) -> None:
        """Save the selected generator. Raises as `save`."""
        self._start(lambda: self.folder.write_selected(arrays, progress))

    def check(self) -> None:
        """Raise what the last save failed with, if it has; returns at once."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        if self._copies is not None:
            self._copies.check()

    def wait(self) -> None:
        """Return when the last save is on the disk. Raises as `save`."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def finish(self, seconds: float | None = None) -> None:
        """Return when all is saved, in the bucket, too. StorageError: the bucket did not take it in time.

        seconds: how long the bucket is waited for; absent: FINAL_SECONDS.
        """
        self.wait()
        if self._copies is not None:
            self._copies.finish(FINAL_SECONDS if seconds is None else seconds)

    def _start(self, write: Callable[[], Path]) -> None:
        self.wait()
        self._thread = threading.Thread(target=self._write, args=(write,), name="saves", daemon=True)
        self._thread.start()

    def _write(self, write: Callable[[], Path]) -> None:
        try:
            path = write()
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
    """The newest version of each file that is not yet in the bucket, and the thread that brings them there."""

    def __init__(self, bucket: BucketCopy, arrived: Callable[[Path], None]) -> None:
        self.bucket, self._arrived = bucket, arrived
        self._waiting: dict[str, tuple[Path, bytes]] = {}
        self._changed = threading.Condition()
        self._busy = False
        self._error: CaloscaleError | None = None
        self._failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="copies", daemon=True)
        self.thread.start()

    def put(self, path: Path, content: bytes) -> None:
        """Have a file copied; of the checkpoints of steps only the newest."""
        kind = "step" if path.name.startswith("step-") else path.name
        with self._changed:
            self._waiting[kind] = path, content
            self._changed.notify_all()

    def check(self) -> None:
        """Raise what ended the thread, if anything has; returns at once."""
        if self._failure is not None:
            raise self._failure

    def finish(self, seconds: float) -> None:
        """Wait until all is there. Raises StorageError, and what ended the thread."""
        with self._changed:
            ended = self._changed.wait_for(lambda: self._failure or not (self._waiting or self._busy), seconds)
            self.check()
            if not ended:
                # A bucket that refuses is somebody's to mend; one that is slow or away is not.
                refused = type(self._error) is StorageError
                raise (StorageError if refused else UnreachableError)(
                    f"the last checkpoint did not get there within {seconds:g} s: {self._error or 'no answer yet'}",
                    file=self.bucket.uri,
                    remedy="the checkpoint is on this machine, and the same command brings it to a bucket that answers",
                ) from self._error

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
            kind = min(self._waiting)  # selected.safetensors before a step that speaks of it
            path, content = self._waiting.pop(kind)
            self._busy = True
        try:
            self.bucket.upload(path, content)
            self._error = None
            self._arrived(path)
        except CaloscaleError as error:
            log.warning("%s\n  the training goes on; %s is tried again", error, path.name)
            self._error = error
            with self._changed:
                self._waiting.setdefault(kind, (path, content))
            time.sleep(PAUSE_SECONDS)
        with self._changed:
            self._busy = False
            self._changed.notify_all()
