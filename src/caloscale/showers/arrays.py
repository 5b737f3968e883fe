"""What a shower is in memory."""

import html
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caloscale.detector.angle import direction_of
from caloscale.errors import InputError
from caloscale.installation import load_package
from caloscale.showers.primaries import Table, rows
from caloscale.spec.data import CellShape


@dataclass(frozen=True)
class Showers:
    """N showers: deposited energy per cell, primary energy and angle.

    cells_gev: float32 (N, X, Y, Z), GeV deposited in the silicon (visible energy), never negative.
    energy_gev: float32 (N,), energy of the primary, GeV.
    angle_rad: float32 (N,), angle between direction and face in the x-z plane, rad; pi/2 is perpendicular.
    source: "geant4", "parametrised", "generated" or "file" (unknown origin).
    further: the other columns of the table of primaries, (N,) each, by name (`showers.primaries`).
    seed: of generated showers, which are the same again with it; None: not known.
    cell_shape: how the cells lie, as `spec.data.Geometry.cell_shape`; of a cylinder X is azimuth and Y radius.
    detector: that of the simulation, as a file's attribute simulatedDetector (JSON) states it; empty: not known.
    """

    cells_gev: NDArray[np.float32]
    energy_gev: NDArray[np.float32]
    angle_rad: NDArray[np.float32]
    source: str = "file"
    further: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    seed: int | None = None
    cell_shape: CellShape = "grid"
    detector: str = ""

    @classmethod
    def of(
        cls, cells_gev: NDArray[np.float32], primaries: Table, source: str, cell_shape: CellShape = "grid"
    ) -> "Showers":
        """Showers of the primaries of a table."""
        further = dict(primaries)
        energy_gev, angle_rad = further.pop("energy_gev"), further.pop("angle_rad")
        return cls(cells_gev, energy_gev, angle_rad, source, further, cell_shape=cell_shape)

    def __post_init__(self) -> None:
        arrays = {"cells_gev": self.cells_gev, **self.primaries}
        if others := [name for name, array in arrays.items() if not hasattr(array, "shape")]:
            kind, remedy = type(arrays[others[0]]).__name__, f"give numpy.asarray({others[0]}, numpy.float32)"
            raise InputError("is no array", field=others[0], value=kind, remedy=remedy)
        count = len(self.cells_gev)
        if self.cells_gev.ndim != 4 or any(column.shape != (count,) for column in self.primaries.values()):
            names = ", ".join(arrays)
            shapes = tuple(each.shape for each in arrays.values())
            remedy = "give (N, X, Y, Z), and (N,) for each of the others"
            raise InputError("arrays do not belong together", field=names, value=shapes, remedy=remedy)

    def __len__(self) -> int:
        return len(self.cells_gev)

    def __repr__(self) -> str:
        """One line: how many showers, cells, ranges of the primaries, origin."""
        cells = " x ".join(map(str, self.cells_gev.shape[1:]))
        seed = "" if self.seed is None else f", seed {self.seed}"
        if not len(self):
            return f"Showers(0 of {cells} cells, {self.source}{seed})"
        energy, angle = _range(self.energy_gev), _range(np.degrees(self.angle_rad))
        return f"Showers({len(self)} of {cells} cells, {energy} GeV, {angle} degrees, {self.source}{seed})"

    def _repr_html_(self) -> str:
        """The same with the mean energy of each layer as a picture, for notebooks."""
        text = html.escape(repr(self))
        layers_gev = self.cells_gev.sum(axis=(1, 2), dtype=np.float64).mean(axis=0) if len(self) else np.zeros(1)
        if not layers_gev.max() > 0:
            return f"<code>{text}</code>"
        width, height = 8, 60
        bars = "".join(
            f'<rect x="{width * layer}" y="{height * (1 - share):.1f}" width="{width - 1}" '
            f'height="{height * share:.1f}"/>'
            for layer, share in enumerate(np.nan_to_num(layers_gev / layers_gev.max()))
        )
        picture = f'<svg width="{width * len(layers_gev)}" height="{height}" fill="currentColor">{bars}</svg>'
        title = f"mean energy of a layer, highest {1e3 * layers_gev.max():.3g} MeV"
        return f"<code>{text}</code><br/>{picture}<br/><small>{title}</small>"

    def __getitem__(self, index: slice | NDArray[np.generic]) -> "Showers":
        """The showers of a slice, a mask or an index array.

        The first ones keep ``seed``; it would make others of the primaries of another selection.
        """
        first = isinstance(index, slice) and not index.start and index.step in (None, 1)
        return replace(
            self,
            cells_gev=self.cells_gev[index],
            energy_gev=self.energy_gev[index],
            angle_rad=self.angle_rad[index],
            further=rows(self.further, index),
            seed=self.seed if first else None,
        )

    @property
    def primaries(self) -> dict[str, NDArray[np.float32]]:
        """The table of primaries."""
        return {"energy_gev": self.energy_gev, "angle_rad": self.angle_rad, **self.further}

    @property
    def ecal_sum_gev(self) -> NDArray[np.float32]:
        """Sum of the cells of each shower, GeV (N,)."""
        sums: NDArray[np.float32] = self.cells_gev.sum(axis=(1, 2, 3), dtype=np.float64).astype(np.float32)
        return sums

    def to_awkward(self) -> Any:
        """An Awkward array of N records: the columns of the primaries, and in ``cells`` those with energy, as records
        of x, y, layer (cell numbers from 0) and energy_gev. Raises InputError without the package awkward."""
        awkward = load_package("awkward")
        shower, x, y, layer = np.nonzero(self.cells_gev)
        energies = self.cells_gev[shower, x, y, layer]
        hits = awkward.zip({"x": x, "y": y, "layer": layer, "energy_gev": energies})
        cells = awkward.unflatten(hits, np.bincount(shower, minlength=len(self)))
        return awkward.zip({**self.primaries, "cells": cells}, depth_limit=1)

    def to_showerdata(self, pdg: int | None = None) -> Any:
        """Point clouds of the package ShowerData: of each cell with energy x, y, layer (cell numbers from 0) and GeV,
        filled with zeros to the longest shower; energies in GeV, directions as unit vectors.

        pdg: number of the primary; None: the column ``pdg``. Raises InputError without that, and without the package
        showerdata.
        """
        particle = self.further.get("pdg") if pdg is None else np.full(len(self), pdg)
        if particle is None:
            raise InputError("the showers do not say their primary", field="pdg", remedy="give pdg=11 for electrons")
        showerdata = load_package("showerdata")
        shower, *cell = np.nonzero(self.cells_gev)
        counts = np.bincount(shower, minlength=len(self))
        place = np.arange(len(shower)) - np.repeat(np.cumsum(counts) - counts, counts)
        points = np.zeros((len(self), counts.max(initial=0), 4), np.float32)
        points[shower, place] = np.column_stack([*cell, self.cells_gev[shower, *cell]])
        return showerdata.Showers(
            points, self.energy_gev[:, None], particle.astype(np.int32), direction_of(self.primaries)
        )


def _range(values: NDArray[np.floating]) -> str:
    low, high = f"{values.min():.4g}", f"{values.max():.4g}"
    return low if low == high else f"{low} to {high}"
