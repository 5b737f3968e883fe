"""Parametrised showers, for machines without the wheels of Geant4: Grindhammer and Peters, hep-ex/0001020.

A shower is a gamma distribution along its axis whose two parameters fluctuate, a two-component radial profile that
widens with depth, and a number of spots of energy that follows Poisson (appendix A.1: homogeneous, A.2: sampling
calorimeters). Only numpy and scipy are needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.special import gammainc

from caloscale.detector import geometry
from caloscale.detector.sampling import Medium, sampling_term, sampling_variance_gev
from caloscale.showers.primaries import Table
from caloscale.spec import Data

Array = NDArray[np.float64]
_LARGEST_SIGMA = 0.5
"""The paper's widths diverge below about 0.2 GeV, outside its range; Geant4's implementation has this bound too."""
_LEAST_SHAPE, _LEAST_DEPTH = 1.1, 0.5
"""alpha, and depth of the maximum in radiation lengths: the maximum lies inside the calorimeter."""


@dataclass(frozen=True)
class Longitudinal:
    """Gamma distributions of N showers along their axes, depth in radiation lengths; all (N,)."""

    shape: Array
    rate: Array
    spot_shape: Array
    spot_rate: Array
    unit_depth: Array
    """Depth that is tau = 1 for the radial profile: the maximum, were the shape the average one."""


def draw_longitudinal(energy_gev: Array, medium: Medium, random: np.random.Generator) -> Longitudinal:
    """A gamma distribution for each shower and for its spots: ln T and ln alpha normal, correlated (A.1.2, A.2.3)."""
    ln_y = np.log(energy_gev * 1e3 / medium.critical_energy_mev)
    per_layer = 1 / medium.sampling_frequency
    mean_depth = np.maximum(ln_y - 0.812 - 0.55 * per_layer - 0.69 * (1 - medium.e_over_mip), _LEAST_DEPTH)
    mean_shape = np.maximum(0.81 + (0.458 + 2.26 / medium.z) * ln_y - 0.476 * per_layer, _LEAST_SHAPE)
    correlation = np.clip(0.784 - 0.023 * ln_y, -1, 1)
    first, second = random.standard_normal((2, len(energy_gev)))
    common, apart = np.sqrt((1 + correlation) / 2) * first, np.sqrt((1 - correlation) / 2) * second
    depth = np.maximum(mean_depth * np.exp(_sigma(-2.5, 1.25, ln_y) * (common + apart)), _LEAST_DEPTH)
    shape = np.maximum(mean_shape * np.exp(_sigma(-0.82, 0.79, ln_y) * (common - apart)), _LEAST_SHAPE)
    spot_depth = depth * (0.813 + 0.0019 * medium.z)
    spot_shape = np.maximum(shape * (0.844 + 0.0026 * medium.z), _LEAST_SHAPE)
    rate = (shape - 1) / depth
    spot_rate = (spot_shape - 1) / spot_depth
    unit_depth = shape / rate * (mean_shape - 1) / mean_shape
    return Longitudinal(shape=shape, rate=rate, spot_shape=spot_shape, spot_rate=spot_rate, unit_depth=unit_depth)


def _sigma(constant: float, slope: float, ln_y: Array) -> Array:
    """1 / (constant + slope ln y), bounded."""
    sigma: Array = 1 / np.maximum(constant + slope * ln_y, 1 / _LARGEST_SIGMA)
    return sigma


@dataclass(frozen=True)
class Radial:
    """f(r) = p 2 r Rc^2 / (r^2 + Rc^2)^2 + (1 - p) 2 r Rt^2 / (r^2 + Rt^2)^2: radii in Molière radii."""

    core_radius: Array
    tail_radius: Array
    core_part: Array

    def draw(self, random: np.random.Generator) -> Array:
        """A radius each, by inverting the distribution of the component that it falls into."""
        which, within = random.random((2, len(self.core_part)))
        scale = np.where(which < self.core_part, self.core_radius, self.tail_radius)
        radius: Array = scale * np.sqrt(within / (1 - within))
        return radius


def radial(tau: Array, energy_gev: Array, medium: Medium) -> Radial:
    """Radial profile at depth tau = t / <t> of showers of these energies (A.1.3, A.2.3)."""
    ln_e, z, per_layer, missing = np.log(energy_gev), medium.z, 1 / medium.sampling_frequency, 1 - medium.e_over_mip
    core = 0.0251 + 0.00319 * ln_e + (0.1162 - 0.000381 * z) * tau
    tail_scale, tail_rate = 0.659 - 0.00309 * z, 0.3585 + 0.0421 * ln_e
    # Beyond the range of the fit the exponential would send the tail to infinity.
    bounded = np.minimum(tau, 5.0)
    tail = tail_scale * (np.exp(-2.59 * (bounded - 0.645)) + np.exp(tail_rate * (bounded - 0.645)))
    p3 = np.maximum(1.313 - 0.0686 * ln_e, 0.1)
    exponent = (0.401 + 0.00187 * z - tau) / p3
    part = (2.632 - 0.00094 * z) * np.exp(exponent - np.exp(exponent))
    core = core - 0.0203 * missing + 0.0397 * per_layer * np.exp(-tau)
    tail = tail - 0.14 * missing - 0.495 * per_layer * np.exp(-tau)
    part = part + missing * (0.348 - 0.642 * per_layer * np.exp(-((tau - 1) ** 2)))
    return Radial(np.maximum(core, 1e-3), np.maximum(tail, 1e-2), np.clip(part, 0.0, 1.0))


class Parametrised:
    """The calorimeter of a run configuration, parametrised."""

    batch_energy_gev = 500.0
    """Bounds the number of spots in memory (about 60 per GeV); also the work between two reports of progress."""

    def __init__(self, data: Data) -> None:
        self._geometry = data.geometry
        media = [Medium.of_layer(data.geometry, thick_mm) for thick_mm in geometry.absorber_mm(data.geometry)]
        self._medium = media[0]  # the front decides how the shower develops
        self._edges_x0 = geometry.layer_edges_x0(data.geometry)
        self._edges_mm = geometry.layer_edges_mm(data.geometry)
        self._sensor_mm = geometry.layer_depth_mm(data.geometry)
        self._visible = np.array([medium.visible_fraction for medium in media])
        self._moliere_mm = np.array([medium.moliere_radius_mm for medium in media])
        self._sampling_term = sampling_term(data.geometry)
        self._variance_gev = sampling_variance_gev(data.geometry)
        self._random = np.random.default_rng()

    @staticmethod
    def versions() -> dict[str, str]:
        """Version of scipy."""
        return {"scipy": scipy.__version__}

    def seed(self, transport: np.random.SeedSequence) -> None:
        """Begin a stream of random numbers."""
        self._random = np.random.default_rng(transport)

    def showers(self, primaries: Table) -> NDArray[np.float32]:
        """Cells in GeV, (N, X, Y, Z), of the electrons of a table."""
        columns = {name: column.astype(np.float64) for name, column in primaries.items()}
        energy, angle = columns["energy_gev"], columns["angle_rad"]
        count, layers = len(energy), len(self._sensor_mm)
        profile = draw_longitudinal(energy, self._medium, self._random)
        edges_x0 = self._edges_x0 / np.sin(angle)[:, None]
        fractions = np.diff(gammainc(profile.shape[:, None], profile.rate[:, None] * edges_x0), axis=1)
        # Sampling fluctuates as a gamma distribution: mean E, variance c^2 E (E in GeV).
        shape = np.maximum(energy[:, None] * fractions / self._variance_gev, 1e-12)
        deposited = self._random.gamma(shape) * self._variance_gev
        # 10.3 spots over the sampling term, times E^0.959, spread along a gamma distribution of their own (A.2.5).
        spot_cdf = gammainc(profile.spot_shape[:, None], profile.spot_rate[:, None] * edges_x0)
        spots = (10.3 / self._sampling_term * energy**0.959)[:, None] * np.diff(spot_cdf, axis=1)
        numbers = np.maximum(self._random.poisson(spots), 1)
        each = (deposited / numbers).ravel()
        which = np.repeat(np.arange(count * layers), numbers.ravel())
        shower, layer = np.divmod(which, layers)
        within = self._random.random(len(which))  # where in the layer, front to back
        depth_x0 = edges_x0[shower, layer] + within * (edges_x0[shower, layer + 1] - edges_x0[shower, layer])
        tau = depth_x0 / profile.unit_depth[shower]
        radius_mm = radial(tau, energy[shower], self._medium).draw(self._random) * self._moliere_mm[layer]
        return self._bin(columns, shower, layer + within, radius_mm, each[which])

    def _bin(
        self, primaries: Mapping[str, Array], shower: NDArray[np.int64], depth: Array, radius_mm: Array, spot_gev: Array
    ) -> NDArray[np.float32]:
        """Spots at a distance from the axis, at a depth counted in layers, into cells; those outside are dropped."""
        angle = primaries["angle_rad"]
        layers = len(self._sensor_mm)
        azimuth = self._random.uniform(0, 2 * np.pi, len(shower))
        inclined, across = radius_mm * np.cos(azimuth), radius_mm * np.sin(azimuth)
        cot = 1 / np.tan(angle)[shower]
        axis_z = np.interp(depth, np.arange(layers + 1), self._edges_mm)
        z = axis_z - inclined * np.cos(angle)[shower]
        layer = np.searchsorted(self._edges_mm, z, side="right") - 1
        inside = (layer >= 0) & (layer < layers)
        # From the spot along the shower to the sensor of its layer, which sees it; outside there is none.
        to_sensor = self._sensor_mm[np.clip(layer, 0, layers - 1)] - z
        x = (axis_z - geometry.aim_depth_mm(self._geometry) + to_sensor) * cot + inclined * np.sin(angle)[shower]
        y = across
        if "azimuth_rad" in primaries:
            cosine, sine = (function(primaries["azimuth_rad"])[shower] for function in (np.cos, np.sin))
            x, y = x * cosine - y * sine, x * sine + y * cosine
        if "entry_x_mm" in primaries:
            x, y = x + primaries["entry_x_mm"][shower], y + primaries["entry_y_mm"][shower]
        shower, layer = shower[inside], layer[inside]
        visible_gev = spot_gev[inside] * self._visible[layer]
        size_mm, count = self._geometry.cell_mm, len(angle)
        cells = geometry.sum_cells(
            shower, x[inside], y[inside], layer, visible_gev, count=count, size=size_mm, geometry=self._geometry
        )
        return cells.astype(np.float32)
