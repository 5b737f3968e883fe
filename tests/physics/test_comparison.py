"""Which samples are compared."""

from dataclasses import replace

import numpy as np
import pytest

from caloscale.errors import InputError
from caloscale.physics.comparison import refuse_shared, refuse_unlike, unlike_primaries
from caloscale.showers.arrays import Showers
from caloscale.showers.preprocessing import to_gev, to_network
from caloscale.showers.primaries import Table
from caloscale.spec.data import Preprocessing

RANDOM = np.random.default_rng(1)


def table(energy_gev: np.ndarray, angle_deg: float | np.ndarray = 90.0) -> Table:
    angle_rad = np.deg2rad(np.broadcast_to(angle_deg, np.shape(energy_gev)))
    return {"energy_gev": np.float32(energy_gev), "angle_rad": np.float32(angle_rad)}


def test_primaries_of_one_distribution_are_alike() -> None:
    """Also of one energy that two programs rounded otherwise, of few showers, and of columns that one sample has."""
    for count in (3, 40, 400):
        for number in range(25):
            draw = np.random.default_rng([count, number]).uniform
            first, second = (table(draw(5, 40, size), draw(60, 120, size)) for size in (count, 2000))
            assert unlike_primaries(first, second) is None
    grid = RANDOM.choice([10.0, 20.0, 50.0], 900)
    assert unlike_primaries(table(grid[:600]), table(grid[600:])) is None
    nearly = np.nextafter(np.float32(50), np.float32(0)), np.nextafter(np.float32(np.pi / 2), np.float32(0))
    other = {"energy_gev": np.full(300, nearly[0]), "angle_rad": np.full(300, nearly[1]), "pdg": np.full(300, 11)}
    assert unlike_primaries(other, table(np.full(300, 50.0))) is None
    assert unlike_primaries(table(np.full(3, 10.0)), table(np.full(3, 50.0))) is None


def test_primaries_of_another_distribution_are_refused() -> None:
    """The statistic is that of its definition: half of the showers of 5 to 40 GeV lie below 22.5 GeV."""
    reference = table(np.linspace(5, 40, 1001), RANDOM.uniform(60, 120, 1001))
    low = table(np.linspace(5, 22.5, 501), RANDOM.uniform(60, 120, 501))
    with pytest.raises(
        InputError, match=r"generated: has primaries of another .*energy_gev, .*statistic 0\.5"
    ) as raised:
        refuse_unlike("generated", low, reference)
    assert raised.value.exit_code == 2
    steep = table(np.linspace(5, 40, 501), RANDOM.uniform(80, 100, 501))
    assert "angle_rad" in str(unlike_primaries(steep, reference))


@pytest.mark.parametrize("power", [0.3, 0.85])
def test_showers_of_the_reference_are_known_in_units_that_round(power: float) -> None:
    """Shards and files in MeV hold them with other last bits. A beam of one energy shares none by chance."""
    random, preprocessing = np.random.default_rng(2), Preprocessing(power=power)

    def beam(count: int) -> Showers:
        cells = random.gamma(400, 1e-3, (count, 3, 3, 3)).astype(np.float32)
        return Showers(cells, np.full(count, 50, np.float32), np.full(count, 1.5, np.float32))

    showers = beam(3000)
    in_mev = replace(showers, cells_gev=showers.cells_gev * np.float32(1000) / np.float32(1000))
    in_shards = replace(showers, cells_gev=to_gev(to_network(showers.cells_gev, preprocessing), preprocessing))
    assert (in_shards.ecal_sum_gev != showers.ecal_sum_gev).mean() > 0.1
    for given in (in_mev, in_shards):
        with pytest.raises(InputError, match=r"file: holds showers of the reference .got 3000"):
            refuse_shared("file", given, showers)
    others = beam(3000)
    others.cells_gev[:3] = np.array([np.nan, np.inf, 0])[:, None, None, None]
    refuse_shared("file", others, showers)
    refuse_shared("file", others[2:3], showers)
