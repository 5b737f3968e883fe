"""Files of showers by their suffix, and showers as the arrays of other packages."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from caloscale.errors import InputError, ShowerFileError
from caloscale.showers.files import read_showers, write_showers
from tests.showers.conftest import CELLS, make_showers

TABLE = ("azimuth_rad", "pdg")


def wide(count: int = 5):
    columns = dict(zip(TABLE, np.array([np.linspace(0, 1, count), [11, 22, 11, 22, 11]], np.float32)))
    return replace(make_showers(count), further=columns)


@pytest.mark.parametrize("suffix", [".h5", ".npz", ".root"])
def test_what_is_written_is_read(suffix: str, tmp_path: Path, geometry) -> None:
    written = replace(wide(), detector='{"data.front": []}')
    write_showers(written, path := tmp_path / f"own{suffix}")
    with pytest.raises(InputError, match=r"start: is no integer \(got 1\.5\)"):
        read_showers(path, geometry=geometry, start=1.5)
    found = read_showers(path, geometry=geometry, start=1, stop=4)
    np.testing.assert_allclose(found.cells_gev, written.cells_gev[1:4], rtol=1e-6)
    for name, column in written.primaries.items():
        np.testing.assert_array_equal(found.primaries[name], column[1:4])
    assert found.source == "geant4" and found.detector == written.detector
    summed = read_showers(path, geometry=geometry, rebin=(2, 1, 1))
    np.testing.assert_allclose(
        summed.cells_gev[:, 0], written.cells_gev[:, 0] + written.cells_gev[:, 1], rtol=1e-5, atol=1e-9
    )


@pytest.mark.parametrize("suffix", [".h5", ".npz"])
def test_showers_keep_the_shape_of_their_cells(suffix: str, tmp_path: Path, geometry) -> None:
    """Those of a cylinder, read and written again, are refused in a grid of as many cells, and not in their own."""
    cylinder = geometry.model_copy(update={"cell_shape": "cylinder"})
    write_showers(replace(make_showers(3), cell_shape="cylinder"), path := tmp_path / f"own{suffix}")
    write_showers(read_showers(path, geometry=cylinder)[:2], again := tmp_path / "again.h5")
    assert read_showers(again, geometry=cylinder).cell_shape == "cylinder"
    with pytest.raises(ShowerFileError, match=r"in the cells of a cylinder, data\.geometry\.cellShape is grid"):
        read_showers(again, geometry=geometry)


def test_plain_files_of_other_programs(tmp_path: Path, geometry) -> None:
    """Float64, without angles, re-binned already; a ROOT tree of another name."""
    import uproot

    showers = make_showers(3, cells=(3, 4, 5))
    arrays = {"cells_gev": showers.cells_gev.astype(np.float64), "energy_gev": showers.energy_gev.astype(np.float64)}
    np.savez(tmp_path / "plain.npz", **arrays)
    with uproot.recreate(tmp_path / "plain.root") as file:
        file.mktree("events", {name: (array.dtype, array.shape[1:]) for name, array in arrays.items()})
        file["events"].extend(arrays)
    for name in ("plain.npz", "plain.root"):
        found = read_showers(tmp_path / name, geometry=geometry, rebin=(2, 1, 1))
        np.testing.assert_allclose(found.cells_gev, showers.cells_gev, rtol=1e-6)
        np.testing.assert_allclose(found.angle_rad, np.pi / 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"energy_gev": None}, "energy_gev: array is missing"),
        ({"cells_gev": np.ones((3, 2, 4, 5))}, r"another shape than data.geometry.cells \[6, 4, 5\]"),
        ({"angle_rad": None, "theta": np.ones(3)}, "theta: is not read, and without angle_rad all .* perpendicular"),
        ({"angle_rad": np.ones(2)}, r"angle_rad: does not go with cells_gev of shape \(3, 6, 4, 5\)"),
        ({"angle_rad": np.full(3, 90.0)}, "angle_rad: shower 0 has an angle that is not within 0 and pi"),
        ({"energy_gev": np.array([1.0, -1.0, 1.0])}, "energy_gev: shower 1 has an energy that is not positive"),
        ({"energy_gev": np.array(["1", "2", "3"])}, "energy_gev: is no array of numbers"),
        ({"cells_gev": np.full((3, *CELLS), np.nan)}, "cells_gev: shower 0 has a cell that is not finite"),
        ({"cells_gev": np.array([None, 1, 2], object)}, "cannot be read as a NumPy archive"),
    ],
)
def test_a_plain_file_that_does_not_fit_is_refused(change, message, tmp_path: Path, geometry) -> None:
    arrays = {"cells_gev": np.ones((3, *CELLS)), "energy_gev": np.ones(3), "angle_rad": np.ones(3)} | change
    np.savez(tmp_path / "own.npz", **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(ShowerFileError, match=message):
        read_showers(tmp_path / "own.npz", geometry=geometry)


@pytest.mark.parametrize("suffix", [".npz", ".root"])
def test_a_damaged_file_is_refused(suffix: str, tmp_path: Path, geometry) -> None:
    write_showers(make_showers(3), path := tmp_path / f"own{suffix}")
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ShowerFileError, match="cannot be read as a"):
        read_showers(path, geometry=geometry)
    with pytest.raises(ShowerFileError, match=r"has no suffix of a file of showers \(got '.txt'\)"):
        write_showers(make_showers(3), tmp_path / "own.txt")


def test_the_cells_of_an_awkward_array_are_those_with_energy() -> None:
    import awkward as ak

    showers = wide()
    empty = replace(showers, cells_gev=showers.cells_gev * np.array([1, 0, 1, 1, 1], np.float32)[:, None, None, None])
    array = empty.to_awkward()
    assert array.fields == ["energy_gev", "angle_rad", *TABLE, "cells"]
    np.testing.assert_array_equal(ak.num(array.cells), np.count_nonzero(empty.cells_gev, axis=(1, 2, 3)))
    np.testing.assert_allclose(ak.sum(array.cells.energy_gev, axis=1), empty.ecal_sum_gev, rtol=1e-5)
    cell = array[3].cells[7]
    assert cell.energy_gev == empty.cells_gev[3, cell.x, cell.y, cell.layer]
    np.testing.assert_array_equal(array.energy_gev, empty.energy_gev)


def test_point_clouds_of_showerdata(tmp_path: Path) -> None:
    import showerdata

    showers = wide()
    clouds = showers.to_showerdata()
    clouds.save(tmp_path / "clouds.h5")
    read = showerdata.load(tmp_path / "clouds.h5")
    np.testing.assert_allclose(read.points[:, :, 3].sum(axis=1), showers.ecal_sum_gev, rtol=1e-5)
    for shower, points in enumerate(read.points):
        x, y, layer, energy = points[np.flatnonzero(points[:, 3])[-1]]
        assert energy == showers.cells_gev[shower, int(x), int(y), int(layer)]
    np.testing.assert_array_equal(read.pdg, [11, 22, 11, 22, 11])
    np.testing.assert_allclose(np.linalg.norm(read.directions, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(read.directions[:, 2], np.sin(showers.angle_rad), rtol=1e-5)
    with pytest.raises(InputError, match="pdg=11"):
        make_showers(2).to_showerdata()
    assert set(make_showers(2).to_showerdata(11).pdg) == {11}
