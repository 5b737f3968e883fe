"""Parametrised showers against the paper's closed forms, textbook values and Geant4."""

import numpy as np
import pytest
from scipy.stats import gamma, kstest

from caloscale.detector.geometry import absorber_mm, gap_mm, layer_edges_x0, sensor_depth_mm
from caloscale.detector.sampling import Medium
from caloscale.simulation.parametrised import Parametrised, Radial, draw_longitudinal, radial
from caloscale.spec import Data, Geometry

MEDIUM = Medium.of_layer(Geometry(), 2.4)


def showers(count: int, energy_gev: float, angle_deg: float = 90, seed: int = 1, **fields: object) -> np.ndarray:
    engine = Parametrised(Data.model_validate({"showers": count, **fields}))
    engine.seed(np.random.SeedSequence(seed))
    angle = np.full(count, np.deg2rad(angle_deg), np.float32)
    return engine.showers({"energy_gev": np.full(count, energy_gev, np.float32), "angle_rad": angle})


def test_the_moliere_radius_is_the_published_one_widened_by_the_gap() -> None:
    """Review of Particle Physics: 9.3 mm in tungsten."""
    solid = Geometry(active_mm=1e-6, depth_mm=79.2 + 1e-4)
    assert Medium.of_layer(solid, 2.4).moliere_radius_mm == pytest.approx(9.3, rel=0.03)
    assert 1 / MEDIUM.sampling_frequency == pytest.approx(np.diff(layer_edges_x0(Geometry()))[0])
    without_gap = Geometry(depth_mm=79.2 + 12.5)
    widened = MEDIUM.moliere_radius_mm / Medium.of_layer(without_gap, 2.4).moliere_radius_mm
    assert widened == pytest.approx((2.9 + gap_mm(Geometry())) / 2.9)


@pytest.mark.parametrize("energy_gev", [5.0, 50.0, 500.0])
def test_fluctuations_are_those_of_the_paper(energy_gev: float) -> None:
    """Means, widths and correlation of ln T and ln alpha: appendix A.2.3."""
    count = 20_000
    drawn = draw_longitudinal(np.full(count, energy_gev), MEDIUM, np.random.default_rng(3))
    ln_alpha, ln_t = np.log(drawn.shape), np.log((drawn.shape - 1) / drawn.rate)
    ln_y = np.log(energy_gev * 1e3 / MEDIUM.critical_energy_mev)
    per_layer, missing = 1 / MEDIUM.sampling_frequency, 1 - 1 / 1.42
    mean_t = np.log(ln_y - 0.812 - 0.55 * per_layer - 0.69 * missing)
    mean_alpha = np.log(0.81 + (0.458 + 2.26 / MEDIUM.z) * ln_y - 0.476 * per_layer)
    sigma_t, sigma_alpha = 1 / (1.25 * ln_y - 2.5), 1 / (0.79 * ln_y - 0.82)
    assert kstest((ln_t - mean_t) / sigma_t, "norm").pvalue > 1e-3
    assert kstest((ln_alpha - mean_alpha) / sigma_alpha, "norm").pvalue > 1e-3
    assert np.corrcoef(ln_t, ln_alpha)[0, 1] == pytest.approx(0.784 - 0.023 * ln_y, abs=0.02)


@pytest.mark.parametrize("energy_gev", [5.0, 20.0, 100.0])
def test_the_mean_shower_is_the_papers_average_profile(energy_gev: float) -> None:
    """The paper fits mean profiles apart from fluctuating ones (A.1.1, A.2.2); the mean of ours is the former."""
    depth = np.linspace(0.05, 40, 800)
    drawn = draw_longitudinal(np.full(4000, energy_gev), MEDIUM, np.random.default_rng(4))
    profile = gamma.pdf(depth, drawn.shape[:, None], scale=1 / drawn.rate[:, None]).mean(axis=0)
    ln_y = np.log(energy_gev * 1e3 / MEDIUM.critical_energy_mev)
    per_layer, missing = 1 / MEDIUM.sampling_frequency, 1 - 1 / 1.42
    maximum = ln_y - 0.858 - 0.59 * per_layer - 0.53 * missing
    alpha = 0.21 + (0.492 + 2.38 / MEDIUM.z) * ln_y - 0.444 * per_layer
    assert depth[np.argmax(profile)] == pytest.approx(maximum, abs=0.3)
    mean_depth = (depth * profile).sum() / profile.sum()
    assert mean_depth == pytest.approx(alpha * maximum / (alpha - 1), rel=0.05)


@pytest.mark.parametrize("energy_gev", [10.0, 100.0])
def test_layers_hold_the_gamma_distribution(energy_gev: float) -> None:
    """Perpendicular showers do not leave their layer, so the mean of each layer is that of the drawn distributions."""
    count = 400
    cells = showers(count, energy_gev, geometry={"cellMm": 1000.0})  # a window that holds all
    drawn = draw_longitudinal(
        np.full(count, energy_gev, np.float32).astype(float), MEDIUM, np.random.default_rng(np.random.SeedSequence(1))
    )
    edges = layer_edges_x0(Geometry())
    part = np.diff(gamma.cdf(edges, drawn.shape[:, None], scale=1 / drawn.rate[:, None]), axis=1).mean(axis=0)
    visible = np.array([Medium.of_layer(Geometry(), mm).visible_fraction for mm in absorber_mm(Geometry())])
    layers = cells.sum(axis=(1, 2), dtype=float)
    error = layers.std(axis=0) / np.sqrt(count)
    # Where layers hold little, 400 draws of a gamma distribution with a tiny shape say nothing.
    well = part > 1e-3
    assert well.sum() > 15
    assert (np.abs(layers.mean(axis=0) - energy_gev * part * visible)[well] < 4 * error[well]).all()


def contained(profile: Radial, radius: float) -> np.ndarray:
    """Part of the energy within a radius, in Molière radii: the integral of `Radial`'s f."""
    core, tail = (radius**2 / (radius**2 + scale**2) for scale in (profile.core_radius, profile.tail_radius))
    return profile.core_part * core + (1 - profile.core_part) * tail


@pytest.mark.parametrize(("energy_gev", "tau"), [(10.0, 0.3), (10.0, 1.0), (100.0, 2.0)])
def test_radii_follow_the_two_component_profile(energy_gev: float, tau: float) -> None:
    profile = radial(np.full(20_000, tau), np.full(20_000, energy_gev), MEDIUM)
    drawn = profile.draw(np.random.default_rng(5))
    for radius in (0.05, 0.2, 1.0, 3.0):
        expected = contained(profile, radius)[0]
        assert (drawn < radius).mean() == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 - expected) / 20_000))


@pytest.mark.parametrize("energy_gev", [10.0, 100.0])
def test_a_cylinder_of_one_moliere_radius_holds_nine_tenths(energy_gev: float) -> None:
    """What the Molière radius is (Review of Particle Physics: 90% within 1, 99% within 3.5, approximately)."""
    count, depth = 300, np.linspace(0.05, 25, 200)
    drawn = draw_longitudinal(np.full(count, energy_gev), MEDIUM, np.random.default_rng(2))
    weight = gamma.pdf(depth, drawn.shape[:, None], scale=1 / drawn.rate[:, None])
    tau = depth / drawn.unit_depth[:, None]
    profile = radial(tau, np.full_like(tau, energy_gev), MEDIUM)
    one, several = (float((contained(profile, r) * weight).sum() / weight.sum()) for r in (1.0, 3.5))
    assert one == pytest.approx(0.90, abs=0.03)
    assert 0.96 < several < 1


def test_no_energy_is_made_or_lost_in_a_large_detector() -> None:
    """Each layer samples alike, the stack is deep: the sum over the visible part is the energy, on average."""
    count = 300
    geometry = {"cells": [51, 51, 100], "layers": [{"count": 100, "absorberMm": 2.4}], "depthMm": 636}
    cells = showers(count, 20, geometry={**geometry, "cellMm": 1000.0})
    sums = (
        cells.sum(axis=(1, 2, 3), dtype=float)
        / Medium.of_layer(Geometry.model_validate(geometry), 2.4).visible_fraction
    )
    assert sums.mean() == pytest.approx(20, abs=4 * sums.std() / np.sqrt(count))
    assert sums.std() / sums.mean() == pytest.approx(0.17 / np.sqrt(20), rel=0.15)


def test_response_is_linear() -> None:
    energies = (5, 20, 80, 200)
    response = []
    for energy in energies:
        layers = showers(max(40, 800 // energy), energy).sum(axis=(1, 2), dtype=float)
        response.append((layers @ (np.array(absorber_mm(Geometry())) / 2.4)).mean() / energy)
    np.testing.assert_allclose(response, np.mean(response), rtol=0.03)


@pytest.mark.parametrize("angle_deg", [60.0, 75.0, 120.0])
def test_the_axis_passes_the_sensors_where_they_are(angle_deg: float) -> None:
    """What lies on the axis of an inclined shower is seen on a straight line through the sensors, in all layers."""
    geometry = Geometry(cells=(201, 1, 25), cell_mm=1.0)
    engine = Parametrised(Data(showers=1, geometry=geometry))
    layers = np.repeat(np.arange(25), 40)
    within = np.tile(np.linspace(0.01, 0.99, 40), 25)
    none = np.zeros(len(layers))
    primaries = {"angle_rad": np.deg2rad([angle_deg])}
    cells = engine._bin(primaries, none.astype(int), layers + within, none, none + 1.0)[0, :, 0]
    x_mm = (np.arange(201) - 100) @ cells / cells.sum(axis=0)
    wanted_mm = (np.array(sensor_depth_mm(geometry)) - 50) / np.tan(np.deg2rad(angle_deg))
    np.testing.assert_allclose(x_mm, wanted_mm, atol=0.51)
    visible = [Medium.of_layer(geometry, mm).visible_fraction for mm in absorber_mm(geometry)]
    np.testing.assert_allclose(cells.sum(axis=0), 40 * np.array(visible), rtol=1e-5)


def test_mirrored_angles_give_mirrored_showers() -> None:
    """60 degrees against 120: x -> -x on average."""
    first = showers(200, 20, 60).mean(axis=0).sum(axis=(1, 2))
    second = showers(200, 20, 120, seed=9).mean(axis=0).sum(axis=(1, 2))[::-1]
    np.testing.assert_allclose(first, second, atol=0.06 * first.max())
    assert np.argmax(first) == pytest.approx(25, abs=3)


def test_low_energies_outside_the_paper_give_showers_still() -> None:
    for energy in (0.02, 0.1, 0.5):
        cells = showers(20, energy)
        assert np.isfinite(cells).all()
        assert (cells >= 0).all()
        assert cells.sum() > 0
