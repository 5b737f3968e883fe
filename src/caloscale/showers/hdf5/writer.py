"""Writing showers in HDF5, batch by batch: the memory does not grow with their number."""

import io
import math
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from caloscale.detector.angle import measured_angle_rad
from caloscale.errors import ShowerFileError
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.layouts import INCLINED_AXIS, UNITS_ATTRIBUTE, UNITS_PER_GEV, Layout
from caloscale.showers.hdf5.sandbox import fixed_length
from caloscale.spec.data import Geometry
from caloscale.storage.atomic import atomic_writer

_CHUNK_BYTES = 512 * 1024
_COLUMN_CHUNK = 16_384
"""Numbers in a chunk of a dataset with one number per shower."""


class ShowerWriter:
    """Appends batches of showers to a file; see `open_writer`."""

    def __init__(
        self, file: h5py.File, count: int, shape: tuple[int, int, int], layout: Layout, disk: "_Disk", **measure: Any
    ) -> None:
        self._file, self._count, self._shape, self._layout, self._disk = file, count, shape, layout, disk
        self._measure, self._units = measure, np.float32(UNITS_PER_GEV[layout])
        self.written = 0
        """Showers so far."""
        stored = (math.prod(shape),) if layout == "calochallenge" else (shape[1], shape[0], shape[2])
        per_chunk = max(1, min(count, _CHUNK_BYTES // (4 * math.prod(shape))))
        self._cells = file.create_dataset(
            "showers" if layout == "calochallenge" else "ECAL",
            (count, *stored),
            np.float32,
            chunks=(per_chunk, *stored),
            compression="gzip",
            compression_opts=1,
            shuffle=True,
        )

    def write(self, showers: Showers) -> None:
        """Append a batch. Raises OSError when the disk refuses, ShowerFileError for other or too many showers."""
        first, last = self.written, self.written + len(showers)
        if showers.cells_gev.shape[1:] != self._shape or last > self._count:
            value = (showers.cells_gev.shape[1:], last)
            remedy = f"write {self._count} of shape {self._shape}"
            raise ShowerFileError("does not take these showers", field="shape, number", value=value, remedy=remedy)
        cells, columns = self._stored(showers.cells_gev) * self._units, self._columns(showers)
        with _uninterrupted():
            self._cells[first:last] = cells
            for name, values in columns.items():
                if name not in self._file:
                    shape, chunk = ((n, 1)[: values.ndim] for n in (self._count, min(self._count, _COLUMN_CHUNK)))
                    kind = np.int32 if name == "pdg" else np.float32
                    self._file.create_dataset(name, shape, kind, chunks=chunk, fletcher32=True)
                self._file[name][first:last] = values
        self.written = last
        self._disk.check()

    def _stored(self, cells_gev: NDArray[np.float32]) -> NDArray[np.float32]:
        """Cells (N, X, Y, Z) in the axes of the file."""
        if self._layout == "calochallenge":
            return np.moveaxis(cells_gev, 3, 1).reshape(len(cells_gev), -1)
        return np.swapaxes(cells_gev, 1, INCLINED_AXIS)

    def _columns(self, showers: Showers) -> dict[str, Any]:
        if self._layout == "calochallenge":
            energies = showers.energy_gev[:, None] * self._units
            return {"incident_energies": energies, "theta": showers.angle_rad, **showers.further}
        sums = showers.ecal_sum_gev * self._units
        columns = {"energy": showers.energy_gev, "theta": showers.angle_rad, "sum": sums, **showers.further}
        if self._measure:
            columns["mtheta"] = measured_angle_rad(showers.cells_gev, **self._measure)
        return columns


def write_showers(
    path: str | Path, showers: Showers, *, attributes: Mapping[str, str | int | float], geometry: Geometry | None = None
) -> None:
    """Write showers to one file in the published variable-angle layout; see `open_writer`."""
    shape = showers.cells_gev.shape[1:]
    with open_writer(
        path, len(showers), shape, source=showers.source, attributes=attributes, geometry=geometry
    ) as writer:
        writer.write(showers)


@contextmanager
def open_writer(
    path: str | Path,
    count: int,
    shape: tuple[int, int, int],
    *,
    layout: Layout = "variable-angle",
    source: str,
    attributes: Mapping[str, str | int | float],
    geometry: Geometry | None = None,
    rebin: tuple[int, int, int] = (1, 1, 1),
) -> Iterator[ShowerWriter]:
    """A file for ``count`` showers of ``shape`` (X, Y, Z) that appears when the block has written them all.

    variable-angle: ECAL (N, Y, X, Z) float32 in 1/50 GeV (see `layouts.INCLINED_AXIS`), energy (N,) in GeV,
    theta (N,) in rad, sum (N,) in 1/50 GeV and, when the geometry (before re-binning) is given, mtheta (N,): the
    angle measured from the shower, rad.
    calochallenge: incident_energies (N, 1) and showers (N, voxels) in MeV, voxels in the order (layer, x, y) as
    `reader.read_showers` expects them, and theta (N,) in rad, which the published files do not have.
    In both, the further columns of the table of primaries (N,), under their names.
    Attributes: those given, ``source`` and ``unitsPerGev``. When the block fails or is interrupted, nothing is left
    and ``path`` is unchanged. Raises StorageError when the disk refuses, ShowerFileError without showers.
    """
    if count < 1:
        raise ShowerFileError("there are no showers to write", file=path, remedy="make at least one")
    measure = {} if geometry is None or layout != "variable-angle" else {"geometry": geometry, "rebin": rebin}
    given = {**attributes, "source": source, UNITS_ATTRIBUTE: UNITS_PER_GEV[layout]}
    with atomic_writer(path) as temporary, _Disk(temporary) as disk:
        with _uninterrupted():
            # The format of HDF5 1.10 has checksums, the default format has none: see `sandbox`.
            file = h5py.File(disk, "w", libver=("v110", "v110"))
        try:
            with _uninterrupted():
                for name, value in given.items():
                    file.attrs[name] = fixed_length(value) if isinstance(value, str) else value
                writer = ShowerWriter(file, count, shape, layout, disk, **measure)
            yield writer
            if writer.written != count:
                raise ShowerFileError("is not complete", file=path, value=writer.written, remedy=f"write all {count}")
        except BaseException as failure:
            disk.failure = disk.failure or failure
            with _uninterrupted(), suppress(Exception):
                file.close()
            raise
        with _uninterrupted():
            file.close()
        disk.check()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the end of the block. HDF5 calls `_Disk`, in Python, where the exception of a
    signal would be raised: HDF5 would treat it as a failure of the disk, and the interrupt would be lost."""
    if threading.current_thread() is not threading.main_thread():  # signals interrupt only that one
        yield
        return
    waiting: list[int] = []
    numbers = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not None]
    before = {number: signal.signal(number, lambda number, _: waiting.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if waiting:
            signal.raise_signal(waiting[0])


class _Disk(io.FileIO):
    """The file object that HDF5 writes to. HDF5 crashes the interpreter when a write fails, so a failure is kept from
    it and raised by `check`. After the first failure nothing more is written."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "x+")
        self.failure: BaseException | None = None
        """The first one, of a write or of the caller."""

    def check(self) -> None:
        """Raise the first error of writing."""
        if self.failure is not None:
            raise self.failure

    def readinto(self, buffer: Any) -> int:
        """Read; bytes that were never written are zeros."""
        view = memoryview(buffer).cast("B")
        count = super().readinto(view) or 0
        view[count:] = bytes(len(view) - count)
        return len(view)

    def write(self, data: Any) -> int:
        """Write, or keep the error for `check`."""
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view) and self.failure is None:
            try:
                done += super().write(view[done:])
            except OSError as error:
                self.failure = error
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Cut, or keep the error for `check`."""
        try:
            return super().truncate(size) if self.failure is None else 0
        except OSError as error:
            self.failure = error
            return 0
