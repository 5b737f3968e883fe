"""Addresses of buckets and answers of their server: what a repetition cannot mend is refused with exit code 2."""

from collections.abc import Callable
from pathlib import Path

import pytest
import requests
from google.api_core import exceptions as api
from google.cloud.storage.exceptions import InvalidResponse

from caloscale.errors import StorageError
from caloscale.storage import google_cloud
from caloscale.storage.objects import locate
from tests.client.server import ApiServer


@pytest.mark.parametrize(
    "uri",
    [
        *("gs://_bucket/x", "gs://-b/x", "gs://MyBucket-/x", "gs://MyBucket/x", "gs://my bucket/x", "gs:// bucket/x"),
        *("gs://192.168.5.4/x", "gs://goog-x/x", "gs://a..b/x", "gs://a.b./x", "gs://bücket/x", f"gs://{'a' * 64}/x"),
        *("gs://b\n/x", "gs://b?x", "gs://b@c/x", "gs://b:80/x", "gs://%62/x"),
        *("gs://", "gs:///x", "gs://b//x", "gs://b/x//y", "gs://b/../x", "gs://b/x/.", "gs://b/x\ny", "gs://b/x\x00"),
        *("gs://b/ x", "gs://b/x ", f"gs://b/{'x' * 1025}", f"gs://b/{'ä' * 600}", "gs://b/\u202ex", "gs://b/x\ud800"),
    ],
)
def test_an_address_that_google_does_not_have_is_refused(uri: str) -> None:
    with pytest.raises(StorageError, match=r"name of|address of") as error:
        locate(uri)
    assert error.value.exit_code == 2 and error.value.file == uri and error.value.remedy


@pytest.mark.parametrize("uri", ["gs://b/x/", "gs://b", "gs://a.example.org/x y/ä", "gs://0_a-b/step-1,2.h5"])
def test_other_addresses_are_not(uri: str) -> None:
    assert locate(uri)[1] == uri.split("/", 3)[-1].rstrip("/") if uri.count("/") > 2 else locate(uri)[1] == ""


def test_the_command_says_so(command: Callable, tmp_path: Path) -> None:
    """Case bucket-name."""
    options = ("--preset", "compact", "--set", "data.showers=20", "--showers", "gs://_bucket/x", "-o", tmp_path / "out")
    done = command("preprocess", *options)
    assert done.code == 2 and "gs://_bucket/x: is not a name of a bucket" in done.err


PAYS = "Bucket is a requester pays bucket but no user project provided."


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        *[(code, "no", 2) for code in (400, 401, 403, 404, 405, 409, 411, 412, 413, 416, 501)],
        *[(code, "later", 144) for code in (408, 410, 429, 500, 502, 503, 504)],
        (400, PAYS, 2),
    ],
)
def test_status_codes_have_one_table(code: int, message: str, expected: int) -> None:
    """As the JSON API answers, as a transfer does, and after the time for repetitions."""
    answer = requests.Response()
    answer.status_code = code
    raised = api.from_http_status(code, message)
    for error in (raised, InvalidResponse(answer, message), api.RetryError("time is over", cause=raised)):
        found = google_cloud.explain(error, "gs://bucket/x")
        assert found.exit_code == expected and found.remedy and found.file == "gs://bucket/x"
    if message == PAYS:
        assert "gcloud storage buckets update gs://bucket --no-requester-pays" in str(found)


@pytest.mark.parametrize(
    ("code", "body", "words"),
    [
        (400, {"error": {"code": 400, "message": PAYS}}, "requester pays off"),
        (412, {"error": {"code": 412, "message": "conditionNotMet"}}, "conditionNotMet"),
        (200, b"<html>Please log in</html>", "does not answer as Google Cloud Storage"),
    ],
)
def test_a_server_that_refuses(
    command: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, body: object, words: str
) -> None:
    """Case bucket-400."""
    with ApiServer((code, body)) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.address)
        options = ("--set", "data.showers=20", "--showers", "gs://b/run", "-o", tmp_path / "out")
        done = command("preprocess", "--preset", "compact", *options)
    assert done.code == 2 and words in done.err and len(server.asked) == 1, done.err
