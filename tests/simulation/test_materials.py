"""Showers in calorimeters of all materials, by both engines: what the sensors see of them."""

from pathlib import Path

import pytest

from caloscale.detector.materials import MATERIALS
from caloscale.detector.sampling import SAMPLING, mip_fraction, sampling_term, visible_fraction
from caloscale.spec import Data
from tests.simulation.conftest import simulated

SENSOR_MM = {"silicon": 0.5, "scintillator": 3.0}
_QUICK = {("lead", "scintillator", "geant4"), ("steel", "silicon", "geant4"), ("iron", "scintillator", "parametrised")}


def calorimeter(absorber: str, active: str, engine: str, showers: int, energy_gev: float) -> Data:
    """32 layers of 0.7 radiation lengths; cells of 10 mm."""
    absorber_mm = round(0.7 * MATERIALS[absorber].x0_mm, 2)
    geometry = {
        "cells": [51, 51, 32],
        "cellMm": 10,
        "absorber": absorber,
        "active": active,
        "activeMm": SENSOR_MM[active],
        "layers": [{"count": 32, "absorberMm": absorber_mm}],
        "depthMm": 32 * (absorber_mm + SENSOR_MM[active]) + 1,
    }
    return Data(
        showers=showers // 2,
        validation_fraction=0.5,
        energy_gev=[energy_gev, energy_gev],
        angle_deg=[90, 90],
        geometry=geometry,
        simulation={"engine": engine, "showersPerFile": showers // 2},
    )


@pytest.mark.integration
@pytest.mark.parametrize(
    ("absorber", "active", "engine"),
    [
        pytest.param(*pair, engine, marks=() if (*pair, engine) in _QUICK else pytest.mark.long)
        for pair in sorted(SAMPLING)
        for engine in ("geant4", "parametrised")
    ],
)
def test_the_visible_energy_is_that_of_the_tables(
    absorber: str, active: str, engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Mean and fluctuation of the visible energy against `SAMPLING`: 20 electrons of 5 GeV, in the long tests 300 of
    10 GeV, whose figures are printed.
    """
    long = request.node.get_closest_marker("long") is not None
    count, energy_gev = (300, 10.0) if long else (20, 5.0)
    data = calorimeter(absorber, active, engine, count, energy_gev)
    showers = simulated(data, tmp_path)
    assert len(showers) == count
    response = showers.ecal_sum_gev.mean(dtype=float) / energy_gev
    term = showers.ecal_sum_gev.std(dtype=float) / showers.ecal_sum_gev.mean(dtype=float) * energy_gev**0.5
    e_over_mip = response / mip_fraction(data.geometry, data.geometry.layers[0].absorber_mm)
    print(f"{absorber}, {active}, {engine}: e/mip {e_over_mip:.3f}, sampling term {term:.3f} sqrt(GeV)")
    assert response == pytest.approx(visible_fraction(data.geometry), rel=0.04 if long else 0.08)
    if long and engine == "geant4":
        assert term == pytest.approx(sampling_term(data.geometry), rel=0.15)
