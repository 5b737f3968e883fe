"""The files of a simulation: the order for them, their names, which are finished, and whether a folder is free."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import h5py

from caloscale.errors import ShowerFileError
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.layouts import WITHOUT_GENERATED_ATTRIBUTE
from caloscale.showers.hdf5.writer import write_showers
from caloscale.showers.sources import hdf5_files, origin_attributes
from caloscale.simulation.entering import has_entering
from caloscale.simulation.primaries import file_count, showers_in_file
from caloscale.simulation.record import RECORD_NAME, FileLog, read_record
from caloscale.spec import Data
from caloscale.spec.block import Block
from caloscale.spec.data import PrimaryRanges
from caloscale.storage.atomic import PARTIAL
from caloscale.storage.lock import locked

_FINGERPRINT = "fingerprint"


class Order(Block):
    """The first line of a worker's input; the numbers of its files follow."""

    data: Data
    """The data block of the run configuration."""
    folder: Path
    """Folder of the files."""
    fingerprint: str
    """Written into each file."""
    accepted: tuple[PrimaryRanges, ...] = ()
    """The primaries that each generator takes over; none: Geant4 does all."""


def file_name(index: int) -> str:
    """Name of the file with this number."""
    return f"showers-{index:05d}.h5"


def write_file(
    folder: Path, index: int, showers: Showers, data: Data, fingerprint: str, accepted: Sequence[PrimaryRanges] = ()
) -> None:
    """Write file ``index`` of a simulation atomically; accepted: what generators take over. Equal showers give equal
    datasets and attributes."""
    attributes: dict[str, str | int | float] = {
        _FINGERPRINT: fingerprint,
        "engine": data.simulation.engine,
        **origin_attributes(data),
        "seed": data.seed,
        "fileIndex": index,
        "showers": len(showers),
    }
    if accepted:
        attributes[WITHOUT_GENERATED_ATTRIBUTE] = ", ".join(each.particle_text for each in accepted)
    write_showers(folder / file_name(index), showers, attributes=attributes, geometry=data.geometry)


def pending_files(data: Data, folder: Path, fingerprint: str, *, hybrid: bool) -> list[int]:
    """Numbers of the files that are still to be simulated, those that are damaged or incomplete included; of a hybrid
    simulation also those without the particles that enter."""
    return [
        n
        for n in range(file_count(data))
        if not (_is_finished(folder / file_name(n), data, fingerprint) and (not hybrid or has_entering(folder, n)))
    ]


def refuse_foreign(folder: Path, fingerprint: str) -> None:
    """Raise ShowerFileError when the folder contains a file that this simulation did not write but would replace, or
    that would be read together with its showers.

    A file of showers belongs to this simulation by its fingerprint and number; a damaged one, which cannot be read, by
    the log of finished files.
    """
    logged = {line["file"] for line in FileLog(folder, fingerprint).lines()}
    for path in hdf5_files(folder):
        attributes = _read_attributes(path)
        if attributes is None and path.name not in logged:
            raise _foreign(path, "cannot be read, and this simulation did not write it", None)
        if attributes is not None and attributes.get(_FINGERPRINT) != fingerprint:
            problem = "belongs to another simulation (another run configuration, seed, code or tables), or to none"
            raise _foreign(path, problem, attributes.get(_FINGERPRINT))
        if attributes is not None and path.name != file_name(int(str(attributes["fileIndex"]))):
            raise _foreign(path, "is a copy of a file of this simulation: its showers would be read twice", None)
    record = read_record(folder)
    if (folder / RECORD_NAME).exists() and (record is None or record.fingerprint != fingerprint):
        raise _foreign(folder / RECORD_NAME, "belongs to another simulation", record and record.fingerprint)


def _foreign(path: Path, problem: str, value: object) -> ShowerFileError:
    remedy = f"choose another folder than {path.parent}, or delete or move the file"
    return ShowerFileError(problem, file=path, field=_FINGERPRINT, value=value, remedy=remedy)


def _is_finished(path: Path, data: Data, fingerprint: str) -> bool:
    attributes = _read_attributes(path) or {}
    whole = attributes.get("shape") == (showers_in_file(data), *data.geometry.cells)
    return whole and attributes.get(_FINGERPRINT) == fingerprint


def _read_attributes(path: Path) -> dict[str, object] | None:
    """Attributes of a file and, where it contains showers, the shape of its cells; None when it cannot be read."""
    try:
        with h5py.File(path) as file:
            attributes = {name: v.decode() if isinstance(v, bytes) else v for name, v in file.attrs.items()}
            if "ECAL" in file and file["ECAL"].ndim == 4:
                count, y, x, z = file["ECAL"].shape
                attributes["shape"] = (count, x, y, z)
            return attributes
    except (OSError, KeyError, RuntimeError, ValueError):
        return None


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Exclude other processes from simulating into the folder; remove partial files of killed ones, before and after.

    Raises HeldError when another process simulates into it.
    """
    with locked(folder):
        _remove_partial(folder)
        try:
            yield
        finally:
            _remove_partial(folder)


def _remove_partial(folder: Path) -> None:
    for partial in folder.glob(f"{PARTIAL}*"):
        partial.unlink(missing_ok=True)
