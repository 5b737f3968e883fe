"""The files of a simulation: their names, and which of them are finished."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

from caloscale.errors import ShowerFileError, SimulationError
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.reader import write_showers
from caloscale.simulation.primaries import file_count, showers_in_file
from caloscale.spec import Data
from caloscale.storage.atomic import PARTIAL

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_FINGERPRINT = "fingerprint"
_LOCK_NAME = ".lock"


def file_name(index: int) -> str:
    """Name of the file with this number."""
    return f"showers-{index:05d}.h5"


def write_file(folder: Path, index: int, showers: Showers, data: Data, fingerprint: str) -> None:
    """Write file ``index`` of a simulation, atomically. The same showers give the same datasets and attributes."""
    attributes: dict[str, str | int | float] = {
        _FINGERPRINT: fingerprint,
        "engine": data.simulation.engine,
        "seed": data.seed,
        "fileIndex": index,
        "showers": len(showers),
    }
    write_showers(folder / file_name(index), showers, attributes=attributes, geometry=data.geometry)


def pending_files(data: Data, folder: Path, fingerprint: str) -> list[int]:
    """Numbers of the files that are still to be simulated.

    A file that cannot be read or does not hold all its showers is among them. Raises ShowerFileError when
    the folder holds a file of another simulation.
    """
    pending = []
    for index in range(file_count(data)):
        path = folder / file_name(index)
        if not _is_finished(path, data, fingerprint):
            pending.append(index)
    return pending


def refuse_foreign(folder: Path, fingerprint: str) -> None:
    """Raise ShowerFileError when a file in the folder belongs to a simulation with another fingerprint."""
    for path in sorted(folder.glob("showers-*.h5")):
        found = _read_attributes(path).get(_FINGERPRINT, fingerprint)
        if found != fingerprint:
            raise ShowerFileError(
                "is of another simulation (another document, seed, code or tables)",
                file=path,
                field=_FINGERPRINT,
                value=found,
                remedy=f"choose another folder than {folder}, or delete it",
            )


def _is_finished(path: Path, data: Data, fingerprint: str) -> bool:
    attributes = _read_attributes(path)
    whole = attributes.get("shape") == (showers_in_file(data), *data.geometry.cells)
    return whole and attributes.get(_FINGERPRINT) == fingerprint


def _read_attributes(path: Path) -> dict[str, object]:
    """Attributes of a file and the shape of its cells; nothing when it is missing or torn."""
    try:
        with h5py.File(path) as file:
            attributes = {name: v.decode() if isinstance(v, bytes) else v for name, v in file.attrs.items()}
            count, y, x, z = file["ECAL"].shape
            return {**attributes, "shape": (count, x, y, z)}
    except (OSError, KeyError, RuntimeError, ValueError):
        return {}


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from simulating into the folder; remove what killed ones left half-written, first and last.

    Raises SimulationError when another process simulates into it.
    """
    with (folder / _LOCK_NAME).open("w") as lock:
        if fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise SimulationError(
                    f"{folder}: another process is simulating these showers",
                    remedy="wait until it is done; its showers are used then",
                ) from error
        _remove_partial(folder)
        try:
            yield
        finally:
            _remove_partial(folder)


def _remove_partial(folder: Path) -> None:
    for partial in folder.glob(f"{PARTIAL}*"):
        partial.unlink(missing_ok=True)
