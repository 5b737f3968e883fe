"""Datasets whose numbers are all there. HDF5 gives zeros, and no error, for many that are not."""

import errno
import math
import os
import re
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import h5py
from h5py import h5z

from caloscale.errors import ShowerFileError

_FILTERS = {
    4: "szip", 307: "bzip2", 32000: "lzf", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32013: "zfp",
    32015: "zstd", 32017: "sz", 32026: "blosc2",
}  # fmt: skip
"""Names of filters that h5py may lack, by their registered number."""
_COPY = "write the file again with the numbers in it"


def find_dataset(path: Path, file: h5py.File, name: str) -> h5py.Dataset | None:
    """A dataset of numbers, None where the file has nothing of this name.

    Raises ShowerFileError for a link without a target, for what is no dataset of real numbers, and where HDF5 would
    give zeros or could not read: numbers in other files, chunks that were never written, filters.
    """
    if name not in file:
        return None
    found, link = file.get(name), file.get(name, getlink=True)
    if found is None:
        where = f"{link.filename}:{link.path}" if isinstance(link, h5py.ExternalLink) else getattr(link, "path", None)
        raise _error(path, name, "is a link, and there is nothing where it leads", where, _COPY)
    if not isinstance(found, h5py.Dataset):
        raise _error(path, name, "is no dataset", type(found).__name__, "store an array of numbers under this name")
    if found.dtype.kind not in "fiu" or found.shape is None:
        raise _error(path, name, "does not hold numbers", str(found.dtype), "store floating-point numbers")
    _check_filters(path, name, found)
    if found.is_virtual or found.external is not None:
        raise _error(path, name, "has its numbers in other files", found.shape, _COPY)
    written = found.id.get_storage_size() > 0
    if found.chunks is not None:
        chunks = math.prod(math.ceil(size / chunk) for size, chunk in zip(found.shape, found.chunks))
        written = found.id.get_num_chunks() >= chunks
    if found.size and not written and not found.fillvalue:  # what the writer has chosen is meant
        problem = "was created and not, or not wholly, written: what is missing would be read as zeros"
        raise _error(path, name, problem, found.shape, "wait until it is written, or write it again")
    return found


def file_error(path: Path, error: Exception) -> ShowerFileError:
    """What an error of HDF5 means, which says it in its message alone: locked, being written, too large, damaged."""
    text = (str(error).splitlines() or [type(error).__name__])[0][:300]
    found = re.search(r"errno = (\d+)", text)
    number = int(found.group(1)) if found else 0
    if "unable to lock file" in text and number in (errno.EAGAIN, errno.EACCES):
        problem = "is in use by another process, which has locked it"
        remedy = "close it there; if nothing writes it, HDF5_USE_FILE_LOCKING=FALSE reads it all the same"
    elif "unable to lock file" in text:
        problem = f"cannot be locked: {os.strerror(number) if number else text}"
        remedy = "its file system has no locks: if nothing writes it, set HDF5_USE_FILE_LOCKING=FALSE, or copy it to a "
        remedy += "local disk"
    elif "already open for" in text:
        problem = "is being written, or its writer ended without closing it"
        remedy = "wait until it is written; after a crash of the writer, `h5clear -s` on a copy shows what is in it"
    elif isinstance(error, MemoryError):
        problem, remedy = f"does not fit into memory: {text}", "read fewer showers at a time (start, stop)"
    elif number:
        problem, remedy = f"cannot be read: {os.strerror(number)}", "check the disk or the file system, then try again"
    else:
        problem = f"is truncated or damaged: {text}"
        remedy = "copy or simulate the file again; `h5ls` or `caloscale inspect` shows what is readable"
    return ShowerFileError(problem, file=path, remedy=remedy)


def _check_filters(path: Path, name: str, dataset: h5py.Dataset) -> None:
    properties = dataset.id.get_create_plist()
    for index in range(properties.get_nfilters()):
        code, title = properties.get_filter(index)[0], properties.get_filter(index)[3]
        if h5z.filter_avail(code):
            continue
        with suppress(ImportError):
            import_module("hdf5plugin")  # its filters are known once it is imported
        # An optional filter may have been left out of all chunks.
        used = dataset.id.chunk_iter(lambda info, bit=index: True if not info.filter_mask >> bit & 1 else None)
        if h5z.filter_avail(code) or not used:
            continue
        named = _FILTERS.get(code) or title.decode(errors="replace") or "unknown"
        problem = f"needs the HDF5 filter {code} ({named}), which is not installed"
        remedy = "pip install hdf5plugin, or let HDF5_PLUGIN_PATH name the folder of the filter; "
        remedy += "or write the file again with gzip"
        raise _error(path, name, problem, code, remedy)


def _error(path: Path, name: str, problem: str, value: object, remedy: str) -> ShowerFileError:
    return ShowerFileError(problem, file=path, field=name, value=value, remedy=remedy)
