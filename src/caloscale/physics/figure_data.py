"""The numbers behind the figures, kept with the result so that figures can be drawn again."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from caloscale.spec.block import Block

Numbers = tuple[float | None, ...]
Matrix = tuple[Numbers, ...]


class Curve(Block):
    """Values of one sample; with an x of its own where the samples have different positions."""

    values: Numbers
    errors: Numbers = ()
    """One standard deviation; empty: none."""
    x: Numbers = ()


class Panel(Block):
    """Curves over common edges (one more than values) or positions (as many as values)."""

    title: str = ""
    edges: Numbers = ()
    curves: dict[str, Curve]
    """By sample: reference, generated, untrained, baseline."""


class Map(Block):
    """Mean or single shower seen from the side, energy in x (rows) and z (columns)."""

    title: str
    reference: Matrix
    """MeV."""
    generated: Matrix
    """MeV."""


class FigureData(Block):
    """Everything that is drawn."""

    longitudinal: tuple[Panel, ...] = ()
    """Mean energy per layer in each range of energy, MeV."""
    transverse: tuple[Panel, ...] = ()
    """Mean energy per column and per row, MeV."""
    depth_x0: Numbers = ()
    spectrum: Panel | None = None
    """Cells per shower and bin of cell energy; edges in MeV."""
    occupancy: Panel | None = None
    """Mean part of the cells above a threshold; edges hold the thresholds, MeV."""
    distributions: dict[str, Panel] = {}
    """Share of the showers per bin, by observable."""
    moments: dict[str, Panel] = {}
    response: Panel | None = None
    """Mean sum/E against the energy, MeV/GeV."""
    sums: Panel | None = None
    """Mean sum against the energy, MeV."""
    resolution: Panel | None = None
    weighted_resolution: Panel | None = None
    maximum: Panel | None = None
    """Depth of the maximum against the energy, X0."""
    angle: Panel | None = None
    """Mean measured angle against the true one, degrees."""
    regression: Panel | None = None
    correlation_names: tuple[str, ...] = ()
    correlation_reference: Matrix = ()
    correlation_generated: Matrix = ()
    mean_showers: tuple[Map, ...] = ()
    examples: tuple[Map, ...] = ()
    extent: Numbers = ()
    """Half width of the window in x, mm."""


def number(value: Any) -> float | None:
    """A float of five significant digits, None where it is not finite."""
    value = float(value)
    return float(f"{value:.5g}") if math.isfinite(value) else None


def numbers(values: Any) -> Numbers:
    """A vector (N,) of such floats."""
    return tuple(number(v) for v in np.asarray(values, dtype=np.float64))


def matrix(values: Any) -> Matrix:
    """A matrix (N, M) of such floats."""
    return tuple(numbers(row) for row in values)
