"""Constants of a run that the layers of the flow need: a block that Keras saves with them as a dictionary."""

from __future__ import annotations

import itertools
import math

import numpy as np

from caloscale.detector.axes import axes_of, axis_shift
from caloscale.detector.sampling import mip_gev
from caloscale.spec import Data
from caloscale.spec.block import Block

FAINTEST_MIP = 0.15
"""Faintest cell where the run has no threshold, in units of a minimum-ionising particle's loss in the sensor."""
HIT_MIP = 1.55
"""Cells above this are hits in the moments, same unit: `validation.hitsThresholdGev` in .5 mm of silicon."""
MOMENTS, CONCENTRATION = 12, 9
"""Numbers of `representation.moments`, which needs TensorFlow (this module does not), and place of one of them."""


class Detector(Block):
    """shape: cells X, Y, Z, those of a cylinder azimuths, radii, depths. floor_gev: a cell below counts as empty.
    hit_gev: of the counted cells. mip_gev: of a minimum-ionising particle. layer_weight (Z,): absorber before a layer
    relative to the first. shift_x, shift_y (Z,): cells by which the axis of a shower with cot a = 1 is off the middle
    of the window. centre, width: of the logarithm of the energy in GeV. units, power, energy_scale_gev: of the
    preprocessing. azimuth, entry: whether the condition has them; condition: its size. cylinder: around the primary,
    which has neither."""

    shape: tuple[int, int, int]
    floor_gev: float
    hit_gev: float
    mip_gev: float
    layer_weight: tuple[float, ...]
    shift_x: tuple[float, ...]
    shift_y: tuple[float, ...]
    centre: float
    width: float
    units: float
    power: float
    energy_scale_gev: float
    azimuth: bool
    entry: bool
    condition: int
    cylinder: bool = False

    @classmethod
    def of(cls, data: Data) -> Detector:
        """The constants of a run's data."""
        preprocessing, geometry = data.preprocessing, data.geometry
        low, high = (math.log(energy) for energy in data.energy_gev)
        mip = mip_gev(geometry)
        return cls(
            shape=data.shape,
            floor_gev=preprocessing.threshold_gev or FAINTEST_MIP * mip,
            hit_gev=HIT_MIP * mip,
            mip_gev=mip,
            layer_weight=tuple(float(weight) for weight in axes_of(data).layer_weight),
            shift_x=axis_shift(data, 0),
            shift_y=axis_shift(data, 1),
            centre=(low + high) / 2,
            width=max((high - low) / math.sqrt(12), 0.1),
            units=preprocessing.units_per_gev,
            power=preprocessing.power,
            energy_scale_gev=preprocessing.energy_scale_gev,
            azimuth="azimuth_rad" in data.spans,
            entry="entry_x_mm" in data.spans,
            condition=data.condition_size,
            cylinder=geometry.cell_shape == "cylinder",
        )

    @property
    def groups(self) -> tuple[tuple[int, int], ...]:
        """First and last + 1 of consecutive layers of equal weight."""
        changes = np.flatnonzero(np.abs(np.diff(self.layer_weight)) > 1e-6) + 1
        edges = [0, *(int(change) for change in changes), len(self.layer_weight)]
        return tuple(itertools.pairwise(edges))

    @property
    def primary_size(self) -> int:
        """Numbers of `representation.describe_primary`."""
        return 6 + self.condition - 2 * self.azimuth - 2 * self.entry
