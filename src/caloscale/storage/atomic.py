"""Writing local files so that nothing half-written is left."""

import ctypes
import errno
import functools
import glob
import hashlib
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from caloscale.errors import InvalidValueError, StorageError
from caloscale.spec.values import check_place

PARTIAL = ".partial-"
"""Prefix of the names of unfinished files and folders; readers of folders skip names that begin with a dot."""
_REMEDIES = {
    errno.ENOSPC: "free space on this disk or choose another folder",
    errno.EDQUOT: "free space in your quota or choose another folder",
    errno.EACCES: "choose a folder that you may write to",
    errno.EPERM: "choose a folder that you may write to",
    errno.EROFS: "choose a folder on a disk that is not read-only",
    errno.ENOTDIR: "a component of the path is a file: choose another path",
    errno.EISDIR: "there is a folder of this name: choose another path",
    errno.EEXIST: "a component of the path is a file: choose another path",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EFBIG: "raise the limit of the size of files (ulimit -f), or choose a disk that takes larger ones",
    errno.ENOTEMPTY: "there is a folder of this name with files in it: choose another path",
}
_CLEANED: set[Path] = set()
"""Files whose abandoned partial files this process has removed: a folder may be large, and is listed once a file."""
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # renameat2(2)


@contextmanager
def atomic_writer(path: str | Path, *, replace_folder: bool = False) -> Iterator[Path]:
    """A temporary path beside ``path`` (same suffix), renamed to ``path`` when the block succeeds.

    The block creates a file or a folder there; its parents are made. When the block fails, whatever was written is
    removed and ``path`` is unchanged. A file replaces a file; a folder replaces an empty folder, and with
    ``replace_folder`` also a full one. A link stays, what it leads to is replaced. What killed processes of this
    machine left of the same file goes when the block has succeeded. OSError becomes StorageError with the file and a
    remedy; other errors pass. A device, a pipe, a link to an open file (/dev/stdout), whose name a file would take, and
    the working directory and those above it are a StorageError, too.
    """
    refuse_address(path)
    given, path = Path(path), Path(os.path.realpath(path))
    temporary = path.with_name(f"{PARTIAL}{machine()}.{os.getpid()}.{secrets.token_hex(4)}-{given.name}")
    try:
        leads_to_process = given.is_symlink() and given.readlink().is_relative_to("/proc")
        if leads_to_process or (path.exists() and not path.is_file() and not path.is_dir()):
            raise StorageError("is a device, a pipe or an open file", file=given, remedy="give the name of a file")
        if Path.cwd().is_relative_to(path):
            problem = "is the folder of this process or one above it, which cannot be replaced"
            raise StorageError(problem, file=given, remedy="give the name of a file or folder in it")
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _synchronise(temporary)
        if replace_folder and path.is_dir() and temporary.is_dir():
            _exchange(temporary, path)
        else:
            temporary.replace(path)
        _synchronise(path.parent, deep=False)
        _remove_abandoned(path.with_name(given.name))
    except OSError as error:
        raise storage_error(error, given) from error
    finally:
        _remove(temporary)


def make_folder(folder: str | Path) -> Path:
    """Make a folder, with its parents, that may be there. Raises StorageError: it cannot be made, or is an address."""
    refuse_address(folder)
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(error, folder) from error
    return Path(folder)


def refuse_address(place: str | Path, *, bucket: bool = False) -> None:
    """Raise StorageError for anything but a path or, with ``bucket``, gs://bucket/prefix."""
    try:
        check_place(str(place), bucket=bucket)
    except InvalidValueError as error:
        raise StorageError(error.problem, file=place, remedy=error.remedy) from None


def write_text(path: str | Path, text: str) -> None:
    """Replace a file by this text, as `atomic_writer` does; a newline ends it. Raises StorageError."""
    with atomic_writer(path) as temporary:
        temporary.write_text(text if text.endswith("\n") else f"{text}\n", encoding="utf-8")


def storage_error(error: OSError, path: str | Path) -> StorageError:
    """The StorageError for an OSError that was raised while ``path`` was written."""
    hidden = re.search(r"errno = (\d+)", str(error))  # HDF5 reports the number only inside its message
    number = error.errno or (int(hidden[1]) if hidden else None)
    reason = os.strerror(number) if number else " ".join(str(error).split())
    remedy = _REMEDIES.get(number or 0, "check the disk and the path")
    return StorageError(f"cannot be written: {reason}", file=path, remedy=remedy)


def _exchange(new: Path, old: Path) -> None:
    """Swap two folders in one step where the kernel supports it, so that the name exists at all times."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(new), os.fsencode(old)
    if hasattr(libc, "renameat2") and libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return
    aside = old.with_name(f"{PARTIAL}{secrets.token_hex(4)}-{old.name}")
    old.rename(aside)
    try:
        new.rename(old)
    except BaseException:
        aside.rename(old)
        raise
    aside.rename(new)


def _synchronise(path: Path, *, deep: bool = True) -> None:
    """Write the content through to the disk before the file gets its final name."""
    if deep and path.is_dir():
        for inner in path.iterdir():
            _synchronise(inner)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_abandoned(path: Path) -> None:
    """Remove partial files of ``path`` whose process has ended without removing them (killed, or the power failed)."""
    if path in _CLEANED:
        return
    _CLEANED.add(path)
    for partial in path.parent.glob(f"{PARTIAL}{machine()}.*-{glob.escape(path.name)}"):
        process = partial.name.split(".")[2]
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            _remove(partial)


@functools.cache
def machine() -> str:
    """A name of the machine, or the container, within which numbers of processes are unique."""
    link = Path("/proc/self/ns/pid")
    namespace = link.readlink() if link.exists() else ""
    return hashlib.sha256(f"{socket.gethostname()} {namespace}".encode()).hexdigest()[:8]


def _remove(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
