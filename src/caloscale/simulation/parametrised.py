"""Parametrised showers, for machines without the wheels of Geant4: Grindhammer and Peters, hep-ex/0001020.

A shower is a gamma distribution along its axis whose two parameters fluctuate, a two-component radial profile that
widens with depth, and a number of spots of energy that follows Poisson. Only numpy and scipy are needed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.special import gammainc

from caloscale.detector.geometry import aim_depth_mm, layer_depth_mm, layer_edges_mm, layer_edges_x0, transverse_index
from caloscale.detector.sampling import layer_media, sampling_term, sampling_variance_gev
from caloscale.showers.primaries import Table
from caloscale.simulation.profiles import draw_longitudinal, radial
from caloscale.spec import Data

SOURCE = "parametrised"
BATCH_ENERGY_GEV = 500.0
"""Bounds the number of spots in memory (about 60 per GeV); also the work between two reports of progress."""

Array = NDArray[np.float64]


class Parametrised:
    """The calorimeter of a run configuration, parametrised."""

    source = SOURCE
    batch_energy_gev = BATCH_ENERGY_GEV

    def __init__(self, data: Data) -> None:
        self._geometry = data.geometry
        media = layer_media(data.geometry)
        self._medium = media[0]  # the front decides how the shower develops
        self._edges_x0 = layer_edges_x0(data.geometry)
        self._edges_mm = layer_edges_mm(data.geometry)
        self._sensor_mm = layer_depth_mm(data.geometry)
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
        deposited = self._sampled(energy[:, None] * fractions)
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

    def _sampled(self, energy_gev: Array) -> Array:
        """Energies of the layers with the fluctuation of their sampling: mean E, variance c^2 E (E in GeV)."""
        return self._random.gamma(np.maximum(energy_gev / self._variance_gev, 1e-12)) * self._variance_gev

    def _bin(
        self, primaries: Mapping[str, Array], shower: NDArray[np.int64], depth: Array, radius_mm: Array, spot_gev: Array
    ) -> NDArray[np.float32]:
        """Spots at a distance from the axis, at a depth counted in layers, into cells; those outside are dropped."""
        angle = primaries["angle_rad"]
        nx, ny, nz = self._geometry.cells
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
        x = (axis_z - aim_depth_mm(self._geometry) + to_sensor) * cot + inclined * np.sin(angle)[shower]
        y = across
        if "azimuth_rad" in primaries:
            cosine, sine = (function(primaries["azimuth_rad"])[shower] for function in (np.cos, np.sin))
            x, y = x * cosine - y * sine, x * sine + y * cosine
        if "entry_x_mm" in primaries:
            x, y = x + primaries["entry_x_mm"][shower], y + primaries["entry_y_mm"][shower]
        ix, iy, in_window = transverse_index(x, y, self._geometry.cell_mm, self._geometry)
        inside &= in_window
        index = (((shower * nx + ix) * ny + iy) * nz + layer // self._geometry.layers_per_cell)[inside]
        visible_gev = spot_gev[inside] * self._visible[layer[inside]]
        cells = np.bincount(index, visible_gev, minlength=len(angle) * nx * ny * nz)
        return cells.reshape(len(angle), nx, ny, nz).astype(np.float32)
