"""Records as gzip members: TensorFlow's and Python's gzip read the whole file, we read any record of it."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from caloscale.errors import ShowerFileError
from caloscale.showers.tfrecord.records import member, read_member, record_positions

RECORDS = [np.random.default_rng(size).bytes(size) for size in (0, 1, 12, 700, 65_536, 300_000)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"".join(map(member, RECORDS)))
    return path


def test_tensorflow_reads_what_is_written(file: Path) -> None:
    dataset = tf.data.TFRecordDataset([str(file)], compression_type="GZIP")
    assert list(dataset.as_numpy_iterator()) == RECORDS


def test_the_content_is_what_tensorflow_writes(file: Path, tmp_path: Path) -> None:
    """Checksums of lengths and records included."""
    with tf.io.TFRecordWriter(str(tmp_path / "b.tfrecord")) as writer:
        for record in RECORDS:
            writer.write(record)
    assert gzip.decompress(file.read_bytes()) == (tmp_path / "b.tfrecord").read_bytes()


def test_any_record_is_read_by_itself(file: Path) -> None:
    positions = record_positions(file).tolist()
    assert len(positions) == len(RECORDS) + 1
    for number in (5, 0, 3, 1, 4, 2):
        assert read_member(file, positions[number], positions[number + 1]) == RECORDS[number]


@pytest.mark.parametrize("fault", ["cut in a record", "cut in a header", "other bytes behind", "no gzip", "absent"])
def test_files_without_positions(file: Path, fault: str) -> None:
    content = file.read_bytes()
    if fault == "absent":
        file.unlink()
    else:
        ends = record_positions(file)
        damaged = {
            "cut in a record": content[:-5],
            "cut in a header": content[: int(ends[3]) + 7],
            "other bytes behind": content + b"more",
            "no gzip": b"x" * 100,
        }
        file.write_bytes(damaged[fault])
    with pytest.raises(ShowerFileError, match=r"a\.tfrecord") as error:
        record_positions(file)
    assert error.value.remedy


def test_a_flipped_bit_does_not_pass(file: Path) -> None:
    positions = record_positions(file).tolist()
    content = bytearray(file.read_bytes())
    content[(positions[4] + positions[5]) // 2] ^= 4
    file.write_bytes(content)
    with pytest.raises(zlib.error, match=r"Error -3|incorrect data check"):
        read_member(file, positions[4], positions[5])
