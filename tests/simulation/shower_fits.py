"""What the physics tests take from showers: fits and sums, written for the tests alone."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import curve_fit
from scipy.stats import gamma

from caloscale.detector.geometry import absorber_mm
from caloscale.showers.arrays import Showers
from caloscale.spec import Geometry

GEOMETRY = Geometry()
TUNGSTEN_X0_MM = 3.504  # Review of Particle Physics
SILICON_X0_MM = 93.70
TUNGSTEN_CRITICAL_MEV = 7.97
ABSORBER_MM = np.array(absorber_mm(GEOMETRY))
SENSOR_X0 = np.cumsum(ABSORBER_MM) / TUNGSTEN_X0_MM + (np.arange(25) + 0.5) * GEOMETRY.active_mm / SILICON_X0_MM
"""Depth of the middle of each sensor."""
X_MM = (np.arange(51) - 25) * GEOMETRY.cell_mm
SENSOR_MM = np.arange(25) * GEOMETRY.depth_mm / 25 + ABSORBER_MM + GEOMETRY.active_mm / 2

Array = NDArray[np.float64]


def layer_sums_gev(showers: Showers) -> Array:
    return showers.cells_gev.sum(axis=(1, 2), dtype=np.float64)


def weighted_sums_gev(showers: Showers) -> Array:
    """Layers weighted by their absorber, a layer of 2.4 mm counts once."""
    return layer_sums_gev(showers) @ (ABSORBER_MM / ABSORBER_MM[0])


@dataclass(frozen=True)
class Maximum:
    """Maximum of the gamma distribution fitted to a mean profile, X0, with its statistical error (bootstrap)."""

    depth_x0: float
    error_x0: float


def shower_maximum(showers: Showers, seed: int = 0) -> Maximum:
    """Of showers at one angle; a sensor sees the energy loss per depth where it is."""
    depth = SENSOR_X0 / np.sin(float(showers.angle_rad.mean()))
    layers = layer_sums_gev(showers)
    random = np.random.default_rng(seed)
    bootstrap = [_fit(depth, layers[random.integers(0, len(layers), len(layers))].mean(axis=0)) for _ in range(40)]
    return Maximum(_fit(depth, layers.mean(axis=0)), float(np.std(bootstrap)))


def _fit(depth: Array, profile: Array) -> float:
    def shape(t: Array, total: float, alpha: float, beta: float) -> Array:
        return total * gamma.pdf(t, alpha, scale=1 / beta)

    (_, alpha, beta), _ = curve_fit(shape, depth, profile, p0=(profile.sum(), 5, 0.5), bounds=(0.01, np.inf))
    return float((alpha - 1) / beta)


def pdg_maximum_x0(energy_gev: float) -> float:
    """Review of Particle Physics, passage of particles, electromagnetic cascades: ln(E / Ec) - 0.5 for electrons."""
    return float(np.log(energy_gev * 1e3 / TUNGSTEN_CRITICAL_MEV) - 0.5)


def axis_angle_rad(showers: Showers) -> Array:
    """Angle of the shower's principal axis in the x-z plane, cells weighted by energy and absorber.

    A shower is symmetric about its axis, so this is unbiased but for the coarse cells; cells below a thousandth
    of the shower are left out, as the halo only adds noise.
    """
    energy = showers.cells_gev.sum(axis=2, dtype=np.float64) * ABSORBER_MM
    energy[energy < 1e-3 * energy.sum(axis=(1, 2), keepdims=True)] = 0
    x, z = _from_mean(energy, X_MM[None, :, None]), _from_mean(energy, SENSOR_MM[None, None, :])
    xx, zz, xz = ((energy * product).sum(axis=(1, 2)) for product in (x * x, z * z, x * z))
    angle: Array = np.pi / 2 - 0.5 * np.arctan2(2 * xz, zz - xx)
    return angle


def _from_mean(weight: Array, position_mm: Array) -> Array:
    mean = (weight * position_mm).sum(axis=(1, 2)) / weight.sum(axis=(1, 2))
    distance: Array = position_mm - mean[:, None, None]
    return distance


def barycentre_slope(showers: Showers) -> Array:
    """dx/dz of the straight line through the barycentres of the layers, weighted by their energy."""
    weight = layer_sums_gev(showers)
    barycentre = np.einsum("nxyz,x->nz", showers.cells_gev.astype(np.float64), X_MM) / np.maximum(weight, 1e-12)
    total = weight.sum(axis=1, keepdims=True)
    z = SENSOR_MM - (weight * SENSOR_MM).sum(axis=1, keepdims=True) / total
    x = barycentre - (weight * barycentre).sum(axis=1, keepdims=True) / total
    slope: Array = (weight * z * x).sum(axis=1) / (weight * z * z).sum(axis=1)
    return slope
