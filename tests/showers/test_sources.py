from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caloscale.errors import ShowerFileError
from caloscale.showers.hdf5.reader import write_showers
from caloscale.showers.sources import SurveyedFile, check_one_origin, check_selection, find_files, split, survey_file
from caloscale.spec import Data

from .conftest import make_showers, write_published

MakeFolder = Callable[..., Path]


def surveyed(name: str, count: int) -> SurveyedFile:
    ones, none = np.ones(count, np.float32), np.zeros(count, bool)
    return SurveyedFile(Path(name), "variable-angle", "geant4", ones, ones, none, none)


def test_file_folder_and_glob(folder_of_showers: MakeFolder, tmp_path: Path) -> None:
    folder = folder_of_showers(1, 1, 1)
    (folder / "notes.txt").write_text("x")
    (folder / ".partial-123-showers-009.h5").write_text("left by a killed process")
    (folder / "other.hdf5").write_bytes((folder / "showers-000.h5").read_bytes())
    names = ["other.hdf5", "showers-000.h5", "showers-001.h5", "showers-002.h5"]
    assert [path.name for path in find_files(folder, tmp_path)] == names
    assert [path.name for path in find_files(f"{folder}/showers-00[12].*", tmp_path)] == names[2:]
    assert find_files(str(folder / "showers-001.h5"), tmp_path) == [folder / "showers-001.h5"]


def test_files_of_a_bucket(folder_of_showers: MakeFolder, tmp_path: Path, bucket_server: str) -> None:
    from caloscale.storage.objects import upload

    upload(folder_of_showers(1, 1), f"{bucket_server}/sources/mc")
    found = find_files(f"{bucket_server}/sources/mc", tmp_path / "scratch")
    assert found == [tmp_path / "scratch" / f"showers-00{index}.h5" for index in (0, 1)]


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
    assert file.outside_energy.tolist() == [True, False, False, False]
    assert file.outside_angle.tolist() == [False, False, False, True]
    assert file.is_selected.tolist() == [False, True, True, False]


def test_perpendicular_showers_are_at_90_degrees(tmp_path: Path, data: Data) -> None:
    """float32(pi/2) is above 90 degrees; a range of [90, 90] must not lose it."""
    path = write_published(tmp_path / "s.h5", make_showers(3), "fixed-angle", libver="v110")
    assert survey_file(path, data.model_copy(update={"angle_deg": (90.0, 90.0)})).is_selected.all()


@given(st.integers(2, 200), st.floats(0.01, 0.9), st.integers(0, 5))
def test_split_by_file(files: int, fraction: float, seed: int) -> None:
    data = Data(source="x", validation_fraction=fraction, seed=seed)
    pieces, how = split([surveyed(f"{index}", index + 1) for index in range(files)], data)
    held_back = [piece for piece in pieces if piece.part == "validation"]
    assert how == "by file"
    assert len(held_back) == min(files - 1, max(1, round(fraction * files)))
    assert sorted(piece.file.path.name for piece in pieces) == sorted(str(index) for index in range(files))
    assert all((piece.start, piece.stop) == (0, len(piece.file)) for piece in pieces)


def test_split_depends_on_the_seed_alone() -> None:
    files = [surveyed(f"{index}", 10) for index in range(20)]

    def held_back(seed: int) -> list[str]:
        pieces, _ = split(files, Data(source="x", seed=seed))
        return [piece.file.path.name for piece in pieces if piece.part == "validation"]

    assert held_back(1) == held_back(1)
    assert len({tuple(held_back(seed)) for seed in range(10)}) > 5


@given(st.integers(2, 1000), st.floats(0.01, 0.9))
def test_split_of_one_file_is_at_its_end(count: int, fraction: float) -> None:
    pieces, how = split([surveyed("one", count)], Data(source="x", validation_fraction=fraction))
    held_back, train = pieces
    assert how == "end of the only file" and (held_back.part, train.part) == ("validation", "train")
    assert (train.start, train.stop, held_back.stop) == (0, held_back.start, count)
    assert held_back.stop - held_back.start == max(1, round(fraction * count))


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
    pieces, _ = split([survey_file(tmp_path / "s.h5", far)], far)
    with pytest.raises(ShowerFileError, match=r"20 showers of 1\d\.\d+ to 1\d\.\d+ GeV") as caught:
        check_selection(pieces, far, "s.h5")
    assert "energyGev" in caught.value.field and "100.0" in str(caught.value)


def test_one_shower_cannot_be_split(tmp_path: Path, data: Data) -> None:
    write_showers(tmp_path / "s.h5", make_showers(1), attributes={})
    pieces, _ = split([survey_file(tmp_path / "s.h5", data)], data)
    with pytest.raises(ShowerFileError, match="left for train"):
        check_selection(pieces, data, "s.h5")


def test_survey_reports_broken_files(tmp_path: Path, data: Data) -> None:
    path = write_published(tmp_path / "s.h5", make_showers(2), "variable-angle", libver="v110")
    with h5py.File(path, "a") as file:
        del file["energy"]
    with pytest.raises(ShowerFileError, match="energy"):
        survey_file(path, data)


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
