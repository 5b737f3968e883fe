"""A folder as a store of objects."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from caloscale.storage.atomic import atomic_writer, storage_error
from caloscale.storage.objects import StoredObject


class LocalStore:
    """The files below a folder; hidden files are not objects. See `ObjectStore`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def list(self, prefix: str) -> Sequence[StoredObject]:
        """See `ObjectStore`."""
        start = self._root / prefix
        paths = [start] if start.is_file() else start.rglob("*")
        files = [path for path in paths if path.is_file() and not path.name.startswith(".")]
        objects = (StoredObject(path.relative_to(self._root).as_posix(), path.stat().st_size) for path in files)
        return sorted(objects, key=lambda one: one.name)

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

    def put(self, name: str, content: bytes | Path) -> None:
        """See `ObjectStore`."""
        with atomic_writer(self._root / name) as temporary:
            if isinstance(content, bytes):
                temporary.write_bytes(content)
            else:
                shutil.copyfile(content, temporary)

    def delete(self, name: str) -> None:
        """See `ObjectStore`."""
        (self._root / name).unlink(missing_ok=True)
