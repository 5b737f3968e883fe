"""Shower shapes of Grindhammer and Peters, hep-ex/0001020: appendix A.1 homogeneous, A.2 sampling calorimeters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caloscale.detector.sampling import Medium

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
    return Longitudinal(
        shape=shape,
        rate=rate,
        spot_shape=spot_shape,
        spot_rate=(spot_shape - 1) / spot_depth,
        unit_depth=shape / rate * (mean_shape - 1) / mean_shape,
    )


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

    def contained(self, radius: Array) -> Array:
        """Part of the energy within a radius, in Molière radii."""
        core = radius**2 / (radius**2 + self.core_radius**2)
        tail = radius**2 / (radius**2 + self.tail_radius**2)
        part: Array = self.core_part * core + (1 - self.core_part) * tail
        return part

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
