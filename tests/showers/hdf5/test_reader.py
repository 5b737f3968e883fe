import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from caloscale.detector.angle import measured_angle_rad
from caloscale.errors import ShowerFileError
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.reader import read_showers
from caloscale.showers.hdf5.writer import write_showers
from caloscale.showers.inspection import describe_file
from caloscale.showers.sources import read_of_run, survey_file
from caloscale.spec import Geometry, load_run
from tests.showers.conftest import make_showers, write_published

LAYOUTS = ["variable-angle", "fixed-angle", "calochallenge"]


def test_written_file_has_the_published_layout(tmp_path: Path, geometry: Geometry) -> None:
    showers = make_showers(7)
    write_showers(tmp_path / "s.h5", showers, attributes={"seed": 3, "engine": "Geant4 11"}, geometry=geometry)
    with h5py.File(tmp_path / "s.h5") as file:
        assert file["ECAL"].dtype == np.float32 and file["ECAL"].compression == "gzip"
        np.testing.assert_allclose(file["ECAL"][...], showers.cells_gev.swapaxes(1, 2) * 50, rtol=1e-6)
        np.testing.assert_allclose(file["sum"][...], file["ECAL"][...].sum(axis=(1, 2, 3)), rtol=1e-5)
        assert np.array_equal(file["energy"], showers.energy_gev) and np.array_equal(file["theta"], showers.angle_rad)
        np.testing.assert_array_equal(file["mtheta"], measured_angle_rad(showers.cells_gev, geometry))
        assert file.attrs["seed"] == 3 and file.attrs["engine"] == b"Geant4 11" and file.attrs["source"] == b"geant4"


def test_files_are_inclined_along_the_axis_of_the_published_code(tmp_path: Path) -> None:
    """The published measurement takes the slope of the barycentre along the second axis, angle = pi/2 - atan(slope)."""
    angle_rad, layers = math.radians(70), np.arange(5)
    cells = np.zeros((1, 12, 4, 5), np.float32)
    for layer, x in zip(layers, 3 + layers / math.tan(angle_rad)):  # in cells as long as layers are apart
        share = x % 1
        cells[0, int(x), 1, layer], cells[0, int(x) + 1, 1, layer] = 1 - share, share
    showers = Showers(cells, np.full(1, 7, np.float32), np.full(1, angle_rad, np.float32))
    write_showers(tmp_path / "s.h5", showers, attributes={})
    with h5py.File(tmp_path / "s.h5") as file:
        stored = file["ECAL"][0]
        along_second = (stored.sum(axis=0) * np.arange(stored.shape[1])[:, None]).sum(axis=0) / stored.sum(axis=(0, 1))
        slope = np.polyfit(layers, along_second, 1)[0]
        assert math.pi / 2 - math.atan(slope) == pytest.approx(file["theta"][0], abs=1e-5)


@pytest.mark.parametrize("source", ["geant4", "parametrised", "generated", "file"])
def test_write_and_read_back(tmp_path: Path, geometry: Geometry, source: str) -> None:
    showers = make_showers(9, source=source)
    write_showers(tmp_path / "s.h5", showers, attributes={})
    back = read_showers(tmp_path / "s.h5", geometry=geometry)
    np.testing.assert_allclose(back.cells_gev, showers.cells_gev, rtol=3e-7)
    assert np.array_equal(back.energy_gev, showers.energy_gev) and np.array_equal(back.angle_rad, showers.angle_rad)
    assert back.source == source and back.cells_gev.dtype == np.float32


@pytest.mark.parametrize("layout", LAYOUTS)
def test_published_layouts_are_recognised_by_content(tmp_path: Path, geometry: Geometry, layout: str) -> None:
    showers = make_showers(6)
    path = write_published(tmp_path / "s.h5", showers, layout)
    back = read_showers(path, geometry=geometry, start=2, stop=5)
    np.testing.assert_allclose(back.cells_gev, showers.cells_gev[2:5], rtol=1e-6)
    np.testing.assert_allclose(back.energy_gev, showers.energy_gev[2:5], rtol=1e-6)
    expected = showers.angle_rad[2:5] if layout == "variable-angle" else math.pi / 2
    np.testing.assert_allclose(back.angle_rad, expected, rtol=1e-6)
    assert back.source == "file"
    assert describe_file(path).layout == layout


def test_voxels_of_calochallenge_are_layers_of_rings(tmp_path: Path) -> None:
    """Dataset 2: voxel = 144 layer + 9 alpha + r (CaloChallenge's binning files: 45 layers, 16 in alpha, 9 in r)."""
    voxels = np.zeros((1, 6480))
    voxels[0, 144 * 30 + 9 * 11 + 5] = 7.0
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["showers"], file["incident_energies"] = voxels, [[65_000.0]]
    geometry = load_run(preset="par04").data.geometry
    shower = read_showers(tmp_path / "c.h5", geometry=geometry)
    assert np.argwhere(shower.cells_gev).tolist() == [[0, 11, 5, 30]]
    assert shower.cells_gev[0, 11, 5, 30] == pytest.approx(0.007) and shower.energy_gev[0] == pytest.approx(65)


@pytest.mark.parametrize(
    ("voxels", "wrong", "published"),
    [(6480, (9, 16, 45), "[16, 9, 45]"), (6480, (16, 45, 9), "[16, 9, 45]"), (40500, (18, 50, 45), "[50, 18, 45]")],
)
def test_published_voxels_have_their_numbers_of_azimuth_radius_and_depth(
    tmp_path: Path, voxels: int, wrong: tuple[int, int, int], published: str
) -> None:
    """The product alone would be right, and the cells of all showers would be mixed up."""
    geometry = load_run(preset="par04").data.geometry
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["showers"], file["incident_energies"] = np.ones((2, voxels)), np.full((2, 1), 65_000.0)
    with pytest.raises(ShowerFileError, match="voxels of a cylinder are other cells") as refused:
        read_showers(tmp_path / "c.h5", geometry=geometry.model_copy(update={"cells": wrong}))
    assert f"set data.geometry.cells to {published}" in str(refused.value.remedy)
    with h5py.File(tmp_path / "c.h5", "a") as file:  # only of a cylinder
        file.attrs["cellShape"] = "grid"
    grid = geometry.model_copy(update={"cell_shape": "grid", "cells": wrong})
    assert len(read_showers(tmp_path / "c.h5", geometry=grid)) == 2


ORDER = (3, 1, 2)
"""Of the published voxels (layer, azimuth, radius), as axes of showers (N, azimuth, radius, layer)."""


CALIBRATED = ("data.source=c.h5", "data.energyGev=[1, 1000]", "data.geometry.calibrated=true")


def write_voxels(
    path: Path, axes: tuple[int, ...] = ORDER, *reverse: int, count: int = 600, narrow: bool = False, gev: float = 0
) -> np.ndarray:
    """Showers of spots about the axis whose depth grows with the energy, in the voxels of dataset 2; narrow: those of
    each shower are at one azimuth; gev: the only energy."""
    random = np.random.default_rng(1)
    energy = np.full(count, gev) if gev else np.exp(random.uniform(np.log(1), np.log(1000), count))
    shower = np.repeat(np.arange(count), 400)
    azimuth = random.integers(16, size=count)[shower] if narrow else random.integers(16, size=len(shower))
    radius = np.minimum(random.exponential(1, len(shower)), 8).astype(int)
    layer = np.minimum(random.gamma(4 + 0.5 * np.log(energy)[shower], 2.5), 44).astype(int)
    cells = np.zeros((count, 16, 9, 45), np.float32)
    np.add.at(cells, (shower, azimuth, radius, layer), random.exponential(1, len(shower)))
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        cells *= (1e3 * energy / cells.sum(axis=(1, 2, 3)))[:, None, None, None]  # calibrated, MeV
        stored = np.flip(cells, reverse) if reverse else cells
        file["showers"] = stored.transpose(0, *axes).reshape(count, -1)
        file["incident_energies"] = 1e3 * energy[:, None]
    return cells


@pytest.mark.parametrize("narrow", [False, True])
def test_voxels_in_their_order_are_read(tmp_path: Path, narrow: bool) -> None:
    data = load_run(preset="flow-par04", overrides=CALIBRATED).data
    cells = write_voxels(tmp_path / "c.h5", narrow=narrow)
    np.testing.assert_allclose(1000 * read_of_run(tmp_path / "c.h5", data).cells_gev, cells, 1e-6)
    write_voxels(tmp_path / "long.h5", count=1300)
    assert survey_file(tmp_path / "long.h5", data).is_selected.all()
    assert describe_file(tmp_path / "long.h5").showers == 1300


@pytest.mark.parametrize(
    ("axes", "reverse", "problem"),
    [
        ((3, 2, 1), (), "depend on the azimuth"),
        ((1, 2, 3), (), "depend on the azimuth"),
        ((2, 1, 3), (), "depend on the azimuth"),
        ((1, 3, 2), (), "depend on the azimuth"),
        ((2, 3, 1), (), "depend on the azimuth"),
        (ORDER, (2,), "are far from the axis"),
        (ORDER, (3,), "are nearer to the front at higher energies"),
    ],
)
def test_voxels_in_another_order_are_refused(
    tmp_path: Path, axes: tuple[int, ...], reverse: tuple[int, ...], problem: str
) -> None:
    """Their numbers are right. By all that reads files of users; a generator may make anything, and so do few."""
    data = load_run(preset="flow-par04", overrides=CALIBRATED).data
    write_voxels(path := tmp_path / "c.h5", axes, *reverse)
    read: tuple[Callable[[], object], ...] = (
        lambda: survey_file(path, data), lambda: read_of_run(path, data), lambda: describe_file(path)
    )  # fmt: skip
    for function in read:
        with pytest.raises(ShowerFileError, match=f"{problem}, as of voxels in another order") as refused:
            function()
        assert "(layer, azimuth, radius)" in str(refused.value.remedy)
    with h5py.File(path, "a") as file:
        file.attrs["source"] = "generated"
    write_voxels(few := tmp_path / "few.h5", axes, *reverse, count=10)
    assert len(read_of_run(path, data)) == 600 and len(read_of_run(few, data)) == 10


def test_depth_is_compared_with_the_energies_of_electrons_or_photons(tmp_path: Path) -> None:
    """Showers of one energy have no order of depth, and pions may begin anywhere."""
    write_voxels(path := tmp_path / "c.h5", ORDER, 3, gev=50)
    assert describe_file(path).showers == 600
    write_voxels(path, ORDER, 3)
    for particle in ("gamma", "pi-"):
        with h5py.File(path, "a") as file:
            file.attrs["particle"] = particle
        with pytest.raises(ShowerFileError) if particle == "gamma" else nullcontext():
            describe_file(path)


def test_cells_of_another_shape_are_refused(tmp_path: Path) -> None:
    """What the file says, or its published binning, against the geometry; a written attribute is believed."""
    cylinder = load_run(preset="par04").data.geometry
    grid = cylinder.model_copy(update={"cell_shape": "grid"})
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["showers"], file["incident_energies"] = np.ones((2, 6480)), np.full((2, 1), 65_000.0)
    with pytest.raises(ShowerFileError, match=r"cells of a cylinder, data\.geometry\.cellShape is grid"):
        read_showers(tmp_path / "c.h5", geometry=grid)
    with h5py.File(tmp_path / "c.h5", "a") as file:
        file.attrs["cellShape"] = "grid"
    assert len(read_showers(tmp_path / "c.h5", geometry=grid)) == 2
    with pytest.raises(ShowerFileError, match=r"cells of a grid, data\.geometry\.cellShape is cylinder"):
        read_showers(tmp_path / "c.h5", geometry=cylinder)
    with h5py.File(tmp_path / "c.h5", "a") as file:
        file.attrs["cellShape"] = "hexagon"
    with pytest.raises(ShowerFileError, match="not a known shape of cells"):
        read_showers(tmp_path / "c.h5", geometry=cylinder)


@pytest.mark.parametrize(("voxels", "particle"), [(368, "gamma"), (533, "pi+"), (6480, "e-"), (40500, "e-")])
def test_the_primary_of_calochallenge_follows_from_the_voxels(
    tmp_path: Path, geometry: Geometry, voxels: int, particle: str
) -> None:
    """And the cells that the run configuration must have, where they are published. Those of dataset 1 are irregular:
    any three numbers with their product would mix them up."""
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["showers"], file["incident_energies"] = np.ones((2, voxels)), np.full((2, 1), 65_000.0)
    assert describe_file(tmp_path / "c.h5").particles == (particle,)
    cells = {6480: r"\[16, 9, 45\]", 40500: r"\[50, 18, 45\]"}.get(voxels)
    with pytest.raises(ShowerFileError, match=f"set data.geometry.cells to {cells}" if cells else "no regular cells"):
        read_showers(tmp_path / "c.h5", geometry=geometry)
    if cells is None:
        regular = geometry.model_copy(update={"cells": (voxels, 1, 1)})
        with pytest.raises(ShowerFileError, match="no regular cells"):
            read_showers(tmp_path / "c.h5", geometry=regular)
        with h5py.File(tmp_path / "c.h5", "a") as file:
            file.attrs["cellShape"] = "grid"
        assert len(read_showers(tmp_path / "c.h5", geometry=regular)) == 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_primary_is_that_of_the_attribute_or_of_the_published_data(tmp_path: Path, layout: str) -> None:
    path = write_published(tmp_path / "s.h5", make_showers(3), layout)
    assert describe_file(path).particles == ("e-",)
    for written in ("gamma", "muon"):
        with h5py.File(path, "a") as file:
            file.attrs["particle"] = np.bytes_(written)
        if written == "gamma":
            assert describe_file(path).particles == ("gamma",)
    with pytest.raises(ShowerFileError, match="attribute particle: is not a known primary"):
        describe_file(path)


def test_measured_angle_stands_in_for_a_missing_true_one(tmp_path: Path, geometry: Geometry) -> None:
    showers = make_showers(3)
    path = write_published(tmp_path / "s.h5", showers, "variable-angle")
    with h5py.File(path, "a") as file:
        file.move("theta", "mtheta")
    assert np.array_equal(read_showers(path, geometry=geometry).angle_rad, showers.angle_rad)


@pytest.mark.parametrize("text", [None, "heap"])
def test_attributes_override_unit_and_give_the_source(tmp_path: Path, geometry: Geometry, text: str | None) -> None:
    path = write_published(tmp_path / "s.h5", make_showers(3), "fixed-angle")
    with h5py.File(path, "a") as file:
        file.attrs["unitsPerGev"] = 50.0
        file.attrs["source"] = "parametrised" if text == "heap" else np.bytes_("parametrised")
    back = read_showers(path, geometry=geometry)
    np.testing.assert_allclose(back.cells_gev, make_showers(3).cells_gev / 50, rtol=1e-6)
    assert back.source == "parametrised"


def test_description(tmp_path: Path, geometry: Geometry) -> None:
    showers = make_showers(8)
    write_showers(tmp_path / "s.h5", showers, attributes={"seed": 1}, geometry=geometry)
    found = describe_file(tmp_path / "s.h5")
    assert (found.layout, found.showers, found.shape, found.source) == ("variable-angle", 8, (6, 4, 5), "geant4")
    assert found.energy_gev == pytest.approx((showers.energy_gev.min(), showers.energy_gev.max()), rel=1e-5)
    assert found.angle_deg == pytest.approx((60, 120), abs=20) and found.units_per_gev == 50
    assert found.sum_gev == pytest.approx((showers.ecal_sum_gev.min(), showers.ecal_sum_gev.max()))
    assert found.datasets["ECAL"] == "float32 (8, 4, 6, 5)" and found.attributes["seed"] == 1
    assert found.model_dump(mode="json", by_alias=True)["energyGev"]


Change = Callable[[h5py.File], Any]


def replaced(name: str, value: Any) -> Change:
    def change(file: h5py.File) -> None:
        del file[name]
        file[name] = value

    return change


def cell(value: float) -> Change:
    def change(file: h5py.File) -> None:
        file["ECAL"][2, 1, 1, 1] = value

    return change


def renamed(name: str, to: str) -> Change:
    return lambda file: file.move(name, to)


def further(file: h5py.File, name: str, units: str) -> None:
    """Add a column of the table of primaries."""
    file[name] = np.ones(5)
    file[name].attrs["units"] = units


FAULTS: dict[str, tuple[Change, list[str]]] = {
    "nan cell": (cell(math.nan), ["ECAL", "shower 2", "not finite", "nan"]),
    "infinite cell": (cell(math.inf), ["ECAL", "shower 2", "not finite", "inf"]),
    "negative cell": (cell(-0.5), ["ECAL", "shower 2", "negative", "-0.01"]),
    "other shape": (replaced("ECAL", np.zeros((5, 4, 6, 9))), ["ECAL", "another shape", "(6, 4, 9)", "cells"]),
    "three axes": (replaced("ECAL", np.zeros((5, 6, 4))), ["ECAL", "number of axes", "(5, 6, 4)"]),
    "text": (replaced("energy", np.array([b"a"] * 5)), ["energy", "numbers"]),
    "lengths": (replaced("energy", np.ones(4)), ["energy", "(4,)", "(N,) or (N, 1)"]),
    "misspelt": (renamed("energy", "energies"), ["energy", "did you mean 'energies'?", "variable-angle"]),
    "no angle": (lambda file: file.pop("theta"), ["theta", "missing"]),
    "other things": (
        lambda file: [file.pop(name) for name in list(file)] and file.create_dataset("events", data=[1.0]),
        ["none of the known layouts", "events", "incident_energies"],
    ),
    "no showers": (
        lambda file: [replaced(n, np.zeros((0, 4, 6, 5) if n == "ECAL" else 0))(file) for n in list(file)],
        ["no showers"],
    ),
    "degrees": (replaced("theta", np.full(5, 90.0)), ["theta", "shower 0", "rad"]),
    "nan energy": (replaced("energy", np.array([1, 1, 1, math.nan, 1.0])), ["energy", "shower 3", "nan"]),
    "unit": (lambda file: file.attrs.update(unitsPerGev=-1.0), ["unitsPerGev", "-1.0"]),
    "cells in MeV": (lambda file: file["ECAL"].attrs.update(units="MeV"), ["ECAL", "mev", "unitsPerGev: 1000"]),
    "energies in MeV": (lambda file: file["energy"].attrs.update(unit=np.bytes_(b"MeV")), ["energy", "mev", "gev"]),
    "azimuths in degrees": (lambda file: further(file, "azimuth_rad", "deg"), ["azimuth_rad", "deg", "store rad"]),
    "entries in cm": (lambda file: further(file, "entry_x_mm", "cm"), ["entry_x_mm", "cm", "store mm"]),
    "angles in degrees": (lambda file: file["theta"].attrs.update(units="degrees"), ["theta", "degrees", "rad"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_files_are_refused(tmp_path: Path, geometry: Geometry, fault: str) -> None:
    path = write_published(tmp_path / "bad.h5", make_showers(5), "variable-angle", libver="v110")
    change, words = FAULTS[fault]
    with h5py.File(path, "a") as file:
        change(file)
    with pytest.raises(ShowerFileError) as caught:
        read_showers(path, geometry=geometry)
    for word in ["bad.h5", "remedy", *words]:
        assert word in str(caught.value)


def test_a_module_of_the_user_is_not_taken_for_a_library(
    tmp_path: Path, geometry: Geometry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that reads the file first does not import from the current folder."""
    (tmp_path / "h5py.py").write_text("raise ValueError")
    monkeypatch.chdir(tmp_path)
    assert len(read_showers(write_published(Path("s.h5"), make_showers(3), "fixed-angle"), geometry=geometry)) == 3


def test_summed_cells_that_the_file_does_not_state(tmp_path: Path, geometry: Geometry) -> None:
    write_showers(tmp_path / "s.h5", make_showers(1, cells=(3, 4, 5)), attributes={})
    with pytest.raises(ShowerFileError, match=r"rebin=\(2, 1, 1\)"):
        read_showers(tmp_path / "s.h5", geometry=geometry, rebin=(2, 1, 1))


def test_shower_number_counts_from_the_beginning_of_the_file(tmp_path: Path, geometry: Geometry) -> None:
    path = write_published(tmp_path / "bad.h5", make_showers(5), "variable-angle", libver="v110")
    with h5py.File(path, "a") as file:
        cell(-1)(file)
    with pytest.raises(ShowerFileError, match="shower 2 has"):
        read_showers(path, geometry=geometry, start=1, stop=4)
    assert len(read_showers(path, geometry=geometry, start=3)) == 2
    assert len(read_showers(path, geometry=geometry, start=5)) == 0


def test_angles_of_another_name_are_not_left_out(tmp_path: Path, geometry: Geometry) -> None:
    path = write_published(tmp_path / "bad.h5", make_showers(5), "calochallenge", libver="v110")
    with h5py.File(path, "a") as file:
        file["incident_theta"] = np.ones(5)
    with pytest.raises(ShowerFileError, match="incident_theta: is not read, and without theta all"):
        read_showers(path, geometry=geometry)


def test_target_must_hold_the_energy(tmp_path: Path, geometry: Geometry) -> None:
    path = write_published(tmp_path / "bad.h5", make_showers(5), "fixed-angle", libver="v110")
    with h5py.File(path, "a") as file:
        replaced("target", np.ones(5))(file)
    with pytest.raises(ShowerFileError, match="column 1"):
        read_showers(path, geometry=geometry)


@pytest.mark.parametrize("layout", [None, *LAYOUTS])
@pytest.mark.parametrize("part", [0.0, 0.001, 0.5, 0.999])
def test_truncated_files_are_refused(tmp_path: Path, geometry: Geometry, layout: str | None, part: float) -> None:
    path = tmp_path / "short.h5"
    if layout is None:
        write_showers(path, make_showers(5), attributes={})
    else:
        write_published(path, make_showers(5), layout)
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    for read in (describe_file, lambda path: read_showers(path, geometry=geometry)):
        with pytest.raises(ShowerFileError, match=r"short\.h5"):
            read(path)


@pytest.mark.parametrize(
    ("content", "words"), [(b"x,y,z\n1,2,3\n", "is not HDF5"), (b"", "is empty"), (None, "cannot be read")]
)
def test_other_files_are_refused(tmp_path: Path, geometry: Geometry, content: bytes | None, words: str) -> None:
    path = tmp_path / "data.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ShowerFileError, match=words):
        read_showers(path, geometry=geometry)
    with pytest.raises(ShowerFileError, match="cannot be read"):
        read_showers(tmp_path, geometry=geometry)
    with pytest.raises(ShowerFileError, match="is a device or a pipe"):
        read_showers("/dev/zero", geometry=geometry)
