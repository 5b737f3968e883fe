"""Reading showers in HDF5, in the published layouts."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from caloscale.errors import ShowerFileError
from caloscale.progress import bar
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.layouts import INCLINED_AXIS, CellNumbers, Layout, OpenFile, open_layout
from caloscale.showers.preprocessing import rebin as sum_cells
from caloscale.showers.primaries import FURTHER, Table
from caloscale.spec.data import HIGHEST_GEV, Geometry

_BLOCK_BYTES = 32 * 1024 * 1024
"""Cells that are in memory at a time where only their sums are needed."""

_ASYMMETRIC, _CHANCE = 0.5, 1e-12
"""Mean square of the relative differences between azimuths from which voxels have another order, and the probability
that showers which are symmetric in azimuth are refused. Parametrised showers of 1 GeV to 1 TeV have 1.2 to 8 in the
orders (layer, r, alpha), (alpha, r, layer) and (r, alpha, layer), 0.15 to 0.7 in the other two, up to 0.02 in the right
one."""

REMOVE = "remove the shower or correct its numbers"
Check = tuple[str, str, NDArray[np.bool_], NDArray[np.floating], str]
"""Field, problem, showers that have it, their values, remedy."""


def read_showers(
    path: str | Path,
    *,
    geometry: Geometry,
    rebin: CellNumbers = (1, 1, 1),
    start: int = 0,
    stop: int | None = None,
    check: Callable[[OpenFile], None] | None = None,
) -> Showers:
    """The showers ``start:stop`` of an HDF5 file in one of the published layouts.

    Cells come as GeV in the axes (N, X, Y, Z) of the geometry, whatever the file's unit, with neighbours summed by
    ``rebin``: those of a file that is re-binned so (attribute ``rebin``) come as they are. In the
    CaloChallenge layout the voxels (layer, alpha, r) become (alpha, r, layer) and the angle is pi/2. The column ``pdg``
    is there always, from the dataset, the attribute ``particle`` or the layout. check: raises for a file that is not to
    be read.
    Raises ShowerFileError naming file, field, value and remedy: not HDF5, truncated, missing dataset,
    another shape, unequal lengths, NaN, infinite or negative cells, impossible energies or angles, voxels of a cylinder
    in another order.
    """
    with open_layout(path) as opened:
        cells = opened.check_shape(geometry, rebin)
        if check is not None:
            check(opened)
        with np.errstate(all="ignore"):  # what is not finite is reported below, with its shower
            cells_gev = _to_axes(opened.cells[start:stop], opened, cells) / np.float32(opened.units_per_gev)
        columns = tuple(dict.fromkeys((*opened.further, "pdg")))
        showers = Showers.of(cells_gev, opened.primaries(start, stop, columns), opened.source)
        showers = replace(showers, cell_shape=opened.cell_shape)
        summed = opened.rebin == rebin
        of_cylinder = opened.layout == "calochallenge" and opened.cell_shape == "cylinder"
    check_cells(path, opened.cells_field, showers.cells_gev, start)
    check_primaries(path, opened.layout, showers.primaries, start)
    if of_cylinder and showers.source != "generated":
        _check_order(path, showers)
    return showers if summed else replace(showers, cells_gev=sum_cells(showers.cells_gev, rebin))


def read_sums(opened: OpenFile) -> NDArray[np.float64]:
    """Sum of the cells of each shower, GeV (N,), block by block; a sum that a file stores may be of other cells.

    Raises ShowerFileError for cells that are negative or not finite.
    """
    count = len(opened.cells)
    size = max(1, _BLOCK_BYTES // (4 * math.prod(opened.cells.shape[1:])))
    sums = np.empty(count)
    with bar("sum of cells", count, "showers", disable=count <= size) as progress:
        for first in range(0, count, size):
            block = opened.cells[first : first + size].reshape(-1, math.prod(opened.cells.shape[1:]))
            check_cells(opened.path, opened.cells_field, block / np.float32(opened.units_per_gev), first)
            sums[first : first + len(block)] = block.sum(axis=1, dtype=np.float64)
            progress.update(len(block))
    return sums / opened.units_per_gev


def _to_axes(raw: NDArray[np.generic], opened: OpenFile, stored: CellNumbers) -> NDArray[np.float32]:
    cells = raw.astype(np.float32)
    if opened.layout == "variable-angle":
        return np.ascontiguousarray(np.swapaxes(cells, 1, INCLINED_AXIS))
    if opened.layout == "fixed-angle":
        return cells
    alpha, radius, layers = stored
    return np.ascontiguousarray(cells.reshape(-1, layers, alpha, radius).transpose(0, 2, 3, 1))


def _check_order(path: str | Path, showers: Showers) -> None:
    """Raise ShowerFileError where the mean energies of the azimuths of a layer differ as those of voxels in another
    order do. Showers along the axis of a cylinder have equal ones."""
    along_axis = showers[np.abs(showers.angle_rad - np.pi / 2) < 1e-3]
    shares = along_axis.cells_gev.sum(axis=2, dtype=np.float64)  # (N, azimuth, layer)
    shares /= np.maximum(shares.sum(axis=(1, 2), keepdims=True), np.finfo(np.float32).tiny)
    means = shares.mean(axis=1, keepdims=True)
    deviations = shares - means
    total, largest = np.sum(deviations.sum(axis=0) ** 2), 2 * math.log(2 / _CHANCE) * np.sum(deviations**2)
    # Each shower could as well be turned: its deviation is then a random vector of mean 0 (Pinelis' inequality).
    if total > largest and total > _ASYMMETRIC * shares.shape[1] * np.sum(means.sum(axis=0) ** 2):
        problem = f"mean energies of {len(shares)} showers depend on the azimuth, as of voxels in another order"
        remedy = (
            "store the voxels (layer, azimuth, radius), the radius changing first, with the axis through the centre"
        )
        remedy += "; of a bad generator, write the file's attribute source: generated"
        raise ShowerFileError(problem, file=path, field="showers", remedy=remedy)


def check_primaries(path: str | Path, layout: Layout | Literal["plain"], primaries: Table, start: int = 0) -> None:
    """Numbers that a primary can have; ShowerFileError names the first of the showers that has another.

    Degrees and MeV are found here, where the file is known: a selection by range would only leave such showers out.
    """
    energy_gev, angle_rad = primaries["energy_gev"], primaries["angle_rad"]
    energy, unit = {
        "variable-angle": ("energy", "GeV"),
        "fixed-angle": ("target[:, 1]", "GeV"),
        "calochallenge": ("incident_energies", "MeV"),
        "plain": ("energy_gev", "GeV"),
    }[layout]
    angle = "angle_rad" if layout == "plain" else "theta"
    where = "" if layout == "plain" else " in this layout"
    convert = f"energies are in {unit}{where}; convert them, or {REMOVE}"
    degrees = "angles are in rad, between direction and face; convert degrees"
    no_angle = ~((angle_rad > 0) & (angle_rad < np.pi))
    checks = [
        (energy, "an energy that is not positive", ~((energy_gev > 0) & np.isfinite(energy_gev)), energy_gev, REMOVE),
        (energy, f"an energy beyond {HIGHEST_GEV:g} GeV", energy_gev > HIGHEST_GEV, energy_gev, convert),
        (angle, "an angle that is not within 0 and pi", no_angle, angle_rad, degrees),
    ]
    for name in (name for name in primaries if name in FURTHER):
        column = primaries[name]
        checks.append((name, "a number that is not finite", ~np.isfinite(column), column, REMOVE))
    if "azimuth_rad" in primaries:
        azimuth = primaries["azimuth_rad"]
        beyond = np.abs(azimuth) > 2 * np.pi + 1e-3
        checks.append(("azimuth_rad", "an azimuth beyond a turn", beyond, azimuth, "azimuths are in rad; convert them"))
    refuse_first(path, checks, start)


def check_cells(path: str | Path, field: str, cells_gev: NDArray[np.floating], start: int) -> None:
    """Physical cells only; an error names the first shower that has another."""
    per_shower = cells_gev.reshape(len(cells_gev), math.prod(cells_gev.shape[1:]))
    lowest, highest = (np.min(per_shower, axis=1), np.max(per_shower, axis=1)) if len(cells_gev) else (np.empty(0),) * 2
    checks = [
        (field, "a cell that is not finite", ~np.isfinite(lowest + highest), highest, REMOVE),
        (field, "a negative cell (in GeV)", lowest < 0, lowest, f"set negative cells to zero, or {REMOVE}"),
    ]
    refuse_first(path, checks, start)


def refuse_first(path: str | Path, checks: Iterable[Check], start: int = 0) -> None:
    """Raise ShowerFileError for the first shower that has a problem."""
    for field, problem, is_bad, values, advice in checks:
        if is_bad.any():
            index = int(np.flatnonzero(is_bad)[0])
            value = float(f"{values[index]:.6g}")
            raise ShowerFileError(
                f"shower {start + index} has {problem}", file=path, field=field, value=value, remedy=advice
            )
