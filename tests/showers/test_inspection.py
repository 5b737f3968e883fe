import json
import math
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from caloscale.errors import ShowerFileError
from caloscale.report.picture import draw_shower
from caloscale.showers.inspection import (
    FileDescription,
    ShardFolderDescription,
    SourceFolderDescription,
    describe,
    read_one,
)
from caloscale.showers.tfrecord.shards import read_split

from .conftest import make_showers, write_published

MakeFolder = Callable[..., Path]


def test_describes_what_it_finds(prepared: Path, tmp_path: Path) -> None:
    file = describe(tmp_path / "showers" / "showers-000.h5")
    assert isinstance(file, FileDescription) and file.showers == 20
    for path in (prepared, prepared / "manifest.json"):
        folder = describe(path)
        assert isinstance(folder, ShardFolderDescription)
        assert sum(folder.showers.values()) + sum(folder.dropped.values()) == 30
        assert folder.shards == {"train": 8, "validation": 1} and folder.source == "geant4"
        assert folder.bytes == sum(p.stat().st_size for p in prepared.glob("*.tfrecord"))
    assert describe(tmp_path / "showers").particles == ("e-",)
    for description in (file, folder):
        assert description.particles == ("e-",)
        assert json.loads(description.model_dump_json(by_alias=True))["energyGev"]


def draw(path: Path, shower: int, target: Path) -> None:
    """As the command does it."""
    showers, axes = read_one(path, shower)
    draw_shower(showers, target, axes=axes)


def test_a_folder_of_files_is_described_as_a_whole(folder_of_showers: MakeFolder, tmp_path: Path) -> None:
    folder = folder_of_showers(20, 10)
    described = describe(folder)
    assert isinstance(described, SourceFolderDescription)
    assert (described.files, described.showers, described.showers_per_file) == (2, 30, (10, 20))
    assert described.shapes == ((6, 4, 5),) and described.sources == ("geant4",)
    both = [make_showers(20, seed=0), make_showers(10, seed=1)]
    sums = np.concatenate([showers.ecal_sum_gev for showers in both])
    assert described.sum_gev == pytest.approx((sums.min(), sums.max()), rel=1e-5)
    showers, _ = read_one(folder, 23)
    assert showers.energy_gev[0] == both[1].energy_gev[3]
    with pytest.raises(ShowerFileError, match="contains 30 showers.*choose 0 to 29".replace(".*", r"[\s\S]*")):
        read_one(folder, 30)


@pytest.mark.parametrize("layout", ["variable-angle", "fixed-angle", "calochallenge"])
def test_sums_are_described_also_where_the_file_does_not_store_them(tmp_path: Path, layout: str) -> None:
    showers = make_showers(12)
    described = describe(write_published(tmp_path / "s.h5", showers, layout, libver="v110"))
    assert isinstance(described, FileDescription) and "sum" not in described.datasets
    assert described.sum_gev == pytest.approx((showers.ecal_sum_gev.min(), showers.ecal_sum_gev.max()), rel=1e-5)


def test_picture_of_shards_is_in_gev(prepared: Path, tmp_path: Path) -> None:
    draw(prepared, 11, tmp_path / "a.svg")
    shower = read_split(prepared, "train")[11:12]
    hits = np.count_nonzero(shower.cells_gev)
    expected = f"{shower.energy_gev[0]:.1f} GeV at {math.degrees(shower.angle_rad[0]):.1f}° (Geant4)"
    text = (tmp_path / "a.svg").read_text()
    assert expected in text and f"deposited in {hits} cells" in text


def test_cylindrical_bins_have_their_names(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["showers"], file["incident_energies"] = np.ones((2, 6480)), np.full((2, 1), 1e4)
    draw(tmp_path / "c.h5", 1, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "cell in azimuth" in text and "cell in radius" in text


@pytest.mark.parametrize("layout", ["variable-angle", "calochallenge"])
def test_unknown_shapes_are_described_if_not_drawn(tmp_path: Path, layout: str) -> None:
    path = write_published(tmp_path / "s.h5", make_showers(3), layout, libver="v110")
    assert describe(path).showers == 3
    if layout == "variable-angle":
        return draw(path, 0, tmp_path / "a.png")
    with pytest.raises(ShowerFileError, match="known: 6480, 40500 voxels"):
        draw(path, 0, tmp_path / "a.png")


def test_what_is_not_there(prepared: Path, tmp_path: Path) -> None:
    for source in (prepared, tmp_path / "showers" / "showers-000.h5"):
        with pytest.raises(ShowerFileError, match=r"contains \d+ showers[\s\S]*choose 0 to"):
            read_one(source, 1000)
    for path in (tmp_path, tmp_path / "no.h5"):
        with pytest.raises(ShowerFileError, match="cannot be read"):
            describe(path)
