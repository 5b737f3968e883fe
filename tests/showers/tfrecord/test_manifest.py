import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from caloscale.errors import ShowerFileError
from caloscale.showers.tfrecord.manifest import check_shards, read_manifest
from caloscale.spec import Geometry


@pytest.fixture
def raw(tmp_path: Path, geometry: Geometry) -> dict[str, Any]:
    """A manifest of two shards, which are beside it."""
    shards = []
    for split, showers in (("train", 3), ("validation", 1)):
        content = split.encode() * 10
        (tmp_path / f"{split}.tfrecord").write_bytes(content)
        shards.append(
            {
                "file": f"{split}.tfrecord",
                "split": split,
                "showers": showers,
                "bytes": len(content),
                "sha256": hashlib.sha256(content).hexdigest(),
            }
        )
    provenance = {
        "source": "x",
        "files": [],
        "seed": 1,
        "validationFraction": 0.1,
        "splitMethod": "by file",
        "versions": {},
    }
    return {
        "format": 3,
        "shape": [6, 4, 5],
        "splits": {"train": 3, "validation": 1},
        "shards": shards,
        "preprocessing": {},
        "geometry": geometry.model_dump(mode="json", by_alias=True),
        "energyGev": [10, 20],
        "angleDeg": [60, 120],
        "source": "geant4",
        "dropped": {},
        "provenance": provenance,
    }


def written(folder: Path, raw: dict[str, Any]) -> Path:
    (folder / "manifest.json").write_text(json.dumps(raw))
    return folder


def test_good_manifest(tmp_path: Path, raw: dict[str, Any]) -> None:
    manifest = read_manifest(written(tmp_path, raw))
    check_shards(tmp_path, manifest.shards)
    assert manifest.splits == {"train": 3, "validation": 1}
    assert [shard.file for shard in manifest.shards_of("train")] == ["train.tfrecord"]
    assert json.loads(manifest.model_dump_json(by_alias=True))["energyGev"] == [10, 20]


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("splits", "train"), 4, "the train shards contain 3 showers, splits gives 4"),
        (("splits",), {"train": 3}, "splits gives None"),
        (("shards", 0, "showers"), 0, "shards.0.showers"),
        (("shards", 0, "file"), "../train.tfrecord", "shards.0.file"),
        (("shards", 0, "sha256"), "abc", "shards.0.sha256"),
        (("shards", 1, "file"), "train.tfrecord", "listed twice"),
        (("shape",), [6, 4, 4], "does not follow from geometry"),
        (("format",), 1, "format"),
        (("source",), "beam", "source"),
        (("extra",), 1, "extra"),
        (("energyGev",), "wide", "energyGev"),
    ],
)
def test_manifest_that_does_not_hold_together(
    tmp_path: Path, raw: dict[str, Any], path: tuple[Any, ...], value: Any, words: str
) -> None:
    block = raw
    for key in path[:-1]:
        block = block[key]
    block[path[-1]] = value
    with pytest.raises(ShowerFileError) as caught:
        read_manifest(written(tmp_path, raw))
    assert words in str(caught.value) and "manifest.json" in str(caught.value) and caught.value.remedy


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"\xff\xfe", b"null", b'{"a": NaN}', b"[" * 100_000])
def test_manifest_that_is_missing_or_not_json(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_bytes(content)
    problem = "is not a manifest" if content is not None else "cannot be read: No such file"
    with pytest.raises(ShowerFileError, match=problem):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("fault", "words"),
    [("missing", "cannot be read"), ("longer", "another size"), ("changed", "does not match the manifest's checksum")],
)
def test_shards_that_do_not_match(tmp_path: Path, raw: dict[str, Any], fault: str, words: str) -> None:
    manifest = read_manifest(written(tmp_path, raw))
    shard = tmp_path / "validation.tfrecord"
    content = shard.read_bytes()
    if fault == "missing":
        shard.unlink()
    else:
        shard.write_bytes(content + b"x" if fault == "longer" else content[:-1] + b"x")
    with pytest.raises(ShowerFileError, match=words) as caught:
        check_shards(tmp_path, manifest.shards)
    assert "validation.tfrecord" in str(caught.value)
