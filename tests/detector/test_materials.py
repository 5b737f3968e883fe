"""The table of materials against published values and against itself."""

from typing import get_args

import numpy as np
import pytest

from caloscale.detector.geometry import layer_edges_x0, sensor_depth_mm, sensor_depth_x0
from caloscale.detector.materials import MATERIALS
from caloscale.detector.sampling import SAMPLING, mip_fraction, sampling_term, visible_fraction
from caloscale.errors import ConfigurationError
from caloscale.spec import Geometry, LayerGroup, build_run


def names(field: str) -> tuple[str, ...]:
    return get_args(Geometry.model_fields[field].annotation)


@pytest.mark.parametrize(
    ("name", "x0_cm", "critical_mev", "mip_mev_cm", "z_over_a"),
    # Review of Particle Physics, atomic and nuclear properties: X0, Ec for electrons, dE/dx min, <Z/A>.
    [
        ("tungsten", 0.3504, 7.97, 22.10, 0.40252),
        ("lead", 0.5612, 7.43, 12.74, 0.39575),
        ("iron", 1.757, 21.68, 11.43, 0.46557),
        ("copper", 1.436, 19.42, 12.57, 0.45636),
        ("silicon", 9.370, 40.19, 3.876, 0.49848),
        ("scintillator", 41.31, 93.11, 2.052, 0.53768),
    ],
)
def test_constants_are_the_published_ones(
    name: str, x0_cm: float, critical_mev: float, mip_mev_cm: float, z_over_a: float
) -> None:
    material = MATERIALS[name]
    assert material.x0_mm == pytest.approx(10 * x0_cm, rel=0.002)
    assert material.mip_mev_per_mm == pytest.approx(mip_mev_cm / 10, rel=0.002)
    assert material.z / material.a == pytest.approx(z_over_a, rel=0.001)
    assert material.critical_energy_mev == pytest.approx(critical_mev, rel=0.1)  # a fit over all materials


def test_steel_follows_from_its_elements() -> None:
    """74 atoms of iron, 18 of chromium, 8 of nickel; radiation lengths and losses of the elements from the PDG."""
    mass = np.array([74 * 55.845, 18 * 51.996, 8 * 58.693])
    weight = mass / mass.sum()
    steel = MATERIALS["steel"]
    assert steel.radiation_length == pytest.approx(1 / (weight / [13.84, 14.94, 12.68]).sum(), rel=0.001)
    assert steel.minimum_ionisation == pytest.approx((weight * [1.451, 1.456, 1.468]).sum(), rel=0.001)
    assert steel.z == pytest.approx(weight @ [26, 24, 28], rel=0.001)
    assert steel.z / steel.a == pytest.approx((weight * [26 / 55.845, 24 / 51.996, 28 / 58.693]).sum(), rel=0.001)


def test_every_material_of_the_run_configuration_is_in_the_tables() -> None:
    assert {*names("absorber"), *names("active")} == set(MATERIALS)
    assert {(absorber, active) for absorber in names("absorber") for active in names("active")} == set(SAMPLING)
    for absorber, active in SAMPLING:
        geometry = Geometry(absorber=absorber, active=active, active_mm=0.5)
        assert 0.002 < visible_fraction(geometry) < 0.1
        assert 0.05 < sampling_term(geometry) < 0.3


def test_depths_in_radiation_lengths() -> None:
    """17 layers of 2.4 mm and 8 of 4.8 mm tungsten: from the published radiation lengths of both materials."""
    absorber = np.repeat([2.4, 4.8], [17, 8])
    expected = np.cumsum(absorber) / 3.504 + (np.arange(25) + 0.5) * 0.5 / 93.70
    assert sensor_depth_x0(Geometry()) == pytest.approx(expected, rel=1e-3)
    assert layer_edges_x0(Geometry())[-1] == pytest.approx(79.2 / 3.504 + 25 * 0.5 / 93.70, rel=1e-3)
    pitch = np.diff(sensor_depth_mm(Geometry()))
    assert pitch[:16] == pytest.approx(2.4 + 0.5 + (159 - 79.2 - 12.5) / 25)


def test_a_minimum_ionising_particle_shares_its_loss() -> None:
    layers = (LayerGroup(count=25, absorber_mm=10.0),)
    geometry = Geometry(absorber="iron", active="scintillator", active_mm=5, layers=layers, depth_mm=400)
    scintillator, iron = 1.936 * 1.06 * 0.5, 1.451 * 7.874 * 1.0
    assert mip_fraction(geometry, 10.0) == pytest.approx(scintillator / (scintillator + iron))


@pytest.mark.parametrize(("field", "value"), [("absorber", "gold"), ("active", "lead"), ("absorber", 3)])
def test_an_unknown_material_is_refused_with_the_known_ones(field: str, value: object) -> None:
    known = "scintillator" if field == "active" else "lead, iron, copper, steel"
    with pytest.raises(ConfigurationError, match=known) as error:
        build_run({"model": {"preset": "compact"}, "data": {"geometry": {field: value}}})
    text = str(error.value)
    assert f"geometry.{field}" in text and "caloscale.detector.materials" in text and "remedy" in text
