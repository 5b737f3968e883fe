"""Positions of the re-binned cells of a detector: depth, transverse positions, sampling weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caloscale.detector.geometry import absorber_mm, sensor_depth_mm, sensor_depth_x0
from caloscale.spec.data import Data, Geometry

Floats = NDArray[np.floating]


@dataclass(frozen=True)
class Axes:
    """Positions of the re-binned cells.

    x_mm (X,), y_mm (Y,): centres, 0 in the middle of the window.
    z_mm (Z,): depth of the sensors, mm from the front face; depth_x0 (Z,): the same in radiation lengths,
    along the normal of the face.
    layer_weight (Z,): absorber before the sensors of a layer, relative to the first layer: the weight of a
    layer in a sum that does not depend on where the absorber gets thicker.
    """

    x_mm: Floats
    y_mm: Floats
    z_mm: Floats
    depth_x0: Floats
    layer_weight: Floats
    geometry: Geometry
    rebin: tuple[int, int, int]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Cells along x, y, z."""
        return len(self.x_mm), len(self.y_mm), len(self.z_mm)


def axes_of(data: Data) -> Axes:
    """The axes of the showers that a run compares (after re-binning)."""
    geometry, rebin = data.geometry, data.preprocessing.rebin
    layers = _mean_of_neighbours(np.array(absorber_mm(geometry)), rebin[2])
    return Axes(
        x_mm=_centred(data.shape[0], geometry.cell_mm * rebin[0]),
        y_mm=_centred(data.shape[1], geometry.cell_mm * rebin[1]),
        z_mm=np.array(sensor_depth_mm(geometry, rebin[2])),
        depth_x0=_mean_of_neighbours(sensor_depth_x0(geometry), rebin[2]),
        layer_weight=layers / layers[0],
        geometry=geometry,
        rebin=rebin,
    )


def _centred(cells: int, pitch_mm: float) -> Floats:
    return np.asarray((np.arange(cells) - (cells - 1) / 2) * pitch_mm)


def _mean_of_neighbours(values: Floats, factor: int) -> Floats:
    return np.asarray(values.reshape(-1, factor).mean(axis=1))
