import gzip
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from caloscale.errors import ShowerFileError
from caloscale.showers.primaries import rows
from caloscale.showers.tfrecord.records import (
    SCALARS,
    member,
    parse_example,
    read_batches,
    read_member,
    record_positions,
    serialise,
)

SHAPE = (2, 3, 4)


def prepared(count: int, shape: tuple[int, int, int] = SHAPE) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    cells = rng.random((count, *shape), np.float32)
    return {"cells": cells, **{name: rng.random(count, np.float32) for name in SCALARS}}


def write(path: Path, showers: dict[str, np.ndarray]) -> Path:
    path.write_bytes(b"".join(member(serialise(rows(showers, index))) for index in range(len(showers["cells"]))))
    return path


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 4), (4, 4, 2), (8, 8, 65)])
def test_example_is_what_protobuf_itself_writes(shape: tuple[int, int, int]) -> None:
    """Lengths below and above 128 bytes and 16 KiB, where the varint grows."""
    showers = prepared(1, shape)
    feature = {
        name: tf.train.Feature(float_list=tf.train.FloatList(value=value.ravel().tolist()))
        for name, value in showers.items()
    }
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    assert serialise(rows(showers, 0)) == example.SerializeToString(deterministic=True)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """In batches, and a single example."""
    showers = prepared(70)
    one = parse_example(tf.constant(serialise(rows(showers, 3))), SHAPE)
    assert one["cells"].dtype == tf.float32 and np.array_equal(one["cells"], showers["cells"][3])
    batches = list(read_batches(write(tmp_path / "a.tfrecord", showers), SHAPE, size=32))
    assert [len(batch["cells"]) for batch in batches] == [32, 32, 6]
    for name, written in showers.items():
        assert np.array_equal(np.concatenate([batch[name] for batch in batches]), written)


@pytest.mark.parametrize(
    "fault", ["flipped bit", "cut record", "cut header", "no example", "not gzip", "more bytes", "shape", "absent"]
)
def test_broken_records(tmp_path: Path, fault: str) -> None:
    path = write(tmp_path / "a.tfrecord", prepared(9, (2, 3, 5) if fault == "shape" else SHAPE))
    content = path.read_bytes()
    half, third = len(content) // 2, int(record_positions(path)[3])
    damaged = {
        "flipped bit": content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :],
        "cut record": content[:-7],
        "cut header": content[: third + 7],
        "no example": member(b"garbage"),
        "not gzip": gzip.decompress(content),
        "more bytes": content + b"more",
    }
    path.write_bytes(damaged.get(fault, content))
    if fault == "absent":
        path.unlink()
    with pytest.raises(
        ShowerFileError, match=r"a\.tfrecord.*(broken record|is damaged at byte|No such file)"
    ) as caught:
        list(read_batches(path, SHAPE))
    assert caught.value.remedy and (fault == "absent" or "caloscale preprocess" in caught.value.remedy)


def test_some_records_of_a_file(tmp_path: Path) -> None:
    showers = prepared(70)
    path = write(tmp_path / "a.tfrecord", showers)
    wanted = np.array([0, 3, 41, 69])
    (batch,) = read_batches(path, SHAPE, wanted=wanted, showers=70)
    for name, written in showers.items():
        assert np.array_equal(batch[name], written[wanted])
    with pytest.raises(ShowerFileError, match=r"the 71 showers that the manifest lists.*got 70"):
        list(read_batches(path, SHAPE, wanted=wanted, showers=71))


RECORDS = [np.random.default_rng(size).bytes(size) for size in (0, 1, 12, 700, 65_536, 300_000)]


def test_a_file_is_a_gzip_file_of_what_tensorflow_writes_and_each_record_is_read_by_itself(tmp_path: Path) -> None:
    """Checksums of lengths and records included."""
    file = tmp_path / "a.tfrecord"
    file.write_bytes(b"".join(map(member, RECORDS)))
    dataset = tf.data.TFRecordDataset([str(file)], compression_type="GZIP")
    assert list(dataset.as_numpy_iterator()) == RECORDS
    with tf.io.TFRecordWriter(str(tmp_path / "b.tfrecord")) as writer:
        for record in RECORDS:
            writer.write(record)
    assert gzip.decompress(file.read_bytes()) == (tmp_path / "b.tfrecord").read_bytes()
    positions = record_positions(file).tolist()
    assert len(positions) == len(RECORDS) + 1
    for number in (5, 0, 3, 1, 4, 2):
        assert read_member(file, positions[number], positions[number + 1]) == RECORDS[number]
