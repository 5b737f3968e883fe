"""Two primaries in a shower: their energies, where they enter, and what a generator takes over of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caloscale.simulation.entering import entering_name, read_entering
from caloscale.spec import Data
from caloscale.spec.data import PrimaryRanges
from tests.simulation.conftest import simulated


def data_of(**fields: Any) -> Data:
    usual = {"particle": "gamma", "showers": 20, "energyGev": [20, 20], "angleDeg": [90, 90]}
    return Data.model_validate({**usual, "simulation": {"showersPerFile": 10}, **fields})


@pytest.mark.integration
def test_a_pair_has_the_response_of_two_photons_side_by_side(tmp_path: Path) -> None:
    """30 pairs of 20 GeV at 60 mm against 30 photons of 10 GeV: twice the sum, and maxima 30 mm beside the axis."""
    pair, single = data_of(pairDistanceMm=60), data_of(energyGev=[10, 10])
    pairs, singles = (simulated(data, tmp_path / name) for name, data in (("pair", pair), ("single", single)))
    sums = [showers.cells_gev.sum(axis=(1, 2, 3), dtype=np.float64) for showers in (pairs, singles)]
    error = np.hypot(sums[0].std() / len(sums[0]) ** 0.5, 2 * sums[1].std() / len(sums[1]) ** 0.5)
    assert abs(sums[0].mean() - 2 * sums[1].mean()) < 4 * error
    assert pairs.energy_gev.tolist() == [20] * len(sums[0])
    profile = pairs.cells_gev.sum(axis=(0, 1, 3), dtype=np.float64)
    y_mm = (np.arange(len(profile)) - (len(profile) - 1) / 2) * pair.geometry.cell_mm
    for side in (y_mm > 0, y_mm < 0):
        mean_mm = profile[side] @ np.abs(y_mm[side]) / profile[side].sum()
        assert mean_mm == pytest.approx(30, abs=2)
    assert profile[y_mm > 0].sum() == pytest.approx(profile.sum() / 2, rel=0.02)


@pytest.mark.integration
def test_a_generator_takes_both_photons_of_a_pair(tmp_path: Path) -> None:
    data = data_of(pairDistanceMm=30.6)
    taken = PrimaryRanges(particle="gamma", energy_gev=(5, 40), angle_deg=(60, 120))
    rest = simulated(data, tmp_path, (taken,))
    entering = read_entering(tmp_path, 1)
    assert entering["event"].tolist() == [event for event in range(10) for _ in range(2)]
    np.testing.assert_allclose(entering["energy_gev"], 10, rtol=1e-5)
    np.testing.assert_allclose(np.sort(entering["y_mm"].reshape(10, 2)), [[-15.3, 15.3]] * 10, atol=1e-3)
    assert not rest.cells_gev.any()
    for damage in ("", "x"):
        (tmp_path / entering_name(1)).write_text(damage)
        simulated(data, tmp_path, (taken,))
        np.testing.assert_array_equal(read_entering(tmp_path, 1), entering)
