"""Tables of primaries: columns of the run configuration, equal shares, and none of it where there is one primary."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.stats import kstest

from caloscale.errors import ShowerFileError
from caloscale.showers.hdf5.reader import read_showers
from caloscale.showers.primaries import draw_table
from caloscale.showers.sources import check_of_run, survey_file
from caloscale.showers.tfrecord.manifest import Manifest
from caloscale.showers.tfrecord.shards import preprocess_showers, read_split
from caloscale.spec import Data, load_run
from caloscale.spec.data import PrimaryRanges
from caloscale.training.checkpoint.metadata import first_difference, weights_configuration
from tests.showers.conftest import make_showers, write_published

ALL = PrimaryRanges(
    particle=["e-", "gamma", "pi-"], energy_gev=(5, 40), angle_deg=(60, 120), azimuth_deg=(-90, 45), entry_mm=(-7, 3)
)
ONE = PrimaryRanges(energy_gev=(5, 40), angle_deg=(60, 120))


def test_one_primary_is_drawn_as_before_and_as_with_all_ranges() -> None:
    """Energies, then angles, of one stream: what files of earlier versions hold."""
    random = np.random.default_rng(3)
    energy_gev, angle_rad = random.uniform(5, 40, 9), np.deg2rad(random.uniform(60, 120, 9))
    for ranges in (ONE, ALL):
        table = draw_table(ranges, 9, np.random.default_rng(3))
        np.testing.assert_array_equal(table["energy_gev"], energy_gev.astype(np.float32))
        np.testing.assert_array_equal(table["angle_rad"], angle_rad.astype(np.float32))
    assert ONE.columns == ("energy_gev", "angle_rad") and ONE.condition_size == 0


def test_columns_are_uniform_independent_and_in_equal_shares() -> None:
    pieces = [draw_table(ALL, 1000, np.random.default_rng(seed), first=1000 * seed) for seed in range(4)]
    table = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    assert tuple(table) == ALL.columns
    counts = [np.sum(table["pdg"] == code) for code in (11, 22, -211)]
    assert max(counts) - min(counts) <= 1, "the shares of the pieces add up"
    assert kstest(np.degrees(table["azimuth_rad"]), "uniform", args=(-90, 135)).pvalue > 1e-3
    for name in ("entry_x_mm", "entry_y_mm"):
        assert kstest(table[name], "uniform", args=(-7, 10)).pvalue > 1e-3
    correlations = np.corrcoef(np.stack(list(table.values()))) - np.eye(len(table))
    assert np.abs(correlations).max() < 5 / np.sqrt(4000)


def test_a_checkpoint_of_a_version_without_these_ranges_is_that_of_the_same_run() -> None:
    run = load_run(preset="compact")
    earlier = weights_configuration(run)
    for field in ("azimuthDeg", "entryMm"):
        assert earlier["data"].pop(field) is None
    assert first_difference(earlier, weights_configuration(run)) is None
    ranged = load_run(preset="compact", overrides=["data.entryMm=[-1,1]"])
    assert first_difference(earlier, weights_configuration(ranged))[0] == "data.entryMm"


def files_with(folder: Path, **columns: object) -> Path:
    """40 showers in two files, with further datasets."""
    folder.mkdir()
    for number in range(2):
        showers = make_showers(20, number)
        path = write_published(folder / f"{number}.h5", showers, "variable-angle", libver="v110")
        with h5py.File(path, "a") as file:
            for name, values in columns.items():
                file[name] = np.resize(np.asarray(values), 20)
    return folder


def with_ranges(data: Data, **fields: object) -> Data:
    return Data.model_validate(data.model_dump() | fields)


def test_files_of_one_primary_make_the_list(data: Data, tmp_path: Path) -> None:
    """A file of electrons and one of photons, by their attributes alone; the shards have the number of each shower."""
    folder = files_with(tmp_path / "files")
    with h5py.File(folder / "1.h5", "a") as file:
        file.attrs["particle"] = np.bytes_("gamma")
    wanted = with_ranges(data, particle=["gamma", "e-"], validation_fraction=0.3)
    manifest = preprocess_showers(wanted, folder, tmp_path / "shards")
    assert Manifest.model_validate_json((tmp_path / "shards" / "manifest.json").read_bytes()) == manifest
    found = {}
    for split in ("train", "validation"):
        showers = read_split(tmp_path / "shards", split)
        found |= dict(zip(showers.energy_gev.tolist(), showers.further["pdg"].tolist()))
    for number, code in enumerate((11, 22)):
        assert {found[energy] for energy in make_showers(20, number).energy_gev.tolist()} == {code}


def test_ranges_select_showers_and_need_their_columns(data: Data, tmp_path: Path) -> None:
    entries = {"entry_x_mm": [0, 1, 2, 3], "entry_y_mm": [0.5]}
    folder = files_with(tmp_path / "files", **entries)
    surveyed = survey_file(folder / "0.h5", with_ranges(data, entry_mm=(-1, 2)))
    assert surveyed.is_selected.tolist() == [True, True, True, False] * 5
    assert not survey_file(folder / "0.h5", data).is_selected.any(), "none has the entry 0 in x and y"
    with pytest.raises(ShowerFileError, match="azimuth_rad: dataset is missing") as refused:
        survey_file(folder / "0.h5", with_ranges(data, azimuth_deg=(-5, 5)))
    assert "data.azimuthDeg" in str(refused.value.remedy)


def test_azimuths_count_modulo_a_turn(data: Data, tmp_path: Path) -> None:
    """Files with azimuths of 0 to 2 pi: the shards have all showers, in the range and with the same directions."""
    azimuths = np.linspace(0, 2 * np.pi, 20, dtype=np.float32)
    path = files_with(tmp_path / "files", azimuth_rad=azimuths) / "0.h5"
    for low, high in ((-180, 180), (-360, 0), (0, 360)):
        wanted = with_ranges(data, azimuth_deg=(low, high), validation_fraction=0.3)
        preprocess_showers(wanted, path, tmp_path / "shards")
        of_energy = dict(zip(make_showers(20).energy_gev.tolist(), azimuths))
        for split, count in (("train", 14), ("validation", 6)):
            showers = read_split(tmp_path / "shards", split)
            found, given = showers.further["azimuth_rad"], [of_energy[e] for e in showers.energy_gev.tolist()]
            assert len(found) == count
            assert low - 1e-3 < np.degrees(found.min()) and np.degrees(found.max()) < high + 1e-3
            np.testing.assert_allclose([np.cos(found), np.sin(found)], [np.cos(given), np.sin(given)], atol=1e-6)
    narrow = survey_file(path, with_ranges(data, azimuth_deg=(-90, -10)))
    np.testing.assert_array_equal(narrow.is_selected, (azimuths >= np.radians(270)) & (azimuths <= np.radians(350)))
    check_of_run({**narrow.primaries, "azimuth_rad": azimuths}, with_ranges(data, azimuth_deg=(-180, 180)))


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [("pdg", 13, "no known primary"), ("entry_x_mm", np.nan, "not finite"), ("azimuth_rad", 90.0, "beyond a turn")],
)
def test_columns_that_no_primary_has(data: Data, tmp_path: Path, column: str, value: float, problem: str) -> None:
    folder = files_with(tmp_path / "files", **{column: [value]})
    with pytest.raises(ShowerFileError, match=rf"{column}: .*{problem}"):
        survey_file(folder / "0.h5", data)
    if column != "pdg":
        with pytest.raises(ShowerFileError, match=problem):
            read_showers(folder / "0.h5", geometry=data.geometry)
