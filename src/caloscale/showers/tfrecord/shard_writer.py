"""Distribution of showers over shards of equal length."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from caloscale.showers.tfrecord.manifest import Shard, Split, sha256_of
from caloscale.showers.tfrecord.records import Prepared, serialise, shard_writer

_SHARD_BYTES = 128 * 1024 * 1024
"""Unpacked cells in a shard (about a twentieth of that on disk for 51 x 51 x 25 cells)."""
_LEAST_TRAIN_SHARDS = 8
_MULTIPLE = 64
_OPEN_AT_ONCE = 16
"""Shards that are written at the same time."""


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
    """Writes showers in turn to a group of open shards, group after group: no shard has showers of one source
    file only, and the shards of a group differ by at most one shower.
    """

    def __init__(self, folder: Path, split: Split, plan: ShardPlan) -> None:
        self._folder, self._split, self._plan = folder, split, plan
        self._stack = ExitStack()
        self._counts: list[int] = []
        self._writers: list[Callable[[bytes], None]] = []
        self._next = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def write(self, prepared: Prepared) -> None:
        """Append showers. OSError when the disk refuses."""
        for index in range(len(prepared)):
            if self._next == self._plan.showers_per_shard * len(self._writers):
                self._open_group()
            slot = self._next % len(self._writers)
            self._writers[slot](serialise(prepared, index))
            self._counts[slot - len(self._writers)] += 1
            self._next += 1

    def finish(self) -> list[Shard]:
        """Give the closed shards their final names (``train-00000-of-00008.tfrecord``); their entries."""
        counts = [count for count in self._counts if count]
        shards = []
        for index, count in enumerate(counts):
            path = self._folder / f"{self._split}-{index:05d}-of-{len(counts):05d}.tfrecord"
            self._temporary(index).rename(path)
            size = path.stat().st_size
            shards.append(Shard(file=path.name, split=self._split, showers=count, bytes=size, sha256=sha256_of(path)))
        for index in range(len(counts), len(self._counts)):
            self._temporary(index).unlink()
        return shards

    def _open_group(self) -> None:
        self._stack.close()
        first = len(self._counts)
        fresh = max(1, min(_OPEN_AT_ONCE, self._plan.shards - first))
        self._writers = [
            self._stack.enter_context(shard_writer(self._temporary(index))) for index in range(first, first + fresh)
        ]
        self._counts += [0] * fresh
        self._next = 0

    def _temporary(self, index: int) -> Path:
        return self._folder / f".{self._split}-{index:05d}"
