"""The showers of a run: where they come from, the detector, how they are prepared."""

import math
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic.alias_generators import to_camel

from caloscale.errors import InvalidValueError
from caloscale.spec.block import Block
from caloscale.spec.values import Place, Seed

Range = tuple[float, float]
Particle = Literal["e-", "gamma", "pi-", "pi+"]
"""A primary, named as Geant4 names it."""
PARTICLE_NAMES: dict[Particle, str] = {"e-": "electron", "gamma": "photon", "pi-": "pi- meson", "pi+": "pi+ meson"}
"""The primaries in words."""
PDG_CODES: dict[Particle, int] = {"e-": 11, "gamma": 22, "pi-": -211, "pi+": 211}
"""Monte Carlo numbers of the Particle Data Group."""
CellShape = Literal["grid", "cylinder"]
"""Axes of the cells: x, y and depth, or azimuth, radius and depth."""
Particles = Annotated[
    Particle | tuple[Particle, ...], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
]
"""One primary or a list. A schema of a custom resource has no such choice: there the operator checks the value."""
HADRONS: tuple[Particle, ...] = ("pi-", "pi+")
"""Primaries that interact by the strong force."""
HIGHEST_GEV = 10_000
"""Highest energy of a primary, GeV."""
_MOST_SHOWERS = 10**9
"""10^9 showers of the published size are 260 TB of cells."""


class PrimaryRanges(Block):
    """Which primaries showers have: what a run configuration asks for, and what shards and models were made with.

    Tables of primaries have a column for each quantity of `columns`: arrays of one number per shower, by name.
    """

    particle: Particles = "e-"
    """The primary, or a list of them."""
    energy_gev: Range
    """Energies, GeV."""
    angle_deg: Range
    """Angles between the direction and the face, degrees."""
    azimuth_deg: Range | None = None
    """Azimuths of the direction about the normal of the face, degrees; absent: 0, the x-z plane."""
    entry_mm: Range | None = None
    """Displacements of the primary along x, and along y, mm; absent: 0."""

    @field_validator("particle", mode="before")
    @classmethod
    def _is_known(cls, value: object) -> object:
        names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else ()
        known = get_args(Particle)
        if not names or any(name not in known for name in names) or len(set(names)) < len(names):
            remedy = f"write one of {', '.join(known)}, or a list such as [e-, gamma]"
            raise InvalidValueError("is neither a known primary nor a list of different ones", remedy=remedy)
        return names[0] if len(names) == 1 else names

    @field_validator("azimuth_deg", "entry_mm")
    @classmethod
    def _zero_is_absent(cls, value: Range | None) -> Range | None:
        return None if value == (0, 0) else value

    def primary_ranges(self) -> "PrimaryRanges":
        """These fields alone, without the others of a subclass."""
        return PrimaryRanges(**{name: getattr(self, name) for name in PrimaryRanges.model_fields})

    @property
    def particles(self) -> tuple[Particle, ...]:
        """The primaries, one or several."""
        return (self.particle,) if isinstance(self.particle, str) else self.particle

    @property
    def particle_text(self) -> str:
        """The primaries in a line, such as "e-, gamma"."""
        return ", ".join(self.particles)

    @property
    def in_words(self) -> str:
        """The primaries in words, such as "electron and photon"."""
        return " and ".join(PARTICLE_NAMES[particle] for particle in self.particles)

    @property
    def has_hadrons(self) -> bool:
        """Whether a primary interacts by the strong force."""
        return any(particle in HADRONS for particle in self.particles)

    @property
    def spans(self) -> dict[str, Range]:
        """Range of each further column after energy_gev and angle_rad, in its own unit; that of ``pdg`` spans the
        codes. Without ranges and with one primary there are none."""
        spans: dict[str, Range] = {}
        if self.azimuth_deg is not None:
            low, high = self.azimuth_deg
            spans["azimuth_rad"] = (math.radians(low), math.radians(high))
        if self.entry_mm is not None:
            spans |= {"entry_x_mm": self.entry_mm, "entry_y_mm": self.entry_mm}
        if len(self.particles) > 1:
            codes = [PDG_CODES[particle] for particle in self.particles]
            spans["pdg"] = (min(codes), max(codes))
        return spans

    @property
    def condition_size(self) -> int:
        """Numbers that a network takes of the further columns: cosine and sine of an azimuth, one for each primary."""
        sizes = {"azimuth_rad": 2, "pdg": len(self.particles)}
        return sum(sizes.get(name, 1) for name in self.spans)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of a table of primaries."""
        return ("energy_gev", "angle_rad", *self.spans)


class LayerGroup(Block):
    """Consecutive layers of one absorber thickness."""

    count: int = Field(gt=0, le=1000)
    """Number of layers in the group."""
    absorber_mm: float = Field(gt=0, le=100)
    """Thickness of the absorber before each sensor, mm."""


class Geometry(Block):
    """A sampling calorimeter: alternating absorbers and sensors, and the cells that its showers are read in."""

    cell_shape: CellShape = "grid"
    """grid: square cells parallel to the face. cylinder: cells in azimuth, radius and depth around the direction of the
    particle, which must be perpendicular, as in Geant4's Par04 and datasets 2 and 3 of the CaloChallenge."""
    cells: tuple[int, int, int] = (51, 51, 25)
    """Cells of the shower window along x, y (transverse) and z (depth), as simulated and as in the
    files. The published variable-angle data have 51 x 51 x 25. Of a cylinder: azimuth, radius, depth."""
    cell_mm: float = Field(5.1, gt=0, le=1000)
    """Transverse size of a cell, mm (CLIC ECAL: 5.1); of a cylinder, its size along the radius."""
    absorber: Literal["tungsten", "lead", "iron", "copper", "steel"] = "tungsten"
    """Material of the absorber; its constants are in `caloscale.detector.materials`."""
    active: Literal["silicon", "scintillator"] = "silicon"
    """Material of the sensors; scintillator is polystyrene."""
    layers: tuple[LayerGroup, ...] = (LayerGroup(count=17, absorber_mm=2.4), LayerGroup(count=8, absorber_mm=4.8))
    """Groups of layers from the front to the back (CLIC ECAL: 17 of 2.4 mm, then 8 of 4.8 mm)."""
    layers_per_cell: int = Field(1, gt=0, le=1000)
    """Neighbouring layers whose sensors are one cell in depth (Par04: 2)."""
    active_mm: float = Field(0.5, gt=0, le=100)
    """Thickness of the sensor of each layer, mm."""
    depth_mm: float = Field(159.0, gt=0, le=10_000)
    """Depth of the whole stack, mm; what absorbers and sensors leave is a gap, the same in each layer."""
    calibrated: bool = False
    """Whether the cells of the files are the energy of the shower, as in the CaloChallenge, instead of what was
    deposited in the sensors. Simulated showers (source simulate) are deposits."""

    @field_validator("absorber", "active", mode="before")
    @classmethod
    def _is_known(cls, value: object, info: ValidationInfo) -> object:
        known = get_args(cls.model_fields[str(info.field_name)].annotation)
        if value not in known:
            remedy = "write one of them; another is added with its constants in caloscale.detector.materials "
            remedy += f"and its name in {info.field_name} of caloscale.spec.data.Geometry"
            raise InvalidValueError(f"is not one of the known materials: {', '.join(known)}", remedy=remedy)
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if min(self.cells) < 1 or max(self.cells) > 1000:
            remedy = "give three positive numbers such as [51, 51, 25]"
            raise InvalidValueError(f"cells {list(self.cells)} is impossible: each must be 1 to 1000", remedy=remedy)
        layers = sum(group.count for group in self.layers)
        if layers != self.cells[2] * self.layers_per_cell:
            times = "" if self.layers_per_cell == 1 else f" times layersPerCell, which is {self.layers_per_cell}"
            problem = f"layers describe {layers} layers, cells[2] is {self.cells[2]}" + times
            raise InvalidValueError(problem, remedy="make the counts of the groups add up to cells[2]" + times)
        material_mm = sum(g.count * (g.absorber_mm + self.active_mm) for g in self.layers)
        if material_mm > self.depth_mm:
            problem = f"absorbers and sensors need {material_mm:g} mm, depthMm is {self.depth_mm:g}"
            raise InvalidValueError(problem, remedy="raise depthMm or thin the layers")
        return self


class FrontLayer(Block):
    """Material that particles cross before the calorimeter."""

    material: Literal["tungsten", "lead", "iron", "copper", "steel", "silicon", "scintillator"]
    """Its name; its constants are in `caloscale.detector.materials`."""
    thickness_mm: float = Field(gt=0, le=1000)
    """Thickness, mm."""


class Simulation(Block):
    """How showers are simulated when ``source`` is ``simulate``."""

    engine: Literal["geant4", "parametrised"] = "geant4"
    """geant4: full Monte Carlo with the wheels of the extra `simulate`. parametrised: Grindhammer-Peters
    showers for platforms without the wheels; all artifacts are labelled with it."""
    processes: int | None = Field(None, gt=0, le=1024)
    """Processes that simulate at once; absent: one per core. The showers do not depend on it."""
    showers_per_file: int = Field(100, gt=0, le=100_000)
    """Showers in a file, the unit that is resumed. The validation showers are split off by file."""
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
    power: float = Field(0.85, ge=0.01, le=1)
    """Exponent that compresses the range of the cells (published: 0.85)."""
    energy_scale_gev: float = Field(100.0, gt=0)
    """Primary energies are divided by this, GeV (published: 100)."""
    rebin: tuple[int, int, int] = (1, 1, 1)
    """Neighbouring cells that are summed along x, y, z first; must divide `geometry.cells`."""


class Data(PrimaryRanges):
    """Which showers the run trains on and is validated against."""

    source: Place = "simulate"
    """simulate, a path of HDF5 files (a file, a folder, a glob), or gs://bucket/prefix."""
    showers: int | None = Field(None, gt=0)
    """Training showers. source simulate: this many are simulated, and the validation showers in addition.
    A path: at most this many are used, drawn from all that are selected; absent: all."""
    particle: Particles = "e-"
    """The primary: e-, gamma, pi- or pi+, or a list such as [e-, gamma]: each has an equal share of the simulated
    showers, and is a condition of the generator. Charged pions need the hadronic datasets of Geant4
    (docs/simulation.md) and a small preprocessing.minimumSumGev: many of them cross the calorimeter without a
    shower."""
    energy_gev: Range = (100.0, 200.0)
    """Primary energies, GeV: drawn uniformly (simulate) or selected (a path)."""
    angle_deg: Range = (60.0, 120.0)
    """Angle between the direction and the face, degrees, 90 is perpendicular: drawn or selected."""
    azimuth_deg: Range | None = None
    """Azimuth of the direction about the normal of the face, degrees: drawn uniformly or selected, and a condition of
    the generator. Absent: 0, directions lie in the x-z plane."""
    entry_mm: Range | None = None
    """Displacement of the primary's line along x, and along y, from the line that crosses the axis of the window, mm:
    both drawn uniformly or selected, and conditions of the generator. Half a (re-binned) cell to each side, such as
    [-7.65, 7.65] in the preset compact, covers all positions within a cell. Absent: 0."""
    seed: Seed = 1
    """Seed of the simulation, of the split into training and validation, and of the order of the showers of a path."""
    validation_fraction: float = Field(0.1, gt=0, lt=1)
    """Fraction of the showers that is held out for validation (published: 0.1): whole files of simulated showers, or
    single showers of a path, whose files may be sorted."""
    mirror: bool = False
    """Train on mirrored copies too: x -> -x with angle -> 180 degrees - angle, and y -> -y, which are
    exact symmetries of the detector; cells of a cylinder are turned around the axis by any number of cells too. Drawn
    each time a shower is read; validation is not mirrored."""
    geometry: Geometry = Geometry()
    """The detector."""
    front: tuple[FrontLayer, ...] = ()
    """Plates before the calorimeter, in the order in which particles cross them, without gaps; none: vacuum.
    Deposits in them are not recorded. With source simulate and Geant4 only."""
    pair_distance_mm: float | None = Field(None, gt=0)
    """Two parallel primaries with half of the energy each in every shower, this far apart along y, mm, half of it on
    each side of the axis; absent: one primary. With source simulate and Geant4 only."""
    simulation: Simulation = Simulation()
    """How showers are simulated."""
    preprocessing: Preprocessing = Preprocessing()
    """What the networks see."""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        low, high = self.energy_gev
        if not 0 < low <= high <= HIGHEST_GEV:
            remedy = f"0 < lower <= upper <= {HIGHEST_GEV}, such as [5, 40]"
            raise InvalidValueError(f"energyGev {[low, high]} is not a range", remedy=remedy)
        low, high = self.angle_deg
        if not 20 <= low <= high <= 160:
            remedy = "20 <= lower <= upper <= 160, such as [60, 120]"
            raise InvalidValueError(f"angleDeg {[low, high]} is not a range", remedy=remedy)
        if any(r < 1 or n % r for n, r in zip(self.geometry.cells, self.preprocessing.rebin)):
            problem = f"preprocessing.rebin {list(self.preprocessing.rebin)} does not divide geometry.cells "
            problem += f"{list(self.geometry.cells)}"
            raise InvalidValueError(problem, remedy="use factors of the cells, such as [3, 3, 1] for 51 x 51 x 25")
        if self.geometry.cell_shape == "cylinder" and self.angle_deg != (90, 90):
            problem = f"angleDeg {list(self.angle_deg)} does not go with geometry.cellShape cylinder"
            remedy = "set angleDeg to [90, 90] (perpendicular), or geometry.cellShape to grid"
            raise InvalidValueError(problem, remedy=remedy)
        self._check_line()
        if self.showers is not None and self.showers > _MOST_SHOWERS:
            terabytes = 4e-12 * self.showers * math.prod(self.geometry.cells)
            problem = f"{self.showers:.3g} showers cannot be simulated or stored: their cells take {terabytes:.3g} TB"
            remedy = f"write at most {_MOST_SHOWERS:,} in showers; the published training has 124,950"
            raise InvalidValueError(problem, remedy=remedy)
        if self.source == "simulate" and self.simulation.engine == "parametrised" and self.particle != "e-":
            problem = f"the parametrised engine makes showers of electrons, not of {self.particle_text}"
            raise InvalidValueError(problem, remedy="set simulation.engine to geant4, or particle to e-")
        if self.front and (self.source != "simulate" or self.simulation.engine != "geant4"):
            problem = f"front has {len(self.front)} plates, and Geant4 alone simulates them"
            remedy = "leave front out, or set source to simulate and simulation.engine to geant4"
            raise InvalidValueError(problem, remedy=remedy)
        self._check_pair()
        if self.source == "simulate" and self.geometry.calibrated:
            problem = "geometry.calibrated is true, and simulated cells hold deposits in the sensors"
            remedy = "set geometry.calibrated to false, or source to files with calibrated cells"
            raise InvalidValueError(problem, remedy=remedy)
        if self.source == "simulate" and self.showers is None:
            raise InvalidValueError("showers is needed with source simulate", remedy="--set data.showers=1500")
        return self

    def _check_pair(self) -> None:
        if self.pair_distance_mm is None:
            return
        if self.source != "simulate" or self.simulation.engine != "geant4" or self.geometry.cell_shape != "grid":
            problem = f"pairDistanceMm is {self.pair_distance_mm:g}, and Geant4 alone simulates pairs, in cells of a "
            problem += "grid"
            remedy = "leave pairDistanceMm out, or set source to simulate, simulation.engine to geant4, and "
            remedy += "geometry.cellShape to grid"
            raise InvalidValueError(problem, remedy=remedy)
        if self.pair_distance_mm >= (window := self.geometry.cells[1] * self.geometry.cell_mm):
            problem = f"pairDistanceMm {self.pair_distance_mm:g} leaves the window of {window:g} mm"
            raise InvalidValueError(problem, remedy=f"write less than {window:g}")

    def _check_line(self) -> None:
        """Ranges of azimuth and entry."""
        half_mm = min(self.geometry.cells[:2]) * self.geometry.cell_mm / 2
        for name, span, highest, example in (
            ("azimuthDeg", self.azimuth_deg, 360.0, [-180, 180]),
            ("entryMm", self.entry_mm, half_mm, [-self.geometry.cell_mm / 2, self.geometry.cell_mm / 2]),
        ):
            if span is None:
                continue
            low, high = span
            if not -highest <= low <= high <= highest or (name == "azimuthDeg" and high - low > 360):
                problem = f"{name} {[low, high]} is not a range within {-highest:g} and {highest:g}"
                raise InvalidValueError(problem, remedy=f"write lower <= upper, such as {example}")
            if self.geometry.cell_shape == "cylinder":
                problem = f"{name} {[low, high]} does not go with geometry.cellShape cylinder, whose axis is the "
                problem += "particle"
                remedy = f"leave {name} out, or set geometry.cellShape to grid"
                raise InvalidValueError(problem, remedy=remedy)
            if self.mirror and low != -high:
                problem = f"{name} {[low, high]} is not symmetric, and mirror makes copies with the opposite sign"
                half = min(max(-low, high), 180.0) if name == "azimuthDeg" else max(-low, high)
                remedy = f"write a range such as {[-half, half]}, or set mirror to false"
                raise InvalidValueError(problem, remedy=remedy)
        if self.azimuth_deg is not None and self.angle_deg == (90, 90):
            problem = f"azimuthDeg {list(self.azimuth_deg)} has no effect at angleDeg [90, 90], which is perpendicular"
            raise InvalidValueError(problem, remedy="leave azimuthDeg out, or widen angleDeg")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Cells of a shower as the networks see it, after re-binning."""
        x, y, z = (n // r for n, r in zip(self.geometry.cells, self.preprocessing.rebin))
        return x, y, z


SEEN_BY_NETWORKS = ("preprocessing", "geometry", "particle", "azimuth_deg", "entry_mm")
"""Fields of data that shards and networks are made for; the shape follows from them."""

BEAM_LINE = ("front", "pair_distance_mm")
"""Fields of data with what is before the detector, which only a simulation has."""


def first_unlike(made: Any, data: Data, *further: str) -> tuple[str, Any, Any] | None:
    """First field, further ones included, in which a manifest or a model card is not as the data: name, value there
    and here; None: none."""
    for name in (*SEEN_BY_NETWORKS, *further):
        if getattr(made, name) != getattr(data, name):
            return to_camel(name), getattr(made, name), getattr(data, name)
    return None
