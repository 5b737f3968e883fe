"""The showers of a run: where they come from, the detector, how they are prepared."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from caloscale.errors import InvalidValueError
from caloscale.spec.block import Block

Range = tuple[float, float]
HIGHEST_GEV = 10_000
"""Highest energy of a primary, GeV."""


class LayerGroup(Block):
    """Consecutive layers of one absorber thickness."""

    count: int = Field(gt=0, le=1000)
    """Number of layers in the group."""
    absorber_mm: float = Field(gt=0, le=100)
    """Thickness of the absorber before each sensor, mm."""


class Geometry(Block):
    """A sampling calorimeter: absorber and silicon in turn, square cells."""

    cells: tuple[int, int, int] = (51, 51, 25)
    """Cells of the shower window along x, y (transverse) and z (layers), as simulated and as in the
    files. The published variable-angle data have 51 x 51 x 25."""
    cell_mm: float = Field(5.1, gt=0, le=1000)
    """Transverse size of a cell, mm (CLIC ECAL: 5.1)."""
    absorber: Literal["tungsten"] = "tungsten"
    """Material of the absorber. Only tungsten has tables that were checked."""
    layers: tuple[LayerGroup, ...] = (
        LayerGroup(count=17, absorber_mm=2.4),
        LayerGroup(count=8, absorber_mm=4.8),
    )
    """Groups of layers from the front to the back (CLIC ECAL: 17 of 2.4 mm, then 8 of 4.8 mm)."""
    silicon_mm: float = Field(0.5, gt=0, le=10)
    """Thickness of the silicon sensor of each layer, mm."""
    depth_mm: float = Field(159.0, gt=0, le=10_000)
    """Depth of the whole stack, mm; what absorber and silicon leave is air gap, the same in each layer."""

    @model_validator(mode="after")
    def _fits(self) -> Geometry:
        if min(self.cells) < 1 or max(self.cells) > 1000:
            raise InvalidValueError(
                f"cells {list(self.cells)} is impossible: each must be 1 to 1000",
                remedy="give three positive numbers such as [51, 51, 25]",
            )
        layers = sum(group.count for group in self.layers)
        if layers != self.cells[2]:
            raise InvalidValueError(
                f"layers describe {layers} layers, cells[2] is {self.cells[2]}",
                remedy="make the counts of the groups add up to cells[2]",
            )
        material_mm = sum(g.count * (g.absorber_mm + self.silicon_mm) for g in self.layers)
        if material_mm > self.depth_mm:
            raise InvalidValueError(
                f"absorber and silicon need {material_mm:g} mm, depthMm is {self.depth_mm:g}",
                remedy="raise depthMm or thin the layers",
            )
        return self

    @property
    def absorber_mm(self) -> tuple[float, ...]:
        """Absorber thickness before each layer, mm, front to back."""
        return tuple(g.absorber_mm for g in self.layers for _ in range(g.count))

    @property
    def gap_mm(self) -> float:
        """Air gap behind each layer, mm."""
        material_mm = sum(self.absorber_mm) + self.cells[2] * self.silicon_mm
        return (self.depth_mm - material_mm) / self.cells[2]

    def sensor_depth_mm(self, together: int = 1) -> tuple[float, ...]:
        """Depth of the middle of each sensor behind the front face, mm, front to back.

        Thick absorbers set the sensors further apart, so layer numbers are no measure of depth.
        ``together`` neighbouring layers (re-binning along z) have their mean depth.
        """
        depths = []
        front_mm = 0.0
        for absorber_mm in self.absorber_mm:
            depths.append(front_mm + absorber_mm + self.silicon_mm / 2)
            front_mm += absorber_mm + self.silicon_mm + self.gap_mm
        return tuple(sum(depths[i : i + together]) / together for i in range(0, len(depths), together))


class Simulation(Block):
    """How showers are simulated when ``source`` is ``simulate``."""

    engine: Literal["geant4", "parametrised"] = "geant4"
    """geant4: full Monte Carlo from the wheels of the extra `simulate`. parametrised: Grindhammer-Peters
    showers for platforms without the wheels; every artifact that follows says so."""
    processes: int | None = Field(None, gt=0, le=1024)
    """Processes that simulate at once; absent: one per core. The showers do not depend on it."""
    showers_per_file: int = Field(100, gt=0, le=100_000)
    """Showers in a file, the unit that is resumed. The validation part is split off by file."""
    cut_mm: float = Field(0.7, gt=0, le=100)
    """Production cut of Geant4 (range), mm; 0.7 is Geant4's default."""


class Preprocessing(Block):
    """From deposited energy to what the networks see: x = (cell * unitsPerGev, or 0 below the threshold)^power."""

    units_per_gev: float = Field(50.0, gt=0)
    """Units of a cell per GeV deposited (published ECAL arrays: 50 per GeV)."""
    threshold_gev: float = Field(0.0, ge=0)
    """Cells below this deposited energy are set to zero, GeV (after re-binning)."""
    minimum_sum_gev: float = Field(0.2, ge=0)
    """Showers with a smaller sum of cells are dropped, GeV (published: 10 units of 1/50 GeV)."""
    power: float = Field(0.85, gt=0, le=1)
    """Exponent that compresses the range of the cells (published: 0.85)."""
    energy_scale_gev: float = Field(100.0, gt=0)
    """Primary energies are divided by this, GeV (published: 100)."""
    rebin: tuple[int, int, int] = (1, 1, 1)
    """Neighbouring cells that are summed along x, y, z before all else; must divide `geometry.cells`."""


class Data(Block):
    """Which showers the run trains on and is validated against."""

    source: str = "simulate"
    """simulate, a path of HDF5 files (a file, a folder, a glob), or gs://bucket/prefix."""
    showers: int | None = Field(None, gt=0)
    """Training showers. source simulate: this many are made (and the validation part beside them).
    A path: at most this many are used; absent: all."""
    energy_gev: Range = (100.0, 200.0)
    """Primary energies, GeV: drawn uniformly (simulate) or selected (a path)."""
    angle_deg: Range = (60.0, 120.0)
    """Angle between the direction and the face, degrees, 90 is perpendicular: drawn or selected."""
    seed: int = Field(1, ge=0)
    """Seed of the simulation and of the split into training and validation."""
    validation_fraction: float = Field(0.1, gt=0, lt=1)
    """Part of the files that is held back for validation (published: 0.1, split by file)."""
    mirror: bool = False
    """Train on mirrored copies too: x -> -x with angle -> 180 degrees - angle, and y -> -y, which are
    exact symmetries of the detector. Drawn anew each time a shower is read; validation is not mirrored."""
    geometry: Geometry = Geometry()
    """The detector."""
    simulation: Simulation = Simulation()
    """How showers are simulated."""
    preprocessing: Preprocessing = Preprocessing()
    """What the networks see."""

    @model_validator(mode="after")
    def _is_possible(self) -> Data:
        low, high = self.energy_gev
        if not 0 < low <= high <= HIGHEST_GEV:
            raise InvalidValueError(
                f"energyGev {[low, high]} is not a range",
                remedy=f"0 < lower <= upper <= {HIGHEST_GEV}, such as [5, 40]",
            )
        low, high = self.angle_deg
        if not 20 <= low <= high <= 160:
            raise InvalidValueError(
                f"angleDeg {[low, high]} is not a range", remedy="20 <= lower <= upper <= 160, such as [60, 120]"
            )
        if any(r < 1 or n % r for n, r in zip(self.geometry.cells, self.preprocessing.rebin)):
            raise InvalidValueError(
                f"preprocessing.rebin {list(self.preprocessing.rebin)} does not divide geometry.cells "
                f"{list(self.geometry.cells)}",
                remedy="use factors of the cells, such as [3, 3, 1] for 51 x 51 x 25",
            )
        if self.source == "simulate" and self.showers is None:
            raise InvalidValueError("showers is needed with source simulate", remedy="--set data.showers=1500")
        return self

    @property
    def shape(self) -> tuple[int, int, int]:
        """Cells of a shower as the networks see it, after re-binning."""
        x, y, z = (n // r for n, r in zip(self.geometry.cells, self.preprocessing.rebin))
        return x, y, z
