"""What the stores have in common: a folder, and buckets of real servers."""

from pathlib import Path

import pytest

from caloscale.errors import StorageError
from caloscale.storage.objects import download, locate, read_object, upload, write_object
from caloscale.storage.store import LocalStore, ObjectStore


@pytest.fixture(params=["gs", "s3", "minio"])
def prefix(request: pytest.FixtureRequest) -> str:
    """A prefix in a bucket that only this test uses."""
    server = request.getfixturevalue("bucket_server" if request.param == "gs" else "s3_server")
    return f"{request.param}://{server.partition('://')[2]}/{request.node.name}"


@pytest.fixture(params=["local", "bucket_server", "s3_server"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ObjectStore, str]:
    """A store, and a prefix that only this test uses."""
    if request.param == "local":
        return locate(str(tmp_path / "root"))
    return locate(f"{request.getfixturevalue(request.param)}/{request.node.name}")


def test_objects_come_back_by_name(store: tuple[ObjectStore, str], tmp_path: Path) -> None:
    objects, prefix = store
    assert objects.get(f"{prefix}/a") is None
    assert list(objects.list(prefix)) == []
    (tmp_path / "file").write_bytes(b"from a file")
    objects.put(f"{prefix}/b/c", tmp_path / "file")
    objects.put(f"{prefix}/a", b"bytes")
    objects.put(f"{prefix}2/a", b"a neighbour")
    assert [(one.name, one.size) for one in objects.list(prefix)] == [(f"{prefix}/a", 5), (f"{prefix}/b/c", 11)]
    assert all(bool(one.checksum) != isinstance(objects, LocalStore) for one in objects.list(prefix))
    assert objects.get(f"{prefix}/b/c") == b"from a file"
    received: list[int] = []
    objects.get_file(f"{prefix}/a", tmp_path / "copy", received.append)
    assert (tmp_path / "copy").read_bytes() == b"bytes" and sum(received) == 5
    for _ in range(2):
        objects.delete(f"{prefix}/a")
    assert [one.name for one in objects.list(prefix)] == [f"{prefix}/b/c"]


def test_a_folder_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    objects, name = locate(str(tmp_path / "file" / "below"))
    assert objects.get(name) is None
    with pytest.raises(StorageError, match="cannot be read: Is a directory"):
        read_object(str(tmp_path))
    for change in (lambda: objects.put(name, b"x"), lambda: objects.delete(name)):
        with pytest.raises(StorageError, match="a component of the path is a file"):
            change()


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_uploaded_comes_back(prefix: str, tree: Path, tmp_path: Path) -> None:
    """Also what goes in parts, and what is empty; run1 brings no run10 with it."""
    upload(tree, f"{prefix}/run1/")
    write_object(b"x", f"{prefix}/run10/a.h5")
    paths = download(f"{prefix}/run1", tmp_path / "back")
    assert content(tmp_path / "back") == content(tree)
    assert paths == sorted(path for path in (tmp_path / "back").rglob("*") if path.is_file())
    assert download(f"{prefix}/nothing", tmp_path / "none") == []


def test_patterns_and_single_objects(prefix: str, tree: Path, tmp_path: Path) -> None:
    upload(tree, prefix)
    found = download(prefix, tmp_path / "h5", ("*.h5", "*.hdf5"))
    assert {path.name for path in found} == {"large.h5", "b.h5", "empty.h5"}
    assert download(f"{prefix}/deeper/b.h5", tmp_path / "one") == [tmp_path / "one" / "b.h5"]
    for name in ("deeper/b.h5", "manifest.json"):  # replaces the object
        upload(tree / name, f"{prefix}/where.h5")
        assert download(f"{prefix}/where.h5", tmp_path / "two")[0].read_bytes() == (tree / name).read_bytes()


@pytest.mark.parametrize("way", ["read", "download", "upload", "write"])
@pytest.mark.parametrize(("server", "scheme"), [("bucket_server", "gs"), ("s3_server", "s3")])
def test_a_missing_bucket_is_named(
    request: pytest.FixtureRequest, tree: Path, tmp_path: Path, server: str, scheme: str, way: str
) -> None:
    request.getfixturevalue(server)
    uri = f"{scheme}://nobody/here"
    ways = {
        "read": lambda: read_object(uri),
        "download": lambda: download(uri, tmp_path / "x"),
        "upload": lambda: upload(tree, uri),
        "write": lambda: write_object(b"x", uri),
    }
    with pytest.raises(StorageError, match=rf"{uri}.*no such bucket") as caught:
        ways[way]()
    assert "'nobody'" in caught.value.remedy and caught.value.exit_code == 2
