"""Showers for training: read, shuffled, mirrored and batched, the same way whenever a training is repeated."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tensorflow as tf

from caloscale.errors import ShowerFileError
from caloscale.showers.tfrecord.manifest import Manifest, Shard
from caloscale.showers.tfrecord.records import parse_example, read_batches, read_dataset
from caloscale.spec import Data
from caloscale.training.draws import MIRROR_SECTION, EventDraws

CACHED_BYTES = 512 * 2**20
"""Showers that take less memory than this stay in it after they were read once."""
SHUFFLED_BYTES = 1024 * 2**20
"""Largest buffers of showers (of all lanes) from which the next is drawn."""
MOST_LOST = 0.01
"""Part of the steps of an epoch that may be lost to lanes of unequal length."""
MOST_LANES = 1 << 16


@dataclass(frozen=True)
class TrainingShowers:
    """The training part of a folder of shards, as one worker of several sees it.

    batch: showers in the global batch. Which showers that of a step has, and in which order, does not depend on the
    number of workers: the shards are dealt to `lanes`, each of which gives equally many showers to every batch,
    in an order of its own for each epoch. A worker has consecutive places of the batch, so it reads some of the lanes.
    Every worker makes the same number of steps per epoch; the showers that do not fill a last batch (`left_out`,
    others in each epoch) are not used in that epoch.
    """

    folder: Path
    manifest: Manifest
    batch: int
    seed: int
    mirror: bool
    workers: int = 1
    worker_index: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.worker_index < self.workers:
            raise ValueError(f"worker {self.worker_index} of {self.workers} does not exist")
        if self.batch % self.workers:
            raise ValueError(f"a batch of {self.batch} cannot be shared by {self.workers} workers")
        if self.steps_per_epoch == 0:
            raise ShowerFileError(
                f"holds fewer training showers than one batch of {self.batch}",
                file=self.folder,
                field="parts.train",
                value=self.manifest.parts["train"],
                remedy="lower train.batchPerReplica or train.globalBatchSize, or use more showers (data.showers)",
            )

    @property
    def shards(self) -> tuple[Shard, ...]:
        """All shards of the training part."""
        return self.manifest.shards_of("train")

    @cached_property
    def lanes(self) -> int:
        """Groups of shards that each give equally many showers to a batch: as many as divide both, unless the groups
        are so unequal that an epoch would lose more than a hundredth of its steps.
        """
        common = math.gcd(self.batch, len(self.shards))
        most = self.manifest.parts["train"] // self.batch
        possible = (lanes for lanes in range(common, 0, -1) if common % lanes == 0)
        return next(lanes for lanes in possible if self._steps(lanes) >= (1 - MOST_LOST) * most)

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch: as many as the lane with the fewest showers can make."""
        return self._steps(self.lanes)

    @property
    def left_out(self) -> int:
        """Showers of all workers that an epoch does not use."""
        return self.manifest.parts["train"] - self.steps_per_epoch * self.batch

    @property
    def share(self) -> int:
        """Showers of this worker in a batch."""
        return self.batch // self.workers

    @property
    def first(self) -> int:
        """Place of this worker's first shower in a batch."""
        return self.share * self.worker_index

    @property
    def own_lanes(self) -> range:
        """Lanes that this worker reads."""
        per_lane = self.batch // self.lanes
        return range(self.first // per_lane, math.ceil((self.first + self.share) / per_lane))

    @property
    def own_shards(self) -> tuple[Shard, ...]:
        """Shards that this worker reads."""
        return tuple(shard for lane in self.own_lanes for shard in self.shards[lane :: self.lanes])

    @property
    def reads_only_its_own(self) -> bool:
        """Whether no other worker reads the shards of this one."""
        return self.lanes % self.workers == 0

    def batches(self, *, start: int, stop: int, pieces: int = 1) -> Any:
        """A tf.data.Dataset of this worker's part of the batches of steps ``start`` up to ``stop`` (numbered over all
        epochs), each in ``pieces`` elements one after the other.

        An element is a dict of float32 tensors: cells (B, X, Y, Z) in network units, energy_gev, angle_rad,
        measured_angle_rad, ecal_sum (B,). The batches of a step do not depend on where a training was resumed.
        """
        first_epoch, skipped = divmod(start, self.steps_per_epoch)
        last_epoch = math.ceil(stop / self.steps_per_epoch)
        lanes = [self._showers(lane) for lane in self.own_lanes]

        @tf.autograph.experimental.do_not_convert
        def epoch_batches(epoch: Any) -> Any:
            done = tf.where(epoch == first_epoch, tf.constant(skipped, tf.int64), 0)
            parts = tuple(self._order(showers, lane, epoch, done) for showers, lane in zip(lanes, self.own_lanes))
            return tf.data.Dataset.zip(parts).enumerate(epoch * self.steps_per_epoch + done)

        @tf.autograph.experimental.do_not_convert
        def split(step: Any, parts: Any) -> Any:
            serialised = tf.reshape(tf.concat(parts, axis=0), (pieces, self.share // pieces))
            return tf.data.Dataset.from_tensor_slices((tf.repeat(step, pieces), tf.range(pieces), serialised))

        dataset = tf.data.Dataset.range(first_epoch, last_epoch).flat_map(epoch_batches)
        dataset = dataset.take(stop - start).flat_map(split)
        dataset = dataset.map(self._prepare, num_parallel_calls=_threads(), deterministic=True).prefetch(2 * pieces)
        options = tf.data.Options()
        options.deterministic = True
        # Nothing here is left to tuning.
        options.autotune.enabled = False
        options.threading.private_threadpool_size = _threads()
        return dataset.with_options(options)

    def describe(self) -> str:
        """What this worker reads, for the log."""
        per_lane = self.batch // self.lanes
        own = len(self.own_shards)
        shared = "" if self.reads_only_its_own else ", some of which other workers read too: shards do not divide"
        return (
            f"{own} of {len(self.shards)} shards{shared}; batches of {self.batch} in {self.lanes} lanes of {per_lane}, "
            f"{self.steps_per_epoch} steps an epoch, {self.left_out} showers left out"
        )

    def broken_shard(self) -> ShowerFileError | None:
        """What is wrong with the first own shard that cannot be read as it was written; None: all can be read now."""
        for shard in self.own_shards:
            path = self.folder / shard.file
            try:
                found = sum(len(batch["ecal_sum"]) for batch in read_batches(path, self.manifest.shape))
            except ShowerFileError as broken:
                return broken
            if found != shard.showers:
                return ShowerFileError(
                    f"holds another number of showers than the {shard.showers} of the manifest",
                    file=path,
                    field="showers",
                    value=found,
                    remedy="make the folder again with `caloscale preprocess`",
                )
        return None

    def _steps(self, lanes: int) -> int:
        fewest = min(sum(shard.showers for shard in self.shards[lane::lanes]) for lane in range(lanes))
        return fewest // (self.batch // lanes)

    def _showers(self, lane: int) -> Any:
        """Serialised showers of a lane, one by one, in the order of its shards."""
        records = read_dataset([self.folder / shard.file for shard in self.shards[lane :: self.lanes]])
        read = len(self.own_lanes) / self.lanes * self.manifest.parts["train"] * self._shower_bytes
        return records.cache() if read <= CACHED_BYTES else records

    def _order(self, showers: Any, lane: int, epoch: Any, done: Any) -> Any:
        """This worker's showers of a lane, batch by batch, without the first ``done`` batches."""
        per_lane = self.batch // self.lanes
        most = max(s.showers for s in self.shards) * math.ceil(len(self.shards) / self.lanes)
        buffer = min(most + 1, max(1, SHUFFLED_BYTES // self.lanes // self._shower_bytes))
        # An odd multiplier keeps the seeds of epochs, and of trainings with neighbouring seeds, apart.
        seed = ((self.seed * 1_000_003 + epoch) * MOST_LANES + lane) * 2 + 1
        batches = showers.shuffle(buffer, seed=seed, reshuffle_each_iteration=False).skip(done * per_lane)
        begin = max(0, self.first - lane * per_lane)
        end = min(per_lane, self.first + self.share - lane * per_lane)
        batches = batches.batch(per_lane, drop_remainder=True).take(self.steps_per_epoch - done)
        return batches if end - begin == per_lane else batches.map(lambda serialised: serialised[begin:end])

    @tf.autograph.experimental.do_not_convert
    def _prepare(self, step: Any, piece: Any, serialised: Any) -> dict[str, Any]:
        batch = parse_example(self.manifest.shape)(serialised)
        if not self.mirror:
            return batch
        count = serialised.shape[0]
        first = self.first + tf.cast(piece, tf.int64) * count
        draws = EventDraws(self.seed, step, MIRROR_SECTION, first, count).uniform((2,))
        return mirrored(batch, across_x=draws[:, 0] < 0.5, across_y=draws[:, 1] < 0.5)

    @property
    def _shower_bytes(self) -> int:
        return 4 * math.prod(self.manifest.shape)


def _threads() -> int:
    """Threads that prepare batches: one where the processor trains too, more beside accelerators' many cores."""
    return max(1, (os.cpu_count() or 1) // 8)


def mirrored(batch: dict[str, Any], across_x: Any, across_y: Any) -> dict[str, Any]:
    """The batch with some showers mirrored: x -> -x with angle -> pi - angle, and y -> -y.

    across_x, across_y: bool (B,), which showers.
    """
    cells = batch["cells"]
    cells = tf.where(across_x[:, None, None, None], tf.reverse(cells, axis=[1]), cells)
    cells = tf.where(across_y[:, None, None, None], tf.reverse(cells, axis=[2]), cells)
    angles = {
        name: tf.where(across_x, math.pi - batch[name], batch[name]) for name in ("angle_rad", "measured_angle_rad")
    }
    return {**batch, **angles, "cells": cells}


def check_manifest(folder: Path, manifest: Manifest, data: Data) -> None:
    """ShowerFileError unless the shards were made for these networks: same shape, detector and preprocessing."""
    for field, found, wanted in (
        ("shape", manifest.shape, data.shape),
        ("preprocessing", manifest.preprocessing, data.preprocessing),
        ("geometry", manifest.geometry, data.geometry),
    ):
        if found != wanted:
            raise ShowerFileError(
                "the shards were made for another document",
                file=folder / "manifest.json",
                field=field,
                value=str(found)[:200],
                remedy=f"make them again with `caloscale preprocess`; the run wants {str(wanted)[:200]}",
            )
