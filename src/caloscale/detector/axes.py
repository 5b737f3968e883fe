"""Positions of the re-binned cells of a detector: depth, transverse positions, sampling weights."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caloscale.detector.geometry import (
    absorber_mm,
    aim_depth_mm,
    mean_of_cells,
    sensor_depth_mm,
    sensor_depth_x0,
    transverse_mm,
)
from caloscale.spec.data import Data, Geometry

Floats = NDArray[np.floating]


@dataclass(frozen=True)
class Axes:
    """Positions of the re-binned cells.

    x_mm, y_mm (X, Y): centres across, 0 in the middle of the window.
    first (X,), second (Y,): positions along the two transverse axes of the cells: x and y in mm, or azimuth in rad and
    radius in mm. names, units, pitches: of these axes; a pitch is the size of a cell along the axis, in its unit.
    z_mm (Z,): depth of the sensors, mm from the front face; depth_x0 (Z,): the same in radiation lengths,
    along the normal of the face.
    layer_weight (Z,): absorber before the sensors of a layer, relative to the first layer: the weight of a
    layer in a sum that does not depend on where the absorber gets thicker.
    """

    x_mm: Floats
    y_mm: Floats
    first: Floats
    second: Floats
    z_mm: Floats
    depth_x0: Floats
    layer_weight: Floats
    geometry: Geometry
    rebin: tuple[int, int, int]
    names: tuple[str, str]
    units: tuple[str, str]
    pitches: tuple[float, float]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Cells along x, y, z."""
        return len(self.first), len(self.second), len(self.z_mm)


def axis_shift(data: Data, axis: int) -> tuple[float, ...]:
    """Re-binned cells along x (axis 0) or y (1) between the axis of a shower with cot(angle) = 1 and the middle of the
    window, for each layer."""
    geometry, rebin = data.geometry, data.preprocessing.rebin
    pivot_mm, cell_mm = aim_depth_mm(geometry), geometry.cell_mm * rebin[axis]
    return tuple((depth - pivot_mm) / cell_mm for depth in sensor_depth_mm(geometry, rebin[2]))


def axes_of(data: Data) -> Axes:
    """The axes of the showers that a run compares (after re-binning)."""
    geometry, rebin = data.geometry, data.preprocessing.rebin
    layers = mean_of_cells(np.array(absorber_mm(geometry)), geometry, rebin[2])
    x_mm, y_mm = transverse_mm(geometry, data.shape, rebin)
    first, second, names, units = x_mm[:, 0], y_mm[0], ("x", "y"), ("mm", "mm")
    along_first, along_second = (geometry.cell_mm * factor for factor in rebin[:2])
    if geometry.cell_shape == "cylinder":
        first, second = np.arctan2(y_mm[:, 0], x_mm[:, 0]), np.hypot(x_mm[0], y_mm[0])
        names, units, along_first = ("azimuth", "radius"), ("rad", "mm"), 2 * np.pi / len(first)
    return Axes(
        x_mm=x_mm,
        y_mm=y_mm,
        first=first,
        second=second,
        z_mm=np.array(sensor_depth_mm(geometry, rebin[2])),
        depth_x0=mean_of_cells(sensor_depth_x0(geometry), geometry, rebin[2]),
        layer_weight=layers / layers[0],
        geometry=geometry,
        rebin=rebin,
        names=names,
        units=units,
        pitches=(along_first, along_second),
    )
