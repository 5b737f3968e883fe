"""Distribution of showers over shards of equal length."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from caloscale.showers.tfrecord.gzip_members import member
from caloscale.showers.tfrecord.manifest import Shard, Split, sha256_of
from caloscale.showers.tfrecord.records import Prepared, serialise

_SHARD_BYTES = 128 * 1024 * 1024
"""Unpacked cells in a shard (about a twentieth of that on disk for 51 x 51 x 25 cells)."""
_LEAST_TRAIN_SHARDS = 8
_MULTIPLE = 64
_GROUP = 16
"""Shards among which consecutive showers are spread."""


@dataclass(frozen=True)
class ShardPlan:
    """How many shards, and how many showers in each."""

    shards: int
    showers_per_shard: int


def plan_shards(split: Split, showers: int, shape: tuple[int, int, int]) -> ShardPlan:
    """Shards for a number of showers: about 128 MB of cells in each.

    Training gets 8, 16, 32, 64 or a multiple of 64, so that workers in powers of two get equally many.
    """
    count = math.ceil(showers * 4 * math.prod(shape) / _SHARD_BYTES)
    if split == "train":
        count = max(count, _LEAST_TRAIN_SHARDS)
        power = 2 ** math.ceil(math.log2(count))
        count = power if count <= _MULTIPLE else math.ceil(count / _MULTIPLE) * _MULTIPLE
    count = max(1, min(count, showers))
    return ShardPlan(count, max(1, math.ceil(showers / count)))


class ShardWriter:
    """Keeps showers in the order in which they are read, and at the end writes them in theirs, spread over shards.

    Consecutive showers of a group go to its shards one after the other, group after group: the shards of a group
    differ by at most one shower. The memory is some numbers for each shower: records are kept as they are written, in
    a file.
    """

    def __init__(self, folder: Path, split: Split, plan: ShardPlan) -> None:
        self._folder, self._split, self._plan = folder, split, plan
        self._kept = folder / f".{split}"
        self._file = self._kept.open("w+b")
        self._places: list[NDArray[np.intp]] = []
        self._ends = [0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, prepared: Prepared, places: NDArray[np.intp]) -> None:
        """Keep showers and their places in the order of the split (N,). OSError when the disk refuses."""
        for index in range(len(prepared)):
            self._ends.append(self._ends[-1] + self._file.write(member(serialise(prepared, index))))
        self._places.append(places)

    def finish(self) -> list[Shard]:
        """Write the shards (``train-00000-of-00008.tfrecord``); their entries. OSError when the disk refuses."""
        self._file.flush()
        order = np.argsort(np.concatenate(self._places))
        dealt: list[NDArray[np.intp]] = []
        while len(order):
            fresh = max(1, min(_GROUP, self._plan.shards - len(dealt)))
            group, order = np.split(order, [fresh * self._plan.showers_per_shard])
            dealt += [group[first::fresh] for first in range(min(fresh, len(group)))]
        shards = []
        for index, records in enumerate(dealt):
            path = self._folder / f"{self._split}-{index:05d}-of-{len(dealt):05d}.tfrecord"
            with path.open("wb") as shard:
                for record in records.tolist():
                    begin, end = self._ends[record : record + 2]
                    shard.write(os.pread(self._file.fileno(), end - begin, begin))
            size = path.stat().st_size
            shards.append(
                Shard(file=path.name, split=self._split, showers=len(records), bytes=size, sha256=sha256_of(path))
            )
        self._kept.unlink()
        return shards
