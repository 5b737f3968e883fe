import numpy as np
import pytest

from caloscale.errors import InputError
from caloscale.showers.arrays import Showers

from .conftest import make_showers


def test_selection_keeps_showers_together() -> None:
    showers = make_showers(5)
    chosen = showers[np.array([3, 1])]
    assert len(chosen) == 2 and chosen.source == "geant4"
    assert np.array_equal(chosen.cells_gev[0], showers.cells_gev[3])
    assert chosen.ecal_sum_gev[1] == pytest.approx(showers.cells_gev[1].sum(), rel=1e-6)
    assert chosen.energy_gev[1] == showers.energy_gev[1] and chosen.angle_rad[1] == showers.angle_rad[1]
    assert len(showers[showers.energy_gev > 1e6]) == 0


def test_a_list_is_no_array() -> None:
    with pytest.raises(InputError, match=r"energy_gev: is no array \(got 'list'\)"):
        Showers(np.zeros((1, 2, 2, 2), np.float32), [3.0], np.ones(1, np.float32))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["cells", "energy", "angle"])
def test_arrays_that_do_not_belong_together_are_refused(wrong: str) -> None:
    cells, energy, angle = np.zeros((3, 2, 2, 2), np.float32), np.ones(3, np.float32), np.ones(3, np.float32)
    with pytest.raises(InputError, match="do not belong together"):
        Showers(
            cells[..., 0] if wrong == "cells" else cells,
            energy[:2] if wrong == "energy" else energy,
            angle[:, None] if wrong == "angle" else angle,
        )
