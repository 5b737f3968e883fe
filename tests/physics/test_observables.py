from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from caloscale.detector.axes import axes_of
from caloscale.physics import observables
from caloscale.physics.observables import Cuts, Observed, choose_cuts, observe, profile_moments
from caloscale.showers.arrays import Showers
from caloscale.spec import Data
from tests.physics.conftest import DATA, make_showers

AXES = axes_of(DATA)
CUTS = Cuts(
    hits_gev=3e-4,
    sparsity_gev=2e-5,
    spectrum_edges_gev=np.array([1e-5, 1e-4, 1e-3, 1e-2]),
    thresholds_gev=np.array([2e-5, 3e-4, 5e-3]),
)


def test_depths_count_all_material_before_the_sensor():
    # X0 of the Particle Data Group: 6.76 and 21.82 g/cm2 at 19.3 and 2.329 g/cm3.
    tungsten, silicon = 4.8 / (10 * 6.76 / 19.3), 0.5 / (10 * 21.82 / 2.329)
    assert AXES.depth_x0[:2] == pytest.approx([tungsten + silicon / 2, 2 * tungsten + 1.5 * silicon])
    assert AXES.layer_weight.tolist() == pytest.approx([1.0] * 8 + [1.5] * 4)
    assert AXES.first[0] == -AXES.first[-1] and AXES.first[1] - AXES.first[0] == pytest.approx(14.0)
    together = DATA.model_copy(update={"preprocessing": DATA.preprocessing.model_copy(update={"rebin": (2, 2, 3)})})
    merged = axes_of(together)
    assert merged.depth_x0 == pytest.approx(AXES.depth_x0.reshape(-1, 3).mean(axis=1))
    assert merged.layer_weight == pytest.approx([1.0, 1.0, (1 + 1 + 1.5) / 3, 1.5])


def test_observables_are_those_of_plain_loops():
    showers = make_showers(5, 11)
    found = observe(showers, AXES, CUTS)
    for k, cells in enumerate(showers.cells_gev.astype(float)):
        filled = [(i, e) for i, e in np.ndenumerate(cells) if e > 0]
        total = sum(e for _, e in filled)
        assert found.ecal_sum_gev[k] == pytest.approx(total)
        assert found.weighted_sum_gev[k] == pytest.approx(sum(e * AXES.layer_weight[i[2]] for i, e in filled))
        assert found.hits[k] == sum(e > 3e-4 for _, e in filled)
        assert found.sparsity[k] == pytest.approx(1 - sum(e > 2e-5 for _, e in filled) / cells.size)
        assert found.above[k].tolist() == [sum(e > t for _, e in filled) for t in CUTS.thresholds_gev]
        edges = CUTS.spectrum_edges_gev
        counts = [sum(low <= e < high for _, e in filled) for low, high in pairwise(edges)]
        assert found.spectrum[k].tolist() == [*counts[:-1], counts[-1] + sum(e >= edges[-1] for _, e in filled)]
        assert found.maximum_layer[k] == np.argmax(cells.sum(axis=(0, 1)))
        mean = sum(e * AXES.first[i[0]] for i, e in filled) / total
        variance = sum(e * (AXES.first[i[0]] - mean) ** 2 for i, e in filled) / total
        third = sum(e * (AXES.first[i[0]] - mean) ** 3 for i, e in filled) / total
        assert found.moments_x[k] == pytest.approx([mean, variance**0.5, third / variance**1.5])
        thirds = [cells[:, :, a:b].sum() / total for a, b in ((0, 4), (4, 8), (8, 12))]
        assert found.fractions[k] == pytest.approx(thirds)


def test_angle_of_the_primary_is_found():
    found = observe(make_showers(300, 12), AXES, CUTS)
    assert abs(np.rad2deg(found.angle_error_rad).mean()) < 1
    assert np.corrcoef(found.angle_rad, found.angle_rad + found.angle_error_rad)[0, 1] > 0.8


def test_radius_holds_nine_tenths_of_a_ring():
    """A perpendicular shower with 85% in the middle and 15% at one distance: 90% is a third into their ring."""
    cells = np.zeros((1, *DATA.shape), dtype=np.float32)
    middle = DATA.shape[0] // 2
    cells[0, middle, middle, 5] = 0.85
    for dx, dy in ((2, 0), (-2, 0), (0, 2), (0, -2)):
        cells[0, middle + dx, middle + dy, 5] = 0.15 / 4
    found = observe(Showers(cells, np.ones(1, np.float32), np.full(1, np.pi / 2, np.float32)), AXES, CUTS)
    width = 14.0 / 4
    assert found.radius90_mm[0] == pytest.approx(2 * 14.0 - width / 2 + width / 3, rel=1e-4)


def test_an_empty_shower_has_no_shape_but_a_sum():
    cells = np.zeros((2, *DATA.shape), dtype=np.float32)
    cells[1, 4, 4, 3] = 0.1
    found = observe(Showers(cells, np.ones(2, np.float32), np.ones(2, np.float32)), AXES, CUTS)
    assert found.empty.tolist() == [True, False]
    assert found.sampling_fraction.tolist() == pytest.approx([0, 0.1])
    for name in ("maximum_layer", "angle_error_rad", "radius90_mm", "moments_z", "fractions"):
        assert np.isnan(getattr(found, name)[0]).all()
        assert np.isfinite(getattr(found, name)[1]).all()
    assert found.moments_z[1].tolist() == pytest.approx([AXES.depth_x0[3], 0, 0])


def test_chunks_change_nothing(monkeypatch):
    showers = make_showers(20, 14)
    whole = observe(showers, AXES, CUTS)
    monkeypatch.setattr(observables, "CELLS_AT_ONCE", 3 * int(np.prod(DATA.shape)))
    parts = observe(showers, AXES, CUTS)
    for field in fields(Observed):
        np.testing.assert_allclose(getattr(parts, field.name), getattr(whole, field.name), rtol=1e-12)


@pytest.mark.parametrize("threshold_gev", [0.0, 2e-5, 0.05])
def test_cells_above_each_threshold_are_counted(threshold_gev: float) -> None:
    """Also of calibrated cells, whose threshold may lie above ten MeV."""
    showers = make_showers(20, 14)
    showers = replace(showers, cells_gev=30 * showers.cells_gev)
    cuts = choose_cuts([showers], hits_gev=3e-4, threshold_gev=threshold_gev)
    counted = [(showers.cells_gev > each).sum(axis=(1, 2, 3)) for each in cuts.thresholds_gev]
    np.testing.assert_array_equal(observe(showers, AXES, cuts).above, np.transpose(counted))


@settings(max_examples=30, deadline=None)
@given(arrays(np.float32, (2, *DATA.shape), elements=st.sampled_from([0.0, 1e-5, 3e-4, 2e-3, 0.5])))
def test_all_projections_hold_the_same_energy(cells):
    energy = np.ones(2, np.float32)
    found = observe(Showers(cells, energy, energy), AXES, CUTS)
    for profile in (found.longitudinal, found.transverse_x, found.transverse_y):
        assert profile.sum(axis=1) == pytest.approx(found.ecal_sum_gev)
    assert (np.diff(found.above, axis=1) <= 0).all()
    assert (found.hits <= (1 - found.sparsity) * cells[0].size + 1e-6).all()


def test_moments_are_those_of_a_known_distribution():
    positions = np.arange(40.0)
    poisson = np.exp(positions * np.log(6.0) - np.cumsum(np.log(np.maximum(positions, 1))))
    mean, rms, skewness = profile_moments(poisson[None], positions)[0]
    assert (mean, rms, skewness) == pytest.approx((6.0, 6.0**0.5, 6.0**-0.5), rel=1e-6)


def test_cuts_cover_all_cells_of_monte_carlo():
    showers = make_showers(10, 15)
    cuts = choose_cuts([showers], hits_gev=3e-4, threshold_gev=2e-5)
    assert cuts.spectrum_edges_gev[0] == pytest.approx(2e-5)
    assert cuts.spectrum_edges_gev[-1] >= showers.cells_gev.max()
    assert np.diff(np.log10(cuts.spectrum_edges_gev)) == pytest.approx(0.1)
    assert choose_cuts([], hits_gev=3e-4, threshold_gev=0.0).sparsity_gev == 15.15e-6


def test_a_cylinder_has_the_moments_of_its_cells_in_x_and_y() -> None:
    """Widths and barycentre in mm as of points at the middles of the cells, whatever the axes that number them."""
    stack = {"layers": [{"count": 6, "absorberMm": 1.4}], "layersPerCell": 2, "activeMm": 0.3, "depthMm": 10.2}
    geometry = stack | {"cellShape": "cylinder", "cells": [8, 4, 3], "cellMm": 4.65}
    axes = axes_of(Data.model_validate({"showers": 1, "angleDeg": [90, 90], "geometry": geometry}))
    assert axes.names == ("azimuth", "radius") and axes.shape == (8, 4, 3)
    cells = np.random.default_rng(3).exponential(1e-3, (2, 8, 4, 3)).astype(np.float32)
    showers = Showers(cells, np.ones(2, np.float32), np.full(2, np.pi / 2, np.float32))
    seen = observe(showers, axes, choose_cuts((showers,), hits_gev=3e-4, threshold_gev=0))
    azimuth = (np.arange(8) + 0.5) * np.pi / 4 - np.pi
    x_mm = np.cos(azimuth)[:, None] * (np.arange(4) + 0.5) * 4.65
    share = cells.sum(axis=3) / cells.sum(axis=(1, 2, 3))[:, None, None]
    mean = (share * x_mm).sum(axis=(1, 2))
    rms = np.sqrt((share * (x_mm - mean[:, None, None]) ** 2).sum(axis=(1, 2)))
    np.testing.assert_allclose(seen.moments_x[:, :2], np.column_stack([mean, rms]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(seen.transverse_y, cells.sum(axis=(1, 3)), rtol=1e-5)
    np.testing.assert_allclose(axes.second, [2.325, 6.975, 11.625, 16.275])
    assert ((seen.radius90_mm > 4.65) & (seen.radius90_mm < 18.6)).all()
