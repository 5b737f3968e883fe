"""The stack of layers behind the front face: thicknesses and depths, from the geometry of the run configuration."""

import math

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
    layers = len(absorber_mm(geometry))
    material_mm = sum(absorber_mm(geometry)) + layers * geometry.active_mm
    return (geometry.depth_mm - material_mm) / layers


def layer_depth_mm(geometry: Geometry) -> NDArray[np.float64]:
    """Depth of the middle of each layer's sensor behind the front face, mm, front to back, (layers,)."""
    fronts, absorbers = layer_edges_mm(geometry)[:-1], np.array(absorber_mm(geometry))
    return np.asarray(fronts + absorbers + geometry.active_mm / 2)


def sensor_depth_mm(geometry: Geometry, together: int = 1) -> tuple[float, ...]:
    """Depth of the sensors of each cell behind the front face, mm, front to back.

    Thick absorbers set the sensors further apart, so layer numbers do not measure depth. The layers of a cell, and
    ``together`` neighbouring cells (re-binning along z), have their mean depth.
    """
    return tuple(float(depth) for depth in mean_of_cells(layer_depth_mm(geometry), geometry, together))


def mean_of_cells(per_layer: NDArray[np.float64], geometry: Geometry, together: int = 1) -> NDArray[np.float64]:
    """Mean over the layers of each cell in depth, ``together`` cells re-binned: (layers,) -> (Z,)."""
    return np.asarray(per_layer.reshape(-1, together * geometry.layers_per_cell).mean(axis=1))


def sum_cells(
    shower: NDArray[np.integer],
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    layer: NDArray[np.integer],
    energy: NDArray[np.float64],
    *,
    count: int,
    size: float,
    geometry: Geometry,
) -> NDArray[np.float64]:
    """Energies of points in the sensors as the cells of ``count`` showers, (count, X, Y, Z); those outside are dropped.

    x, y: from the axis of the window; size: that of a cell in their unit. Of a cylinder the numbers of the cells count
    azimuth, from -pi to pi as in Geant4's Par04, and radius.
    """
    nx, ny, nz = geometry.cells
    if geometry.cell_shape == "cylinder":
        first = np.floor((np.arctan2(y, x) + math.pi) * (nx / (2 * math.pi))).astype(np.int64) % nx
        second = np.floor(np.hypot(x, y) / size).astype(np.int64)
    else:
        first = np.floor(x / size + nx / 2).astype(np.int64)
        second = np.floor(y / size + ny / 2).astype(np.int64)
    inside = (first >= 0) & (first < nx) & (second >= 0) & (second < ny)
    cell = ((shower.astype(np.int64) * nx + first) * ny + second) * nz + layer // geometry.layers_per_cell
    cells = np.bincount(cell[inside], energy[inside], minlength=count * nx * ny * nz)
    return np.asarray(cells.reshape(count, nx, ny, nz), np.float64)


def half_window_mm(geometry: Geometry) -> tuple[float, float]:
    """Half the size of the window along x and y, mm."""
    if geometry.cell_shape == "cylinder":
        return (geometry.cells[1] * geometry.cell_mm,) * 2
    return geometry.cells[0] * geometry.cell_mm / 2, geometry.cells[1] * geometry.cell_mm / 2


def transverse_mm(
    geometry: Geometry, shape: tuple[int, ...], rebin: tuple[int, int, int] = (1, 1, 1)
) -> tuple[NDArray[np.float64], ...]:
    """x and y of the middle of each cell across, from the axis of the window, mm: two arrays (X, Y).

    shape: re-binned cells (X, Y, ...).
    """
    if geometry.cell_shape == "cylinder":
        return cylinder_mm(shape[0], shape[1], geometry.cell_mm * rebin[1])
    x, y = ((np.arange(n) - (n - 1) / 2) * (geometry.cell_mm * r) for n, r in zip(shape[:2], rebin))
    grids: tuple[NDArray[np.float64], ...] = tuple(np.meshgrid(x, y, indexing="ij"))
    return grids


def cylinder_mm(azimuths: int, radii: int, cell_mm: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """x and y of the middle of each cell of azimuth and radius, mm: two arrays (azimuths, radii)."""
    azimuth = (np.arange(azimuths) + 0.5) * (2 * math.pi / azimuths) - math.pi
    radius_mm = (np.arange(radii) + 0.5) * cell_mm
    return np.outer(np.cos(azimuth), radius_mm), np.outer(np.sin(azimuth), radius_mm)


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
