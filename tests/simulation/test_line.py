"""Entry and azimuth of the primary: the barycentres of showers against the straight line of the primary."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from caloscale.detector.geometry import aim_depth_mm, sensor_depth_mm
from caloscale.showers.arrays import Showers
from caloscale.simulation.parametrised import Parametrised
from caloscale.spec import Data
from tests.simulation.conftest import simulated

Floats = NDArray[np.float64]
FIELDS = {
    "energyGev": [4, 4],
    "angleDeg": [65, 115],
    "entryMm": [-7.65, 7.65],
    "azimuthDeg": [-180, 180],
    "validationFraction": 0.5,
}


def fit_line(showers: Showers, data: Data, layers: slice) -> tuple[Floats, Floats]:
    """Slopes of the barycentre of some layers, and their errors, (2, 3) each: along x and y against the entry, the
    inclination (depth - aim) cot(a) times the cosine (sine) of the azimuth, and times its sine (cosine).

    A straight line has slopes 1, 1 and 0. Without entries the first one is 0.
    """
    # A photon may begin behind these layers, which then hold what is scattered back alone.
    sums = showers.cells_gev[..., layers].sum(axis=(1, 2, 3))
    showers = showers[sums > sums.mean() / 2]
    cells = showers.cells_gev[..., layers].astype(np.float64)
    depth_mm = np.array(sensor_depth_mm(data.geometry))[layers]
    total = cells.sum(axis=(1, 2, 3))
    inclined = np.einsum("nxyz,z->n", cells, depth_mm - aim_depth_mm(data.geometry)) / total / np.tan(showers.angle_rad)
    azimuth = showers.further.get("azimuth_rad", np.zeros(len(showers)))
    slopes, errors = np.zeros((2, 3)), np.zeros((2, 3))
    for axis, (along, across, name) in enumerate(((np.cos, np.sin, "entry_x_mm"), (np.sin, np.cos, "entry_y_mm"))):
        count = cells.shape[1 + axis]
        at_mm = (np.arange(count) - (count - 1) / 2) * data.geometry.cell_mm
        barycentre = cells.sum(axis=tuple({1, 2, 3} - {1 + axis})) @ at_mm / total
        parts = [showers.further.get(name, 0 * azimuth), inclined * along(azimuth), inclined * across(azimuth)]
        given = [k for k, part in enumerate(parts) if np.any(part)]
        columns = np.stack([parts[k] for k in given], axis=1)
        slopes[axis, given], *_ = np.linalg.lstsq(columns, barycentre, rcond=None)
        rest = barycentre - columns @ slopes[axis, given]
        errors[axis, given] = np.sqrt(np.diag(np.linalg.inv(columns.T @ columns)) * rest.var())
    return slopes, errors


def test_parametrised_showers_follow_the_line_of_their_primary() -> None:
    data = Data.model_validate({"showers": 300, **FIELDS, "simulation": {"engine": "parametrised"}})
    engine = Parametrised(data)
    engine.seed(np.random.SeedSequence(1))
    random = np.random.default_rng(2)
    table = {
        "energy_gev": np.full(300, 4, np.float32),
        "angle_rad": np.radians(random.uniform(65, 115, 300)).astype(np.float32),
        "azimuth_rad": random.uniform(-np.pi, np.pi, 300).astype(np.float32),
        "entry_x_mm": random.uniform(-7.65, 7.65, 300).astype(np.float32),
        "entry_y_mm": random.uniform(-7.65, 7.65, 300).astype(np.float32),
    }
    slopes, errors = fit_line(Showers.of(engine.showers(table), table, "parametrised"), data, slice(0, 25))
    assert (errors < 0.15).all()
    assert (np.abs(slopes - [1, 1, 0]) < 4 * errors + 0.02).all(), (slopes, errors)


@pytest.mark.integration
def test_an_entry_moves_the_same_shower(tmp_path: Path) -> None:
    """Plates are the same everywhere, so a shower from the same random numbers moves with its primary, by one cell
    here. A number that rounds otherwise at another place makes another shower, so some differ; without the
    displacement, or with another, none is equal."""
    fields = {"showers": 8, "validationFraction": 0.01, "energyGev": [4, 4], "simulation": {"showersPerFile": 1}}
    made = []
    for name, entry in (("middle", {}), ("moved", {"entryMm": [5.1, 5.1]})):
        data = Data.model_validate({**fields, **entry})
        made.append(simulated(data, tmp_path / name).cells_gev)
    middle, moved = made[0][:, :-1, :-1], made[1][:, 1:, 1:]
    equal = (middle == moved).all(axis=(1, 2, 3)) & (middle.sum(axis=(1, 2, 3)) > 0)
    assert equal.sum() >= 2, equal


@pytest.mark.integration
def test_an_azimuth_turns_showers_and_photons_begin_later(tmp_path: Path) -> None:
    """Barycentres follow the inclination along x and y alike, and as much as without an azimuth: not fully, as a layer
    cuts an inclined shower obliquely. A photon converts after 9/7 radiation lengths in the mean: its shower has less of
    its energy in the first layers than an electron's (Review of Particle Physics, electromagnetic cascades)."""
    made = {}
    for name, azimuth in (("plane", {}), ("turned", {"azimuthDeg": [-180, 180]})):
        fields = {"showers": 120, "validationFraction": 0.5, "energyGev": [4, 4], "angleDeg": [65, 115], **azimuth}
        data = Data.model_validate({**fields, "particle": ["e-", "gamma"], "simulation": {"showersPerFile": 40}})
        made[name] = simulated(data, tmp_path / name)
    (slopes, errors), (plane, of_plane) = (fit_line(made[name], data, slice(0, 12)) for name in ("turned", "plane"))
    along, across, reference = slopes[:, 1], slopes[:, 2], plane[0, 1]
    assert (errors[:, 1:] < 0.15).all() and of_plane[0, 1] < 0.1, (errors, of_plane)
    assert (np.abs(along - reference) < 4 * np.hypot(errors[:, 1], of_plane[0, 1])).all(), (slopes, errors, plane)
    assert (np.abs(across) < 4 * errors[:, 2]).all() and 0.5 < reference < 1, (slopes, errors, plane)
    assert abs(plane[1, 2]) < 4 * of_plane[1, 2], "an inclination in the x-z plane moves nothing along y"
    showers = made["turned"]
    pdg = showers.further["pdg"]
    assert abs(np.sum(pdg == 11) - np.sum(pdg == 22)) <= 1
    profiles = showers.cells_gev.sum(axis=(1, 2), dtype=np.float64)
    depth = np.arange(25) @ profiles.T / np.maximum(profiles.sum(axis=1), 1e-9)
    photons, electrons = depth[pdg == 22], depth[pdg == 11]
    error = np.hypot(photons.std() / len(photons) ** 0.5, electrons.std() / len(electrons) ** 0.5)
    # A layer of 2.4 mm tungsten and its sensor is 0.69 radiation lengths: one length is 1.4 layers.
    assert 0.7 - 4 * error < photons.mean() - electrons.mean() < 2.4 + 4 * error, (photons.mean(), electrons.mean())
