"""Buckets of Google Cloud Storage, with the application default credentials.

STORAGE_EMULATOR_HOST is honoured (anonymously, as emulators expect it).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caloscale.errors import StorageError, UnreachableError
from caloscale.storage import answers
from caloscale.storage.answers import Answer, answer
from caloscale.storage.store import NO_VERSION, StoredObject, VersionedStore, below, kept_client

if TYPE_CHECKING:
    from google.cloud.storage import Blob, Client

_ENVIRONMENT = ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT")


def client() -> Client:
    """The client of this process."""
    return kept_client(("gs", *map(os.environ.get, _ENVIRONMENT)), _new_client)


def _new_client() -> Client:
    from google.cloud import storage

    # Bucket names are global: a project is needed only to create a bucket, which nothing here does.
    project, emulator = os.environ.get("GOOGLE_CLOUD_PROJECT", "none"), os.environ.get("STORAGE_EMULATOR_HOST")
    # Google's Go client, and so the launcher of Kubeflow Pipelines, expects host:port in this variable; the Python
    # client expects a URL. A pod has one environment for both.
    bare = emulator if emulator and "://" not in emulator else None
    options = {"api_endpoint": f"http://{bare}"} if bare else None
    created = storage.Client(project=project, client_options=options)
    # For the labels of traces it would request the bucket itself, in a thread that outlives the request and with a
    # permission (storage.buckets.get) that roles for objects do not include.
    created._bucket_metadata_cache = None
    return created


class GoogleStore(VersionedStore):
    """The objects of a bucket; a version is the generation of an object."""

    def __init__(self, bucket: str, retry_seconds: float | None = None) -> None:
        self._bucket = bucket
        self._retry_seconds = retry_seconds

    def list(self, prefix: str) -> Sequence[StoredObject]:
        with self._explained(prefix):
            blobs = client().list_blobs(self._bucket, prefix=prefix, **self._options())
            return below(prefix, (StoredObject(blob.name, blob.size or 0, blob.crc32c or "") for blob in blobs))

    def get_file(self, name: str, path: Path, received: Callable[[int], object]) -> None:
        from tqdm.utils import CallbackIOWrapper

        with self._explained(name), path.open("wb") as file:
            counted = CallbackIOWrapper(received, file, "write")
            self._blob(name).download_to_file(counted, checksum="auto", **self._options())

    def put(self, name: str, content: bytes | Path) -> None:
        with self._explained(name):
            if isinstance(content, bytes):
                self._blob(name).upload_from_string(content, "application/octet-stream", **self._options())
            else:
                self._blob(name).upload_from_filename(str(content), **self._options())

    def get_version(self, name: str) -> tuple[bytes | None, str]:
        from google.api_core.exceptions import NotFound

        with self._explained(name):
            lost: int | None = None
            # A download that fails leaves its response unread, and with it a connection.
            while (newest := client().bucket(self._bucket).get_blob(name, **self._options())) is not None:
                blob = client().bucket(self._bucket).blob(name, generation=newest.generation)
                try:
                    return bytes(blob.download_as_bytes(checksum="auto", **self._options())), str(newest.generation)
                except NotFound:  # another process has written a newer version meanwhile
                    if newest.generation == lost:
                        raise
                    lost = newest.generation
            # Raises where the bucket is missing, too; listing needs no permission for the bucket itself.
            next(iter(client().list_blobs(self._bucket, prefix=name, max_results=1, **self._options())), None)
            return None, NO_VERSION

    def put_version(self, name: str, content: bytes, version: str) -> str:
        with self._explained(name):
            blob = self._blob(name)
            options = {"if_generation_match": int(version or 0), **self._options()}
            blob.upload_from_string(content, "application/octet-stream", **options)
            return str(blob.generation)

    def delete(self, name: str) -> None:
        with self._explained(name):
            client().bucket(self._bucket).delete_blobs([name], on_error=lambda _: None, **self._options())

    def _blob(self, name: str) -> Blob:
        """An object by its name alone: a listed one carries the address that the server has for itself, which may not
        be reachable from here with an emulator.
        """
        return client().bucket(self._bucket).blob(name)

    def _options(self) -> dict[str, Any]:
        from google.cloud.storage.retry import DEFAULT_RETRY

        seconds = answers.RETRY_SECONDS if self._retry_seconds is None else self._retry_seconds
        return {"retry": DEFAULT_RETRY.with_timeout(seconds), "timeout": answers.TIMEOUT_SECONDS}

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


_ACCESS = Answer("access is refused", "give your account the role storage.objectAdmin on bucket {bucket!r}")
_REQUESTER_PAYS = Answer(
    "the bucket is a requester pays bucket, which caloscale does not use",
    "turn requester pays off (gcloud storage buckets update gs://{bucket} --no-requester-pays), or use another bucket",
)
_NO_STORE = Answer(
    "the server {host} does not answer as Google Cloud Storage", "check STORAGE_EMULATOR_HOST and proxies"
)


def explain(error: Exception, uri: str) -> StorageError:
    """The error of a request, with a remedy: UnreachableError where a repetition may succeed."""
    cause = getattr(error, "cause", None) or error  # of a request that was repeated until the time was over
    response = getattr(cause, "response", None)
    code = getattr(cause, "code", None) or getattr(response, "status_code", None)
    meant = answer(None if code is None else int(code), _ACCESS)
    if "requester pays" in str(error).lower():
        meant = _REQUESTER_PAYS
    elif isinstance(cause, ValueError):  # of requests: an address that is none, an answer that is not JSON
        meant = _NO_STORE
    host = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com")
    return meant.error(uri, host, getattr(error, "message", None) or error)
