"""Stores of objects: the protocol, and a folder as a store."""

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from caloscale.errors import StorageError
from caloscale.storage.atomic import atomic_writer, storage_error

_clients: dict[tuple[str | None, ...], Any] = {}
_lock = threading.Lock()


def _forget_clients() -> None:
    """A child process must not use the connections of its parent, nor wait for a lock that a thread there holds."""
    global _clients, _lock
    _clients, _lock = {}, threading.Lock()


os.register_at_fork(after_in_child=_forget_clients)


def kept_client(key: tuple[str | None, ...], make: Callable[[], Any]) -> Any:
    """The client of this process for a key, made at the first call: it keeps its connections and its access token.

    Clients may be shared by threads, not by processes
    (https://docs.cloud.google.com/python/docs/reference/storage/latest/multiprocessing).
    """
    with _lock:
        if key not in _clients:
            _clients[key] = make()
        return _clients[key]


@dataclass(frozen=True)
class StoredObject:
    """An object as a store lists it."""

    name: str
    """Name in the store, with ``/`` between folders."""
    size: int
    """Size, bytes."""
    checksum: str = ""
    """Of the content, as a bucket lists it."""


def below(prefix: str, listed: Iterable[StoredObject]) -> list[StoredObject]:
    """The listed objects, without markers of folders, that are ``prefix`` or below the folder of that name."""
    return [
        one
        for one in listed
        if not one.name.endswith("/") and (not prefix or one.name == prefix or one.name.startswith(f"{prefix}/"))
    ]


class ObjectStore(Protocol):
    """A bucket or a folder: named objects that change as a whole.

    All methods raise StorageError (refused, no such bucket, disk full) and UnreachableError (no answer).
    """

    def list(self, prefix: str) -> Sequence[StoredObject]:
        """The object ``prefix`` and all objects below the folder ``prefix``, sorted by name."""

    def get(self, name: str) -> bytes | None:
        """The content of an object, its checksum verified; None when it does not exist."""

    def get_file(self, name: str, path: Path, received: Callable[[int], object]) -> None:
        """Copy an object into the file ``path``; ``received`` is called with numbers of bytes."""

    def put(self, name: str, content: bytes | Path) -> None:
        """Write an object: bytes, or the content of a file."""

    def delete(self, name: str) -> None:
        """Delete an object if it exists."""


NO_VERSION = ""
"""The version of an object that does not exist."""


class VersionedStore(ObjectStore, Protocol):
    """A bucket, whose objects have versions: a text for each content that an object has had."""

    def get(self, name: str) -> bytes | None:
        return self.get_version(name)[0]

    def get_version(self, name: str) -> tuple[bytes | None, str]:
        """The content of an object and its version."""

    def put_version(self, name: str, content: bytes, version: str) -> str:
        """Write an object whose version is this one, and return the new one; ChangedError when it is another."""


class LocalStore(ObjectStore):
    """The files below a folder; hidden files are not objects."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def list(self, prefix: str) -> Sequence[StoredObject]:
        start = self._root / prefix
        paths = [start] if start.is_file() else start.rglob("*")
        files = [path for path in paths if path.is_file() and not path.name.startswith(".")]
        objects = (StoredObject(path.relative_to(self._root).as_posix(), path.stat().st_size) for path in files)
        return sorted(objects, key=lambda one: one.name)

    def get(self, name: str) -> bytes | None:
        try:
            return (self._root / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
            raise StorageError(problem, file=self._root / name, remedy="give a file that you may read") from error

    def get_file(self, name: str, path: Path, received: Callable[[int], object]) -> None:
        shutil.copyfile(self._root / name, path)
        received(path.stat().st_size)

    def put(self, name: str, content: bytes | Path) -> None:
        with atomic_writer(self._root / name) as temporary:
            if isinstance(content, bytes):
                temporary.write_bytes(content)
            else:
                shutil.copyfile(content, temporary)

    def delete(self, name: str) -> None:
        try:
            (self._root / name).unlink(missing_ok=True)
        except OSError as error:
            raise storage_error(error, self._root / name) from error
