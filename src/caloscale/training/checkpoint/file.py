"""One checkpoint as one file: named arrays and a text, with a checksum over all of it.

The file is an npz archive (``numpy.load`` opens it) whose archive comment is the SHA-256 of everything before it, so
that a single changed byte anywhere is found. One file is renamed, uploaded and sent to another worker in one piece.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

_STATE = "state.json"
_DIGEST = 64


class DamagedError(ValueError):
    """The bytes are not those that were written."""


def encode(arrays: Mapping[str, NDArray[Any]], state: str) -> bytes:
    """The file's content. arrays: any names and shapes; state: what is said of them."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            # A fixed time: equal content gives equal files.
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
        archive.writestr(zipfile.ZipInfo(_STATE), state)
        archive.comment = b"0" * _DIGEST
    content = buffer.getbuffer()
    content[-_DIGEST:] = digest(content[:-_DIGEST]).encode()
    return bytes(content)


def decode(content: bytes) -> tuple[Arrays, str]:
    """Arrays and state of a file's content; DamagedError when anything changed."""
    if len(content) <= _DIGEST or digest(memoryview(content)[:-_DIGEST]).encode() != content[-_DIGEST:]:
        raise DamagedError("is damaged: its checksum does not hold" if content else "is empty")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        arrays = {}
        for name in archive.namelist():
            if name != _STATE:
                with archive.open(name) as member:
                    arrays[name.removesuffix(".npy")] = np.lib.format.read_array(member, allow_pickle=False)
        return arrays, archive.read(_STATE).decode()


def digest(content: bytes | memoryview) -> str:
    """SHA-256 as text."""
    return hashlib.sha256(content).hexdigest()
