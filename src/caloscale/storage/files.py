"""Where files lie: writing that leaves nothing half-written, and gs:// beside local paths.

gs:// goes through google-cloud-storage with the application default credentials. STORAGE_EMULATOR_HOST is
honoured (anonymously, as emulators want it).
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from caloscale.errors import StorageError, UnreachableError
from caloscale.progress import bar

if TYPE_CHECKING:
    from google.cloud.storage import Blob, Client

PARTIAL = ".partial-"
"""How the names of unfinished files and folders begin; readers of folders skip names with a dot."""
RETRY_SECONDS = 60.0
"""How long a request that fails for a passing reason (429, 5xx, a lost connection) is repeated."""
_TIMEOUT_SECONDS = 30.0
"""How long one answer of the server is waited for."""
_AT_ONCE = 8
"""Objects that are copied at once: one connection fills no network."""
_NOT_WORTH_A_BAR = 8_000_000
_SCHEME = "gs://"
_REMEDIES = {
    errno.ENOSPC: "free space on this disk or choose another folder",
    errno.EDQUOT: "free space in your quota or choose another folder",
    errno.EACCES: "choose a folder that you may write to",
    errno.EPERM: "choose a folder that you may write to",
    errno.EROFS: "choose a folder on a disk that is not read-only",
    errno.ENOTDIR: "a part of the path is a file: choose another path",
    errno.EISDIR: "there is a folder of this name: choose another path",
    errno.EEXIST: "a part of the path is a file: choose another path",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOTEMPTY: "there is a folder of this name with files in it: choose another path",
}
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # renameat2(2)


@contextmanager
def atomic_writer(path: str | Path, *, replace_folder: bool = False) -> Iterator[Path]:
    """A temporary path beside ``path`` (same suffix), renamed to ``path`` when the block succeeds.

    The block makes a file or a folder there. Missing parent folders are made. When the block fails,
    whatever was written is removed and ``path`` is as it was. A file replaces a file; a folder replaces
    an empty folder, with ``replace_folder`` also a full one. OSError becomes StorageError with the file
    and a remedy; other errors pass.
    """
    path = Path(path)
    temporary = path.with_name(f"{PARTIAL}{secrets.token_hex(4)}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _synchronise(temporary)
        if replace_folder and path.is_dir() and temporary.is_dir():
            _exchange(temporary, path)
        else:
            temporary.replace(path)
        _synchronise(path.parent, deep=False)
    except OSError as error:
        raise storage_error(error, path) from error
    finally:
        _remove(temporary)


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


def _exchange(new: Path, old: Path) -> None:
    """Swap two folders in one step where the kernel can, so that at no time the name is missing."""
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


def is_remote(path: str) -> bool:
    """Whether a path is in a bucket (gs://...)."""
    return path.startswith(_SCHEME)


def download(
    uri: str, folder: Path, pattern: str | tuple[str, ...] = "*", *, without: tuple[str, ...] = ()
) -> list[Path]:
    """Copy the objects under ``gs://bucket/prefix`` whose names match into ``folder``; their paths, sorted.

    ``prefix`` is a folder (all objects below it, their relative paths kept) or one object. The last part
    of the name must match the pattern or one of the patterns; ``without`` are folders that are left out.
    Nothing there: an empty list. A file appears when it is complete. Raises StorageError naming the URI:
    missing bucket, refused, damaged on the way, disk full; UnreachableError: the server does not answer.
    """
    bucket, prefix = _split(uri)
    patterns = (pattern,) if isinstance(pattern, str) else pattern
    with _explained(uri), _client() as client:
        wanted = [
            (blob, relative)
            for blob in client.list_blobs(bucket, prefix=prefix, retry=_retry(), timeout=_TIMEOUT_SECONDS)
            if (relative := _relative(blob.name, prefix, uri))
            and any(fnmatch(relative.name, p) for p in patterns)
            and not any(relative.is_relative_to(one) for one in without)
        ]
        total = sum(blob.size or 0 for blob, _ in wanted)
        with _transfer_bar("download", total) as progress:
            paths = _side_by_side(lambda one: _fetch(one[0], folder / one[1], progress), wanted)
    return sorted(paths)


def upload(source: Path, uri: str) -> None:
    """Copy a file to ``gs://bucket/name``, or what is in a folder to names below ``gs://bucket/prefix``.

    A manifest.json goes last, so that nobody finds it before what it lists. Raises as `download`.
    """
    bucket, prefix = _split(uri)
    files = [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.is_file())
    size = sum(path.stat().st_size for path in files)

    def send(path: Path) -> None:
        name = prefix if path == source else str(PurePosixPath(prefix, path.relative_to(source).as_posix()))
        blob = client.bucket(bucket).blob(name)
        blob.upload_from_filename(str(path), retry=_retry(), timeout=_TIMEOUT_SECONDS)
        progress.update(path.stat().st_size)

    with _explained(uri), _client() as client, _transfer_bar("upload", size) as progress:
        _side_by_side(send, [path for path in files if path.name != "manifest.json"])
        for path in files:
            if path.name == "manifest.json":
                send(path)


def _side_by_side(work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """The results in order; the first error ends it, when what has begun is done."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        begun = [pool.submit(work, item) for item in items]
        try:
            return [one.result() for one in begun]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def write_object(content: bytes, uri: str, *, retry_seconds: float | None = None) -> None:
    """Make ``gs://bucket/name`` hold these bytes; it changes as a whole. Raises StorageError.

    retry_seconds: how long a request that fails for a passing reason is repeated; absent: RETRY_SECONDS.
    """
    bucket, name = _split(uri)
    with _explained(uri), _client() as client:
        blob = client.bucket(bucket).blob(name)
        blob.upload_from_string(
            content, "application/octet-stream", retry=_retry(retry_seconds), timeout=_TIMEOUT_SECONDS
        )


def read_object(uri: str, *, retry_seconds: float | None = None) -> bytes | None:
    """The bytes of ``gs://bucket/name``, verified by the library; None: there is no such object. Raises StorageError.

    retry_seconds: as in `write_object`.
    """
    bucket, name = _split(uri)
    with _explained(uri), _client() as client:
        retry = _retry(retry_seconds)
        if client.bucket(bucket).get_blob(name, retry=retry, timeout=_TIMEOUT_SECONDS) is None:
            # A bucket that does not exist is not an empty one; who may list may not always ask for the bucket itself.
            some = client.list_blobs(bucket, prefix=name, max_results=1, retry=retry, timeout=_TIMEOUT_SECONDS)
            next(iter(some), None)
            return None
        bare = client.bucket(bucket).blob(name)  # see `_fetch`
        return bytes(bare.download_as_bytes(retry=retry, timeout=_TIMEOUT_SECONDS, checksum="auto"))


def delete_object(uri: str) -> None:
    """Remove ``gs://bucket/name``, if it is there. Raises StorageError."""
    bucket, name = _split(uri)
    with _explained(uri), _client() as client:
        client.bucket(bucket).delete_blobs(
            [name], on_error=lambda _: None, retry=_retry(None), timeout=_TIMEOUT_SECONDS
        )


def _fetch(blob: Blob, path: Path, progress: Any) -> Path:
    """Download one object atomically, with its checksum verified by the library."""
    from tqdm.utils import CallbackIOWrapper

    uri = f"{_SCHEME}{blob.bucket.name}/{blob.name}"
    # What the list says of an object holds the address that the server has for itself, which an emulator may be
    # reached by or not; a name alone is asked for where everything else is.
    bare = blob.bucket.blob(blob.name)
    with atomic_writer(path) as temporary, _explained(uri), temporary.open("wb") as file:
        counted = CallbackIOWrapper(progress.update, file, "write")
        bare.download_to_file(counted, retry=_retry(), timeout=_TIMEOUT_SECONDS, checksum="auto")
    return path


def _split(uri: str) -> tuple[str, str]:
    bucket, _, prefix = uri.removeprefix(_SCHEME).partition("/")
    if not is_remote(uri) or not bucket:
        raise StorageError("is not a place in a bucket", file=uri, remedy="write gs://bucket/prefix")
    return bucket, prefix.strip("/")


def _relative(name: str, prefix: str, uri: str) -> PurePosixPath | None:
    """Where an object lies below the prefix; None for its neighbours (prefix2/...) and folder markers."""
    if name.endswith("/") or (prefix and name != prefix and not name.startswith(prefix + "/")):
        return None
    relative = PurePosixPath(name).relative_to(prefix) if prefix and name != prefix else PurePosixPath(name)
    relative = PurePosixPath(relative.name) if name == prefix else relative
    if relative.is_absolute() or ".." in relative.parts:
        raise StorageError("has an object that would leave the folder", file=uri, value=name, remedy="rename it")
    return relative


@contextmanager
def _client() -> Iterator[Client]:
    from google.cloud import storage

    # Buckets are global: a project is needed only to make one, which nothing here does.
    client = storage.Client(project=os.environ.get("GOOGLE_CLOUD_PROJECT", "none"))
    # For the sake of traces it would ask for the bucket itself, in a thread that outlives the client and with a
    # right (storage.buckets.get) that roles for objects do not have.
    client._bucket_metadata_cache = None
    try:
        yield client
    finally:
        client.close()


def _retry(seconds: float | None = None) -> Any:
    from google.cloud.storage.retry import DEFAULT_RETRY

    return DEFAULT_RETRY.with_timeout(RETRY_SECONDS if seconds is None else seconds)


@contextmanager
def _explained(uri: str) -> Iterator[None]:
    """Turn what the client libraries raise into a StorageError with the URI and a remedy."""
    import requests
    from google.api_core import exceptions as api
    from google.auth.exceptions import GoogleAuthError, TransportError
    from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

    bucket = uri.removeprefix(_SCHEME).partition("/")[0]
    try:
        yield
    except api.NotFound as error:
        problem, remedy = f"there is no such bucket or object: {error.message}", f"check the name {bucket!r}"
        raise StorageError(problem, file=uri, remedy=f"{remedy}, or create it") from error
    except (api.Forbidden, api.Unauthorized) as error:
        problem, remedy = f"access is refused: {error.message}", "give your account the role storage.objectAdmin"
        raise StorageError(problem, file=uri, remedy=f"{remedy} on bucket {bucket!r}") from error
    except GoogleAuthError as error:
        problem, remedy = f"no valid credentials: {error}", "run `gcloud auth application-default login`"
        in_a_pod = (
            "; in a cluster see docs/gke.md (Workload Identity), cluster.credentialsSecret (a key) or "
            "manifests/storage (an emulator)"
        )
        # A node's metadata server may be late, or say itself that it should be asked again.
        passing = isinstance(error, TransportError) or error.retryable
        raise (UnreachableError if passing else StorageError)(problem, file=uri, remedy=remedy + in_a_pod) from error
    except (api.GoogleAPIError, InvalidResponse, DataCorruption, requests.RequestException, ConnectionError) as error:
        host = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com")
        problem, remedy = f"the server {host} does not serve it: {error}", "check the network, or try again later"
        raise UnreachableError(problem, file=uri, remedy=remedy) from error


def _transfer_bar(label: str, total: int) -> Any:
    return bar(label, total, "B", unit_scale=True, disable=total < _NOT_WORTH_A_BAR)
