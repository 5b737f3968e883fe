"""What the stores have in common: a folder, and buckets of real servers."""

from pathlib import Path

import pytest

from caloscale.errors import StorageError
from caloscale.storage.objects import locate
from caloscale.storage.store import ObjectStore


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
    for change in (lambda: objects.put(name, b"x"), lambda: objects.delete(name)):
        with pytest.raises(StorageError, match="a component of the path is a file"):
            change()
