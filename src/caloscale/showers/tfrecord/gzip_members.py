"""TFRecord files in which every record can be read by itself.

Each record is a gzip member of its own (RFC 1952). Its header states the member's size in an extra field, as BGZF does
for its blocks, so the positions of all records follow from the headers. A file is still a gzip file of a TFRecord
file: TensorFlow reads it from beginning to end with compression_type GZIP. TensorFlow is not needed here.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from caloscale.errors import ShowerFileError

LEVEL = 1
"""Of compression: a shower is mostly zeros."""
# Identification, deflate, flag "extra field", no time, no flags, unknown system; an extra field of 8 bytes: name, 4.
_HEADER = b"\x1f\x8b\x08\x04" + bytes(5) + b"\xff" + struct.pack("<H2sH", 8, b"CS", 4)
_SIZE = struct.Struct("<I")
_TRAILER = struct.Struct("<II")
_BEFORE, _AFTER = 12, 4
"""Bytes that TFRecord puts before a record (its length and the checksum of that) and after it (its checksum)."""


def member(record: bytes) -> bytes:
    """A record in TFRecord's framing as one gzip member."""
    length = struct.pack("<Q", len(record))
    framed = b"".join((length, _masked_crc(length), record, _masked_crc(record)))
    deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = deflate.compress(framed) + deflate.flush()
    size = len(_HEADER) + _SIZE.size + len(body) + _TRAILER.size
    trailer = _TRAILER.pack(zlib.crc32(framed), len(framed) & 0xFFFFFFFF)
    return b"".join((_HEADER, _SIZE.pack(size), body, trailer))


def _masked_crc(content: bytes) -> bytes:
    """TFRecord's checksum: CRC-32C, rotated and shifted (tensorflow/tsl/lib/hash/crc32c.h)."""
    crc = google_crc32c.value(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record_positions(path: Path) -> NDArray[np.int64]:
    """Where the n records of a file begin, and where the last one ends, in bytes (n + 1,).

    Raises ShowerFileError when the file cannot be read or does not consist of such members.
    """
    header, positions = len(_HEADER) + _SIZE.size, [0]
    try:
        with path.open("rb") as file:
            end = os.fstat(file.fileno()).st_size
            while positions[-1] < end:
                found = os.pread(file.fileno(), header, positions[-1])
                size = _SIZE.unpack(found[-_SIZE.size :])[0] if len(found) == header else 0
                if not found.startswith(_HEADER) or size <= header:
                    break
                positions.append(positions[-1] + size)
    except OSError as error:
        raise ShowerFileError(
            f"cannot be read: {error.strerror}", file=path, remedy="check the disk, then start the same command again"
        ) from error
    if positions[-1] != end:
        raise ShowerFileError(
            f"is damaged at byte {positions[-1]}, or was made by an older version",
            file=path,
            remedy="make the shards again with `caloscale preprocess`",
        )
    return np.array(positions, np.int64)


def read_member(path: Path, begin: int, end: int) -> bytes:
    """The record between two positions. Raises OSError and zlib.error; the checksum of the member is compared."""
    with path.open("rb") as file:
        framed = zlib.decompress(os.pread(file.fileno(), end - begin, begin), wbits=16 + zlib.MAX_WBITS)
    return framed[_BEFORE:-_AFTER]
