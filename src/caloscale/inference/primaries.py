"""Which primaries showers are generated for: ranges, lists, or those of an earlier file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from caloscale.errors import InputError
from caloscale.random import primary_numbers
from caloscale.showers.hdf5.layouts import PARTICLE_ATTRIBUTE, open_layout
from caloscale.spec.data import Particle

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Span:
    """Evenly distributed between two ends."""

    low: float
    high: float


@dataclass(frozen=True)
class Primaries:
    """Energies and angles of any number of showers, by number of the shower.

    A `Span` is drawn from, with random numbers of the shower's own. Lists are taken in turn: all energies with the
    first angle, all with the second, ... Paired lists belong together, one energy and one angle per shower.
    """

    energies_gev: Span | Floats
    angles_rad: Span | Floats
    seed: int
    paired: bool = False

    def of(self, first: int, count: int) -> tuple[Floats, Floats]:
        """Energies in GeV and angles in rad of the showers first, first + 1, ...: (count,) each."""
        number = np.arange(first, first + count)
        drawn = primary_numbers(self.seed, first, count) if self._is_drawn else np.empty((count, 2))
        energies = _values(self.energies_gev, drawn[:, 0], number)
        turn = 1 if self.paired or isinstance(self.energies_gev, Span) else len(self.energies_gev)
        return energies, _values(self.angles_rad, drawn[:, 1], number // turn)

    @property
    def _is_drawn(self) -> bool:
        return isinstance(self.energies_gev, Span) or isinstance(self.angles_rad, Span)

    @property
    def energy_range_gev(self) -> tuple[float, float]:
        """Lowest and highest energy, GeV."""
        return _ends(self.energies_gev)

    @property
    def angle_range_deg(self) -> tuple[float, float]:
        """Lowest and highest angle, degrees."""
        low, high = _ends(self.angles_rad)
        return math.degrees(low), math.degrees(high)

    @property
    def length(self) -> int | None:
        """Number of showers of the file that was given."""
        return len(self.energies_gev) if self.paired and not isinstance(self.energies_gev, Span) else None


def parse_primaries(
    energies: str | None,
    angles: str | None,
    *,
    seed: int,
    default_energy_gev: tuple[float, float],
    default_angle_deg: tuple[float, float],
    particle: Particle = "e-",
) -> Primaries:
    """From what a user writes: energies in GeV and angles in degrees as "a..b", "a" or "a,b,c".

    ``energies`` may be an HDF5 file of showers of ``particle`` instead, which gives the angles too. Absent: the
    defaults. Raises InputError for other texts and impossible values and for a file of another primary,
    ShowerFileError for one that cannot be read.
    """
    if energies is not None and energies.endswith((".h5", ".hdf5")):
        if angles is not None:
            raise InputError(
                "the file of the energies gives them", field="angles", value=angles, remedy="leave them out"
            )
        return _of_file(Path(energies), seed, particle)
    energies_gev = Span(*default_energy_gev) if energies is None else _parse(energies, "energies", "GeV", math.inf)
    angles_deg = Span(*default_angle_deg) if angles is None else _parse(angles, "angles", "degrees", 180)
    if isinstance(angles_deg, Span):
        angles_rad: Span | Floats = Span(math.radians(angles_deg.low), math.radians(angles_deg.high))
    else:
        angles_rad = np.radians(angles_deg)
    return Primaries(energies_gev, angles_rad, seed)


def _of_file(path: Path, seed: int, particle: Particle) -> Primaries:
    with open_layout(path) as opened:
        if opened.particle != particle:
            raise InputError(
                f"holds showers of {opened.particle}, the model generates showers of {particle}",
                file=path,
                field=f"attribute {PARTICLE_ATTRIBUTE}",
                value=opened.particle,
                remedy=f"give a file of {particle}, a range of energies, or another model",
            )
        energies, angles = opened.energies_gev(), opened.angles_rad()
    for field, values, highest in (("energies", energies, np.inf), ("angles", angles, np.pi)):
        bad = ~((values > 0) & (values < highest))
        if len(values) == 0 or bad.any():
            raise InputError(
                "holds none" if len(values) == 0 else "holds one that is impossible",
                file=path,
                field=field,
                value=float(values[bad][0]) if bad.any() else None,
                remedy="give a file that `caloscale inspect` can read",
            )
    return Primaries(energies, angles, seed, paired=True)


def _parse(text: str, field: str, unit: str, highest: float) -> Span | Floats:
    low, dots, high = text.partition("..")
    try:
        numbers = [float(low), float(high)] if dots else [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(0 < number < highest for number in numbers) or (dots and numbers[0] > numbers[1]):
        bounds = "above 0" if highest == math.inf else f"between 0 and {highest:g}"
        raise InputError(
            f"must be {bounds} {unit}",
            field=field,
            value=text,
            remedy="write a range 10..500, a list 10,50,100 or" + (" an .h5 file" if unit == "GeV" else " one value"),
        )
    return Span(*numbers) if dots else np.array(numbers, np.float32)


def _values(of: Span | Floats, drawn: NDArray[np.float64], turn: NDArray[np.intp]) -> Floats:
    if isinstance(of, Span):
        return (of.low + (of.high - of.low) * drawn).astype(np.float32)
    return of[turn % len(of)]


def _ends(of: Span | Floats) -> tuple[float, float]:
    return (of.low, of.high) if isinstance(of, Span) else (float(of.min()), float(of.max()))
