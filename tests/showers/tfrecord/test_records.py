from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from caloscale.errors import ShowerFileError
from caloscale.showers.tfrecord.records import SCALARS, Prepared, member, parse_example, read_batches, serialise

SHAPE = (2, 3, 4)


def prepared(count: int, shape: tuple[int, int, int] = SHAPE) -> Prepared:
    rng = np.random.default_rng(0)
    cells = rng.random((count, *shape), np.float32)
    return Prepared(cells, {name: rng.random(count, np.float32) for name in SCALARS})


def write(path: Path, showers: Prepared) -> Path:
    path.write_bytes(b"".join(member(serialise(showers, index)) for index in range(len(showers))))
    return path


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 4), (4, 4, 2), (8, 8, 65)])
def test_example_is_what_protobuf_itself_writes(shape: tuple[int, int, int]) -> None:
    """Lengths below and above 128 bytes and 16 KiB, where the varint grows."""
    showers = prepared(1, shape)
    values = {"cells": showers.cells, **showers.numbers}
    feature = {
        name: tf.train.Feature(float_list=tf.train.FloatList(value=value.ravel().tolist()))
        for name, value in values.items()
    }
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    assert serialise(showers, 0) == example.SerializeToString(deterministic=True)


def test_parses_one_and_many() -> None:
    showers = prepared(5)
    examples = [serialise(showers, index) for index in range(5)]
    parse = parse_example(SHAPE)
    one, many = parse(tf.constant(examples[3])), parse(tf.constant(examples))
    assert one["cells"].shape == SHAPE and many["cells"].shape == (5, *SHAPE)
    assert np.array_equal(one["cells"], showers.cells[3])
    for name, written in {"cells": showers.cells, **showers.numbers}.items():
        assert np.array_equal(many[name], written) and many[name].dtype == tf.float32


def test_parses_within_tf_data(tmp_path: Path) -> None:
    showers = prepared(5)
    path = write(tmp_path / "a.tfrecord", showers)
    dataset = tf.data.TFRecordDataset(str(path), compression_type="GZIP").map(parse_example(SHAPE)).batch(2)
    assert [len(batch["cells"]) for batch in dataset] == [2, 2, 1]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    showers = prepared(70)
    batches = list(read_batches(write(tmp_path / "a.tfrecord", showers), SHAPE, size=32))
    assert [len(batch["cells"]) for batch in batches] == [32, 32, 6]
    for name, written in {"cells": showers.cells, **showers.numbers}.items():
        assert np.array_equal(np.concatenate([batch[name] for batch in batches]), written)


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, prepared(9)) for name in ("a.tfrecord", "b.tfrecord")]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def broken(content: bytes, fault: str) -> bytes:
    raw = gzip.decompress(content)
    if fault == "flipped byte in a record":
        raw = raw[:50] + bytes([raw[50] ^ 1]) + raw[51:]
    elif fault == "cut within a record":
        raw = raw[:-7]
    elif fault == "cut gzip":
        return content[: len(content) // 2]
    elif fault == "not gzip":
        return raw
    return gzip.compress(raw)


@pytest.mark.parametrize(
    "fault", ["flipped byte in a record", "cut within a record", "not an example", "cut gzip", "not gzip"]
)
def test_broken_records(tmp_path: Path, fault: str) -> None:
    path = write(tmp_path / "a.tfrecord", prepared(9))
    path.write_bytes(broken(path.read_bytes(), fault))
    if fault == "not an example":
        path.write_bytes(member(b"garbage"))
    with pytest.raises(ShowerFileError, match=r"a\.tfrecord.*broken record") as caught:
        list(read_batches(path, SHAPE))
    assert "caloscale preprocess" in caught.value.remedy


def test_records_of_another_shape(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tfrecord", prepared(9, (2, 3, 5)))
    with pytest.raises(ShowerFileError, match="another shape"):
        list(read_batches(path, SHAPE))


def test_missing_shard(tmp_path: Path) -> None:
    with pytest.raises(ShowerFileError, match=r"nothing\.tfrecord"):
        list(read_batches(tmp_path / "nothing.tfrecord", SHAPE))
