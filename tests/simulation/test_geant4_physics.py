"""Geant4's showers against what is known of electromagnetic showers.

The quick tests allow three statistical errors on top of a requirement where their sample is too small for it;
those of many showers, marked long, hold the requirement itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from caloscale.detector.angle import measured_angle_rad
from caloscale.showers.arrays import Showers
from caloscale.spec import load_run
from tests.simulation.conftest import Sampler
from tests.simulation.shower_fits import (
    GEOMETRY,
    axis_angle_rad,
    barycentre_slope,
    layer_sums_gev,
    pdg_maximum_x0,
    shower_maximum,
    weighted_sums_gev,
)

QUICK = {10.0: 56, 30.0: 16, 100.0: 8}
LONG = {10.0: 800, 20.0: 480, 50.0: 200, 100.0: 120}


@pytest.fixture(scope="session")
def quick(sample: Sampler) -> dict[float, Showers]:
    return {energy: sample(count, (energy, energy)) for energy, count in QUICK.items()}


@pytest.fixture(
    params=[
        pytest.param(QUICK, marks=pytest.mark.integration, id="quick"),
        pytest.param(LONG, marks=[pytest.mark.long, pytest.mark.timeout(1800)], id="long"),
    ]
)
def samples(request: pytest.FixtureRequest, sample: Sampler) -> dict[float, Showers]:
    return {energy: sample(count, (energy, energy)) for energy, count in request.param.items()}


@dataclass(frozen=True)
class Response:
    """Weighted sums at several energies: means and widths with their errors."""

    energy_gev: NDArray[np.float64]
    mean_gev: NDArray[np.float64]
    mean_error_gev: NDArray[np.float64]
    width: NDArray[np.float64]
    width_error: NDArray[np.float64]

    @classmethod
    def of(cls, samples: dict[float, Showers]) -> Response:
        sums = [weighted_sums_gev(showers) for showers in samples.values()]
        counts = np.array([len(s) for s in sums])
        mean, spread = np.array([s.mean() for s in sums]), np.array([s.std(ddof=1) for s in sums])
        width = spread / mean
        return cls(np.array(list(samples)), mean, spread / np.sqrt(counts), width, width / np.sqrt(2 * (counts - 1)))

    def line_residuals(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Relative distances from the straight line fitted with the errors, and the relative errors."""
        line = np.polyfit(self.energy_gev, self.mean_gev, 1, w=1 / self.mean_error_gev)
        return self.mean_gev / np.polyval(line, self.energy_gev) - 1, self.mean_error_gev / self.mean_gev

    def resolution(self) -> tuple[float, float, float, float]:
        """a and c of sigma/E = a/sqrt(E) (+) c, from a fit of the squares, each followed by its error."""
        design = np.stack([1 / self.energy_gev, np.ones_like(self.energy_gev)], axis=1)
        weight = 1 / (2 * self.width * self.width_error)
        (a2, c2), *_ = np.linalg.lstsq(design * weight[:, None], self.width**2 * weight, rcond=None)
        covariance = np.linalg.inv((design * weight[:, None] ** 2).T @ design)
        a, c2_error = float(np.sqrt(a2)), float(np.sqrt(covariance[1, 1]))
        return a, float(np.sqrt(covariance[0, 0]) / (2 * a)), float(c2), c2_error


def test_response_is_linear_within_3_percent(samples: dict[float, Showers]) -> None:
    response = Response.of(samples)
    residuals, errors = response.line_residuals()
    for energy, mean, residual, error in zip(samples, response.mean_gev, residuals, errors):
        plain = layer_sums_gev(samples[energy]).sum(axis=1).mean()
        print(f"{energy:5.0f} GeV: weighted {1e3 * mean / energy:.2f} MeV/GeV ", end="")
        print(f"(residual {100 * residual:+.2f}% +- {100 * error:.2f}%), plain {1e3 * plain / energy:.2f} MeV/GeV")
    assert (np.abs(residuals) < 0.03).all(), residuals
    # so that the sentence above means something
    assert (errors < (0.01 if samples.keys() == QUICK.keys() else 0.003)).all(), errors


@pytest.mark.integration
def test_response_of_the_silicon(quick: dict[float, Showers]) -> None:
    """28 MeV per GeV where every layer counts by its absorber; the plain sum falls, as the back samples half."""
    weighted = 1e3 * Response.of(quick).mean_gev / np.array(list(quick))
    np.testing.assert_allclose(weighted, 28.4, rtol=0.02)
    plain = [1e3 * layer_sums_gev(showers).sum(axis=1).mean() / energy for energy, showers in quick.items()]
    assert 26 < plain[0] < 27.2
    assert plain[0] > plain[1] > plain[2] > 23


def test_resolution(samples: dict[float, Showers]) -> None:
    response = Response.of(samples)
    a, a_error, c2, c2_error = response.resolution()
    for energy, width, error in zip(samples, response.width, response.width_error):
        print(f"{energy:5.0f} GeV: sigma/E {100 * width:.2f}% +- {100 * error:.2f}%")
    print(f"a = {100 * a:.1f}% +- {100 * a_error:.1f}%, c^2 = {1e4 * c2:.2f} +- {1e4 * c2_error:.2f} (%^2)")
    allowed, largest = (3, 0.03) if samples.keys() == QUICK.keys() else (0, 0.008)
    assert 0.15 - allowed * a_error < a < 0.20 + allowed * a_error
    assert a_error < largest
    assert c2 < 0.03**2 + allowed * c2_error


def maximum_line(samples: dict[float, Showers]) -> tuple[float, float, float]:
    """Slope of the maximum against ln E, its error, and the mean distance from the PDG formula, X0."""
    log_energy = np.log(list(samples))
    maxima = [shower_maximum(showers) for showers in samples.values()]
    depth, error = np.array([m.depth_x0 for m in maxima]), np.array([m.error_x0 for m in maxima])
    line, covariance = np.polyfit(log_energy, depth, 1, w=1 / error, cov="unscaled")
    distance = depth - [pdg_maximum_x0(energy) for energy in samples]
    return float(line[0]), float(np.sqrt(covariance[0, 0])), float(np.average(distance, weights=error**-2))


def test_shower_maximum_follows_the_logarithm_of_the_energy(samples: dict[float, Showers]) -> None:
    slope, error, offset = maximum_line(samples)
    for energy, showers in samples.items():
        maximum = shower_maximum(showers)
        print(f"{energy:5.0f} GeV: {maximum.depth_x0:.2f} +- {maximum.error_x0:.2f} X0, ", end="")
        print(f"PDG {pdg_maximum_x0(energy):.2f}")
    print(f"slope {slope:.3f} +- {error:.3f}, {offset:+.2f} X0 from the PDG formula")
    allowed, largest = (3, 0.2) if samples.keys() == QUICK.keys() else (0, 0.04)
    assert abs(slope - 1) < 0.1 + allowed * error
    assert error < largest
    assert abs(offset) < 1.5


@pytest.fixture(scope="session")
def inclined(sample: Sampler) -> Showers:
    return sample(40, (8, 20), (60, 120))


@pytest.mark.integration
def test_incidence_angle_is_recovered(inclined: Showers) -> None:
    """By the principal axis of the shower."""
    truth, measured = inclined.angle_rad.astype(np.float64), axis_angle_rad(inclined)
    slope, offset = np.polyfit(truth - np.pi / 2, measured - np.pi / 2, 1)
    scatter = np.std(measured - truth, ddof=1)
    assert np.rad2deg(scatter) < 4
    assert abs(slope - 1) < 3 * scatter / np.std(truth) / np.sqrt(len(truth)) + 0.03
    assert abs(offset) < 3 * scatter / np.sqrt(len(truth))


@pytest.mark.integration
def test_the_line_through_the_barycentres_falls_short_of_the_angle(inclined: Showers) -> None:
    """A layer cuts the shower obliquely: where the profile rises, more lies ahead of the axis, where it falls, behind.

    The factor is below 1 for both signs of the inclination and the same at all angles (docs/simulation.md).
    """
    truth = 1 / np.tan(inclined.angle_rad.astype(np.float64))
    slope = barycentre_slope(inclined)
    factor, offset = np.polyfit(truth, slope, 1)
    error = np.std(slope - factor * truth, ddof=1) / np.sqrt(len(truth))
    assert 0.75 < factor < 0.95
    assert abs(offset) < 3 * error
    for side in (truth > 0, truth < 0):
        assert slope[side] @ truth[side] / (truth[side] @ truth[side]) == pytest.approx(factor, abs=0.1)


@pytest.mark.integration
def test_the_networks_measure_of_the_angle_follows_the_angle(inclined: Showers) -> None:
    """It gives sparse layers at the back the greatest weight, so it is not the best estimate, but a monotone one."""
    truth = inclined.angle_rad.astype(np.float64)
    measured = measured_angle_rad(inclined.cells_gev, GEOMETRY)
    assert np.corrcoef(truth, measured)[0, 1] > 0.95
    assert np.rad2deg(np.abs(np.mean(measured - truth))) < 2


@pytest.mark.integration
def test_inclined_showers_lie_in_the_middle_of_the_window(inclined: Showers) -> None:
    cells = inclined.cells_gev.sum(axis=3, dtype=np.float64)
    total = cells.sum(axis=(1, 2))
    for axis in (1, 2):
        profile = cells.sum(axis=3 - axis)
        mean_cell = (profile @ np.arange(51)) / total - 25
        assert np.abs(mean_cell).max() < 6
        assert abs(mean_cell.mean()) < 3 * mean_cell.std() / np.sqrt(len(mean_cell)) + 0.05
        assert profile[:, [0, -1]].sum() < 0.002 * total.sum()


@pytest.mark.integration
def test_response_of_the_window_to_inclined_showers(inclined: Showers) -> None:
    """About 25 to 26 MeV/GeV at these energies (docs/simulation.md)."""
    plain = 1e3 * float(inclined.ecal_sum_gev.sum() / inclined.energy_gev.sum())
    assert 24.5 < plain < 27
    weighted = 1e3 * float(weighted_sums_gev(inclined).sum() / inclined.energy_gev.sum())
    assert weighted == pytest.approx(28.4, rel=0.03)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_window_holds_the_shower(sample: Sampler) -> None:
    """The 26 cm of the window lose some tenths of a per cent of what the silicon sees."""
    for angle in (90.0, 60.0):
        wide = sample(160, (20, 20), (angle, angle), cells=(101, 51, 25))
        all_seen = wide.cells_gev.sum(dtype=np.float64)
        window = wide.cells_gev[:, 25:76].sum(dtype=np.float64)
        sides = wide.cells_gev[:, :, [0, -1]].sum(dtype=np.float64)
        print(f"{angle:.0f} degrees: {100 * (1 - window / all_seen):.2f}% outside the window in x")
        assert window / all_seen > 0.99
        assert sides / all_seen < 0.001


@pytest.mark.integration
def test_the_preset_fixed_angle_trains_towards_the_sums_of_its_own_showers(sample: Sampler) -> None:
    """The public code's fit is for other files: it is 13% below at these energies."""
    run = load_run(preset="fixed-angle")
    assert run.data.geometry.model_copy(update={"cells": GEOMETRY.cells}) == GEOMETRY
    showers = sample(80, (20, 60), cells=run.data.geometry.cells)
    energy = showers.energy_gev / run.data.preprocessing.energy_scale_gev
    ratio = showers.cells_gev.sum(axis=(1, 2, 3)) / (np.polyval(run.train.ecal_sum_fit, energy) * energy)
    error = ratio.std(ddof=1) / np.sqrt(len(ratio))
    assert error < 0.01
    assert ratio.mean() == pytest.approx(1, abs=0.02 + 2 * error)


@pytest.mark.integration
@pytest.mark.parametrize("energy_gev", [10.0, 100.0])
def test_parametrised_showers_resemble_those_of_geant4(
    energy_gev: float, quick: dict[float, Showers], sample: Sampler
) -> None:
    """Maximum within half a radiation length, response within 4%, at normal incidence."""
    geant4 = quick[energy_gev]
    parametrised = sample(80, (energy_gev, energy_gev), engine="parametrised")
    assert parametrised.source == "parametrised"
    difference = shower_maximum(parametrised).depth_x0 - shower_maximum(geant4).depth_x0
    assert abs(difference) < 0.5 + 3 * shower_maximum(geant4).error_x0
    ratio = weighted_sums_gev(parametrised).mean() / weighted_sums_gev(geant4).mean()
    assert ratio == pytest.approx(1, abs=0.04)
