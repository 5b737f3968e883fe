"""Real disks that are full: a small tmpfs, mounted here or, without the right to, in a namespace of its own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from caloscale.errors import StorageError
from caloscale.report.picture import draw_shower
from caloscale.showers.hdf5.layouts import Layout
from caloscale.showers.hdf5.writer import open_writer, write_showers
from caloscale.showers.tfrecord import shards
from caloscale.showers.tfrecord.shards import preprocess_showers, read_manifest
from caloscale.spec import Data
from caloscale.stages.showers import _link
from caloscale.storage.atomic import atomic_writer

from .conftest import make_showers

WITHIN = "CALOSCALE_TEST_NAMESPACE"
DISK_BYTES = 400 * 1024


def _run(*command: str) -> bool:
    return bool(shutil.which(command[0])) and subprocess.run(command, capture_output=True).returncode == 0


def left_on(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.skipif(WITHIN in os.environ, reason="is itself in the namespace")
def test_in_a_namespace() -> None:
    if os.geteuid() == 0 and _run("unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"):
        pytest.skip("a tmpfs can be mounted: the tests of this file run as they are")
    if not _run("unshare", "-Urm", "true"):
        pytest.skip("neither mount nor unshare -Urm is allowed here: full disks cannot be tested")
    command = ["unshare", "-Urm", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, WITHIN: "1"})
    assert done.returncode == 0 and "10 passed" in done.stdout, done.stdout + done.stderr


def test_any_writer(small_disk: Path) -> None:
    with (
        pytest.raises(StorageError, match=r"a\.bin: cannot be written: No space left[\s\S]*free space"),
        atomic_writer(small_disk / "a.bin") as temporary,
    ):
        temporary.write_bytes(bytes(2 * DISK_BYTES))
    assert left_on(small_disk) == []


def test_showers_of_a_cache_on_another_disk(small_disk: Path, tmp_path: Path) -> None:
    (cached := tmp_path / "showers-00000.h5").write_bytes(bytes(2 * DISK_BYTES))
    with pytest.raises(StorageError, match=r"showers-00000\.h5: cannot be written: No space left[\s\S]*free space"):
        _link(cached, small_disk / cached.name)
    assert left_on(small_disk) == []


def test_write_showers(small_disk: Path) -> None:
    path = small_disk / "showers.h5"
    write_showers(path, make_showers(100), attributes={})
    before = path.read_bytes()
    with pytest.raises(StorageError, match=r"showers\.h5: cannot be written: No space left"):
        write_showers(path, make_showers(3000), attributes={})
    assert left_on(small_disk) == ["showers.h5"] and path.read_bytes() == before


@pytest.mark.parametrize("layout", ["variable-angle", "calochallenge"])
def test_batches(small_disk: Path, layout: Layout) -> None:
    """The disk fills up while HDF5 writes, which would crash the interpreter if HDF5 saw the error."""
    path = small_disk / "showers.h5"
    path.write_text("earlier")
    taken = 0
    with (
        pytest.raises(StorageError, match=r"showers\.h5: cannot be written: No space left"),
        open_writer(path, 30_000, (6, 4, 5), layout=layout, source="generated", attributes={}) as writer,
    ):
        for seed in range(300):
            writer.write(make_showers(100, seed))
            taken += 100
    assert 0 < taken < 30_000
    assert left_on(small_disk) == ["showers.h5"] and path.read_text() == "earlier"


@pytest.mark.parametrize("kind", ["png", "pdf"])
def test_picture(small_disk: Path, kind: str) -> None:
    (small_disk / "ballast").write_bytes(bytes(DISK_BYTES - 4096))
    with pytest.raises(StorageError, match=rf"a\.{kind}: cannot be written: No space left"):
        draw_shower(make_showers(1), small_disk / f"a.{kind}")
    assert left_on(small_disk) == ["ballast"]


def noise(data: Data) -> Data:
    """Cells that gzip cannot make smaller than the disk."""
    return data.model_copy(
        update={
            "angle_deg": (75.0, 100.0),
            "preprocessing": data.preprocessing.model_copy(update={"rebin": (1, 1, 1), "threshold_gev": 0.0}),
        }
    )


@pytest.mark.parametrize("earlier", [False, True])
def test_preprocess(small_disk: Path, folder_of_showers: Callable[..., Path], data: Data, earlier: bool) -> None:
    output = small_disk / "dataset"
    before = preprocess_showers(data, folder_of_showers(20, 20), output) if earlier else None
    with pytest.raises(StorageError, match=r"dataset: cannot be written: .*[Ss]pace"):
        preprocess_showers(noise(data), folder_of_showers(1500, 1500), output)
    assert left_on(small_disk) == (["dataset"] if earlier else [])
    assert (read_manifest(output) if earlier else None) == before


def test_preprocess_when_the_last_bytes_do_not_fit(
    small_disk: Path, folder_of_showers: Callable[..., Path], data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up only when buffers are flushed, at closing."""
    monkeypatch.setattr(shards, "_BLOCK_BYTES", 10**9)
    rng = np.random.default_rng(0)
    (small_disk / "ballast").write_bytes(rng.bytes(DISK_BYTES - 36 * 1024))
    with pytest.raises(StorageError, match=r"dataset: cannot be written: .*[Ss]pace"):
        preprocess_showers(noise(data), folder_of_showers(140, 140), small_disk / "dataset")
    assert left_on(small_disk) == ["ballast"]
