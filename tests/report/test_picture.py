from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from caloscale.errors import InputError
from caloscale.report.picture import draw_shower
from caloscale.showers.arrays import Showers
from tests.showers.conftest import make_showers


def test_picture_shows_the_shower(tmp_path: Path) -> None:
    """A shower in one corner: the panels have colour there and are white in the opposite one."""
    cells = np.zeros((1, 10, 10, 10), np.float32)
    cells[0, :5, :5, :5] = 0.01
    showers = Showers(cells, np.array([50], np.float32), np.array([1.2], np.float32), "geant4")
    draw_shower(showers, tmp_path / "a.png")
    picture = imread(tmp_path / "a.png")[..., :3]
    assert picture.shape[1] > 1500
    coloured = np.ptp(picture, axis=2) > 0.2
    height, width = coloured.shape
    panels = coloured[:, : int(0.9 * width)]  # without the colour bar
    rows, _ = np.nonzero(panels)
    assert rows.min() > 0.4 * height, "the origin is at the bottom"
    assert panels.mean() > 0.03


@pytest.mark.parametrize("source", ["geant4", "parametrised", "file"])
def test_origin_is_in_the_picture(tmp_path: Path, source: str) -> None:
    names = {"geant4": "Geant4", "file": "origin unknown"}
    draw_shower(make_showers(1, source=source), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert f"({names.get(source, source)})" in text and "deposited in" in text and "[GeV]" in text


def test_an_empty_shower_is_drawn_and_cells_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    showers = make_showers(3)
    showers.cells_gev[:] = 0
    draw_shower(showers, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000
    showers.cells_gev[0, 0, 0, 0] = np.nan
    with pytest.raises(InputError, match="shower: has cells that are not finite"):
        draw_shower(showers, tmp_path / "b.png")
