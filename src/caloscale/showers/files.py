"""Files of showers by their suffix: HDF5 in the published layouts, NumPy archives and ROOT trees with plain arrays.

A plain file has the arrays of `Showers` under their names: ``cells_gev`` (N, X, Y, Z) in GeV, ``energy_gev`` (N,) in
GeV, ``angle_rad`` (N,) in rad, or none where all particles are perpendicular, and further columns of the primaries.
The origin of those that are written is ``source``: an array of an archive, a TObjString beside a tree.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from caloscale.errors import InputError, ShowerFileError
from caloscale.installation import load_package
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.layouts import (
    CELL_SHAPE_ATTRIBUTE,
    DETECTOR_ATTRIBUTE,
    REBIN_ATTRIBUTE,
    CellNumbers,
    OpenFile,
    check_name_of_angle,
)
from caloscale.showers.hdf5.reader import check_cells, check_primaries
from caloscale.showers.hdf5.reader import read_showers as read_hdf5
from caloscale.showers.hdf5.writer import write_showers as write_hdf5
from caloscale.showers.preprocessing import rebin as sum_cells
from caloscale.showers.primaries import FURTHER
from caloscale.spec.data import Geometry
from caloscale.storage.atomic import atomic_writer

SUFFIXES = (".h5", ".hdf5", ".npz", ".root")
TREE = "showers"
"""Name of the ROOT tree that is written; a file with one tree is read whatever its name."""


def read_showers(
    path: str | Path,
    *,
    geometry: Geometry,
    rebin: CellNumbers = (1, 1, 1),
    start: int = 0,
    stop: int | None = None,
    check: Callable[[OpenFile], None] | None = None,
) -> Showers:
    """The showers ``start:stop`` of a file, in GeV, with neighbouring cells summed by ``rebin``.

    Plain files whose cells are those of the geometry are re-binned; those that are re-binned already stay so. check:
    raises for an HDF5 file that is not to be read.
    Raises ShowerFileError naming file, field, value and remedy for what is missing, damaged or impossible, and
    InputError for a ROOT file without uproot, and for a start or stop that is no integer.
    """
    for field, value in (("start", start), ("stop", stop)):
        if not isinstance(value, int | np.integer | None):
            raise InputError("is no integer", field=field, value=value, remedy="give the number of a shower")
    path = Path(path)
    if path.suffix not in (".npz", ".root"):
        return read_hdf5(path, geometry=geometry, rebin=rebin, start=start, stop=stop, check=check)
    arrays = _read_npz(path) if path.suffix == ".npz" else _read_root(path)
    for name in ("cells_gev", "energy_gev"):
        if name not in arrays:
            remedy = "write cells_gev (N, X, Y, Z) and energy_gev (N,) in GeV, angle_rad (N,) in rad"
            raise ShowerFileError("array is missing", file=path, field=name, value=", ".join(arrays), remedy=remedy)
    check_name_of_angle(path, arrays, "angle_rad")
    cells, part = arrays["cells_gev"], slice(start, stop)
    whole = tuple(geometry.cells)
    summed = tuple(number // factor for number, factor in zip(whole, rebin))
    if cells.ndim != 4 or cells.shape[1:] not in (whole, summed):
        problem = f"showers have another shape than data.geometry.cells {list(whole)}"
        remedy = "write (N, X, Y, Z), or set data.geometry.cells, with layers to match"
        raise ShowerFileError(problem, file=path, field="cells_gev", value=cells.shape, remedy=remedy)
    columns = {"angle_rad": np.full(len(cells), math.pi / 2)} | {
        name: arrays[name] for name in ("energy_gev", "angle_rad", *FURTHER) if name in arrays
    }
    for name, column in (("cells_gev", cells), *columns.items()):
        if column.dtype.kind not in "fiu":
            problem = "is no array of numbers of one shape"
            remedy = "write floats, of equal number for each shower"
            raise ShowerFileError(problem, file=path, field=name, value=str(column.dtype), remedy=remedy)
        if name != "cells_gev" and column.shape != (len(cells),):
            problem = f"does not go with cells_gev of shape {cells.shape}"
            remedy = "one number for each shower is needed: (N,)"
            raise ShowerFileError(problem, file=path, field=name, value=column.shape, remedy=remedy)
    primaries = {name: column[part].astype(np.float32) for name, column in columns.items()}
    source = str(arrays.get("source", "file"))
    showers = Showers.of(cells[part].astype(np.float32), primaries, source, geometry.cell_shape)
    showers = replace(showers, detector=str(arrays.get(DETECTOR_ATTRIBUTE, "")))
    check_cells(path, "cells_gev", showers.cells_gev, start)
    check_primaries(path, "plain", showers.primaries, start)
    if cells.shape[1:] == summed:
        return showers
    return replace(showers, cells_gev=sum_cells(showers.cells_gev, rebin))


def write_showers(showers: Showers, path: str | Path, *, rebin: CellNumbers = (1, 1, 1)) -> None:
    """Write a file that `caloscale.read_showers` reads, by its suffix.

    path: .h5 or .hdf5 (variable-angle layout), .npz, or with uproot .root (tree ``showers``).
    rebin: by how many cells along each axis the cells are summed, as in generated showers; HDF5 files state it, and
        the shape of the cells.
    Raises ShowerFileError for another suffix, InputError without uproot, StorageError when the disk refuses.
    """
    path = Path(path)
    detector = {DETECTOR_ATTRIBUTE: showers.detector} if showers.detector else {}
    if path.suffix not in SUFFIXES:
        remedy = f"use {', '.join(SUFFIXES)}"
        raise ShowerFileError("has no suffix of a file of showers", file=path, value=path.suffix, remedy=remedy)
    if path.suffix in (".h5", ".hdf5"):
        attributes = {REBIN_ATTRIBUTE: "x".join(map(str, rebin)), CELL_SHAPE_ATTRIBUTE: showers.cell_shape}
        write_hdf5(path, showers, attributes=attributes | detector)
        return
    arrays: dict[str, Any] = {"cells_gev": showers.cells_gev, **showers.primaries}
    texts: dict[str, Any] = {"source": showers.source} | detector
    uproot = load_package("uproot") if path.suffix == ".root" else None
    with atomic_writer(path) as temporary:
        if uproot is None:
            with temporary.open("wb") as file:
                np.savez_compressed(file, **arrays, **texts)
        else:
            with uproot.recreate(temporary) as file:
                file.mktree(TREE, {name: (array.dtype, array.shape[1:]) for name, array in arrays.items()})
                file[TREE].extend(arrays)
                for name, text in texts.items():
                    file[name] = text


def _read_npz(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # zipfile, zlib and NumPy have their own
        raise _unreadable(path, "NumPy archive", error) from error


def _read_root(path: Path) -> dict[str, Any]:
    uproot = load_package("uproot")
    try:
        with uproot.open(path) as file:
            kinds = file.classnames(cycle=False)
            trees = [name for name, kind in kinds.items() if kind == "TTree"]
            if len(trees) != 1 and TREE not in trees:
                remedy = f"name the tree {TREE}"
                raise ShowerFileError("does not have one tree", file=path, field="trees", value=trees, remedy=remedy)
            tree = file[TREE if TREE in trees else trees[0]]
            check_name_of_angle(path, tree.keys(), "angle_rad")
            names = [name for name in tree.keys() if name in ("cells_gev", "energy_gev", "angle_rad", *FURTHER)]  # noqa: SIM118
            arrays: dict[str, Any] = {name: np.asarray(tree[name].array(library="np")) for name in names}
            texts = [name for name in ("source", DETECTOR_ATTRIBUTE) if kinds.get(name) == "TObjString"]
            return arrays | {name: str(file[name]) for name in texts}
    except ShowerFileError:
        raise
    except Exception as error:  # uproot raises nearly anything for a damaged file
        raise _unreadable(path, "ROOT file", error) from error


def _unreadable(path: Path, what: str, error: Exception) -> ShowerFileError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return ShowerFileError(f"cannot be read as a {what}: {reason}", file=path, remedy="copy or write the file again")
