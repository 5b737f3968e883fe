"""The stack of layers behind the front face: thicknesses and depths, from the geometry of the run configuration."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from caloscale.detector.materials import MATERIALS
from caloscale.spec.data import Geometry

AIM_DEPTH_MM = 50.0
"""All primaries aim at the point at this depth on the axis of the window, near the maximum of a shower, so that
inclined showers lie in the middle of the window."""


def aim_depth_mm(geometry: Geometry) -> float:
    """Depth of the point that all primaries aim at, mm: the axis of a shower crosses the window's there."""
    return min(AIM_DEPTH_MM, geometry.depth_mm / 2)


def absorber_mm(geometry: Geometry) -> tuple[float, ...]:
    """Thickness of the absorber before the sensor of each layer, mm, front to back."""
    return tuple(group.absorber_mm for group in geometry.layers for _ in range(group.count))


def gap_mm(geometry: Geometry) -> float:
    """Gap behind each layer, mm: the depth that the materials leave, equally divided."""
    material_mm = sum(absorber_mm(geometry)) + geometry.cells[2] * geometry.active_mm
    return (geometry.depth_mm - material_mm) / geometry.cells[2]


def sensor_depth_mm(geometry: Geometry, together: int = 1) -> tuple[float, ...]:
    """Depth of the middle of each sensor behind the front face, mm, front to back.

    Thick absorbers set the sensors further apart, so layer numbers do not measure depth. ``together`` neighbouring
    layers (re-binning along z) have their mean depth.
    """
    fronts, absorbers = layer_edges_mm(geometry)[:-1], np.array(absorber_mm(geometry))
    depths = fronts + absorbers + geometry.active_mm / 2
    return tuple(float(depth) for depth in depths.reshape(-1, together).mean(axis=1))


def layer_edges_mm(geometry: Geometry) -> NDArray[np.float64]:
    """Depth of the layers' edges behind the front face, mm, (layers + 1,)."""
    thick = np.array(absorber_mm(geometry)) + (geometry.active_mm + gap_mm(geometry))
    return np.concatenate([[0.0], np.cumsum(thick)])


def layer_edges_x0(geometry: Geometry) -> NDArray[np.float64]:
    """Depth of the layers' edges in radiation lengths at normal incidence, (layers + 1,)."""
    absorber, active = MATERIALS[geometry.absorber], MATERIALS[geometry.active]
    sensor_x0 = active.radiation_lengths(geometry.active_mm)
    thick = [absorber.radiation_lengths(mm) + sensor_x0 for mm in absorber_mm(geometry)]
    return np.concatenate([[0.0], np.cumsum(thick)])


def sensor_depth_x0(geometry: Geometry) -> NDArray[np.float64]:
    """Depth of the middle of each sensor in radiation lengths at normal incidence, (layers,)."""
    half = MATERIALS[geometry.active].radiation_lengths(geometry.active_mm) / 2
    return layer_edges_x0(geometry)[1:] - half
