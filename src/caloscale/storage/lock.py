"""One process at a time writes into a folder."""

import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from caloscale.errors import HeldError
from caloscale.storage.atomic import make_folder, storage_error

log = logging.getLogger(__name__)

LOCK_NAME = ".lock"
_POLL_SECONDS = 1.0
_HELD: set[Path] = set()
"""Folders that this process holds: a stage within a run does not wait for its own run."""


@contextmanager
def locked(folder: Path, *, patience_seconds: float = 0.0) -> Iterator[None]:
    """Exclude other processes from a folder, as long as this process lives: the lock of a killed one is free at once.

    patience_seconds: for how long a holder is waited for. Raises HeldError with its host and process, StorageError.
    """
    path = folder.resolve()
    if path in _HELD:
        yield
        return
    try:
        file = (folder / LOCK_NAME).open("a+", encoding="utf-8")
    except OSError as error:
        raise storage_error(error, folder / LOCK_NAME) from error
    with file:
        deadline = time.monotonic() + patience_seconds
        while not _taken(file.fileno(), folder):
            if time.monotonic() >= deadline:
                file.seek(0)
                raise HeldError(file.read().strip() or "another process", folder)
            time.sleep(_POLL_SECONDS)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        _HELD.add(path)
        try:
            yield
        finally:
            _HELD.discard(path)
            file.truncate(0)


def _taken(descriptor: int, folder: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        log.warning("%s: this file system has no locks; let no other process write here", folder)
    return True


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Wait until no other process or thread of this machine is in such a block for the same folder, which is made.

    Unlike `locked` it leaves no file: the folder may be the user's own, such as the working directory.
    """
    descriptor = os.open(make_folder(folder), os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
