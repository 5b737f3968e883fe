"""gs:// against a real server (fake-gcs-server) and against servers that refuse."""

import json
import multiprocessing
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from caloscale.errors import StorageError, UnreachableError
from caloscale.storage import answers
from caloscale.storage.objects import download, read_object, upload, write_object
from tests.client.server import ApiServer


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_emulator_is_named_as_either_client_of_google_expects(
    bucket_server: str, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Go client (the launcher of Kubeflow Pipelines): host:port; the Python client: a URL."""
    url = os.environ["STORAGE_EMULATOR_HOST"]
    assert url.startswith("http://")
    upload(tree, f"{bucket_server}/conventions")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url.removeprefix("http://"))
    download(f"{bucket_server}/conventions", tmp_path / "back")
    assert content(tmp_path / "back") == content(tree)


@pytest.mark.parametrize("uri", ["gs://", "gs:///a", "s3:///a", "az://bucket/a"])
def test_addresses_that_name_no_bucket_are_refused(uri: str, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="gs://bucket/prefix"):
        download(uri, tmp_path)


def test_one_client_serves_all_requests_of_a_process(
    bucket_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each new client would mean new connections and, with real credentials, a new access token."""
    import google.cloud.storage

    created = []

    class Counted(google.cloud.storage.Client):
        def __init__(self, **options: object) -> None:
            created.append(os.getpid())
            super().__init__(**options)

    monkeypatch.setattr(google.cloud.storage, "Client", Counted)
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "counted")  # the key of a client
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: write_object(b"x", f"{bucket_server}/kept/{n}"), range(16)))
    assert len(download(f"{bucket_server}/kept", tmp_path)) == 16
    assert created == [os.getpid()]

    # A child of fork must not share the connections: it creates a client of its own.
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def child() -> None:
        sender.send((read_object(f"{bucket_server}/kept/0"), created[1:] == [os.getpid()]))

    process = context.Process(target=child)
    process.start()
    assert receiver.poll(60)
    assert receiver.recv() == (b"x", True)
    process.join()


def refusal(code: int) -> tuple[int, object]:
    return code, {"error": {"code": code, "message": "the owner says no"}}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """A server that gives every request the same answer."""
    monkeypatch.setattr(answers, "RETRY_SECONDS", 1.5)
    with ApiServer(refusal(403)) as made:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", made.address)
        yield made


def test_refused(server: ApiServer, tree: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"gs://b/x: access is refused.*the owner says no") as caught:
        download("gs://b/x", tmp_path / "x")
    assert "storage.objectAdmin" in caught.value.remedy
    assert sum(path.endswith("/o") for _, path, *_ in server.asked) == 1, "a refusal is not repeated"
    with pytest.raises(StorageError, match="access is refused"):
        upload(tree, "gs://b/x")
    assert 1 <= sum(verb == "POST" for verb, *_ in server.asked) <= 4, "once for each file that was under way"


def test_only_objects_are_requested_and_no_thread_continues(server: ApiServer, tmp_path: Path) -> None:
    """Requests for the bucket itself need a right that roles for objects do not have."""
    server.answers = [(200, {"items": []})]
    before = set(threading.enumerate())
    assert download("gs://b/x", tmp_path / "x") == []
    started = {one.name for one in set(threading.enumerate()) - before if "process_request" not in one.name}
    assert started <= {"tqdm_monitor"}
    assert [asked[:2] for asked in server.asked] == [("GET", "/storage/v1/b/b/o")]


def test_unauthorised(server: ApiServer, tmp_path: Path) -> None:
    server.answers = [refusal(401)]
    with pytest.raises(StorageError, match="no valid credentials"):
        download("gs://b/x", tmp_path / "x")


def test_unavailable_is_repeated_for_a_bounded_time(server: ApiServer, tmp_path: Path) -> None:
    server.answers = [refusal(503)]
    with pytest.raises(UnreachableError, match="does not serve it") as caught:
        download("gs://b/x", tmp_path / "x")
    assert len(server.asked) > 1
    assert caught.value.exit_code == 144, "nobody's mistake: to be started again"


@pytest.mark.parametrize("name", ["x/../../evil.h5", "x//etc/evil.h5"])
def test_names_that_would_leave_the_folder_are_refused(server: ApiServer, tmp_path: Path, name: str) -> None:
    server.answers = [(200, {"items": [{"name": name, "bucket": "b", "size": "1"}]})]
    if ".." in name:
        with pytest.raises(StorageError, match="would leave the folder"):
            download("gs://b/x", tmp_path / "x")
    else:
        download("gs://b/x", tmp_path / "x")
    outside = [path for path in tmp_path.rglob("evil.h5") if not path.is_relative_to(tmp_path / "x")]
    assert not outside


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch, tree: Path) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
    monkeypatch.setattr(answers, "RETRY_SECONDS", 0.5)
    with pytest.raises(StorageError, match="does not serve it"):
        upload(tree, "gs://b/x")


@pytest.mark.parametrize(
    "content", [None, "", "not JSON", "{}", json.dumps({"type": "service_account", "private_key": "cut off"})]
)
def test_a_key_that_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None) -> None:
    """As somebody fills cluster.credentialsSecret with the wrong file."""
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    if content is not None:
        (tmp_path / "key.json").write_text(content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    says = r"no valid credentials[\s\S]*gcloud auth[\s\S]*cluster.credentialsSecret"
    with pytest.raises(StorageError, match=says) as caught:
        download("gs://b/x", tmp_path)
    assert caught.value.exit_code == 2 and not isinstance(caught.value, UnreachableError)


def test_credentials_that_cannot_be_had_for_now_are_nobodys_mistake(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The server that gives out tokens is away, as a new node's metadata server may be."""
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    given = {"type": "authorized_user", "client_id": "i", "client_secret": "s", "refresh_token": "r"}
    (tmp_path / "user.json").write_text(json.dumps({**given, "token_uri": "http://127.0.0.1:1/"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "user.json"))
    monkeypatch.setattr(answers, "RETRY_SECONDS", 0.5)
    with pytest.raises(UnreachableError, match="gs://b/x"):
        download("gs://b/x", tmp_path)


def test_an_object_that_others_write_is_read_meanwhile(bucket_server: str) -> None:
    """A version that is gone when its content is asked for is no missing object."""
    uri, ended = f"{bucket_server}/pointer", threading.Event()
    write_object(b"0", uri)

    def read() -> set[int]:
        found = set()
        while not ended.is_set():
            content = read_object(uri)
            found.add(int(content))
        return found

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        for number in range(50):
            write_object(str(number).encode(), uri)
        ended.set()
    assert reading.result() <= set(range(50))
