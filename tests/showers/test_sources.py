import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caloscale.detector.angle import measured_angle_rad
from caloscale.errors import ShowerFileError
from caloscale.showers.arrays import Showers
from caloscale.showers.files import write_showers as write_by_suffix
from caloscale.showers.hdf5.writer import write_showers
from caloscale.showers.inspection import describe_files
from caloscale.showers.sources import (
    FileSlice,
    SurveyedFile,
    check_deposits,
    check_inclination,
    check_one_origin,
    check_selection,
    find_files,
    origin_attributes,
    read_of_run,
    split_files,
    survey_file,
)
from caloscale.showers.tfrecord.shards import preprocess_showers
from caloscale.simulation.files import write_file
from caloscale.spec import Data, LayerGroup, Preprocessing
from caloscale.spec.data import FrontLayer, PrimaryRanges

from .conftest import make_showers, write_published

MakeFolder = Callable[..., Path]


def surveyed(name: str, count: int) -> SurveyedFile:
    ones, none = np.ones(count, np.float32), np.zeros(count, bool)
    primaries = {"energy_gev": ones, "angle_rad": ones}
    return SurveyedFile(Path(name), "variable-angle", "geant4", primaries, {"energy": none})


def test_showers_of_another_primary_are_refused(tmp_path: Path, data: Data) -> None:
    path = tmp_path / "photons.h5"
    write_showers(path, make_showers(4), attributes={"particle": "gamma"})
    with pytest.raises(ShowerFileError, match="holds showers of gamma, the run configuration is one of e-") as refused:
        survey_file(path, data)
    assert "set data.particle to gamma" in str(refused.value.remedy)
    assert len(survey_file(path, data.model_copy(update={"particle": "gamma"}))) == 4


def of_layers(*groups: tuple[int, float]) -> dict[str, object]:
    return {"layers": tuple(LayerGroup(count=count, absorber_mm=mm) for count, mm in groups)}


OF_ANOTHER_DETECTOR = [
    ({"geometry": of_layers((5, 2.0))}, "data.geometry.layers", '[{"count": 3, "absorberMm": 2.0}, {"count": 2,'),
    ({"geometry": {"cell_mm": 10.0}}, "data.geometry.cellMm", "set data.geometry.cellMm to 5.0,"),
    ({"geometry": {"absorber": "lead"}}, "data.geometry.absorber", 'to "tungsten",'),
    ({"geometry": {"active": "scintillator"}}, "data.geometry.active", 'to "silicon",'),
    ({"front": (FrontLayer(material="lead", thickness_mm=5.6),)}, "data.front", "set data.front to [],"),
    ({"pair_distance_mm": 10.0}, "data.pairDistanceMm", "set data.pairDistanceMm to null,"),
]


@pytest.mark.parametrize(("change", "field", "remedy"), OF_ANOTHER_DETECTOR)
def test_simulated_showers_of_another_detector_are_refused(
    tmp_path: Path, data: Data, change: dict[str, Any], field: str, remedy: str
) -> None:
    """Its cells may have the same number: the rest of the file is alike."""
    write_file(tmp_path, 0, make_showers(4), data, "f")
    path = tmp_path / "showers-00000.h5"
    if "geometry" in change:
        change = {"geometry": data.geometry.model_copy(update=change["geometry"])}
    other = data.model_copy(update=change)
    with pytest.raises(ShowerFileError, match="made with another value than the run configuration") as refused:
        survey_file(path, other)
    assert refused.value.field == field and remedy in str(refused.value.remedy)
    write_file(tmp_path, 0, make_showers(4), other, "f")
    assert len(survey_file(path, other)) == 4
    with h5py.File(path, "a") as file:  # as files of others, and of earlier versions
        del file.attrs["simulatedDetector"]
    assert len(survey_file(path, data)) == 4


def test_plain_files_of_another_detector_are_refused(tmp_path: Path, data: Data) -> None:
    """As HDF5 files are."""
    showers = replace(make_showers(4), detector=origin_attributes(data)["simulatedDetector"])
    write_by_suffix(showers, path := tmp_path / "s.npz")
    assert len(read_of_run(path, data)) == 4
    other = data.model_copy(update={"geometry": data.geometry.model_copy(update={"absorber": "lead"})})
    with pytest.raises(ShowerFileError, match=r"s\.npz: data\.geometry\.absorber: the showers were made with another"):
        read_of_run(path, other)


def test_a_beam_line_needs_the_source_simulate(tmp_path: Path, data: Data) -> None:
    write_file(tmp_path, 0, make_showers(4), data.model_copy(update={"pair_distance_mm": 10.0}), "f")
    with pytest.raises(ShowerFileError, match=r"set data\.source to simulate and data\.pairDistanceMm to 10"):
        survey_file(tmp_path / "showers-00000.h5", data)


def test_simulated_showers_are_read_by_another_run_of_the_same_detector(tmp_path: Path, data: Data) -> None:
    """Other ranges, seed, re-binning and preparation, calibrated cells, and layers in other groups."""
    write_file(tmp_path, 0, make_showers(4), data, "f")
    geometry = data.geometry.model_copy(update={**of_layers((1, 2.0), (2, 2.0), (2, 4.0)), "calibrated": True})
    change = {"geometry": geometry, "seed": 9, "energy_gev": (1.0, 30.0), "preprocessing": Preprocessing()}
    assert len(survey_file(tmp_path / "showers-00000.h5", data.model_copy(update=change))) == 4


def test_geant4s_part_of_hybrid_showers_is_refused(tmp_path: Path, data: Data) -> None:
    """Its energies are those of the primaries, and the cells lack what generators took over."""
    write_file(tmp_path, 0, make_showers(4), data, "f")
    photons = PrimaryRanges(particle="gamma", energy_gev=(1, 40), angle_deg=(90, 90))
    write_file(tmp_path, 1, make_showers(4), data, "f", [data.primary_ranges(), photons])
    with pytest.raises(ShowerFileError, match="withoutGenerated: holds Geant4's part of hybrid showers") as refused:
        preprocess_showers(data, tmp_path, tmp_path / "shards")
    assert refused.value.file == str(tmp_path / "showers-00001.h5") and refused.value.value == "e-, gamma"
    assert "whole showers" in str(refused.value.remedy)
    assert describe_files(tmp_path).without_generated == "e-, gamma"
    (tmp_path / "showers-00001.h5").unlink()
    assert describe_files(tmp_path).without_generated is None
    assert sum(preprocess_showers(data, tmp_path, tmp_path / "shards").splits.values()) == 4


def test_file_folder_and_glob(folder_of_showers: MakeFolder, tmp_path: Path) -> None:
    folder = folder_of_showers(1, 1, 1)
    (folder / "notes.txt").write_text("x")
    (folder / ".partial-123-showers-009.h5").write_text("left by a killed process")
    (folder / "other.hdf5").write_bytes((folder / "showers-000.h5").read_bytes())
    names = ["other.hdf5", "showers-000.h5", "showers-001.h5", "showers-002.h5"]
    assert [path.name for path in find_files(folder, tmp_path)] == names
    assert [path.name for path in find_files(f"{folder}/showers-00[12].*", tmp_path)] == names[2:]
    assert find_files(str(folder / "showers-001.h5"), tmp_path) == [folder / "showers-001.h5"]


def test_links_give_a_file_once_and_lead_somewhere(folder_of_showers: MakeFolder, tmp_path: Path) -> None:
    folder = folder_of_showers(2)
    names = sorted(path.name for path in folder.glob("*.h5"))
    (folder / "zz-latest.h5").symlink_to(names[0])
    for source in (folder, f"{folder}/*.h5"):
        assert [path.name for path in find_files(source, tmp_path)] == names
    (folder / "gone.h5").symlink_to("nowhere.h5")
    for source in (folder, f"{folder}/*.h5"):
        with pytest.raises(ShowerFileError, match=r"gone\.h5: is a link, and there is nothing.*nowhere\.h5"):
            find_files(source, tmp_path)


@pytest.mark.parametrize("source", ["", "/*.h5", "/**/*.csv"])
def test_nothing_there(tmp_path: Path, source: str) -> None:
    with pytest.raises(ShowerFileError, match=r"no showers found[\s\S]*\*\.h5 or \*\.hdf5"):
        find_files(f"{tmp_path}{source}", tmp_path)


def test_survey_selects_by_energy_and_angle(tmp_path: Path, data: Data) -> None:
    showers = make_showers(4)
    showers.energy_gev[:] = [9.99, 10, 20, 15]
    showers.angle_rad[:] = np.radians([90, 60, 120, 121]).astype(np.float32)
    write_showers(tmp_path / "s.h5", showers, attributes={})
    file = survey_file(tmp_path / "s.h5", data)
    assert {reason: outside.tolist() for reason, outside in file.outside.items()} == {
        "energy outside data.energyGev": [True, False, False, False],
        "angle outside data.angleDeg": [False, False, False, True],
    }
    assert file.is_selected.tolist() == [False, True, True, False]


def test_perpendicular_showers_are_at_90_degrees(tmp_path: Path, data: Data) -> None:
    """float32(pi/2) is above 90 degrees; a range of [90, 90] must not lose it."""
    path = write_published(tmp_path / "s.h5", make_showers(3), "fixed-angle", libver="v110")
    assert survey_file(path, data.model_copy(update={"angle_deg": (90.0, 90.0)})).is_selected.all()


def sizes(slices: list[FileSlice], split: str) -> dict[str, int]:
    return {one.file.path.name: one.selected for one in slices if one.split == split}


@given(st.integers(1, 60), st.floats(0.01, 0.9), st.integers(0, 5), st.booleans(), st.booleans())
def test_the_split_keeps_the_fraction_and_every_shower_once(
    files: int, fraction: float, seed: int, equal: bool, simulated: bool
) -> None:
    data = Data(source="simulate" if simulated else "x", showers=1, validation_fraction=fraction, seed=seed)
    given = [surveyed(f"{index}", 10 if equal else 3 + index) for index in range(files)]
    slices, method = split_files(given, data)
    members = {file.path.name: np.zeros(len(file), int) for file in given}
    for one in slices:
        members[one.file.path.name] += one.members
    assert all((count == 1).all() for count in members.values()), "each shower is in exactly one split"
    places = np.concatenate([one.places[one.members] for one in slices])
    assert sorted(places) == list(range(len(places))), "the order is a permutation"
    held_out, total = sum(sizes(slices, "validation").values()), sum(len(file) for file in given)
    if method == "by file":
        assert simulated and len(sizes(slices, "validation")) == min(files - 1, max(1, round(fraction * files)))
        assert not set(sizes(slices, "validation")) & set(sizes(slices, "train"))
    else:
        assert held_out == max(1, round(fraction * total))


def test_split_depends_on_the_seed_alone() -> None:
    files = [surveyed(f"{index}", 10) for index in range(20)]
    seeds = (1, *range(10))
    held_out = [tuple(sizes(split_files(files, Data(showers=1, seed=seed))[0], "validation")) for seed in seeds]
    assert held_out[0] == held_out[2] and len(set(held_out)) > 5


def test_cells_that_are_too_large_are_refused(tmp_path: Path, data: Data, caplog: pytest.LogCaptureFixture) -> None:
    """More energy deposited than the primaries had; the units that belong to the detector pass without a warning."""
    showers = make_showers(20)
    numbers = np.arange(20)
    write_showers(tmp_path / "s.h5", showers, attributes={})
    file = survey_file(tmp_path / "s.h5", data)
    check_deposits(file, showers, numbers, data)
    assert not caplog.records
    too_large = replace(showers, cells_gev=showers.cells_gev * np.float32(100))
    with pytest.raises(
        ShowerFileError, match=r"s\.h5: ECAL: shower \d+ has .*more energy is deposited(.|\n)*unitsPerGev"
    ) as e:
        check_deposits(file, too_large, numbers, data)
    ratio = float(np.median(showers.ecal_sum_gev / showers.energy_gev)) * 100
    assert f"{ratio:.3g} times" in str(e.value)
    showers.cells_gev[7] *= 1000
    with pytest.raises(ShowerFileError, match="shower 107 has a sum of cells"):  # one that is damaged
        check_deposits(file, showers, 100 + numbers, data)
    others = replace(make_showers(60), energy_gev=np.linspace(5, 40, 60, dtype=np.float32))
    with pytest.raises(ShowerFileError, match=r"(?s)ECAL: sums of cells do not follow the energies.*row of its energy"):
        check_deposits(file, others, numbers, data)


@pytest.mark.parametrize(
    ("factor", "calibrated", "stated", "found"),
    [
        (0.02, False, True, "reported"),
        (0.02, False, False, "refused"),
        (1.0, False, False, "fits"),
        (10.0, False, True, "refused"),
        (27.0, False, True, "refused"),
        (27.0, True, False, "fits"),
    ],
)
def test_sums_unlike_the_sampling_of_the_detector_are_refused_or_reported(
    tmp_path: Path,
    data: Data,
    caplog: pytest.LogCaptureFixture,
    factor: float,
    calibrated: bool,
    stated: bool,
    found: str,
) -> None:
    """Cells in GeV taken for 1/50 GeV where the file states it and where it does not, the right ones, cells in MeV, and
    sums calibrated to the primary energy."""
    showers = make_showers(20)
    showers = replace(showers, cells_gev=showers.cells_gev * np.float32(factor))
    write_showers(tmp_path / "s.h5", showers, attributes={})
    geometry = data.geometry.model_copy(update={"calibrated": calibrated})
    data = data.model_copy(update={"geometry": geometry})
    if not stated:
        with h5py.File(tmp_path / "s.h5", "a") as file:
            del file.attrs["unitsPerGev"]
    file = survey_file(tmp_path / "s.h5", data)
    with pytest.raises(ShowerFileError, match=r"s\.h5(.|\n)*unitsPerGev") if found == "refused" else nullcontext():
        check_deposits(file, showers, np.arange(20), data)
    assert bool(caplog.records) == (found == "reported")
    assert not caplog.records or ("unitsPerGev" in caplog.text and "s.h5" in caplog.text)


def test_mixed_origins_are_refused(tmp_path: Path, data: Data) -> None:
    files = []
    for source in ("geant4", "geant4", "parametrised"):
        write_showers(tmp_path / f"{len(files)}.h5", make_showers(2, source=source), attributes={})
        files.append(survey_file(tmp_path / f"{len(files)}.h5", data))
    assert check_one_origin(files[:2]) == "geant4"
    with pytest.raises(ShowerFileError, match=r"2\.h5.*another source than 0\.h5 \(geant4\).*parametrised"):
        check_one_origin(files)


def test_empty_selection_says_what_the_files_hold(tmp_path: Path, data: Data) -> None:
    write_showers(tmp_path / "s.h5", make_showers(20), attributes={})
    far = data.model_copy(update={"energy_gev": (100.0, 200.0)})
    slices, _ = split_files([survey_file(tmp_path / "s.h5", far)], far)
    with pytest.raises(ShowerFileError, match=r"20 showers of 1\d\.\d+ to 1\d\.\d+ GeV") as caught:
        check_selection(slices, far, "s.h5")
    assert "energyGev" in caught.value.field and "100.0" in str(caught.value)
    write_showers(tmp_path / "one.h5", make_showers(1), attributes={})
    slices, _ = split_files([survey_file(tmp_path / "one.h5", data)], data)
    with pytest.raises(ShowerFileError, match="left for train"):
        check_selection(slices, data, "one.h5")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"angle_rad": 60.0}, ["bad.h5: theta", "shower 2", "in rad", "convert degrees"]),
        ({"angle_rad": float("nan")}, ["bad.h5: theta", "shower 2"]),
        ({"energy_gev": 15_000.0}, ["bad.h5: energy", "shower 2", "beyond 10000 GeV", "in GeV in this layout"]),
        ({"energy_gev": 0.0}, ["bad.h5: energy", "shower 2", "not positive"]),
        ({"energy_gev": float("inf")}, ["bad.h5: energy", "shower 2", "not positive"]),
    ],
)
def test_survey_refuses_other_units(tmp_path: Path, data: Data, change: dict[str, float], says: list[str]) -> None:
    showers = make_showers(4)
    for name, value in change.items():
        getattr(showers, name)[2] = value
    write_showers(tmp_path / "bad.h5", showers, attributes={})
    with pytest.raises(ShowerFileError) as error:
        survey_file(tmp_path / "bad.h5", data)
    assert all(part in str(error.value) for part in says)


@pytest.mark.parametrize(
    ("change", "warned"),
    [
        ({"mirror": True}, None),
        ({"mirror": False}, "data.angleDeg is 60 to 120"),
        ({"mirror": True, "energy_gev": (10.0, 23.0)}, r"data.energyGev is 10 to 23.*set data.energyGev to \[10"),
    ],
)
def test_an_end_of_a_range_without_showers_is_reported(
    tmp_path: Path, data: Data, caplog: pytest.LogCaptureFixture, change: dict[str, object], warned: str | None
) -> None:
    """A generator would be used there without a warning."""
    showers = make_showers(200)
    write_showers(tmp_path / "s.h5", showers[showers.angle_rad < 1.5], attributes={})
    data = data.model_copy(update=change)
    check_selection(split_files([survey_file(tmp_path / "s.h5", data)], data)[0], data, "s.h5")
    assert re.search(warned, caplog.text, re.DOTALL) if warned else not caplog.records


@pytest.mark.parametrize("mirror", [False, True])
def test_an_empty_end_of_azimuths_and_entries_is_reported(
    tmp_path: Path, data: Data, caplog: pytest.LogCaptureFixture, mirror: bool
) -> None:
    """Azimuths of half a turn and entries of half of the range along y; mirrored copies have the other signs."""
    spread = np.linspace(0, 1, 200, dtype=np.float32)
    further = {"azimuth_rad": spread * np.pi, "entry_x_mm": spread * 4 - 2, "entry_y_mm": spread * 2}
    write_showers(tmp_path / "s.h5", replace(make_showers(200), further=further), attributes={})
    data = data.model_copy(update={"azimuth_deg": (-180.0, 180.0), "entry_mm": (-2.0, 2.0), "mirror": mirror})
    check_selection(split_files([survey_file(tmp_path / "s.h5", data)], data)[0], data, "s.h5")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (0 if mirror else 2)
    for text, part in zip(
        said, ("0 to 180, data.azimuthDeg is -180 to 180", "0 to 2 along y, data.entryMm is -2 to 2")
    ):
        assert f"s.h5: the showers have {part}" in text


@pytest.mark.parametrize("degrees", [(60, 120), (60, 60), (110, 115), (40, 80)])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda cells: cells, None),
        (lambda cells: cells.swapaxes(1, 2), r"inclined along y .*store the axes \(N, Y, X, Z\)"),
        (lambda cells: cells[:, ::-1], "inclined to the other side of x.*reverse x"),
        (lambda cells: cells[:49, ::-1], None),
        (lambda cells: cells[np.arange(60) * 7 % 60], "do not follow their angles.*row of its angle"),
    ],
)
def test_axes_that_are_exchanged_or_reversed_are_refused(
    tmp_path: Path, data: Data, change: Callable[[np.ndarray], np.ndarray], says: str | None, degrees: tuple[int, int]
) -> None:
    """Lines through the middle of 8 x 8 x 5 cells. Of nearly one angle, rows that are mixed up are the same."""
    if degrees[1] - degrees[0] < 10 and says is not None and "row" in says:
        says = None
    angle = np.radians(np.linspace(*degrees, 60)).astype(np.float32)
    x = 4 + (np.arange(5) - 2) / np.tan(angle)[:, None]
    cells = change(np.exp(-((np.arange(8)[:, None] + 0.5 - x[:, None]) ** 2))[:, :, None] * np.ones((8, 1), np.float32))
    energy = np.full(len(cells), 10, np.float32)
    showers = Showers(cells.astype(np.float32), energy, angle[: len(cells)], "geant4")
    geometry = data.geometry.model_copy(update={"cells": (8, 8, 5)})
    data = data.model_copy(update={"geometry": geometry, "preprocessing": Preprocessing(rebin=(1, 1, 1))})
    write_showers(tmp_path / "s.h5", showers, attributes={})
    file = survey_file(tmp_path / "s.h5", data)
    given = file, showers.angle_rad, measured_angle_rad(showers.cells_gev, geometry), showers.cells_gev, data
    if says is None:
        return check_inclination(*given)
    with pytest.raises(ShowerFileError, match=f"(?s){says}"):
        check_inclination(*given)
