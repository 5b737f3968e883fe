"""The incidence angle, measured from the shower itself."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from caloscale.spec.data import Geometry

EMPTY_ANGLE_RAD = 100.0
"""What an empty shower has as measured angle (published convention), far from every real one."""
FAINT_LAYER = 1e-6
"""Layers with a smaller share of the shower's energy have no direction worth counting."""
SHORTEST_MM2 = 1e-7
"""Least square of a layer's distance from the barycentre, mm^2: a layer exactly there would give 0/0."""


def measured_angle_rad(
    cells: NDArray[np.floating], geometry: Geometry, rebin: tuple[int, int, int] = (1, 1, 1)
) -> NDArray[np.float32]:
    """Angle between shower axis and face in the x-z plane, rad: (N, X, Y, Z) -> (N,).

    The published 3DGAN's measure: for each layer that has energy, the angle of the line from the
    shower's barycentre to the layer's barycentre; then their mean, weighted by the number of the layer
    (front: 1/2). Lengths are in mm, with the sensors where the geometry has them, so that the result is
    an angle in space (the published one counts cells). 100 for an empty shower. It does not depend on the
    unit of the cells. The discriminator's layer `models.layers.MeasuredAngle` computes the same.
    """
    cell_mm = geometry.cell_mm * rebin[0], geometry.cell_mm * rebin[1]
    x, y = ((np.arange(n) - (n - 1) / 2) * size for n, size in zip(cells.shape[1:3], cell_mm))
    z = np.asarray(geometry.sensor_depth_mm(rebin[2]))
    moment_x = np.einsum("nxz,x->nz", cells.sum(axis=2, dtype=np.float64), x)
    along_yz = cells.sum(axis=1, dtype=np.float64)
    moment_y = np.einsum("nyz,y->nz", along_yz, y)
    per_layer = along_yz.sum(axis=1)
    total = per_layer.sum(axis=1, keepdims=True)
    hit = (per_layer > FAINT_LAYER * total) & (total > 0)
    in_layer, in_all = np.where(hit, per_layer, 1.0), np.where(total > 0, total, 1.0)

    dz = z - (per_layer * z).sum(axis=1, keepdims=True) / in_all
    dx = moment_x / in_layer - moment_x.sum(axis=1, keepdims=True) / in_all
    dy = moment_y / in_layer - moment_y.sum(axis=1, keepdims=True) / in_all
    distance = np.sqrt(np.maximum(dy**2 + dz**2, SHORTEST_MM2))
    angles = np.pi / 2 - np.arctan(np.sign(dz) * dx / distance)

    weights = hit * (np.arange(len(z)) + 0.5)
    weight = weights.sum(axis=1)
    mean = (weights * angles).sum(axis=1) / np.maximum(weight, 0.5)
    measured: NDArray[np.float32] = np.where(weight > 0, mean, EMPTY_ANGLE_RAD).astype(np.float32)
    return measured
