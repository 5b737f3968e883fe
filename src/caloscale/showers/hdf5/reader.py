"""Showers in HDF5: reading the published layouts, writing one of them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from caloscale.detector.angle import measured_angle_rad
from caloscale.errors import ShowerFileError
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.layouts import (
    INCLINED_AXIS,
    UNITS_ATTRIBUTE,
    UNITS_PER_GEV,
    Layout,
    OpenFile,
    Source,
    open_layout,
)
from caloscale.showers.hdf5.sandbox import fixed_length
from caloscale.spec.block import Block
from caloscale.spec.data import HIGHEST_GEV, Geometry
from caloscale.storage.atomic import atomic_writer

__all__ = ["FileDescription", "Layout", "describe_file", "read_showers", "write_showers"]

REMOVE = "remove the shower or write the file again"
Check = tuple[str, str, NDArray[np.bool_], NDArray[np.floating], str]
"""Field, problem, showers that have it, their values, remedy."""
_CHUNK_BYTES = 512 * 1024


class FileDescription(Block):
    """What an HDF5 file of showers holds, from cheap reads."""

    file: str
    """Path of the file."""
    layout: Layout
    """Which published layout it has."""
    showers: int
    """Number of showers."""
    shape: tuple[int, ...]
    """Shape of one shower as stored: (X, Y, Z), or (voxels,) in the CaloChallenge layout."""
    bytes: int
    """Size of the file."""
    energy_gev: tuple[float, float] | None
    """Lowest and highest primary energy, GeV; absent without showers."""
    angle_deg: tuple[float, float] | None
    """Lowest and highest angle, degrees; absent without showers."""
    sum_gev: tuple[float, float] | None
    """Lowest and highest sum of cells, GeV, where the file stores the sums."""
    units_per_gev: float
    """Units of a stored cell per GeV."""
    source: Source
    """Origin of the showers."""
    datasets: dict[str, str]
    """Type and shape of each dataset."""
    attributes: dict[str, str | int | float]
    """Attributes of the file."""


def describe_file(path: str | Path) -> FileDescription:
    """What a file holds, without reading its cells. Raises ShowerFileError as `read_showers` does."""
    with open_layout(path) as opened:
        energies, angles = opened.energies_gev(), opened.angles_rad()
        sums = opened.file["sum"][...] / opened.units_per_gev if "sum" in opened.file else np.empty(0)
        datasets = {n: d for n, d in opened.file.items() if isinstance(d, h5py.Dataset)}
        return FileDescription(
            file=str(path),
            layout=opened.layout,
            showers=len(opened.cells),
            shape=opened.shape,
            bytes=Path(path).stat().st_size,
            energy_gev=span(energies),
            angle_deg=span(np.degrees(angles)),
            sum_gev=span(sums),
            units_per_gev=opened.units_per_gev,
            source=opened.source,
            datasets={name: f"{d.dtype} {d.shape}" for name, d in datasets.items()},
            attributes=opened.attributes,
        )


def read_showers(path: str | Path, *, geometry: Geometry, start: int = 0, stop: int | None = None) -> Showers:
    """The showers ``start:stop`` of an HDF5 file in one of the published layouts.

    Cells come as GeV in the axes (N, X, Y, Z) of the geometry, whatever the file's unit. In the
    CaloChallenge layout the voxels (layer, alpha, r) become (alpha, r, layer) and the angle is pi/2.
    Raises ShowerFileError naming file, field, value and remedy: not HDF5, truncated, missing dataset,
    another shape, unequal lengths, NaN, infinite or negative cells, impossible energies or angles.
    """
    with open_layout(path) as opened:
        opened.check_shape(geometry)
        with np.errstate(all="ignore"):  # what is not finite is reported below, with its shower
            cells_gev = _to_axes(opened.cells[start:stop], opened, geometry) / np.float32(opened.units_per_gev)
        showers = Showers(
            cells_gev=cells_gev,
            energy_gev=opened.energies_gev(start, stop),
            angle_rad=opened.angles_rad(start, stop),
            source=opened.source,
        )
    _check_cells(path, opened.layout, showers, start)
    check_primaries(path, opened.layout, showers.energy_gev, showers.angle_rad, start)
    return showers


def write_showers(
    path: str | Path,
    showers: Showers,
    *,
    attributes: Mapping[str, str | int | float],
    geometry: Geometry | None = None,
) -> None:
    """Write showers in the published variable-angle layout, atomically.

    Datasets: ECAL (N, Y, X, Z) float32 in 1/50 GeV (see `layouts.INCLINED_AXIS`), energy (N,) GeV,
    theta (N,) rad, sum (N,) in 1/50 GeV and, when a geometry is given, mtheta (N,): the angle measured from
    the shower, rad.
    Attributes: those given, ``source`` and ``unitsPerGev``. Raises StorageError when the disk refuses.
    """
    if len(showers) == 0:
        raise ShowerFileError("there are no showers to write", file=path, remedy="make at least one")
    # HDF5 crashes the interpreter when the disk fills up, so it writes to memory (compressed, some per
    # cent of what `showers` takes) and the bytes go to disk by ordinary means.
    image = io.BytesIO()
    # The format of HDF5 1.10 has checksums, the default has none: see `probe`.
    with h5py.File(image, "w", libver=("v110", "v110")) as file:
        _fill(file, showers, geometry)
        given = {**attributes, "source": showers.source, UNITS_ATTRIBUTE: UNITS_PER_GEV["variable-angle"]}
        for name, value in given.items():
            file.attrs[name] = fixed_length(value) if isinstance(value, str) else value
    with atomic_writer(path) as temporary:
        temporary.write_bytes(image.getbuffer())


def _fill(file: h5py.File, showers: Showers, geometry: Geometry | None) -> None:
    units = np.float32(UNITS_PER_GEV["variable-angle"])
    cells = np.swapaxes(showers.cells_gev, 1, INCLINED_AXIS).astype(np.float32)
    shape = cells.shape[1:]
    per_chunk = max(1, min(len(showers), _CHUNK_BYTES // (4 * int(np.prod(shape)))))
    file.create_dataset(
        "ECAL",
        data=cells * units,
        chunks=(per_chunk, *shape),
        compression="gzip",
        compression_opts=1,
        shuffle=True,
    )
    numbers = {"energy": showers.energy_gev, "theta": showers.angle_rad, "sum": showers.ecal_sum_gev * units}
    if geometry is not None:
        numbers["mtheta"] = measured_angle_rad(showers.cells_gev, geometry)
    for name, values in numbers.items():
        file.create_dataset(name, data=values.astype(np.float32), fletcher32=True)


def _to_axes(raw: NDArray[np.generic], opened: OpenFile, geometry: Geometry) -> NDArray[np.float32]:
    cells = raw.astype(np.float32)
    if opened.layout == "variable-angle":
        return np.ascontiguousarray(np.swapaxes(cells, 1, INCLINED_AXIS))
    if opened.layout == "fixed-angle":
        return cells
    alpha, radius, layers = geometry.cells
    return np.ascontiguousarray(cells.reshape(-1, layers, alpha, radius).transpose(0, 2, 3, 1))


def check_primaries(
    path: str | Path,
    layout: Layout,
    energy_gev: NDArray[np.floating],
    angle_rad: NDArray[np.floating],
    start: int = 0,
) -> None:
    """Energies and angles that a primary can have; ShowerFileError names the first of the showers that has another.

    Degrees and MeV are found here, where the file is known: a selection by range would only leave such showers out.
    """
    energy, unit = {
        "variable-angle": ("energy", "GeV"),
        "fixed-angle": ("target[:, 1]", "GeV"),
        "calochallenge": ("incident_energies", "MeV"),
    }[layout]
    checks = [
        (energy, "an energy that is not positive", ~((energy_gev > 0) & np.isfinite(energy_gev)), energy_gev, REMOVE),
        (
            energy,
            f"an energy beyond {HIGHEST_GEV:g} GeV",
            energy_gev > HIGHEST_GEV,
            energy_gev,
            f"energies are in {unit} in this layout; convert them, or {REMOVE}",
        ),
        (
            "theta",
            "an angle that is not within 0 and pi",
            ~((angle_rad > 0) & (angle_rad < np.pi)),
            angle_rad,
            "angles are in rad, between direction and face; convert degrees",
        ),
    ]
    _refuse_first(path, checks, start)


def _check_cells(path: str | Path, layout: Layout, showers: Showers, start: int) -> None:
    """Physical cells only; an error names the first shower that has another."""
    per_shower = showers.cells_gev.reshape(len(showers), -1)
    lowest, highest = (np.min(per_shower, axis=1), np.max(per_shower, axis=1)) if len(showers) else (np.empty(0),) * 2
    cells = "showers" if layout == "calochallenge" else "ECAL"
    checks = [
        (cells, "a cell that is not finite", ~np.isfinite(lowest + highest), highest, REMOVE),
        (cells, "a negative cell (in GeV)", lowest < 0, lowest, f"set negative cells to zero, or {REMOVE}"),
    ]
    _refuse_first(path, checks, start)


def _refuse_first(path: str | Path, checks: Iterable[Check], start: int) -> None:
    for field, problem, is_bad, values, advice in checks:
        if is_bad.any():
            index = int(np.flatnonzero(is_bad)[0])
            raise ShowerFileError(
                f"shower {start + index} has {problem}",
                file=path,
                field=field,
                value=float(f"{values[index]:.6g}"),
                remedy=advice,
            )


def span(values: NDArray[np.generic]) -> tuple[float, float] | None:
    """Lowest and highest finite value, to the six digits that float32 has; None without any."""
    finite = values[np.isfinite(values)] if values.dtype.kind in "fiu" else np.empty(0)
    return (float(f"{finite.min():.6g}"), float(f"{finite.max():.6g}")) if finite.size else None
