"""Buckets with the API of Amazon S3 (AWS, MinIO, SeaweedFS, Ceph), with the credentials that boto3 finds.

AWS_ENDPOINT_URL names a server that is not Amazon's; without it, minio:// is the store of a Kubeflow installation, and
its key is in the variables of `KUBEFLOW_KEY`.
"""

import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from caloscale.errors import UnreachableError
from caloscale.storage import answers
from caloscale.storage.answers import CHANGED, PASSING, Answer, answer
from caloscale.storage.store import NO_VERSION, StoredObject, VersionedStore, below, kept_client

KUBEFLOW_ENDPOINT = "http://minio-service.kubeflow:9000"
"""Address of the store that Kubeflow Pipelines installs, whichever program it is."""
KUBEFLOW_SECRET = "mlpipeline-minio-artifact"  # noqa: S105 (a name)
"""Secret with the key of that store, in each namespace in which pipelines run."""
KUBEFLOW_KEY = {"accesskey": "MINIO_ACCESS_KEY", "secretkey": "MINIO_SECRET_KEY"}
"""Environment variables of a step by the entries of the Secret. Absent: the credentials that boto3 finds."""
_ENVIRONMENT = ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_REGION", "AWS_SHARED_CREDENTIALS_FILE", *KUBEFLOW_KEY.values())
_SHA256 = "sha256"
"""Entry of an object's own metadata: not all servers keep a checksum of what they were sent."""
_CHUNK_BYTES = 2**20
_ACCESS = Answer(
    "access is refused",
    "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and give their owner the rights s3:ListBucket, s3:GetObject, "
    "s3:PutObject and s3:DeleteObject on bucket {bucket!r}",
)
_NO_CREDENTIALS = Answer(
    "no valid credentials",
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; in a cluster see docs/pipeline.md (Kubeflow's own store)",
)
_NO_STORE = Answer("the server {host} does not answer as S3", "check AWS_ENDPOINT_URL and proxies")
_MEANINGS = {
    "ExpiredToken": _NO_CREDENTIALS,
    "InvalidToken": _NO_CREDENTIALS,
    "RequestTimeout": PASSING,
    "IncompleteBody": PASSING,
    "BadDigest": PASSING,
}
"""Of answers with the status code 400."""
_CONFLICT = 409
"""Of a conditional write: another one is under way."""

_A = TypeVar("_A")


def _endpoint(scheme: str) -> str | None:
    named = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return named or (KUBEFLOW_ENDPOINT if scheme == "minio" else None)


def client(scheme: str) -> Any:
    """The client of this process."""
    environment = map(os.environ.get, _ENVIRONMENT)
    return kept_client((scheme, _endpoint(scheme), *environment), functools.partial(_new_client, scheme))


def _new_client(scheme: str) -> Any:
    import boto3
    from botocore.config import Config

    session, endpoint = boto3.session.Session(), _endpoint(scheme)
    own = [os.environ.get(name) if scheme == "minio" else None for name in KUBEFLOW_KEY.values()]
    return session.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=own[0],
        aws_secret_access_key=own[1],
        region_name=os.environ.get("AWS_REGION") or session.region_name or ("us-east-1" if endpoint else None),
        config=Config(
            connect_timeout=answers.TIMEOUT_SECONDS,
            read_timeout=answers.TIMEOUT_SECONDS,
            retries={"total_max_attempts": 1},  # `S3Store._ask` repeats, for a bounded time
            s3={"addressing_style": "path"} if endpoint else {},
            # Checksums in trailers are not understood by all servers; `_SHA256` is.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


class S3Store(VersionedStore):
    """The objects of a bucket; a version is the ETag of an object."""

    def __init__(self, scheme: str, bucket: str, retry_seconds: float | None = None) -> None:
        """scheme: s3 or minio."""
        self._scheme, self._bucket = scheme, bucket
        self._retry_seconds = answers.RETRY_SECONDS if retry_seconds is None else retry_seconds

    def list(self, prefix: str) -> Sequence[StoredObject]:
        def ask() -> list[StoredObject]:
            pages = client(self._scheme).get_paginator("list_objects_v2")
            listed = pages.paginate(Bucket=self._bucket, Prefix=prefix)
            items = (item for page in listed for item in self._of_store(page, "Name", prefix).get("Contents", ()))
            return [StoredObject(item["Key"], item["Size"], item.get("ETag", "")) for item in items]

        return below(prefix, self._ask(prefix, ask))

    def get_file(self, name: str, path: Path, received: Callable[[int], object]) -> None:
        def ask() -> None:
            answered = self._get(name)
            digest = hashlib.sha256()
            with closing(answered["Body"]) as body, path.open("wb") as file:
                for chunk in body.iter_chunks(_CHUNK_BYTES):
                    file.write(chunk)
                    digest.update(chunk)
                    received(len(chunk))
            self._check(answered, digest.hexdigest(), name)

        self._ask(name, ask)

    def put(self, name: str, content: bytes | Path) -> None:
        if isinstance(content, bytes):
            self._put(name, content)
            return
        with content.open("rb") as file:
            metadata = {_SHA256: hashlib.file_digest(file, "sha256").hexdigest()}
        upload = client(self._scheme).upload_file  # in parts where the file is large
        self._ask(name, lambda: upload(str(content), self._bucket, name, ExtraArgs={"Metadata": metadata}))

    def get_version(self, name: str) -> tuple[bytes | None, str]:
        def ask() -> tuple[bytes | None, str]:
            try:
                answered = self._get(name)
            except client(self._scheme).exceptions.NoSuchKey:
                return None, NO_VERSION
            with closing(answered["Body"]) as body:
                content = bytes(body.read())
            self._check(answered, hashlib.sha256(content).hexdigest(), name)
            return content, str(answered["ETag"])

        return self._ask(name, ask)

    def put_version(self, name: str, content: bytes, version: str) -> str:
        condition = {"IfNoneMatch": "*"} if version == NO_VERSION else {"IfMatch": version}
        return self._put(name, content, **condition)

    def delete(self, name: str) -> None:
        self._ask(name, lambda: client(self._scheme).delete_object(Bucket=self._bucket, Key=name))

    def _get(self, name: str) -> Any:
        return self._of_store(client(self._scheme).get_object(Bucket=self._bucket, Key=name), "ETag", name)

    def _of_store(self, answered: Any, entry: str, name: str) -> Any:
        """An answer that has an entry of all answers of its kind; the page of a proxy has not."""
        if entry not in answered:
            raise _NO_STORE.error(self._uri(name), self._host, f"an answer without {entry}")
        return answered

    def _put(self, name: str, content: bytes, **condition: str) -> str:
        metadata = {_SHA256: hashlib.sha256(content).hexdigest()}
        request = {"Bucket": self._bucket, "Key": name, "Body": content, "Metadata": metadata, **condition}
        answered = self._ask(name, lambda: client(self._scheme).put_object(**request))
        return str(self._of_store(answered, "ETag", name)["ETag"])

    def _check(self, answered: Any, digest: str, name: str) -> None:
        stated = answered["Metadata"].get(_SHA256, digest)
        if stated != digest:
            raise PASSING.error(self._uri(name), self._host, f"its content has the SHA-256 {digest}, not {stated}")

    def _ask(self, name: str, request: Callable[[], _A]) -> _A:
        """Repeat a request that fails temporarily. A write whose answer was lost may meet its own result: ChangedError,
        as with any other writer.
        """
        from google.api_core.exceptions import RetryError
        from google.api_core.retry import Retry, if_exception_type

        def explained() -> _A:
            with self._explained(name):
                return request()

        retry = Retry(predicate=if_exception_type(UnreachableError), timeout=self._retry_seconds)
        try:
            return retry(explained)()
        except RetryError as error:  # the time is over
            raise error.cause from error

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        """Turn the exceptions of the client library into a StorageError with the URI and a remedy."""
        from boto3.exceptions import S3UploadFailedError
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            ConnectionError,
            HTTPClientError,
            IncompleteReadError,
            NoCredentialsError,
            PartialCredentialsError,
        )

        uri = self._uri(name)
        try:
            yield
        except (ClientError, S3UploadFailedError) as error:
            cause = error if isinstance(error, ClientError) else error.__context__  # an upload's holds it
            raise self._meant(cause).error(uri, self._host, error) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise _NO_CREDENTIALS.error(uri, self._host, error) from error
        except (ConnectionError, HTTPClientError, IncompleteReadError) as error:
            raise PASSING.error(uri, self._host, error) from error
        except BotoCoreError as error:
            raise answer(400, _ACCESS).error(uri, self._host, error) from error
        except RecursionError as error:  # boto3 asks for the region of a bucket whose server redirects all requests
            raise _NO_STORE.error(uri, self._host, "it redirects to another address") from error

    @staticmethod
    def _meant(error: Any) -> Answer:
        response = getattr(error, "response", None)
        if response is None:
            return PASSING
        code = int(response["ResponseMetadata"]["HTTPStatusCode"])
        known = _MEANINGS.get(response.get("Error", {}).get("Code"))
        return known or (CHANGED if code == _CONFLICT else answer(code, _ACCESS))

    @property
    def _host(self) -> str:
        return _endpoint(self._scheme) or "of Amazon S3"

    def _uri(self, name: str) -> str:
        return f"{self._scheme}://{self._bucket}/{name}"
