"""Showers in HDF5."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np

from caloscale.showers.angles import measured_angle_rad
from caloscale.showers.arrays import Showers
from caloscale.showers.storage import atomic_writer
from caloscale.spec.data import Geometry

UNITS_PER_GEV = 50.0
"""Published ECAL arrays hold 50 units per GeV deposited."""
_CHUNK_BYTES = 512 * 1024


def write_showers(
    path: str | Path,
    showers: Showers,
    *,
    attributes: Mapping[str, str | int | float],
    geometry: Geometry | None = None,
) -> None:
    """Write showers in the published variable-angle layout, atomically.

    Datasets: ECAL (N, X, Y, Z) float32 in 1/50 GeV, energy (N,) GeV, theta (N,) rad, sum (N,) in
    1/50 GeV and, when a geometry is given, mtheta (N,): the angle measured from the shower, rad.
    Attributes: those given, and ``source``. Raises StorageError when the disk refuses.
    """
    # HDF5 crashes the interpreter when the disk fills up, so it writes to memory (compressed, some per
    # cent of what `showers` takes) and the bytes go to disk by ordinary means.
    image = io.BytesIO()
    with h5py.File(image, "w") as file:
        _fill(file, showers, geometry)
        file.attrs.update(attributes)
        file.attrs["source"] = showers.source
    with atomic_writer(path) as temporary:
        temporary.write_bytes(image.getbuffer())


def _fill(file: h5py.File, showers: Showers, geometry: Geometry | None) -> None:
    shape = showers.cells_gev.shape[1:]
    per_chunk = max(1, min(len(showers), _CHUNK_BYTES // (4 * int(np.prod(shape)))))
    cells = showers.cells_gev.astype(np.float32) * np.float32(UNITS_PER_GEV)
    file.create_dataset(
        "ECAL", data=cells, chunks=(per_chunk, *shape), compression="gzip", compression_opts=1, shuffle=True
    )
    file["energy"] = showers.energy_gev.astype(np.float32)
    file["theta"] = showers.angle_rad.astype(np.float32)
    file["sum"] = showers.ecal_sum_gev * np.float32(UNITS_PER_GEV)
    if geometry is not None:
        file["mtheta"] = measured_angle_rad(showers.cells_gev, geometry)
