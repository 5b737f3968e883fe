"""The incidence angle, measured from the shower itself."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from caloscale.spec.data import Geometry

EMPTY_ANGLE_RAD = 100.0
"""What an empty shower has as measured angle (published convention), far from every real one."""

SHORTEST_MM2 = 1e-7
"""Least square of the distance from the barycentre, mm^2: a layer exactly there would give 0/0."""


def pitch_mm(geometry: Geometry, rebin: tuple[int, int, int] = (1, 1, 1)) -> tuple[float, float, float]:
    """Distance of neighbouring (re-binned) cells along x, y, z, mm."""
    layer_mm = geometry.depth_mm / geometry.cells[2]
    return geometry.cell_mm * rebin[0], geometry.cell_mm * rebin[1], layer_mm * rebin[2]


def measured_angle_rad(
    cells: NDArray[np.floating], geometry: Geometry, rebin: tuple[int, int, int] = (1, 1, 1)
) -> NDArray[np.float32]:
    """Angle between shower axis and face in the x-z plane, rad: (N, X, Y, Z) -> (N,).

    The published 3DGAN's measure: for each layer that has energy, the angle of the line from the
    shower's barycentre to the layer's barycentre; then their mean, weighted by the depth of the layer
    (number from 1/2). Lengths in mm: a cell is 5.1 mm wide, a layer 6.4 mm deep, so that the result is
    an angle in space (the published one counts cells). 100 for an empty shower.
    """
    pitch = pitch_mm(geometry, rebin)
    x, y, z = ((np.arange(n) + 0.5) * p for n, p in zip(cells.shape[1:], pitch))
    along_xz = cells.sum(axis=2, dtype=np.float64)
    along_yz = cells.sum(axis=1, dtype=np.float64)
    per_layer = along_xz.sum(axis=1)
    total = per_layer.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        x_layer = np.einsum("nxz,x->nz", along_xz, x) / per_layer
        y_layer = np.einsum("nyz,y->nz", along_yz, y) / per_layer
        x_mean = np.einsum("nxz,x->n", along_xz, x)[:, None] / total[:, None]
        y_mean = np.einsum("nyz,y->n", along_yz, y)[:, None] / total[:, None]
        z_mean = (per_layer @ z)[:, None] / total[:, None]
        distance = np.sqrt(np.maximum((y_layer - y_mean) ** 2 + (z - z_mean) ** 2, SHORTEST_MM2))
        slope = np.sign(z - z_mean) * (x_layer - x_mean) / distance
    angles = np.pi / 2 - np.arctan(slope)
    weights = np.where(per_layer > 0, np.arange(len(z)) + 0.5, 0.0)
    weight = weights.sum(axis=1)
    mean = np.where(weights > 0, angles, 0.0) * weights
    result = np.where(weight > 0, mean.sum(axis=1) / np.maximum(weight, 0.5), EMPTY_ANGLE_RAD)
    return result.astype(np.float32)
