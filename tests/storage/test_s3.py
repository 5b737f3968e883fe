"""s3:// and minio:// against a real server of the protocol (moto) and against none."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from caloscale.errors import ChangedError, StorageError, UnreachableError
from caloscale.storage import answers, s3, store
from caloscale.storage.objects import bucket_of, download, read_object, upload, write_object
from caloscale.storage.store import NO_VERSION


@pytest.mark.parametrize("variable", ["AWS_REGION", "AWS_DEFAULT_REGION"])
def test_a_server_gets_the_region_that_the_environment_names(
    s3_server: str, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Garage and others refuse requests for another region than their own."""
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.setenv(variable, "garage")
    assert s3._new_client("s3").meta.region_name == "garage"


def test_more_objects_than_a_page_has(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "2")
    for number in range(5):
        write_object(b"", f"{s3_server}/many/{number}")
    assert len(bucket_of(f"{s3_server}/many")[0].list("many")) == 5


def test_of_writers_that_meet_one_wins(s3_server: str) -> None:
    """Each writes under the condition that the object is as it was when all looked.

    The contents differ in all rounds: an ETag is the digest of the content, so the same content is the same version.
    """
    store, name = bucket_of(f"{s3_server}/race")
    barrier = threading.Barrier(8)

    def write(number: int) -> bool:
        barrier.wait()
        try:
            store.put_version(name, f"{round_} {number}".encode(), version)
        except ChangedError:
            return False
        return True

    version = NO_VERSION
    for round_ in range(3):
        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(write, range(8)))
        found, version = store.get_version(name)
        assert won.count(True) == 1 and found == f"{round_} {won.index(True)}".encode()


def test_content_that_is_damaged_is_not_taken(s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "RETRY_SECONDS", 0.1)
    s3.client("s3").put_object(Bucket="showers", Key="damaged", Body=b"is", Metadata={"sha256": "that of another"})
    with pytest.raises(UnreachableError, match=r"s3://showers/damaged.*SHA-256"):
        read_object(f"{s3_server}/damaged")
    with pytest.raises(UnreachableError, match="SHA-256"):
        download(f"{s3_server}/damaged", tmp_path)
    s3.client("s3").put_object(Bucket="showers", Key="another's", Body=b"without")
    assert read_object(f"{s3_server}/another's") == b"without"


def test_without_credentials_the_message_names_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setattr(store, "_clients", {})
    with pytest.raises(StorageError, match="no valid credentials") as caught:
        read_object("minio://mlpipeline/x")
    assert "AWS_ACCESS_KEY_ID" in caught.value.remedy and not isinstance(caught.value, UnreachableError)


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Within a bounded time, and nobody's mistake: to be started again."""
    for name, value in {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "ENDPOINT_URL": "http://127.0.0.1:1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr(answers, "RETRY_SECONDS", 0.1)
    (tmp_path / "file").write_text("x")
    for request in (lambda: read_object("s3://b/x"), lambda: upload(tmp_path / "file", "s3://b/x")):
        with pytest.raises(UnreachableError, match=r"s3://b/x.*127\.0\.0\.1:1 does not serve it"):
            request()


ANSWERS = {
    "ExpiredToken": (StorageError, "no valid credentials"),
    "RequestTimeout": (UnreachableError, "does not serve it"),
    "InvalidRequest": (StorageError, "refuses the request"),
    None: (StorageError, "does not answer as S3"),  # the page of a proxy is no object and no empty bucket
}


@pytest.mark.parametrize("code", ANSWERS)
def test_what_an_answer_means(monkeypatch: pytest.MonkeyPatch, code: str | None) -> None:
    from botocore.exceptions import ClientError

    def answer(**_: str) -> dict[str, str]:
        if code is None:
            return {}
        response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": 400}}
        raise ClientError(response, "GetObject")  # type: ignore[arg-type]

    pages = SimpleNamespace(paginate=lambda **_: [answer()])
    client = SimpleNamespace(
        exceptions=SimpleNamespace(NoSuchKey=KeyError), get_object=answer, get_paginator=lambda _: pages
    )
    monkeypatch.setattr(s3, "client", lambda _: client)
    found, name = bucket_of("s3://b1b/x", retry_seconds=0.1)
    for request in (found.get, found.list):
        with pytest.raises(StorageError, match=ANSWERS[code][1]) as caught:
            request(name)
        assert type(caught.value) is ANSWERS[code][0]
