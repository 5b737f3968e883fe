"""Tables of primaries: a number per shower in each column, the columns named as in `spec.data.PrimaryRanges`.

``energy_gev`` and ``angle_rad`` are there always. A run configuration with these ranges adds ``azimuth_rad``, the
azimuth of the direction about the normal of the face; ``entry_x_mm`` and ``entry_y_mm``, the displacement from the line
that crosses the axis of the window; and ``pdg``, the primary by its Monte Carlo number. Files, shards, networks and
exported models have the columns under these names.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from caloscale.spec.data import PDG_CODES, PrimaryRanges

Floats = NDArray[np.float32]
Table = Mapping[str, Floats]
"""Columns (N,) by name."""


class Column(NamedTuple):
    """A column of a table of primaries."""

    field: str
    """Field of the run configuration that gives its range."""
    meaning: str
    """What its numbers are, with their unit."""


FURTHER = {
    "azimuth_rad": Column("data.azimuthDeg", "azimuth of the direction about the normal of the face, rad"),
    "entry_x_mm": Column("data.entryMm", "displacement along x from the line that crosses the axis of the window, mm"),
    "entry_y_mm": Column("data.entryMm", "displacement along y, mm"),
    "pdg": Column("data.particle", "Monte Carlo number of the primary"),
}
"""All columns after energy and angle, in their order."""


def draw_table(ranges: PrimaryRanges, count: int, random: np.random.Generator, *, first: int = 0) -> dict[str, Floats]:
    """``count`` primaries, uniform in the ranges and with equal shares of the particles, independent of each other.

    first: number of the first shower; the shares of consecutive pieces of a sample are equal together. Energies and
    angles do not depend on the other ranges: they are drawn first.
    """
    table = {
        "energy_gev": random.uniform(*ranges.energy_gev, size=count),
        "angle_rad": np.deg2rad(random.uniform(*ranges.angle_deg, size=count)),
    }
    for name, span in ranges.spans.items():
        if name == "pdg":
            codes = np.array([PDG_CODES[particle] for particle in ranges.particles])
            table[name] = random.permutation(codes[(first + np.arange(count)) % len(codes)])
        else:
            table[name] = random.uniform(*span, size=count)
    return {name: column.astype(np.float32) for name, column in table.items()}


def turned(table: Table, ranges: PrimaryRanges) -> dict[str, Floats]:
    """The table with azimuths, rad, changed by whole turns to within half a turn of the middle of their range."""
    if "azimuth_rad" not in table:
        return dict(table)
    azimuth, middle = table["azimuth_rad"].astype(np.float64), sum(ranges.spans.get("azimuth_rad", (0.0, 0.0))) / 2
    # The factor leaves both ends of a range of a whole turn as they are, in float32.
    turns = np.round((azimuth - middle) / (2 * math.pi) * (1 - 1e-7))
    return {**table, "azimuth_rad": (azimuth - 2 * math.pi * turns).astype(np.float32)}


def rows(table: Mapping[str, Any], index: Any) -> dict[str, Any]:
    """The primaries of a slice, a mask or an index array."""
    return {name: column[index] for name, column in table.items()}


def joined(tables: Sequence[Table]) -> dict[str, Floats]:
    """The primaries of several tables with the same columns, one after the other."""
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
