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
from caloscale.showers.hdf5.layouts import DETECTOR_ATTRIBUTE, INCLINED_AXIS, CellNumbers, Layout, OpenFile, open_layout
from caloscale.showers.preprocessing import rebin as sum_cells
from caloscale.showers.primaries import FURTHER, Table
from caloscale.spec.data import HIGHEST_GEV, Geometry

_BLOCK_BYTES = 32 * 1024 * 1024
"""Cells that are in memory at a time where only their sums are needed."""

_ASYMMETRIC, _CHANCE = 0.1, 1e-12
"""Mean square of the relative differences between azimuths from which voxels have another order, and the probability
that showers which are symmetric in azimuth are refused. Parametrised showers of 1 GeV to 1 TeV have 0.11 to 15 in other
orders of the axes, 0.0001 to 0.07 in the right one; 0.13 where all are half a millimetre off the axis."""
SURE = 7.0
"""Standard deviations that a mean and a correlation exceed by chance with 1e-12."""
_UNIFORM, _FEWEST = 2 / 3, 20
"""Mean radius of a uniform density in a circle, over that of the circle: showers have 0.1; fewest showers for means and
correlations."""
_PIECES, _PIECE = 10, 100
"""Pieces of a file by which the order of its voxels is checked, and showers in each."""

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
    another shape, unequal lengths, NaN, infinite or negative cells, impossible energies or angles.
    """
    with open_layout(path) as opened:
        cells = opened.check_shape(geometry, rebin)
        if check is not None:
            check(opened)
        with np.errstate(all="ignore"):  # what is not finite is reported below, with its shower
            cells_gev = _to_axes(opened.cells[start:stop], opened, cells) / np.float32(opened.units_per_gev)
        columns = tuple(dict.fromkeys((*opened.further, "pdg")))
        showers = Showers.of(cells_gev, opened.primaries(start, stop, columns), opened.source, opened.cell_shape)
        showers = replace(showers, detector=str(opened.attributes.get(DETECTOR_ATTRIBUTE, "")))
        summed = opened.rebin == rebin
    check_cells(path, opened.cells_field, showers.cells_gev, start)
    check_primaries(path, opened.layout, showers.primaries, start)
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


def check_order(opened: OpenFile, cells: CellNumbers) -> None:
    """Raise ShowerFileError where CaloChallenge voxels of a cylinder are in another order, as far as its showers along
    the axis show it: see `_disorder`. cells: of azimuth, radius and depth. Showers of a generator may be anything."""
    if opened.layout != "calochallenge" or opened.cell_shape != "cylinder" or opened.source == "generated":
        return
    parts = []
    for start in range(0, len(opened.cells), max(_PIECE, len(opened.cells) // _PIECES)):
        voxels = _to_axes(opened.cells[start : start + _PIECE], opened, cells).astype(np.float64)
        primaries = opened.primaries(start, start + _PIECE, ())
        with np.errstate(all="ignore"):  # numbers that no shower has are reported where they are read
            sums, logarithm = voxels.sum(axis=(1, 2, 3)), np.log(primaries["energy_gev"], dtype=np.float64)
            usable = np.isfinite(sums * logarithm) & (sums > 0) & (voxels.min(axis=(1, 2, 3)) >= 0)
            usable &= np.abs(primaries["angle_rad"] - np.pi / 2) < 1e-3
        shares = voxels[usable] / sums[usable, None, None, None]
        radius = shares.sum(axis=(1, 3)) @ (np.arange(cells[1]) + 0.5) / cells[1]
        parts.append((shares.sum(axis=2), radius, logarithm[usable]))
    if not parts:
        return
    by_azimuth, radius, logarithm = map(np.concatenate, zip(*parts))
    alike = opened.particles in (("e-",), ("gamma",))
    if (problem := _disorder(by_azimuth, radius, logarithm if alike else None)) is not None:
        problem = f"mean energies of {len(radius)} showers {problem}, as of voxels in another order"
        remedy = (
            "store the voxels (layer, azimuth, radius), the radius changing first, with the axis through the centre, "
            "radii from the axis and layers from the front; of a bad generator, write the file's attribute source: "
            "generated"
        )
        raise opened.error(problem, opened.cells_field, opened.cells.shape, remedy)


def _disorder(
    by_azimuth: NDArray[np.float64], radius: NDArray[np.float64], log_energy: NDArray[np.float64] | None
) -> str | None:
    """What showers along the axis of a cylinder do not have: azimuths with unequal mean energies; more energy for an
    area far from the axis than near it; of electrons or photons, less deep showers at higher energies. by_azimuth:
    shares of the energy (N, azimuth, layer); radius (N,): mean of the energy, over that of the cylinder; log_energy
    (N,): of electrons or photons."""
    means = by_azimuth.mean(axis=1, keepdims=True)
    deviations = by_azimuth - means
    total, largest = np.sum(deviations.sum(axis=0) ** 2), 2 * math.log(2 / _CHANCE) * np.sum(deviations**2)
    # Each shower could as well be turned: its deviation is then a random vector of mean 0 (Pinelis' inequality).
    if total > largest and total > _ASYMMETRIC * by_azimuth.shape[1] * np.sum(means.sum(axis=0) ** 2):
        return "depend on the azimuth"
    if (count := len(radius)) < _FEWEST:
        return None
    if radius.mean() - SURE * radius.std() / math.sqrt(count) > _UNIFORM:
        return "are far from the axis"
    if log_energy is None:
        return None
    depth = by_azimuth.sum(axis=1) @ np.arange(by_azimuth.shape[2])
    return "are nearer to the front at higher energies" if correlated_sigmas(log_energy, depth) < -SURE else None


def correlated_sigmas(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Standard deviations by which two columns (N,), N > 3, are correlated: Fisher's transformation, about Gaussian.

    Not a number where a column has one value, which shows nothing.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.arctanh(np.corrcoef(first, second)[0, 1]) * math.sqrt(len(first) - 3))


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
            fault = f"shower {start + index} has {problem}"
            raise ShowerFileError(fault, file=path, field=field, value=value, remedy=advice)
