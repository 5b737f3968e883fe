"""Damaged files of every kind: only InputError may come out, never a crash or a hang."""

import contextlib
import subprocess
import sys
from pathlib import Path

import h5py
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from caloscale.errors import InputError
from caloscale.showers.hdf5 import sandbox
from caloscale.showers.hdf5.reader import read_showers
from caloscale.showers.hdf5.writer import write_showers
from caloscale.showers.inspection import describe
from caloscale.showers.tfrecord.manifest import check_shards
from caloscale.showers.tfrecord.shards import read_manifest, read_split
from caloscale.spec import Geometry
from tests.showers.conftest import make_showers, write_published

quick = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

damages = st.one_of(
    st.tuples(st.just("flip"), st.lists(st.tuples(st.floats(0, 0.9999), st.integers(0, 255)), min_size=1, max_size=8)),
    st.tuples(st.just("cut"), st.floats(0, 0.9999)),
    st.tuples(st.just("insert"), st.floats(0, 1), st.binary(min_size=1, max_size=20)),
    st.tuples(st.just("zero"), st.floats(0, 1), st.integers(1, 200)),
)


def damaged(content: bytes, damage: tuple) -> bytes:
    kind, first, *rest = damage
    if kind == "flip":
        changed = bytearray(content)
        for place, value in first:
            changed[int(place * len(content))] = value
        return bytes(changed)
    place = int(first * len(content))
    if kind == "cut":
        return content[:place]
    if kind == "insert":
        return content[:place] + rest[0] + content[place:]
    return content[:place] + bytes(rest[0]) + content[place + rest[0] :]


def read_all(path: Path, geometry: Geometry) -> None:
    for read in (describe, lambda path: read_showers(path, geometry=geometry)):
        with contextlib.suppress(InputError):
            read(path)


@pytest.fixture(scope="module")
def own_file(tmp_path_factory: pytest.TempPathFactory, geometry: Geometry) -> bytes:
    """A file as we write it."""
    path = tmp_path_factory.mktemp("own") / "s.h5"
    write_showers(path, make_showers(8), attributes={"seed": 1, "engine": "Geant4"}, geometry=geometry)
    return path.read_bytes()


@given(st.binary(max_size=300))
@quick
def test_random_bytes(tmp_path: Path, geometry: Geometry, content: bytes) -> None:
    for beginning in (b"", b"\x89HDF\r\n\x1a\n\x03"):
        (tmp_path / "r.h5").write_bytes(beginning + content)
        with pytest.raises(InputError):
            read_showers(tmp_path / "r.h5", geometry=geometry)


@given(damages)
@quick
def test_our_files(tmp_path: Path, geometry: Geometry, own_file: bytes, damage: tuple) -> None:
    (tmp_path / "s.h5").write_bytes(damaged(own_file, damage))
    read_all(tmp_path / "s.h5", geometry)


@pytest.mark.parametrize("examples", [5, pytest.param(300, marks=pytest.mark.long)])  # each takes a process
@pytest.mark.parametrize("layout", ["variable-angle", "fixed-angle", "calochallenge"])
def test_published_files(tmp_path: Path, geometry: Geometry, layout: str, examples: int) -> None:
    content = write_published(tmp_path / "good.h5", make_showers(8), layout).read_bytes()

    @given(damages)
    @settings(quick, max_examples=examples)
    def check(damage: tuple) -> None:
        (tmp_path / "s.h5").write_bytes(damaged(content, damage))
        read_all(tmp_path / "s.h5", geometry)

    check()


def test_damage_that_crashes_hdf5(tmp_path: Path, geometry: Geometry) -> None:
    """A chunk shorter than its checksum: HDF5 1.14 dies with a segmentation fault."""
    path = write_published(tmp_path / "s.h5", make_showers(8), "variable-angle")
    with h5py.File(path, "a") as file:
        angles = file.pop("theta")[...]
        file.create_dataset("theta", data=angles, fletcher32=True)
    content = path.read_bytes()
    size = content.rfind(b"TREE\x01") + 24
    path.write_bytes(content[:size] + (2).to_bytes(4, "little") + content[size + 4 :])
    reading = f"import h5py; h5py.File({str(path)!r})['theta'][...]"
    native = subprocess.run([sys.executable, "-c", reading], cwd=tmp_path, capture_output=True)
    assert native.returncode != 0, "otherwise this test shows nothing"
    with pytest.raises(InputError, match=r"s\.h5: is truncated or damaged"):
        read_showers(path, geometry=geometry)


def test_damage_that_hangs_hdf5(tmp_path: Path, geometry: Geometry, monkeypatch: pytest.MonkeyPatch) -> None:
    """h5py stores texts in a heap; with an object of length zero in it, HDF5 1.14 loops for ever."""
    monkeypatch.setattr(sandbox, "_SECONDS", 2)
    path = write_published(tmp_path / "s.h5", make_showers(8), "variable-angle", libver="v110")
    with h5py.File(path, "a") as file:
        file.attrs["source"] = "geant4"
    content = path.read_bytes()
    heap = content.find(b"GCOL") + 16
    path.write_bytes(content[:heap] + bytes(16) + content[heap + 16 :])
    with pytest.raises(InputError, match="does not finish reading it"):
        read_showers(path, geometry=geometry)


def test_shards(prepared: Path) -> None:
    shard = next(prepared.glob("validation*"))
    content = shard.read_bytes()
    manifest = read_manifest(prepared)

    @given(damages)
    @settings(quick, max_examples=15)
    def check(damage: tuple) -> None:
        shard.write_bytes(damaged(content, damage))
        with contextlib.suppress(InputError):
            read_split(prepared, "validation")
        if shard.read_bytes() != content:
            with pytest.raises(InputError):
                check_shards(prepared, manifest.shards)

    check()


def test_manifests(prepared: Path) -> None:
    path = prepared / "manifest.json"
    content = path.read_bytes()

    @given(damages)
    @quick
    def check(damage: tuple) -> None:
        path.write_bytes(damaged(content, damage))
        for read in (describe, lambda folder: read_split(folder, "validation")):
            with contextlib.suppress(InputError):
                read(prepared)

    check()
