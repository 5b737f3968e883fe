"""Buckets of Google Cloud Storage, with the application default credentials.

STORAGE_EMULATOR_HOST is honoured (anonymously, as emulators expect it).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from caloscale.errors import ChangedError, StorageError, UnreachableError
from caloscale.storage.store import StoredObject

if TYPE_CHECKING:
    from google.cloud.storage import Blob, Client

RETRY_SECONDS = 60.0
"""For how long a request that fails temporarily (429, 5xx, a lost connection) is repeated."""
_TIMEOUT_SECONDS = 30.0
"""For how long one answer of the server is awaited."""
_SERVER_ERROR = 500
_ENVIRONMENT = ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT")

_clients: dict[tuple[str | None, ...], Client] = {}
_lock = threading.Lock()


def _forget_clients() -> None:
    """A child process must not use the connections of its parent, nor wait for a lock that a thread there holds."""
    global _clients, _lock
    _clients, _lock = {}, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_clients)


def client() -> Client:
    """The client of this process, created at the first call: it keeps its connections and its access token.

    Clients may be shared by threads, not by processes
    (https://docs.cloud.google.com/python/docs/reference/storage/latest/multiprocessing).
    """
    from google.cloud import storage

    key = tuple(os.environ.get(name) for name in _ENVIRONMENT)
    with _lock:
        if key not in _clients:
            # Bucket names are global: a project is needed only to create a bucket, which nothing here does.
            project, emulator = os.environ.get("GOOGLE_CLOUD_PROJECT", "none"), os.environ.get("STORAGE_EMULATOR_HOST")
            # Google's Go client, and so the launcher of Kubeflow Pipelines, expects host:port in this variable; the
            # Python client expects a URL. A pod has one environment for both.
            bare = emulator if emulator and "://" not in emulator else None
            options = {"api_endpoint": f"http://{bare}"} if bare else None
            created = storage.Client(project=project, client_options=options)
            # For the labels of traces it would request the bucket itself, in a thread that outlives the request and
            # with a permission (storage.buckets.get) that roles for objects do not include.
            created._bucket_metadata_cache = None
            _clients[key] = created
        return _clients[key]


class GoogleStore:
    """The objects of a bucket. See `ObjectStore`."""

    def __init__(self, bucket: str, retry_seconds: float | None = None) -> None:
        self._bucket = bucket
        self._retry_seconds = retry_seconds

    def list(self, prefix: str) -> Sequence[StoredObject]:
        """See `ObjectStore`. Markers of folders are not objects."""
        with self._explained(prefix):
            blobs = client().list_blobs(self._bucket, prefix=prefix, **self._options())
            return [
                StoredObject(blob.name, blob.size or 0)
                for blob in blobs
                if not blob.name.endswith("/")
                and (not prefix or blob.name == prefix or blob.name.startswith(prefix + "/"))
            ]

    def get(self, name: str) -> bytes | None:
        """See `ObjectStore`."""
        with self._explained(name):
            # A download that fails leaves its response unread, and with it a connection.
            if client().bucket(self._bucket).get_blob(name, **self._options()) is None:
                # Raises where the bucket is missing, too; listing needs no permission for the bucket itself.
                next(iter(client().list_blobs(self._bucket, prefix=name, max_results=1, **self._options())), None)
                return None
            return bytes(self._blob(name).download_as_bytes(checksum="auto", **self._options()))

    def get_file(self, name: str, path: Path, received: Callable[[int], object]) -> None:
        """See `ObjectStore`."""
        from tqdm.utils import CallbackIOWrapper

        with self._explained(name), path.open("wb") as file:
            counted = CallbackIOWrapper(received, file, "write")
            self._blob(name).download_to_file(counted, checksum="auto", **self._options())

    def put(self, name: str, content: bytes | Path) -> None:
        """See `ObjectStore`."""
        with self._explained(name):
            if isinstance(content, bytes):
                self._blob(name).upload_from_string(content, "application/octet-stream", **self._options())
            else:
                self._blob(name).upload_from_filename(str(content), **self._options())

    def get_version(self, name: str) -> tuple[bytes | None, int]:
        """See `VersionedStore`."""
        with self._explained(name):
            found = client().bucket(self._bucket).get_blob(name, **self._options())
            if found is None:
                return self.get(name), 0
            blob = client().bucket(self._bucket).blob(name, generation=found.generation)
            return bytes(blob.download_as_bytes(checksum="auto", **self._options())), int(found.generation)

    def put_version(self, name: str, content: bytes, generation: int) -> int:
        """See `VersionedStore`."""
        with self._explained(name):
            blob = self._blob(name)
            options = {"if_generation_match": generation, **self._options()}
            blob.upload_from_string(content, "application/octet-stream", **options)
            return int(blob.generation)

    def delete(self, name: str) -> None:
        """See `ObjectStore`."""
        with self._explained(name):
            client().bucket(self._bucket).delete_blobs([name], on_error=lambda _: None, **self._options())

    def _blob(self, name: str) -> Blob:
        """An object by its name alone: a listed one carries the address that the server has for itself, which may not
        be reachable from here with an emulator.
        """
        return client().bucket(self._bucket).blob(name)

    def _options(self) -> dict[str, Any]:
        from google.cloud.storage.retry import DEFAULT_RETRY

        seconds = RETRY_SECONDS if self._retry_seconds is None else self._retry_seconds
        return {"retry": DEFAULT_RETRY.with_timeout(seconds), "timeout": _TIMEOUT_SECONDS}

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        """Turn the exceptions of the client libraries into a StorageError with the URI and a remedy."""
        import requests
        from google.api_core.exceptions import GoogleAPIError
        from google.auth.exceptions import GoogleAuthError, TransportError
        from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

        uri = f"gs://{self._bucket}/{name}"
        try:
            yield
        except GoogleAuthError as error:
            problem, remedy = f"no valid credentials: {error}", "run `gcloud auth application-default login`"
            in_a_pod = (
                "; in a cluster see docs/gke.md (Workload Identity), cluster.credentialsSecret (a key) or "
                "manifests/storage (an emulator)"
            )
            # A node's metadata server may start late, or ask for a repetition itself.
            kind = UnreachableError if isinstance(error, TransportError) or error.retryable else StorageError
            raise kind(problem, file=uri, remedy=remedy + in_a_pod) from error
        except (GoogleAPIError, InvalidResponse, DataCorruption, requests.RequestException, ConnectionError) as error:
            raise explain(error, uri) from error


class _Answer(NamedTuple):
    """What an answer of the server means."""

    problem: str
    remedy: str
    kind: type[StorageError] = StorageError


_REFUSED = _Answer("the server refuses the request", "correct the address; the same request is refused again")
_PASSING = _Answer("the server {host} does not serve it", "check the network, or try again later", UnreachableError)
_ACCESS = _Answer("access is refused", "give your account the role storage.objectAdmin on bucket {bucket!r}")
_REQUESTER_PAYS = _Answer(
    "the bucket is a requester pays bucket, which caloscale does not use",
    "turn requester pays off (gcloud storage buckets update gs://{bucket} --no-requester-pays), or use another bucket",
)
_NO_STORE = _Answer(
    "the server {host} does not answer as Google Cloud Storage", "check STORAGE_EMULATOR_HOST and proxies"
)
_ANSWERS = {
    401: _ACCESS,
    403: _ACCESS,
    404: _Answer("there is no such bucket or object", "check the name {bucket!r}, or create it"),
    408: _PASSING,
    410: _PASSING,  # an upload in parts that has run out: it begins again
    412: _Answer("another process has changed it meanwhile", "let one process alone write here", ChangedError),
    429: _PASSING,
    501: _REFUSED,
}
"""Status codes of answers; others from 500 on are passing, those below refusals, which a repetition meets again."""


def explain(error: Exception, uri: str) -> StorageError:
    """The error of a request, with a remedy: UnreachableError where a repetition may succeed."""
    cause = getattr(error, "cause", None) or error  # of a request that was repeated until the time was over
    response = getattr(cause, "response", None)
    code = getattr(cause, "code", None) or getattr(response, "status_code", None)
    answer = _PASSING if code is None else _ANSWERS.get(int(code), _PASSING if code >= _SERVER_ERROR else _REFUSED)
    if "requester pays" in str(error).lower():
        answer = _REQUESTER_PAYS
    elif isinstance(cause, ValueError):  # of requests: an address that is none, an answer that is not JSON
        answer = _NO_STORE
    bucket = uri.removeprefix("gs://").partition("/")[0]
    host = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com")
    problem, remedy = (text.format(bucket=bucket, host=host) for text in (answer.problem, answer.remedy))
    return answer.kind(f"{problem}: {getattr(error, 'message', None) or error}", file=uri, remedy=remedy)
