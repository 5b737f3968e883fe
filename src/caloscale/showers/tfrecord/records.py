"""A shower as a TFRecord example: serialising and parsing.

Features: ``cells`` (X*Y*Z floats, network units), the columns of the table of primaries (`showers.primaries`),
``measured_angle_rad`` (from the cells after preprocessing; what the published training compares with) and ``ecal_sum``
(sum of the cells after preprocessing, in 1/unitsPerGev GeV; what the network's ECAL head must give).
Serialising needs no TensorFlow; parsing imports it when it is called.

Each record of a file is a gzip member of its own (RFC 1952). Its header states the member's size in an extra field, as
BGZF does for its blocks, so the positions of all records follow from the headers. A file is still a gzip file of a
TFRecord file: TensorFlow reads it from beginning to end with compression_type GZIP.
"""

import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import ArrayLike, NDArray

from caloscale.errors import ShowerFileError

LEVEL = 1
"""Of compression: a shower is mostly zeros."""
# Identification, deflate, flag "extra field", no time, no flags, unknown system; an extra field of 8 bytes: name, 4.
_HEADER = b"\x1f\x8b\x08\x04" + bytes(5) + b"\xff" + struct.pack("<H2sH", 8, b"CS", 4)
_SIZE = struct.Struct("<I")
_TRAILER = struct.Struct("<II")
_BEFORE, _AFTER = 12, 4
"""Bytes that TFRecord puts before a record (its length and the checksum of that) and after it (its checksum)."""
_REMAKE = "make the shards again with `caloscale preprocess`"


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


def record_positions(path: Path, showers: int | None = None) -> NDArray[np.int64]:
    """Where the n records of a file begin, and where the last one ends, in bytes (n + 1,).

    Raises ShowerFileError when the file cannot be read, does not consist of such members, or of another number than
    ``showers``.
    """
    header, positions = len(_HEADER) + _SIZE.size, [0]
    try:
        with path.open("rb") as file:
            end = os.fstat(file.fileno()).st_size
            while positions[-1] < end:
                begun = os.pread(file.fileno(), header, positions[-1])
                size = _SIZE.unpack(begun[-_SIZE.size :])[0] if len(begun) == header else 0
                if not begun.startswith(_HEADER) or size <= header:
                    break
                positions.append(positions[-1] + size)
    except OSError as error:
        remedy = "check the disk, then start the same command again"
        raise ShowerFileError(f"cannot be read: {error.strerror}", file=path, remedy=remedy) from error
    if positions[-1] != end:
        raise ShowerFileError(f"is damaged at byte {positions[-1]}", file=path, remedy=_REMAKE)
    found = len(positions) - 1
    if showers is not None and found != showers:
        problem = f"does not contain the {showers} showers that the manifest lists"
        raise ShowerFileError(problem, file=path, field="showers", value=found, remedy=_REMAKE)
    return np.array(positions, np.int64)


def read_member(path: Path, begin: int, end: int) -> bytes:
    """The record between two positions. Raises OSError and zlib.error; the checksum of the member is compared."""
    with path.open("rb") as file:
        framed = zlib.decompress(os.pread(file.fileno(), end - begin, begin), wbits=16 + zlib.MAX_WBITS)
    return framed[_BEFORE:-_AFTER]


SCALARS = ("energy_gev", "angle_rad", "measured_angle_rad", "ecal_sum")
"""Numbers that every shower has; further columns of its primary follow from the run configuration."""


def serialise(shower: Mapping[str, ArrayLike]) -> bytes:
    """One shower as a serialised tf.train.Example, made without TensorFlow. shower: values by the name of the feature.

    Example, Features, map entry, Feature, FloatList (tensorflow/core/example/*.proto): messages within each other. A
    packed FloatList consists of the array's little-endian bytes.
    """
    features = b""
    for name, value in sorted(shower.items()):
        floats = _field(1, np.asarray(value, "<f4").tobytes())
        features += _field(1, _field(1, name.encode()) + _field(2, _field(2, floats)))
    return _field(1, features)


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes or of a message (https://protobuf.dev/programming-guides/encoding): tag, length, content."""
    length, varint = len(content), bytearray()
    while length > 0x7F:
        varint.append(length & 0x7F | 0x80)
        length >>= 7
    varint.append(length)
    return bytes([number << 3 | 2, *varint]) + content


def parse_example(serialised: Any, shape: tuple[int, int, int], further: Iterable[str] = ()) -> dict[str, Any]:
    """Parse one serialised example, a string tensor (or a vector of them, faster).

    Gives float32 tensors: cells (X, Y, Z) and scalars named as in `SCALARS` and ``further``; with a vector of B
    examples (B, X, Y, Z) and (B,).
    """
    import tensorflow as tf

    features = {name: tf.io.FixedLenFeature((), tf.float32) for name in (*SCALARS, *further)}
    features["cells"] = tf.io.FixedLenFeature(shape, tf.float32)
    parsed: dict[str, Any] = tf.io.parse_example(serialised, features)
    return parsed


def read_batches(
    path: Path,
    shape: tuple[int, int, int],
    further: Iterable[str] = (),
    *,
    wanted: NDArray[np.intp] | None = None,
    showers: int | None = None,
    size: int = 64,
) -> Iterator[dict[str, NDArray[np.float32]]]:
    """The parsed showers of one shard in batches, or those with the numbers ``wanted``.

    Raises ShowerFileError for a broken record, and as `record_positions`.
    """
    import tensorflow as tf

    positions = record_positions(path, showers)
    numbers = np.arange(len(positions) - 1) if wanted is None else wanted
    try:
        for first in range(0, len(numbers), size):
            places = numbers[first : first + size].tolist()
            serialised = [read_member(path, positions[place], positions[place + 1]) for place in places]
            parsed = parse_example(tf.constant(serialised), shape, further)
            yield {name: tensor.numpy() for name, tensor in parsed.items()}
    except (OSError, zlib.error, tf.errors.OpError, ValueError) as error:
        reason = " ".join(str(getattr(error, "message", error)).split())[:300]
        problem = f"has a broken record, or records of another shape than {shape}: {reason}"
        raise ShowerFileError(problem, file=path, remedy=_REMAKE) from error
