"""The incidence angle, measured from the shower itself."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from caloscale.detector.geometry import sensor_depth_mm, transverse_mm
from caloscale.spec.data import Geometry

EMPTY_ANGLE_RAD = 100.0
"""Measured angle of an empty shower: the published value, far outside every real angle."""
FAINT_LAYER = 1e-6
"""Layers with a smaller share of the shower's energy are left out: their barycentre is rounding error, and its gradient
grows as the inverse of the share."""
SMALLEST_DISTANCE_MM2 = 1e-7
"""Least squared distance of a layer's barycentre from the shower's, mm^2: it keeps the quotient finite and the
square root differentiable."""


def direction_of(primaries: Mapping[str, NDArray[np.floating]]) -> NDArray[np.float64]:
    """Unit vectors (N, 3) of the primaries of a table: (cos a cos p, cos a sin p, sin a), with the angle a to the face
    and the azimuth p, 0 where the table has none."""
    angle = primaries["angle_rad"].astype(np.float64)
    azimuth = primaries.get("azimuth_rad", np.zeros_like(angle)).astype(np.float64)
    return np.stack([np.cos(angle) * np.cos(azimuth), np.cos(angle) * np.sin(azimuth), np.sin(angle)], axis=1)


def measured_angle_rad(
    cells: NDArray[np.floating], geometry: Geometry, rebin: tuple[int, int, int] = (1, 1, 1)
) -> NDArray[np.float32]:
    """Angle between shower axis and face in the x-z plane, rad: (N, X, Y, Z) -> (N,).

    The published 3DGAN's measure: for each layer that has energy, the angle of the line from the
    shower's barycentre to the layer's barycentre; then their mean, weighted by the number of the layer
    (front: 1/2). Lengths are in mm, at the depths of the sensors, so that the result is
    an angle in space (the published one counts cells). 100 for an empty shower. It does not depend on the
    unit of the cells. The discriminator's layer `models.layers.constraints.MeasuredAngle` computes the same.
    """
    z = np.asarray(sensor_depth_mm(geometry, rebin[2]))
    along_yz = cells.sum(axis=1, dtype=np.float64)
    per_layer = along_yz.sum(axis=1)
    x, y = transverse_mm(geometry, cells.shape[1:], rebin)
    if geometry.cell_shape == "cylinder":
        moment_x, moment_y = (np.einsum("nxyz,xy->nz", cells, at, dtype=np.float64, optimize=True) for at in (x, y))
    else:
        moment_x = np.einsum("nxz,x->nz", cells.sum(axis=2, dtype=np.float64), x[:, 0])
        moment_y = np.einsum("nyz,y->nz", along_yz, y[0])
    total = per_layer.sum(axis=1, keepdims=True)
    hit = (per_layer > FAINT_LAYER * total) & (total > 0)
    in_layer, in_all = np.where(hit, per_layer, 1.0), np.where(total > 0, total, 1.0)

    dz = z - (per_layer * z).sum(axis=1, keepdims=True) / in_all
    dx = moment_x / in_layer - moment_x.sum(axis=1, keepdims=True) / in_all
    dy = moment_y / in_layer - moment_y.sum(axis=1, keepdims=True) / in_all
    distance = np.sqrt(np.maximum(dy**2 + dz**2, SMALLEST_DISTANCE_MM2))
    angles = np.pi / 2 - np.arctan(np.sign(dz) * dx / distance)

    weights = hit * (np.arange(len(z)) + 0.5)
    weight = weights.sum(axis=1)
    mean = (weights * angles).sum(axis=1) / np.maximum(weight, 0.5)
    measured: NDArray[np.float32] = np.where(weight > 0, mean, EMPTY_ANGLE_RAD).astype(np.float32)
    return measured
