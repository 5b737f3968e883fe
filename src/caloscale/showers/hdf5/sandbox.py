"""Opening HDF5 files that may be damaged, without risk to the calling process.

HDF5 verifies what it reads only where the file has checksums. Elsewhere a flipped byte can crash it (index of
chunks) or make it loop forever (heap of strings), and Python can stop neither. Files in the format of
HDF5 1.10, as `writer` writes them, have checksums. All other files, which includes h5py's default format,
are first read by a separate process.
"""

import json
import math
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from caloscale.errors import ShowerFileError
from caloscale.showers.hdf5.datasets import find_dataset

SIGNATURE = b"\x89HDF\r\n\x1a\n"
_SECONDS = 60
_CHECKSUMMED = b"\x03"
"""Version of the superblock (ninth byte of a file) since HDF5 1.10."""
_SMALL = 10_000_000
Plain = str | int | float


class DamagedError(ValueError):
    """The separate process that read the file crashed, did not end, or raised an error."""


def check_structure(path: Path) -> None:
    """Raise DamagedError when the structure of an HDF5 file is damaged; the cells are not read."""
    if superblock_version(path) != _CHECKSUMMED:
        _attributes_in_sandbox(path)


def superblock_version(path: Path) -> bytes | None:
    """The byte after the signature of an HDF5 file, which a user block may precede; None: it is no HDF5 file.

    OSError passes.
    """
    with path.open("rb") as file:
        position = 0
        while True:
            file.seek(position)
            found = file.read(len(SIGNATURE))
            if found == SIGNATURE:
                return file.read(1)
            if len(found) < len(SIGNATURE):
                return None
            position = max(512, 2 * position)


def read_attributes(path: Path, node: h5py.File | h5py.Dataset) -> dict[str, Plain]:
    """The attributes of a file or of a dataset in it as strings and numbers; a separate process reads the heap."""
    if any(_is_in_heap(node.attrs.get_id(name)) for name in node.attrs):
        return _attributes_in_sandbox(path).get(node.name, {})
    return _attributes(node)


def _attributes(node: h5py.File | h5py.Dataset) -> dict[str, Plain]:
    return {name: _plain(value) for name, value in node.attrs.items()}


def fixed_length(text: str) -> np.ndarray[Any, Any]:
    """A string in the form that HDF5 stores in the header, which has a checksum, and not in the heap."""
    encoded = text.encode()
    return np.array(encoded, h5py.string_dtype("utf-8", max(1, len(encoded))))


def _attributes_in_sandbox(path: Path) -> dict[str, dict[str, Plain]]:
    status = path.stat()
    return _run_sandbox(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=256)
def _run_sandbox(path: Path, size: int, changed: int) -> dict[str, dict[str, Plain]]:
    """Attributes of a file and of its datasets by name, read once for each state of the file in a separate process.
    Raises DamagedError."""
    command = [sys.executable, "-P", "-m", "caloscale.showers.hdf5.sandbox", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=True)
        attributes: dict[str, dict[str, Plain]] = json.loads(done.stdout)
        return attributes
    except subprocess.TimeoutExpired:
        raise DamagedError("HDF5 does not finish reading it") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        crashed = error.returncode < 0 or not lines
        problem = f"HDF5 crashes on it (exit status {error.returncode})" if crashed else lines[-1]
        raise DamagedError(problem) from None


def _read_structure(path: str) -> dict[str, dict[str, Plain]]:
    """Read all that `reader` reads, except the cells; what is not all there is not read, and reported later."""
    with h5py.File(path, "r") as file:
        attributes = {file.name: _attributes(file)}
        for name in file:
            try:
                dataset = find_dataset(Path(path), file, name)
            except ShowerFileError:
                continue
            if dataset is None:
                continue
            attributes[dataset.name] = _attributes(dataset)
            if dataset.chunks is not None:
                dataset.id.chunk_iter(lambda info: None)
            if len(dataset.shape) > 0 and dataset.nbytes <= _SMALL:
                dataset[...]
            elif len(dataset.shape) > 0:
                dataset[:1], dataset[-1:]
        return attributes


def _is_in_heap(attribute: Any) -> bool:
    kind = attribute.get_type()
    is_text = isinstance(kind, h5py.h5t.TypeStringID) and kind.is_variable_str()
    return bool(is_text or kind.detect_class(h5py.h5t.VLEN))


def _plain(value: object) -> Plain:
    """An attribute, or an array of one, as a JSON value."""
    item = value.item() if isinstance(value, np.generic | np.ndarray) and value.size == 1 else value
    if isinstance(item, bytes):
        item = item.decode("utf-8", "replace")
    if isinstance(item, float) and not math.isfinite(item):
        item = str(item)
    return item if isinstance(item, Plain) else " ".join(str(item).split())[:200]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_read_structure(sys.argv[1])))
