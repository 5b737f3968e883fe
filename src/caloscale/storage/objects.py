"""Objects by name: their addresses as URIs, and copies of files to and from a store."""

import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar, cast

from caloscale.errors import StorageError
from caloscale.progress import bar
from caloscale.spec.values import BUCKETS
from caloscale.storage.atomic import atomic_writer, refuse_address
from caloscale.storage.store import LocalStore, ObjectStore, StoredObject, VersionedStore

_BUCKET = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")
_NAME_BYTES = 1024
_SIMULTANEOUS = 8
"""Objects that are copied at the same time: one connection does not fill the network."""
_LEAST_BYTES_FOR_A_BAR = 8_000_000

_A = TypeVar("_A")
_B = TypeVar("_B")


def is_remote(path: str) -> bool:
    """Whether a path is in a bucket (gs://, s3://, minio://); raises StorageError for an address of another kind."""
    refuse_address(path, bucket=True)
    return path.startswith(BUCKETS)


def locate(uri: str, *, retry_seconds: float | None = None) -> tuple[ObjectStore, str]:
    """The store of a URI or local path, and the name of the object in it. Raises StorageError: not a URI.

    retry_seconds: for how long requests that fail temporarily are repeated; absent: `answers.RETRY_SECONDS`.
    """
    if not is_remote(uri):
        return LocalStore(Path(uri).parent), Path(uri).name
    scheme, _, place = uri.partition("://")
    bucket, _, name = place.partition("/")
    name = name.removesuffix("/")
    check_names(bucket, name, uri)
    if scheme == "gs":
        from caloscale.storage.google_cloud import GoogleStore

        return GoogleStore(bucket, retry_seconds), name
    from caloscale.storage.s3 import S3Store

    return S3Store(scheme, bucket, retry_seconds), name


def check_names(bucket: str, name: str, uri: str) -> None:
    """Raise StorageError when there can be no bucket of this name, or no object that is usable as a file.

    https://docs.cloud.google.com/storage/docs/buckets#naming and /objects#naming; an emulator's may be shorter, and
    S3's have no '_'.
    """
    scheme = uri.partition("://")[0]
    ip = bucket.count(".") == 3 and bucket.replace(".", "").isdecimal()
    long = len(bucket) > (222 if "." in bucket else 63) or any(len(part) > 63 for part in bucket.split("."))
    if not _BUCKET.fullmatch(bucket) or ".." in bucket or ip or long or bucket.startswith("goog"):
        remedy = f"write {scheme}://bucket/prefix; the name of a bucket has 3 to 63 of a-z, 0-9, '-', '_' and '.', a "
        remedy += "letter or a digit first and last, is no IP address, and does not begin with 'goog'"
        raise StorageError("is not a name of a bucket", file=uri, value=bucket, remedy=remedy)
    parts = name.split("/") if name else []
    odd = any(part in ("", ".", "..") or part != part.strip() or not part.isprintable() for part in parts)
    if odd or len(name.encode(errors="replace")) > _NAME_BYTES:
        remedy = "leave out empty components, '.', '..', control characters, and blanks at the ends of components; "
        remedy += f"{_NAME_BYTES} bytes at most"
        raise StorageError("is not a name of an object that can be used here", file=uri, value=name, remedy=remedy)


def read_object(uri: str, *, retry_seconds: float | None = None) -> bytes | None:
    """The content of an object; None when it does not exist. Raises StorageError; see `locate`."""
    store, name = locate(uri, retry_seconds=retry_seconds)
    return store.get(name)


def write_object(content: bytes, uri: str) -> None:
    """Write an object; it changes as a whole. Raises StorageError; see `locate`."""
    store, name = locate(uri)
    store.put(name, content)


def bucket_of(uri: str, *, retry_seconds: float | None = None) -> tuple[VersionedStore, str]:
    """The bucket of a URI, and the name of the object in it. Raises StorageError; see `locate`."""
    store, name = locate(uri, retry_seconds=retry_seconds)
    return cast(VersionedStore, store), name


def delete_object(uri: str) -> None:
    """Delete an object if it exists. Raises StorageError."""
    store, name = locate(uri)
    store.delete(name)


def download(
    uri: str, folder: Path, patterns: tuple[str, ...] = ("*",), *, without: tuple[str, ...] = ()
) -> list[Path]:
    """Copy the objects below a URI such as ``gs://bucket/prefix`` into ``folder``; their paths, sorted.

    ``prefix`` is a folder (all objects below it, with their relative paths) or one object. The last component of a name
    must match one of the patterns; folders in ``without`` are left out. A file appears when it is complete. Raises
    StorageError with the URI: missing bucket, refused, damaged on the way, disk full; UnreachableError: no answer.
    """
    store, prefix = locate(uri)
    chosen = [
        (stored, relative)
        for stored in store.list(prefix)
        if any(fnmatch((relative := _relative(stored.name, prefix, uri)).name, p) for p in patterns)
        and not any(relative.is_relative_to(one) for one in without)
    ]
    with _transfer_bar("download", sum(stored.size for stored, _ in chosen)) as progress:

        def fetch(one: tuple[StoredObject, PurePosixPath]) -> Path:
            path = folder / one[1]
            with atomic_writer(path) as temporary:
                store.get_file(one[0].name, temporary, progress.update)
            return path

        return sorted(_concurrently(fetch, chosen))


def upload(source: Path, uri: str) -> None:
    """Copy a file to an object, or the content of a folder to names below a prefix such as ``gs://bucket/prefix``.

    manifest.json comes last, as it lists objects. Raises as `download`.
    """
    store, prefix = locate(uri)
    files = [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.is_file())
    with _transfer_bar("upload", sum(path.stat().st_size for path in files)) as progress:

        def send(path: Path) -> None:
            name = prefix if path == source else str(PurePosixPath(prefix, path.relative_to(source).as_posix()))
            store.put(name, path)
            progress.update(path.stat().st_size)

        _concurrently(send, [path for path in files if path.name != "manifest.json"])
        for path in files:
            if path.name == "manifest.json":
                send(path)


def _concurrently(work: Callable[[_A], _B], items: Iterable[_A]) -> list[_B]:
    """The results in order; after the first error no further item is begun."""
    with ThreadPoolExecutor(_SIMULTANEOUS) as pool:
        begun = [pool.submit(work, item) for item in items]
        try:
            return [one.result() for one in begun]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _relative(name: str, prefix: str, uri: str) -> PurePosixPath:
    """Path of an object relative to the prefix; of the object that the prefix names, its last component."""
    relative = PurePosixPath(PurePosixPath(name).name if name == prefix else name.removeprefix(prefix).lstrip("/"))
    if ".." in relative.parts:
        raise StorageError("has an object that would leave the folder", file=uri, value=name, remedy="rename it")
    return relative


def _transfer_bar(label: str, total: int) -> Any:
    return bar(label, total, "B", unit_scale=True, disable=total < _LEAST_BYTES_FOR_A_BAR)
