"""Showers of Geant4 and of the parametrisation in cells of azimuth, radius and depth, against the same showers in a
regular grid."""

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from caloscale.showers.arrays import Showers
from caloscale.spec import Data
from tests.simulation.conftest import simulated

STACK = {
    "cellMm": 4.65,
    "layers": [{"count": 90, "absorberMm": 1.4}],
    "layersPerCell": 2,
    "activeMm": 0.3,
    "depthMm": 153,
}
CYLINDER = STACK | {"cellShape": "cylinder", "cells": [16, 9, 45]}
GRID = STACK | {"cells": [18, 18, 45]}
"""The square around the cylinder: plates of the same size, so the same seed gives the same showers."""


def showers_in(geometry: dict[str, object], engine: str, folder: Path) -> Showers:
    fields = {"showers": 6, "energyGev": [1, 2], "angleDeg": [90, 90], "geometry": geometry}
    data = Data.model_validate({**fields, "simulation": {"engine": engine, "showersPerFile": 6}})
    return simulated(data, folder)


@pytest.mark.integration
@pytest.mark.parametrize("engine", ["geant4", "parametrised"])
def test_a_cylinder_holds_the_energy_that_the_grid_has_in_its_radius(engine: str, tmp_path: Path) -> None:
    """In each depth: at least the squares that lie within the radius, at most those that touch it."""
    cylinder, grid = (showers_in(g, engine, tmp_path / name) for g, name in ((CYLINDER, "c"), (GRID, "g")))
    np.testing.assert_array_equal(cylinder.energy_gev, grid.energy_gev)
    edge = np.abs(np.arange(18) - 8.5)
    nearest, farthest = (np.hypot(*np.meshgrid(edge + shift, edge + shift)) for shift in (-0.5, 0.5))
    within, touching = farthest <= 9, nearest < 9
    per_depth = cylinder.cells_gev.sum(axis=(1, 2), dtype=np.float64)
    least, most = (np.einsum("nxyz,xy->nz", grid.cells_gev, mask, dtype=np.float64) for mask in (within, touching))
    rounding = 1e-6 * grid.ecal_sum_gev[:, None]
    assert (least - rounding <= per_depth).all() and (per_depth <= most + rounding).all()
    assert per_depth.sum() > 0.9 * grid.ecal_sum_gev.sum() > 0
    # No azimuth is preferred: the barycentre of six showers lies within a Moliere radius (9 mm) of the axis.
    azimuth = (np.arange(16) + 0.5) * np.pi / 8 - np.pi
    share = cylinder.cells_gev.sum(axis=(0, 2, 3)) / cylinder.ecal_sum_gev.sum()
    assert np.hypot(share @ np.cos(azimuth), share @ np.sin(azimuth)) < 0.25


def test_layers_that_do_not_make_the_cells_are_refused() -> None:
    raw = {"showers": 6, "angleDeg": [90, 90], "geometry": CYLINDER | {"layersPerCell": 1}}
    with pytest.raises(ValidationError, match=r"90 layers, cells\[2\] is 45"):
        Data.model_validate(raw)
