"""A folder as a store of objects."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from caloscale.storage.atomic import atomic_writer, storage_error
from caloscale.storage.objects import ABSENT, StoredObject

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]


class LocalStore:
    """The files below a folder; hidden files are not objects. See `ObjectStore`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def list(self, prefix: str) -> Sequence[StoredObject]:
        """See `ObjectStore`."""
        start = self._root / prefix
        paths = [start] if start.is_file() else start.rglob("*")
        names = (path.relative_to(self._root).as_posix() for path in paths if not path.name.startswith("."))
        return [found for name in sorted(names) if (found := self.find(name)) is not None]

    def find(self, name: str) -> StoredObject | None:
        """See `ObjectStore`."""
        path = self._root / name
        if not path.is_file():
            return None
        status = path.stat()
        return StoredObject(name, status.st_size, f"{status.st_ino}-{status.st_mtime_ns}")

    def get(self, name: str) -> bytes | None:
        """See `ObjectStore`."""
        try:
            return (self._root / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_error(error, self._root / name) from error

    def get_file(self, name: str, path: Path, received: Callable[[int], object]) -> None:
        """See `ObjectStore`."""
        shutil.copyfile(self._root / name, path)
        received(path.stat().st_size)

    def put(self, name: str, content: bytes | Path, *, version: str | None = None) -> bool:
        """See `ObjectStore`."""
        target = self._root / name
        with _locked(target.parent):
            found = self.find(name)
            if version is not None and version != (ABSENT if found is None else found.version):
                return False
            with atomic_writer(target) as temporary:
                if isinstance(content, bytes):
                    temporary.write_bytes(content)
                else:
                    shutil.copyfile(content, temporary)
        return True

    def delete(self, name: str) -> None:
        """See `ObjectStore`."""
        (self._root / name).unlink(missing_ok=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Writes into one folder exclude each other, so that no other write comes between test and rename."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise storage_error(error, folder) from error
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
