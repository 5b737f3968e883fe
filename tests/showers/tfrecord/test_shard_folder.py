"""Shards in a bucket: only what is needed is fetched, and nothing that is not whole is used."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from caloscale.errors import ShowerFileError, StorageError
from caloscale.showers.tfrecord.manifest import MANIFEST
from caloscale.showers.tfrecord.shard_folder import ShardFolder, open_shards
from caloscale.showers.tfrecord.shards import preprocess_showers, read_split
from caloscale.spec import Data
from caloscale.storage.objects import upload, write_object


@pytest.fixture
def shards(folder_of_showers: Callable[..., Path], data: Data, tmp_path: Path) -> Path:
    preprocess_showers(data, folder_of_showers(16, 16, 16), tmp_path / "shards")
    return tmp_path / "shards"


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_only_what_is_needed_is_fetched(bucket_server: str, shards: Path, tmp_path: Path) -> None:
    upload(shards, f"{bucket_server}/shards")
    folder = ShardFolder(tmp_path / "here", f"{bucket_server}/shards")
    assert files(folder.path) == {MANIFEST}
    first, second, *_ = folder.manifest.shards_of("train")
    folder.need((first,))
    folder.need((first, second))
    assert files(folder.path) == {MANIFEST, first.file, second.file}
    assert len(folder.read("validation", np.array([0]))) == 1
    assert len(files(folder.path)) == 4
    folder.need()
    assert files(folder.path) == files(shards)
    assert (read_split(folder.path, "train").cells_gev == read_split(shards, "train").cells_gev).all()


def test_what_was_fetched_before_is_not_fetched_again(bucket_server: str, shards: Path, tmp_path: Path) -> None:
    upload(shards, f"{bucket_server}/once")
    ShardFolder(tmp_path / "here", f"{bucket_server}/once").need()
    again = ShardFolder(tmp_path / "here", f"{bucket_server}/once")
    again.uri = "gs://nobody/at-all"
    again.need()
    (tmp_path / "here" / again.manifest.shards[0].file).unlink()
    with pytest.raises(StorageError, match="no such bucket"):
        ShardFolder(tmp_path / "here", "gs://nobody/at-all")


def test_a_damaged_shard_is_named(bucket_server: str, shards: Path, tmp_path: Path) -> None:
    upload(shards, f"{bucket_server}/damaged")
    victim = ShardFolder(shards).manifest.shards_of("train")[0]
    content = (shards / victim.file).read_bytes()
    write_object(content[:-1] + bytes([content[-1] ^ 1]), f"{bucket_server}/damaged/{victim.file}")
    with open_shards(f"{bucket_server}/damaged") as folder:
        folder.read("validation")
        with pytest.raises(ShowerFileError, match=rf"{victim.file}.*checksum"):
            folder.need()


def test_a_place_without_manifest_holds_no_shards(bucket_server: str, tmp_path: Path) -> None:
    with pytest.raises(ShowerFileError, match=r"gs://showers/empty: contains no shards.*\n.*caloscale preprocess"):
        ShardFolder(tmp_path / "here", f"{bucket_server}/empty")


def test_on_a_disk_all_shards_are_looked_at_at_once(shards: Path) -> None:
    """Whatever is needed first: a torn one should not be found hours later."""
    folder = ShardFolder(shards)
    first, *_, last = folder.manifest.shards
    (shards / last.file).write_bytes(b"torn")
    with pytest.raises(ShowerFileError, match=last.file):
        folder.need((first,))
