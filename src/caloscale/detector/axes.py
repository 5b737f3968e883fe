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
    first (X,), second (Y,): positions along the two transverse axes of the cells, as `names` and `units` say: x and y
    in mm, or azimuth in rad and radius in mm.
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

    @property
    def shape(self) -> tuple[int, int, int]:
        """Cells along x, y, z."""
        return len(self.first), len(self.second), len(self.z_mm)

    @property
    def names(self) -> tuple[str, str]:
        """The transverse axes of the cells."""
        return ("azimuth", "radius") if self.geometry.cell_shape == "cylinder" else ("x", "y")

    @property
    def units(self) -> tuple[str, str]:
        """Units of the transverse axes."""
        return ("rad", "mm") if self.geometry.cell_shape == "cylinder" else ("mm", "mm")

    @property
    def pitches(self) -> tuple[float, float]:
        """Sizes of a cell along the transverse axes, in their units."""
        along_x, along_y = (self.geometry.cell_mm * number for number in self.rebin[:2])
        return (2 * np.pi / len(self.first) if self.geometry.cell_shape == "cylinder" else along_x), along_y


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
    first, second = x_mm[:, 0], y_mm[0]
    if geometry.cell_shape == "cylinder":
        first, second = np.arctan2(y_mm[:, 0], x_mm[:, 0]), np.hypot(x_mm[0], y_mm[0])
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
    )
