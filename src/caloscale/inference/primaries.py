"""Which primaries showers are generated for: ranges, lists, or those of an earlier file."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from caloscale.errors import InputError
from caloscale.random import primary_numbers
from caloscale.showers.hdf5.layouts import PARTICLE_ATTRIBUTE, open_layout
from caloscale.showers.hdf5.reader import check_primaries
from caloscale.showers.primaries import FURTHER, Floats, Table, turned
from caloscale.spec.data import PDG_CODES, PrimaryRanges

_ROUNDING = 1e-5
"""Rad, mm: numbers in float32 at the end of a range count as within."""
_OPTIONS = {
    "energies": ("energy_gev", 0.0, math.inf, "GeV", "10..500, a list 10,50,100"),
    "angles": ("angle_rad", 0.0, 180.0, "degrees", "60..120, a list 62,90,118"),
    "azimuths": ("azimuth_rad", -361.0, 361.0, "degrees", "-90..90, a list 0,45"),
    "entryX": ("entry_x_mm", -1e4, 1e4, "mm", "-2..2, a list 0,1"),
    "entryY": ("entry_y_mm", -1e4, 1e4, "mm", "-2..2, a list 0,1"),
}
"""By what a user names a column of numbers: the column, lowest and highest number, both excluded, unit and examples."""
_OPTION_OF = {"pdg": "particles"} | {column: option for option, (column, *_) in _OPTIONS.items()}


@dataclass(frozen=True)
class Span:
    """Evenly distributed between two ends."""

    low: float
    high: float


@dataclass(frozen=True)
class Primaries:
    """Tables of primaries of any number of showers, by number of the shower.

    A `Span` is drawn from, with random numbers of the shower's own. Lists are taken in turn: all energies with the
    first angle, all with the second, ... Paired lists belong together, one of each column per shower.
    """

    columns: Mapping[str, Span | Floats]
    seed: int
    paired: bool = False

    def of(self, first: int, count: int) -> dict[str, Floats]:
        """The table of the showers first, first + 1, ...: (count,) each."""
        number = np.arange(first, first + count)
        any_drawn = any(isinstance(column, Span) for column in self.columns.values())
        size = (count, len(self.columns))
        drawn = primary_numbers(self.seed, first, *size) if any_drawn else np.empty(size)
        table, turn = {}, 1
        for index, (name, column) in enumerate(self.columns.items()):
            table[name] = _values(column, drawn[:, index], number // turn)
            turn *= 1 if self.paired or isinstance(column, Span) else len(column)
        return table

    def range_of(self, column: str) -> tuple[float, float]:
        """Lowest and highest value of a column."""
        of = self.columns[column]
        return (of.low, of.high) if isinstance(of, Span) else (float(of.min()), float(of.max()))

    @property
    def turn(self) -> int:
        """Number of showers after which lists, or a file, begin again; 1 without a list."""
        lengths = [len(column) for column in self.columns.values() if not isinstance(column, Span)]
        return lengths[0] if self.paired else math.prod(lengths)


def broadcast(columns: Mapping[str, Floats], count: int | None) -> dict[str, Floats]:
    """Columns of one length: single numbers are repeated as often as the lists (N,) are long, or ``count`` times (None:
    once) where there is no list.

    Raises InputError for a negative count, and for a count that differs from the length of the lists.
    """
    lengths = {len(column) for column in columns.values() if column.ndim}
    if count is not None and (count < 0 or lengths - {count}):
        problem = "must be at least 0" if count < 0 else "is not the number of primaries that are given"
        remedy = "give single numbers with a count, or lists without one"
        raise InputError(problem, field="count", value=count, remedy=remedy)
    length = max(lengths) if lengths else 1 if count is None else count
    return {name: column if column.ndim else np.full(length, column) for name, column in columns.items()}


def check_columns(further: Iterable[str], trained: PrimaryRanges) -> None:
    """InputError unless these are the further columns that a model was trained with."""
    given, wanted = set(further), set(trained.spans)
    if unknown := sorted(given - wanted):
        problem = f"is no condition of this model, which was trained with {', '.join(trained.columns)}"
        field = FURTHER[unknown[0]].field if unknown[0] in FURTHER else "data"
        remedy = f"leave it out, or give a model that was trained with a range of it ({field})"
        raise InputError(problem, field=unknown[0], remedy=remedy)
    if missing := [name for name in trained.spans if name not in given]:
        remedy = f"give the column {missing[0]}, one number per shower: {_known(missing[0], trained)}"
        raise InputError("is a condition of this model and is not given", field=missing[0], remedy=remedy)


def check_trained(table: Table, trained: PrimaryRanges, *, options: bool = False) -> None:
    """InputError for a number in a further column that the model was not trained with; without a range, 0 was.

    Azimuths count modulo a turn. options: the error has names and units of the options of `parse_primaries`.
    """
    within_turn = turned(table, trained)
    for name in (column for column in FURTHER if column in table):
        column = within_turn[name]
        if name == "pdg":
            bad = ~np.isin(column, [PDG_CODES[particle] for particle in trained.particles])
        else:
            low, high = trained.spans.get(name, (0.0, 0.0))
            bad = ~((column >= low - _ROUNDING) & (column <= high + _ROUNDING))
        if bad.any():
            problem = "holds a number that the model was not trained with"
            number = float(table[name][bad][0])
            value: float | str = number
            if options and name == "pdg":
                problem = "holds a primary that the model was not trained with"
                value = next(particle for particle, code in PDG_CODES.items() if code == number)
            elif options and name == "azimuth_rad":
                value = round(math.degrees(number), 4)
            known = _known(name, trained, options=options)
            remedy = f"give {known}, or a model that was trained with it ({FURTHER[name].field})"
            raise InputError(problem, field=_OPTION_OF[name] if options else name, value=value, remedy=remedy)


def check_ranges(
    table: Mapping[str, NDArray[np.floating]], trained: PrimaryRanges, *, extrapolate: bool = False
) -> tuple[str, ...]:
    """InputError for energies, GeV, and angles, rad, that were not trained; with ``extrapolate`` warnings."""
    warnings = []
    angles_deg = np.degrees(np.asarray(table["angle_rad"], np.float64))
    for name, values, (low, high), unit in (
        ("energies", np.asarray(table["energy_gev"], np.float64), trained.energy_gev, "GeV"),
        ("angles", angles_deg, trained.angle_deg, "degrees"),
    ):
        rounding = 1e-5 * high
        if not len(values) or (values.min() >= low - rounding and values.max() <= high + rounding):
            continue
        asked = f"{values.min():g} to {values.max():g} {unit}"
        if not extrapolate:
            problem = f"go beyond the {low:g} to {high:g} {unit} that the generator was trained on"
            remedy = "stay within them, train a generator with these, or add --extrapolate (in Python "
            remedy += "extrapolate=True, with angles in rad): no verdict holds there"
            raise InputError(problem, field=name, value=asked, remedy=remedy)
        warnings.append(f"{name} {asked} go beyond the {low:g} to {high:g} that the generator was trained on")
    return tuple(warnings)


def _known(name: str, trained: PrimaryRanges, *, options: bool = False) -> str:
    """What a model was trained with in a further column, as numbers of the column or as an option has them."""
    if name == "pdg" and options:
        return " or ".join(trained.particles)
    if name == "pdg":
        return " or ".join(f"{PDG_CODES[particle]} ({particle})" for particle in trained.particles)
    if name == "azimuth_rad" and options:
        return "{:g} to {:g} degrees".format(*trained.azimuth_deg or (0.0, 0.0))
    low, high = trained.spans.get(name, (0.0, 0.0))
    return f"{low:g} to {high:g} {'rad' if name == 'azimuth_rad' else 'mm'}"


def parse_primaries(texts: Mapping[str, str | None], trained: PrimaryRanges, *, seed: int) -> Primaries:
    """From what a user writes, by option: numbers as "a..b", "a" or "a,b,c", angles in degrees; particles as
    "e-,gamma". Absent: what was trained on.

    Azimuths of a list become those of the trained range by whole turns. ``energies`` may be an HDF5 file of showers
    instead, which gives all columns. Raises InputError for other texts and impossible values, and for a file of another
    primary or further columns that the model was not trained with; ShowerFileError for a file that cannot be read.
    """
    given = {option: text for option, text in texts.items() if text is not None}
    if given.get("energies", "").endswith((".h5", ".hdf5")):
        path = Path(given.pop("energies"))
        for option, text in given.items():
            raise InputError("the file of the energies gives them", field=option, value=text, remedy="leave them out")
        return _of_file(path, trained, seed)
    low, high = (math.radians(angle) for angle in trained.angle_deg)
    columns: dict[str, Span | Floats] = {
        "energy_gev": Span(*trained.energy_gev),
        "angle_rad": Span(low, high),
        **{name: Span(*span) for name, span in trained.spans.items()},
    }
    if "pdg" in columns:
        columns["pdg"] = _codes(",".join(trained.particles))
    for option, text in given.items():
        if option == "particles":
            columns["pdg"] = _codes(text)
        else:
            columns[_OPTIONS[option][0]] = _parse(text, option)
    ends = {name: [one.low, one.high] if isinstance(one, Span) else one for name, one in columns.items()}
    azimuths = columns.get("azimuth_rad")
    if isinstance(azimuths, Span):
        # What is opposite to the middle of the trained azimuths is within a range that leaves and enters them again.
        opposite = sum(trained.spans.get("azimuth_rad", (0.0, 0.0))) / 2 + math.pi
        opposite += 2 * math.pi * math.ceil((azimuths.low - opposite) / (2 * math.pi))
        ends["azimuth_rad"] = [azimuths.low, azimuths.high, min(opposite, azimuths.high)]
    elif azimuths is not None:
        columns |= turned({"azimuth_rad": azimuths}, trained)
    check_trained({name: np.asarray(values, np.float32) for name, values in ends.items()}, trained, options=True)
    return Primaries({name: columns[name] for name in trained.columns}, seed)


def _of_file(path: Path, trained: PrimaryRanges, seed: int) -> Primaries:
    with open_layout(path) as opened:
        if not set(opened.particles) <= set(trained.particles):
            found = ", ".join(opened.particles)
            problem = f"holds showers of {found}, the model generates showers of {trained.particle_text}"
            remedy = f"give a file of {trained.particle_text}, a range of energies, or another model"
            raise InputError(problem, file=path, field=f"attribute {PARTICLE_ATTRIBUTE}", value=found, remedy=remedy)
        table = opened.primaries(columns=tuple(dict.fromkeys((*trained.spans, *opened.further))))
    if len(table["energy_gev"]) == 0:
        raise InputError("contains no showers", file=path, remedy="give a file with showers")
    check_primaries(path, opened.layout, table)
    check_trained(table, trained)
    return Primaries({name: table[name] for name in trained.columns}, seed, paired=True)


def _codes(text: str) -> Floats:
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in PDG_CODES]:
        remedy = f"write {', '.join(PDG_CODES)}"
        raise InputError("is not a known primary", field="particles", value=unknown[0], remedy=remedy)
    return np.array([PDG_CODES[name] for name in names], np.float32)  # type: ignore[index]


def _parse(text: str, option: str) -> Span | Floats:
    _, lowest, highest, unit, examples = _OPTIONS[option]
    low, dots, high = text.partition("..")
    try:
        numbers = [float(low), float(high)] if dots else [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if high.startswith("."):  # -2...2 would be -2 to 0.2
        numbers = []
    if not numbers or not all(lowest < number < highest for number in numbers) or (dots and numbers[0] > numbers[1]):
        bounds = f"above {lowest:g}" if highest == math.inf else f"between {lowest:g} and {highest:g}"
        remedy = f"write a range {examples} or" + (" an .h5 file" if unit == "GeV" else " one value")
        raise InputError(f"is no range or list of numbers {bounds} {unit}", field=option, value=text, remedy=remedy)
    if dots:
        return Span(*(map(math.radians, numbers) if unit == "degrees" else numbers))
    column = np.array(numbers, np.float32)
    return np.radians(column) if unit == "degrees" else column


def _values(of: Span | Floats, drawn: NDArray[np.float64], turn: NDArray[np.intp]) -> Floats:
    if isinstance(of, Span):
        return (of.low + (of.high - of.low) * drawn).astype(np.float32)
    return of[turn % len(of)]
