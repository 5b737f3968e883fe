"""One checkpoint as one file: named arrays and a description, with a checksum over all of it.

A safetensors file (https://github.com/huggingface/safetensors), which any of its readers opens. Its metadata has one
entry, ``caloscale``: ``{"sha256": ..., "description": ...}`` as JSON. The checksum is computed with zeros in
its position, so that a single changed byte anywhere is found. (Several entries would be written in no fixed order.)
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

Arrays = dict[str, NDArray[Any]]

SUFFIX = ".safetensors"
_KEY = "caloscale"
_ZEROS = b"0" * 64
_BEFORE = b'{"__metadata__":{"caloscale":"{\\"sha256\\":\\"'
"""Beginning of the header: metadata come first."""
_LENGTH = 8
"""Bytes of the header's length, with which the file begins."""
_BEGIN, _END = _LENGTH + len(_BEFORE), _LENGTH + len(_BEFORE) + len(_ZEROS)
"""Where the checksum is."""


class DamagedError(ValueError):
    """The bytes are not those that were written."""


def encode(arrays: Mapping[str, NDArray[Any]], description: str) -> bytes:
    """The file's content. arrays: any names and shapes; description: JSON."""
    metadata = {_KEY: f'{{"sha256":"{_ZEROS.decode()}","description":{description}}}'}
    content = bytearray(save({name: np.asarray(array, order="C") for name, array in arrays.items()}, metadata))
    content[_BEGIN:_END] = _checksum(content)
    return bytes(content)


def decode(content: bytes) -> tuple[Arrays, str]:
    """Arrays and description of a file's content; DamagedError when anything changed."""
    if len(content) <= _END or _checksum(content) != content[_BEGIN:_END]:
        raise DamagedError("is damaged: its checksum does not match its content" if content else "is empty")
    end = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
    metadata = json.loads(content[_LENGTH:end])["__metadata__"]
    return load(content), json.dumps(json.loads(metadata[_KEY])["description"])


def _checksum(content: bytes | bytearray) -> bytes:
    """SHA-256 of a file with zeros for its checksum, as text."""
    view = memoryview(content)
    sha256 = hashlib.sha256(view[:_BEGIN])
    sha256.update(_ZEROS)
    sha256.update(view[_END:])
    return sha256.hexdigest().encode()
