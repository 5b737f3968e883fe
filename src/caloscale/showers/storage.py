"""Where files lie: writing that leaves nothing half-written, and gs:// beside local paths."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from caloscale.errors import StorageError

_REMEDIES = {
    errno.ENOSPC: "free space on this disk or choose another folder",
    errno.EDQUOT: "free space in your quota or choose another folder",
    errno.EACCES: "choose a folder that you may write to",
    errno.EPERM: "choose a folder that you may write to",
    errno.EROFS: "choose a folder on a disk that is not read-only",
    errno.ENOTDIR: "a part of the path is a file: choose another path",
    errno.EISDIR: "there is a folder of this name: choose another path",
    errno.ENAMETOOLONG: "choose a shorter name",
}
PARTIAL = ".partial-"
"""How the names of unfinished files and folders begin; readers of folders skip names with a dot."""


@contextmanager
def atomic_writer(path: str | Path) -> Iterator[Path]:
    """A temporary path beside ``path`` (same suffix), renamed to ``path`` when the block succeeds.

    The block may make a file or a folder there. Missing parent folders are made. When the block fails,
    whatever was written is removed and ``path`` is as it was. A file replaces a file and a folder an
    empty folder. OSError becomes StorageError with the file and a remedy; other errors pass.
    """
    path = Path(path)
    temporary = path.with_name(f"{PARTIAL}{secrets.token_hex(4)}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _synchronise(temporary)
        temporary.replace(path)
        _synchronise(path.parent, deep=False)
    except OSError as error:
        _remove(temporary)
        raise storage_error(error, path) from error
    except BaseException:
        _remove(temporary)
        raise


def storage_error(error: OSError, path: str | Path) -> StorageError:
    """The StorageError of an OSError that came up while ``path`` was written."""
    number = error.errno or _hidden_errno(str(error))
    reason = os.strerror(number) if number else " ".join(str(error).split())
    remedy = _REMEDIES.get(number or 0, "check the disk and the path")
    return StorageError(f"cannot be written: {reason}", file=path, remedy=remedy)


def _hidden_errno(message: str) -> int | None:
    """HDF5 reports the number only within its message."""
    found = re.search(r"errno = (\d+)", message)
    return int(found.group(1)) if found else None


def _synchronise(path: Path, *, deep: bool = True) -> None:
    """Have the content on disk before its name says so."""
    if deep and path.is_dir():
        for inner in path.iterdir():
            _synchronise(inner)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)
