"""Showers in calorimeters of all materials, by both engines: what the sensors see of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from caloscale.detector.materials import MATERIALS
from caloscale.detector.sampling import SAMPLING, visible_fraction
from caloscale.simulation import simulate
from caloscale.spec import Data
from tests.simulation.conftest import read_folder

SENSOR_MM = {"silicon": 0.5, "scintillator": 3.0}
_QUICK = {("lead", "scintillator", "geant4"), ("steel", "silicon", "geant4"), ("iron", "scintillator", "parametrised")}


def calorimeter(absorber: str, active: str, engine: str, showers: int, energy_gev: float) -> Data:
    """28 layers of 0.7 radiation lengths; cells of 10 mm."""
    absorber_mm = round(0.7 * MATERIALS[absorber].x0_mm, 2)
    geometry = {
        "cells": [51, 51, 28],
        "cellMm": 10,
        "absorber": absorber,
        "active": active,
        "activeMm": SENSOR_MM[active],
        "layers": [{"count": 28, "absorberMm": absorber_mm}],
        "depthMm": 28 * (absorber_mm + SENSOR_MM[active]) + 1,
    }
    simulation = {"engine": engine, "showersPerFile": showers // 2, "processes": 1}
    return Data.model_validate(
        {
            "showers": showers // 2,
            "validationFraction": 0.5,
            "energyGev": [energy_gev, energy_gev],
            "angleDeg": [90, 90],
            "geometry": geometry,
            "simulation": simulation,
        }
    )


@pytest.mark.parametrize(
    ("absorber", "active", "engine"),
    [
        pytest.param(*pair, engine, marks=() if (*pair, engine) in _QUICK else pytest.mark.long)
        for pair in sorted(SAMPLING)
        for engine in ("geant4", "parametrised")
    ],
)
def test_the_visible_energy_is_that_of_the_tables(absorber: str, active: str, engine: str, tmp_path: Path) -> None:
    """20 electrons of 5 GeV: the mean within 8% (three times the statistical error) of e/mip times a MIP's share."""
    data = calorimeter(absorber, active, engine, 20, 5.0)
    simulate(data, tmp_path)
    showers = read_folder(tmp_path, data)
    response = float(showers.ecal_sum_gev.mean()) / 5
    assert len(showers) == 20
    assert response == pytest.approx(visible_fraction(data.geometry), rel=0.08)
    profile = showers.cells_gev.sum(axis=(0, 1, 2))
    # PDG: ln(E / Ec) - 0.5 (electrons), in layers of 0.7 radiation lengths; the sensors' own thickness counts too.
    depth_x0 = np.log(5000 / MATERIALS[absorber].critical_energy_mev) - 0.5
    assert int(profile.argmax()) == pytest.approx(depth_x0 / 0.7, abs=3.5)
