"""Batches into one file: the same file as at once, in both layouts, and nothing when it fails."""

import signal
from pathlib import Path

import h5py
import numpy as np
import pytest

from caloscale.errors import ShowerFileError, StorageError
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5 import writer as file_writer
from caloscale.showers.hdf5.reader import read_showers
from caloscale.showers.hdf5.writer import open_writer, write_showers
from caloscale.spec import Geometry
from tests.showers.conftest import CELLS, make_showers


def write(path: Path, showers: Showers, sizes: tuple[int, ...], **options: object) -> None:
    """In batches of these sizes, in turn."""
    settings = {"source": "generated", "attributes": {"seed": 1}, **options}
    with open_writer(path, len(showers), CELLS, **settings) as writer:  # type: ignore[arg-type]
        turn = 0
        while writer.written < len(showers):
            writer.write(showers[writer.written : writer.written + sizes[turn % len(sizes)]])
            turn += 1


@pytest.mark.parametrize("sizes", [(1000,), (1,), (7, 30, 2)])
def test_batches_make_the_file_that_is_written_at_once(
    tmp_path: Path, geometry: Geometry, sizes: tuple[int, ...]
) -> None:
    showers = make_showers(130, source="generated")
    write_showers(tmp_path / "whole.h5", showers, attributes={"seed": 1}, geometry=geometry)
    write(tmp_path / "parts.h5", showers, sizes, geometry=geometry)
    with h5py.File(tmp_path / "whole.h5") as whole, h5py.File(tmp_path / "parts.h5") as parts:
        assert set(whole) == set(parts) and dict(whole.attrs) == dict(parts.attrs)
        for name in whole:
            np.testing.assert_array_equal(parts[name], whole[name])
            assert parts[name].dtype == whole[name].dtype


def test_the_calochallenge_layout(tmp_path: Path, geometry: Geometry) -> None:
    """MeV, one row per shower, layer by layer."""
    showers = make_showers(20)
    write(tmp_path / "a.h5", showers, (6,), layout="calochallenge")
    x, y, z = CELLS
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["incident_energies"].shape == (20, 1) and file["showers"].shape == (20, x * y * z)
        np.testing.assert_allclose(file["incident_energies"][:, 0], showers.energy_gev * 1000, rtol=1e-6)
        by_layer = file["showers"][...].reshape(20, z, x, y)
        for layer in range(z):
            np.testing.assert_allclose(by_layer[:, layer], showers.cells_gev[..., layer] * 1000, rtol=1e-6)
    again = read_showers(tmp_path / "a.h5", geometry=geometry)
    np.testing.assert_allclose(again.cells_gev, showers.cells_gev, rtol=1e-6)
    np.testing.assert_array_equal(again.angle_rad, showers.angle_rad)


@pytest.mark.parametrize("failure", [ValueError("no"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing(tmp_path: Path, failure: BaseException) -> None:
    path = tmp_path / "a.h5"
    path.write_text("earlier")
    with pytest.raises(type(failure)), open_writer(path, 500, CELLS, source="generated", attributes={}) as writer:
        writer.write(make_showers(300))
        raise failure
    assert [p.name for p in tmp_path.iterdir()] == ["a.h5"] and path.read_text() == "earlier"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_hdf5_writes_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """HDF5 would take an exception in the middle of a write for a failure of the disk, and continue or crash."""
    real = file_writer._Disk.write
    calls = []

    def interrupted(disk: object, data: object) -> int:
        calls.append(1)
        if len(calls) == 5:
            signal.raise_signal(number)
        return real(disk, data)  # type: ignore[arg-type]

    class StoppedError(Exception):
        pass

    def stop(*_: object) -> None:
        raise StoppedError

    monkeypatch.setattr(file_writer._Disk, "write", interrupted)
    before = signal.signal(number, stop)
    try:
        with pytest.raises(StoppedError):
            write(tmp_path / "a.h5", make_showers(3000), (500,))
    finally:
        assert signal.signal(number, before) is stop
    assert len(calls) >= 5 and list(tmp_path.iterdir()) == []


def test_too_few_too_many_and_others(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    for count, problem in ((2, "is not complete"), (4, "does not take these showers")):
        with (
            pytest.raises(ShowerFileError, match=problem),
            open_writer(path, 3, CELLS, source="generated", attributes={}) as writer,
        ):
            writer.write(make_showers(count))
    with pytest.raises(ShowerFileError, match="does not take these showers"):
        write(path, make_showers(2, cells=(6, 4, 4)), (2,))
    with pytest.raises(ShowerFileError, match="no showers"):
        write(path, make_showers(1)[:0], (1,))
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_written() -> None:
    with pytest.raises(StorageError, match="cannot be written"):
        write(Path("/proc/none/a.h5"), make_showers(1), (1,))
