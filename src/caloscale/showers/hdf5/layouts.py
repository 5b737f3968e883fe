"""The three published layouts of shower files, recognised by what is in the file."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, cast, get_args

import h5py
import numpy as np
from numpy.typing import NDArray

from caloscale.errors import CaloscaleError, ShowerFileError
from caloscale.showers.hdf5.datasets import file_error, find_dataset
from caloscale.showers.hdf5.sandbox import Plain, check_structure, read_attributes, superblock_version
from caloscale.showers.primaries import FURTHER, Floats
from caloscale.spec.data import PDG_CODES, CellShape, Geometry, Particle
from caloscale.spec.problem import suggest

Layout = Literal["variable-angle", "fixed-angle", "calochallenge"]
LAYOUTS: dict[Layout, tuple[str, ...]] = {
    "variable-angle": ("ECAL", "energy", "theta"),
    "fixed-angle": ("ECAL", "target"),
    "calochallenge": ("incident_energies", "showers"),
}
"""The datasets that each layout must have (theta may be replaced by mtheta)."""
AXES: dict[Layout, str] = {
    "variable-angle": "(N, Y, X, Z)", "fixed-angle": "(N, X, Y, Z)", "calochallenge": "(N, voxels): layer, x, y",
}  # fmt: skip
"""Axes of the cells, as they are stored."""
_KNOWN = "; ".join(f"{name}: {', '.join(datasets)}" for name, datasets in LAYOUTS.items())

UNITS_PER_GEV: dict[Layout, float] = {"variable-angle": 50.0, "fixed-angle": 1.0, "calochallenge": 1000.0}
"""Units of a cell per GeV where the file's attribute ``unitsPerGev`` does not say: the published
variable-angle arrays hold 50 x GeV; the fixed-angle ones GeV (their sum is about 2% of the primary energy
as it stands); CaloChallenge holds MeV."""
UNITS_ATTRIBUTE = "unitsPerGev"
UNITS = {"ev": 1e9, "kev": 1e6, "mev": 1e3, "gev": 1.0, "tev": 1e-3}
"""Units of energy per GeV by what an attribute ``units`` or ``unit`` of a dataset calls them."""
PARTICLE_ATTRIBUTE = "particle"
"""The primary, where the file says it; else `LAYOUT_PARTICLE`. In a file with the dataset ``pdg``, a number for each
shower, all primaries in a line."""
CELL_SHAPE_ATTRIBUTE = "cellShape"
"""data.geometry.cellShape, where the file says it; else cylinder in datasets 2 and 3 of the CaloChallenge, grid in all
other files."""
LAYOUT_PARTICLE: Particle = "e-"
"""The primary of the published 3DGAN arrays, and of CaloChallenge's datasets 2 and 3."""
CALOCHALLENGE_PARTICLES: dict[int, Particle] = {368: "gamma", 533: "pi+"}
"""The primary by number of voxels in CaloChallenge's dataset 1: photons, and charged pions, whose sign its format does
not say."""

CALOCHALLENGE_CELLS = {6480: (16, 9, 45), 40500: (50, 18, 45)}
"""geometry.cells (alpha, r, layer) by number of voxels: datasets 2 and 3."""

REBIN_ATTRIBUTE = "rebin"
"""By how many cells along x, y and depth the showers of a file were summed, as 3x3x1; without it they were not."""

DETECTOR_ATTRIBUTE = "simulatedDetector"
"""The detector and the beam line of a simulation, or of the one that a generator learnt, JSON: see
`sources.detector_of`; files of others do not have it."""

WITHOUT_GENERATED_ATTRIBUTE = "withoutGenerated"
"""The particles that generators took over in a simulation, whose energy the cells therefore lack."""

INCLINED_AXIS = 2
"""In the variable-angle files (N, Y, X, Z) the particle is inclined along the second axis of a shower, where the
published code measures the angle; ours is the first (N, X, Y, Z), so the two are swapped on the way in and out."""

CellNumbers = tuple[int, int, int]
"""Along x, y and depth."""
Source = Literal["geant4", "parametrised", "generated", "file"]
"""Where showers come from; file: of unknown origin."""


@dataclass(frozen=True)
class OpenFile:
    """An open file of a known layout; arrays are read only on demand."""

    path: Path
    file: h5py.File
    layout: Layout

    @cached_property
    def attributes(self) -> dict[str, Plain]:
        """The attributes of the file."""
        return read_attributes(self.path, self.file)

    @property
    def cells(self) -> h5py.Dataset:
        """The dataset of the cells as stored: (N, Y, X, Z), (N, X, Y, Z) or (N, voxels), by layout."""
        return self.file[self.cells_field]

    @property
    def cells_field(self) -> str:
        """Name of the dataset of the cells."""
        return "showers" if self.layout == "calochallenge" else "ECAL"

    @property
    def shape(self) -> tuple[int, ...]:
        """Cells of a shower in our axes (X, Y, Z), or the number of voxels: see `INCLINED_AXIS`."""
        stored: tuple[int, ...] = self.cells.shape[1:]
        swapped = self.layout == "variable-angle" and len(stored) == 3
        return (stored[1], stored[0], stored[2]) if swapped else stored

    @property
    def units_per_gev(self) -> float:
        """Units of a cell per GeV: from the file's attribute, else that of the layout."""
        value = self.attributes.get(UNITS_ATTRIBUTE, UNITS_PER_GEV[self.layout])
        if isinstance(value, str | bool) or not 1e-6 < value < 1e12:
            remedy = "write the units of a cell per GeV, such as 50.0"
            raise self.error("is not a unit", f"attribute {UNITS_ATTRIBUTE}", value, remedy)
        return float(value)

    @property
    def source(self) -> Source:
        """The label of origin that the file carries."""
        label = self.attributes.get("source")
        return cast(Source, label) if label in get_args(Source) else "file"

    @property
    def particles(self) -> tuple[Particle, ...]:
        """The primaries: from the dataset ``pdg``, else one, from the attribute or of the published data in this
        layout."""
        if "pdg" not in self.file:
            return (self._particle,)
        found = set(self._column("pdg", 0, None).tolist())
        known = {float(code): particle for particle, code in PDG_CODES.items()}
        if unknown := sorted(found - known.keys()):
            remedy = f"write {', '.join(f'{code} ({particle})' for particle, code in PDG_CODES.items())}"
            raise self.error("holds a number that is no known primary", "pdg", unknown[0], remedy)
        return tuple(particle for code, particle in known.items() if code in found)

    @property
    def _particle(self) -> Particle:
        voxels = self.shape[0] if self.layout == "calochallenge" else 0
        published = CALOCHALLENGE_PARTICLES.get(voxels, LAYOUT_PARTICLE)
        return cast(Particle, self._one_of(get_args(Particle), PARTICLE_ATTRIBUTE, published, "primary"))

    @property
    def cell_shape(self) -> CellShape:
        """How the cells lie: from the file's attribute, else that of the published data in this layout."""
        published = self.layout == "calochallenge" and self.shape[0] in CALOCHALLENGE_CELLS
        shape = "cylinder" if published else "grid"
        return cast(CellShape, self._one_of(get_args(CellShape), CELL_SHAPE_ATTRIBUTE, shape, "shape of cells"))

    @property
    def rebin(self) -> CellNumbers:
        """By how many cells along each axis the file's showers were summed."""
        value = str(self.attributes.get(REBIN_ATTRIBUTE, "1x1x1"))
        if not re.fullmatch(r"[1-9]\d{0,3}x[1-9]\d{0,3}x[1-9]\d{0,3}", value):
            remedy = "write numbers of cells along x, y and depth, such as 3x3x1"
            raise self.error("does not say how cells were summed", f"attribute {REBIN_ATTRIBUTE}", value, remedy)
        x, y, z = (int(number) for number in value.split("x"))
        return x, y, z

    def _energies_gev(self, start: int, stop: int | None) -> Floats:
        if self.layout == "calochallenge":
            return self._column("incident_energies", start, stop) / np.float32(1000)
        if self.layout == "variable-angle":
            return self._column("energy", start, stop)
        shape = self.file["target"].shape
        if not (len(shape) == 2 and shape[0] == len(self.cells) and shape[1] >= 2):
            raise self._length_error("target", shape, "(N, 2) or wider, with the energy in column 1")
        return np.asarray(self.file["target"][start:stop, 1], np.float32)

    def _angles_rad(self, start: int, stop: int | None, count: int) -> Floats:
        """Perpendicular where the file has none."""
        if "theta" in self.file:
            return self._column("theta", start, stop)
        if self.layout == "variable-angle":
            return self._column("mtheta", start, stop)
        return np.full(count, math.pi / 2, np.float32)

    @property
    def further(self) -> tuple[str, ...]:
        """Further columns of the table of primaries in the file."""
        return tuple(name for name in FURTHER if name in self.file)

    def primaries(
        self, start: int = 0, stop: int | None = None, columns: Sequence[str] | None = None
    ) -> dict[str, Floats]:
        """The table of primaries; columns: those beside energy and angle, absent: all that the file has.

        A file of one primary has its number in all rows of ``pdg``. Raises ShowerFileError for a column that the file
        does not have.
        """
        energies_gev = self._energies_gev(start, stop)
        table = {"energy_gev": energies_gev, "angle_rad": self._angles_rad(start, stop, len(energies_gev))}
        for name in self.further if columns is None else columns:
            if name == "pdg" and name not in self.file:
                table[name] = np.full(len(table["energy_gev"]), PDG_CODES[self._particle], np.float32)
                continue
            if name not in self.file:
                problem = "dataset is missing, and the run configuration has a range of it"
                remedy = "give files with this dataset, one number per shower, or leave its range out "
                remedy += "(data.azimuthDeg, data.entryMm)"
                raise self.error(problem, name, ", ".join(self.file), remedy)
            table[name] = self._column(name, start, stop)
        return table

    def check_shape(self, geometry: Geometry, rebin: CellNumbers = (1, 1, 1)) -> CellNumbers:
        """The cells of the file's showers along x, y and depth: those of the geometry, or these summed by ``rebin``.

        Raises ShowerFileError when they are neither, or there are none, or those of dataset 1 of the CaloChallenge.
        """
        stored, name = self.shape, self.cells_field
        if self.rebin not in ((1, 1, 1), rebin):
            found, wanted_rebin = ("x".join(map(str, factors)) for factors in (self.rebin, rebin))
            fault = f"cells are re-binned by {found}, and {wanted_rebin} is wanted"
            remedy = "give the run configuration of the model that made the showers (data.preprocessing.rebin); to "
            remedy += "train, give showers that are not re-binned"
            raise self.error(fault, f"attribute {REBIN_ATTRIBUTE}", stored, remedy)
        unstated = self.layout == "calochallenge" and CELL_SHAPE_ATTRIBUTE not in self.attributes
        if unstated and stored[0] in CALOCHALLENGE_PARTICLES:
            fault = "are of dataset 1 of the CaloChallenge, whose layers are divided differently: no regular cells"
            remedy = f"give dataset 2 or 3; into one of regular cells write the attribute {CELL_SHAPE_ATTRIBUTE}: grid"
            raise self.error(fault, name, stored, remedy)
        x, y, z = (cells // factor for cells, factor in zip(geometry.cells, self.rebin))
        wanted = (x * y * z,) if self.layout == "calochallenge" else (x, y, z)
        if stored != wanted:
            cells = CALOCHALLENGE_CELLS.get(stored[0]) if len(stored) == 1 else stored
            advice = list(cells) if cells else "three numbers whose product is the number of voxels"
            fault = f"showers have another shape than data.geometry.cells {list(geometry.cells)}"
            remedy = f"set data.geometry.cells to {advice}, with layers to match"
            if stored == tuple(number // factor for number, factor in zip(geometry.cells, rebin)):
                remedy = f"write how its cells were summed: caloscale.write_showers(showers, path, rebin={rebin})"
            raise self.error(fault, name, stored, remedy)
        if self.cell_shape != geometry.cell_shape:
            fault = f"holds showers in the cells of a {self.cell_shape}, data.geometry.cellShape is"
            remedy = f"set data.geometry.cellShape to {self.cell_shape}, or give other files"
            raise self.error(f"{fault} {geometry.cell_shape}", name, stored, remedy)
        published = CALOCHALLENGE_CELLS.get(stored[0]) if len(stored) == 1 else None
        if published and self.cell_shape == "cylinder" and (x, y, z) != published:
            fault = f"voxels of a cylinder are other cells than data.geometry.cells {list(geometry.cells)}"
            remedy = f"set data.geometry.cells to {list(published)} (azimuth, radius, depth), with layers to match"
            raise self.error(fault, name, stored, remedy)
        if len(self.cells) == 0:
            raise self.error("contains no showers", name, self.cells.shape, "leave the file out, or write it again")
        return x, y, z

    def _column(self, name: str, start: int, stop: int | None) -> NDArray[np.float32]:
        """A dataset of one number per shower, stored as (N,) or (N, 1)."""
        shape = self.file[name].shape
        if shape not in ((len(self.cells),), (len(self.cells), 1)):
            raise self._length_error(name, shape, "(N,) or (N, 1)")
        return np.asarray(self.file[name][start:stop], np.float32).reshape(-1)

    def _length_error(self, name: str, shape: tuple[int, ...], wanted: str) -> ShowerFileError:
        fault = f"does not go with {self.cells.name.lstrip('/')} of shape {self.cells.shape}"
        return self.error(fault, name, shape, f"one value per shower is needed: {wanted}")

    def _one_of(self, known: tuple[str, ...], attribute: str, published: str, kind: str) -> Plain:
        """The file's attribute, else what the published data of its layout have."""
        value = self.attributes.get(attribute, published)
        if value not in known:
            remedy = f"write one of {', '.join(known)}"
            raise self.error(f"is not a known {kind}", f"attribute {attribute}", value, remedy)
        return value

    def error(self, fault: str, field: str, value: object, remedy: str) -> ShowerFileError:
        """The refusal of this file."""
        return ShowerFileError(fault, file=self.path, field=field, value=value, remedy=remedy)


@contextmanager
def open_layout(path: str | Path) -> Iterator[OpenFile]:
    """Open an HDF5 file of showers and recognise its layout.

    Raises ShowerFileError when it cannot be read, is damaged (also later, within the block), lacks a
    dataset or has none of the layouts.
    """
    path = Path(path)
    _check_is_hdf5(path)
    try:
        check_structure(path)
        with h5py.File(path, "r") as file:
            opened = OpenFile(path, file, _recognise(path, file))
            _check_datasets(opened)
            yield opened
    except CaloscaleError:
        raise
    except Exception as error:  # a damaged file makes HDF5 raise nearly anything
        raise file_error(path, error) from error


def _check_is_hdf5(path: Path) -> None:
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ShowerFileError("is a device or a pipe", file=path, remedy="copy its content into an HDF5 file")
        is_hdf5 = superblock_version(path) is not None
        with path.open("rb") as file:
            beginning = file.read(8)
    except OSError as error:
        remedy = "give the path of an HDF5 file of showers"
        raise ShowerFileError(f"cannot be read: {error.strerror}", file=path, remedy=remedy) from error
    if not is_hdf5:
        problem = "is not HDF5" if beginning else "is empty"
        remedy = f"give an HDF5 file in one of the known layouts ({_KNOWN})"
        raise ShowerFileError(problem, file=path, value=beginning or None, remedy=remedy)


def _recognise(path: Path, file: h5py.File) -> Layout:
    found = list(file)
    present = set(found) | ({"theta"} if "mtheta" in found else set())
    missing = {layout: [d for d in datasets if d not in present] for layout, datasets in LAYOUTS.items()}
    layout = min(missing, key=lambda name: len(missing[name]) / len(LAYOUTS[name]))
    if not missing[layout]:
        return layout
    if len(missing[layout]) == len(LAYOUTS[layout]):
        problem = "has none of the known layouts"
        raise ShowerFileError(problem, file=path, field="datasets", value=found[:20], remedy=f"known layouts: {_KNOWN}")
    name = missing[layout][0]
    hint = suggest(name, set(found) - set(LAYOUTS[layout]))
    problem = f"dataset is missing (it looks like the {layout} layout)"
    remedy = f"{f'{hint} ' if hint else ''}known layouts: {_KNOWN}"
    raise ShowerFileError(problem, file=path, field=name, value=found[:20], remedy=remedy)


def _check_datasets(opened: OpenFile) -> None:
    """All that is read of the file must be there and be numbers, in the unit that it is read in."""
    rank = 2 if opened.layout == "calochallenge" else 4
    angle = "theta" if "theta" in opened.file else "mtheta"
    names = dict.fromkeys((*LAYOUTS[opened.layout], angle, *opened.further))
    for name in names:
        find_dataset(opened.path, opened.file, name)
    if opened.cells.ndim != rank:
        remedy = f"store {AXES[opened.layout]}"
        raise opened.error("has the wrong number of axes", opened.cells_field, opened.cells.shape, remedy)
    if opened.layout != "variable-angle":
        check_name_of_angle(opened.path, opened.file, "theta")
    energy_unit = "mev" if opened.layout == "calochallenge" else "gev"
    for name in names:
        if name not in opened.file:
            continue
        attributes = read_attributes(opened.path, opened.file[name])
        unit = str(attributes.get("units", attributes.get("unit", ""))).strip().lower()
        if name in (angle, "azimuth_rad"):
            differs, remedy = unit.startswith(("deg", "mrad")), "store rad"
        elif name in FURTHER:
            differs, remedy = unit in ("m", "cm", "um"), "store mm"
        elif name == opened.cells_field:
            now = opened.units_per_gev
            differs = not math.isclose(UNITS.get(unit, now), now)
            remedy = f"write the file's attribute {UNITS_ATTRIBUTE}: {UNITS.get(unit, now):g} (now {now:g})"
        else:
            differs, remedy = unit in UNITS and unit != energy_unit, f"store {energy_unit}"
        if differs:
            raise opened.error("has another unit than it is read in", f"{name}, attribute units", unit, remedy)


def check_name_of_angle(path: Path, names: Iterable[str], read: str) -> None:
    """Raise ShowerFileError for angles that have another name than is read: all showers would be perpendicular."""
    angles = [name for name in names if "theta" in name.lower() or "angle" in name.lower()]
    if angles and read not in angles:
        problem = f"is not read, and without {read} all showers are taken as perpendicular"
        remedy = f"name it {read} (rad, between direction and face), or remove it"
        raise ShowerFileError(problem, file=path, field=angles[0], remedy=remedy)
