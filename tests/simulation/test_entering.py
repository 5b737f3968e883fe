"""Which particles a generator takes over, and where their showers are put: closed forms and plain loops."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from caloscale.detector.angle import direction_of
from caloscale.simulation import file_count
from caloscale.simulation.entering import ENTERING, NOBODY, assign, at_face, moved, placed, read_entering
from caloscale.spec import Data, Geometry
from caloscale.spec.data import PrimaryRanges
from tests.simulation.conftest import simulated

ELECTRONS = PrimaryRanges(particle="e-", energy_gev=(5, 40), angle_deg=(60, 120))
PHOTONS = PrimaryRanges(particle="gamma", energy_gev=(1, 40), angle_deg=(90, 90))


def direction(angle_deg: float, out_of_plane_deg: float = 0.0) -> list[float]:
    angle, out = np.radians(angle_deg), np.radians(out_of_plane_deg)
    return [np.cos(angle) * np.cos(out), np.sin(out), np.sin(angle) * np.cos(out)]


@pytest.mark.parametrize(
    ("code", "energy_gev", "where", "generator", "angle_deg"),
    [
        (11, 20.0, direction(75), 0, 75),
        (-11, 5.0, direction(90, 1.9), 0, 90),  # a positron, slightly out of the plane
        (11, 4.99, direction(90), NOBODY, None),
        (11, 40.1, direction(90), NOBODY, None),
        (11, 20.0, direction(58.5), 0, 60),  # within the tolerance: the nearest trained angle
        (11, 20.0, direction(57), NOBODY, None),
        (11, 20.0, direction(90, 2.1), NOBODY, None),
        (22, 1.5, direction(91), 1, 90),
        (22, 1.5, direction(87), NOBODY, None),
        (2112, 10.0, direction(90), NOBODY, None),
    ],
)
def test_generators_take_what_they_were_trained_with(
    code: int, energy_gev: float, where: list[float], generator: int, angle_deg: float | None
) -> None:
    entering = assign(np.array([code]), np.array([energy_gev]), np.array([where]), [ELECTRONS, PHOTONS])
    assert entering["generator"].tolist() == [generator]
    if generator != NOBODY:
        assert np.degrees(entering["angle_rad"]) == pytest.approx([angle_deg], abs=1e-5)
        assert entering["pdg"].tolist() == [{11: 11, -11: 11, 22: 22}[code]]


def test_the_first_generator_that_accepts_takes_a_particle() -> None:
    where = np.array([direction(90)] * 2)
    wider = ELECTRONS.model_copy(update={"energy_gev": (1, 40)})
    entering = assign(np.array([11, 11]), np.array([3.0, 30.0]), where, [ELECTRONS, wider])
    assert entering["generator"].tolist() == [1, 0]


def test_straight_lines_cross_the_face() -> None:
    """From 1 mm before it at 45 degrees in x and the slope 1/2 in y."""
    crossing = at_face(np.array([[3.0, -2.0, -1.0]]), np.array([[1.0, 0.5, 1.0]]) / 1.5)
    np.testing.assert_allclose(crossing, [[4.0, -1.5]])


def test_a_shower_is_moved_to_where_its_particle_entered() -> None:
    """The generator's own primaries enter at -50 mm cot(angle): one that does is not moved."""
    entering = np.zeros(4, ENTERING)
    entering["angle_rad"] = np.radians([90, 60, 60, 90])
    own_mm = -50 / np.tan(np.radians(60))
    entering["x_mm"] = [0, own_mm, own_mm + 31, -15.2 * 2]
    entering["y_mm"] = [0, 7.5, 7.8, -15.3]
    primaries, moves = placed(entering, ELECTRONS, Geometry(), (3, 3, 1))  # cells of 15.3 mm
    assert moves.tolist() == [[0, 0], [0, 0], [2, 1], [-2, -1]]
    assert list(primaries) == ["energy_gev", "angle_rad"]


@pytest.mark.parametrize(("x", "y"), [(0, 0), (1, 0), (-2, 1), (3, -3), (4, 0), (0, -9)])
def test_cells_move_and_what_leaves_the_window_is_dropped(x: int, y: int) -> None:
    cells = np.random.default_rng(1).random((4, 5, 2), np.float32)
    expected = np.zeros_like(cells)
    for i, j in np.ndindex(4, 5):
        if 0 <= i + x < 4 and 0 <= j + y < 5:
            expected[i + x, j + y] = cells[i, j]
    np.testing.assert_array_equal(moved(cells, x, y), expected)


DATA = Data.model_validate(
    {
        "showers": 40,
        "energyGev": [10, 10],
        "angleDeg": [90, 90],
        "front": [{"material": "lead", "thicknessMm": 5.6}],
        "simulation": {"showersPerFile": 20},
    }
)


@pytest.mark.integration
def test_without_a_particle_for_it_the_result_is_that_of_geant4_alone(tmp_path: Path) -> None:
    """Caught and sent on: the mean sum of 60 showers is that of as many that nobody stopped, within the errors; what is
    taken over is missing there, and conserves the energy with the rest."""
    none = PrimaryRanges(particle="gamma", energy_gev=(900, 1000), angle_deg=(90, 90))
    sums, entering = {}, {}
    for name, accepted in {"whole": (), "none": (none,), "taken": (ELECTRONS, PHOTONS)}.items():
        sums[name] = simulated(DATA, tmp_path / name, accepted).ecal_sum_gev
        if accepted:
            entering[name] = [read_entering(tmp_path / name, index) for index in range(file_count(DATA))]
        with h5py.File(tmp_path / name / "showers-00000.h5") as file:
            assert ("withoutGenerated" in file.attrs) == bool(accepted)
    error = np.hypot(*(sums[name].std() / len(sums[name]) ** 0.5 for name in ("whole", "none")))
    assert abs(sums["none"].mean() - sums["whole"].mean()) < 4 * error
    assert not any(len(each) for each in entering["none"])
    taken_gev = [np.bincount(each["event"], each["energy_gev"], 20) for each in entering["taken"]]
    assert len(taken_gev) == len(sums["taken"]) / 20 and max(each.max() for each in taken_gev) <= 10.001
    # What is left over a particle's energy is sampled as every shower is: 2.6%.
    left_gev = 10 - np.concatenate(taken_gev)
    assert sums["taken"].sum() / left_gev.sum() == pytest.approx(sums["whole"].mean() / 10, rel=0.1)


ALL = PrimaryRanges(
    particle=("e-", "gamma"), energy_gev=(1, 40), angle_deg=(60, 90), azimuth_deg=(-180, 180), entry_mm=(-7.65, 7.65)
)


def test_a_generator_of_all_azimuths_takes_every_direction_near_its_angles() -> None:
    """A direction beyond 90 degrees is one within them with the opposite azimuth; the vector is the same."""
    random = np.random.default_rng(1)
    given = {"angle_rad": np.radians(random.uniform(62, 118, 50)), "azimuth_rad": random.uniform(-np.pi, np.pi, 50)}
    entering = assign(np.resize([11, 22, -11], 50), np.full(50, 9.0), direction_of(given), [ALL])
    assert set(entering["generator"]) == {0} and entering["pdg"].tolist() == np.resize([11, 22, 11], 50).tolist()
    assert entering["angle_rad"].max() <= np.float32(np.pi / 2)
    found = {name: entering[name] for name in ("angle_rad", "azimuth_rad")}
    np.testing.assert_allclose(direction_of(found), direction_of(given), atol=1e-6)
    steep = direction_of({"angle_rad": np.radians([57.0, 58.5]), "azimuth_rad": np.array([1.0, 1.0])})
    assert assign(np.array([11, 11]), np.full(2, 9.0), steep, [ALL])["generator"].tolist() == [NOBODY, 0]


def test_the_place_within_a_cell_is_the_entry_of_the_generated_shower() -> None:
    entering = np.zeros(3, ENTERING)
    entering["angle_rad"], entering["azimuth_rad"], entering["pdg"] = np.radians(60), np.radians(30), 22
    own_mm = -50 / np.tan(np.radians(60)) * np.array([np.cos(np.radians(30)), np.sin(np.radians(30))])
    entering["x_mm"], entering["y_mm"] = own_mm[0] + np.array([0, 7, 32]), own_mm[1] + np.array([0, -7, -16])
    primaries, moves = placed(entering, ALL, Geometry(), (3, 3, 1))
    assert list(primaries) == list(ALL.columns) and moves.tolist() == [[0, 0], [0, 0], [2, -1]]
    np.testing.assert_allclose(primaries["entry_x_mm"], [0, 7, 32 - 2 * 15.3], atol=1e-5)
    np.testing.assert_allclose(primaries["entry_y_mm"], [0, -7, -16 + 15.3], atol=1e-5)
