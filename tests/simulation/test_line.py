"""Entry and azimuth of the primary: the barycentres of showers against the straight line of the primary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from caloscale.detector.geometry import aim_depth_mm, sensor_depth_mm
from caloscale.showers.arrays import Showers
from caloscale.simulation import simulate
from caloscale.simulation.parametrised import Parametrised
from caloscale.spec import Data
from tests.simulation.conftest import read_folder

FIELDS = {
    "energyGev": [4, 4],
    "angleDeg": [65, 115],
    "entryMm": [-7.65, 7.65],
    "azimuthDeg": [-180, 180],
    "validationFraction": 0.5,
}


def check_line(showers: Showers, data: Data, layers: slice, halo: tuple[float, float] = (0.0, 0.0)) -> None:
    """Barycentres of layers lie on the line: entry + (depth - aim) cot(a) (cos p, sin p).

    Regressions over all showers: the slope of the barycentre against entry and inclination is 1 and against the
    inclination along the other axis 0, which fixes the azimuth, within four errors. halo: by how much the first two may
    be less, because deposits far from the axis and what is scattered back do not follow the line.
    """
    # A photon may begin behind these layers, which then hold what is scattered back alone.
    sums = showers.cells_gev[..., layers].sum(axis=(1, 2, 3))
    showers = showers[sums > sums.mean() / 2]
    cells, depth_mm = (
        showers.cells_gev[..., layers].astype(np.float64),
        np.array(sensor_depth_mm(data.geometry))[layers],
    )
    total = cells.sum(axis=(1, 2, 3))
    offset_mm = np.einsum("nxyz,z->n", cells, depth_mm - aim_depth_mm(data.geometry)) / total
    angle, azimuth = showers.angle_rad.astype(np.float64), showers.further["azimuth_rad"].astype(np.float64)
    for axis, (function, name) in enumerate(((np.cos, "entry_x_mm"), (np.sin, "entry_y_mm"))):
        count = cells.shape[1 + axis]
        at_mm = (np.arange(count) - (count - 1) / 2) * data.geometry.cell_mm
        barycentre = cells.sum(axis=tuple({1, 2, 3} - {1 + axis})) @ at_mm / total
        inclined = offset_mm / np.tan(angle)
        other = np.sin if function is np.cos else np.cos
        parts = np.stack([showers.further[name], inclined * function(azimuth), inclined * other(azimuth)], axis=1)
        found, *_ = np.linalg.lstsq(parts, barycentre, rcond=None)
        rest = barycentre - parts @ found
        errors = np.sqrt(np.diag(np.linalg.inv(parts.T @ parts)) * rest.var())
        excess = found - [1, 1, 0]
        assert (excess < 4 * errors + 0.02).all() and (errors < 0.15).all(), (name, found, errors)
        assert (excess > -4 * errors - 0.02 - np.array([*halo, 0])).all(), (name, found, errors)


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
    check_line(Showers.of(engine.showers(table), table, "parametrised"), data, slice(0, 25))


@pytest.mark.integration
def test_geant4_showers_follow_the_line_and_photons_begin_later(tmp_path: Path) -> None:
    """One run over a list. A photon converts after 9/7 radiation lengths in the mean: its shower has less of its
    energy in the first layers than an electron's (Review of Particle Physics, electromagnetic cascades)."""
    fields = {**FIELDS, "particle": ["e-", "gamma"], "simulation": {"showersPerFile": 40}}
    data = Data.model_validate({"showers": 120, **fields})
    simulate(data, tmp_path)
    showers = read_folder(tmp_path, data)
    check_line(showers, data, slice(0, 12), halo=(0.1, 0.35))
    pdg = showers.further["pdg"]
    assert abs(np.sum(pdg == 11) - np.sum(pdg == 22)) <= 1
    profiles = showers.cells_gev.sum(axis=(1, 2), dtype=np.float64)
    depth = np.arange(25) @ profiles.T / np.maximum(profiles.sum(axis=1), 1e-9)
    photons, electrons = depth[pdg == 22], depth[pdg == 11]
    error = np.hypot(photons.std() / len(photons) ** 0.5, electrons.std() / len(electrons) ** 0.5)
    # A layer of 2.4 mm tungsten and its sensor is 0.69 radiation lengths: one length is 1.4 layers.
    assert 0.7 - 4 * error < photons.mean() - electrons.mean() < 2.4 + 4 * error, (photons.mean(), electrons.mean())
