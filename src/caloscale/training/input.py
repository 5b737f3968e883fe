"""Showers for training: read, shuffled, mirrored and batched, the same way whenever a training is repeated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from caloscale.errors import ShowerFileError
from caloscale.showers.manifest import Manifest, Shard
from caloscale.showers.records import parse_example, read_batches, read_dataset
from caloscale.spec import Data

CACHED_BYTES = 512 * 2**20
"""Showers that take less memory than this stay in it after they were read once."""
SHUFFLED_BYTES = 1024 * 2**20
"""Largest buffer of showers from which the next is drawn."""


@dataclass(frozen=True)
class TrainingShowers:
    """The training part of a folder of shards, as one worker of several sees it.

    batch: showers in a batch of this worker. Every worker makes the same number of steps per epoch; the showers
    that do not fill a last batch (`left_out`, others in each epoch) are not used in that epoch.
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
        if self.steps_per_epoch == 0:
            raise ShowerFileError(
                f"holds fewer training showers than one batch of {self.batch} for each of {self.workers} workers",
                file=self.folder,
                field="parts.train",
                value=self.manifest.parts["train"],
                remedy="lower train.batchPerReplica or use more showers (data.showers)",
            )

    @property
    def shards(self) -> tuple[Shard, ...]:
        """All shards of the training part."""
        return self.manifest.shards_of("train")

    @property
    def by_file(self) -> bool:
        """Whether workers share the showers file by file (each reads its own files) or record by record."""
        return len(self.shards) % self.workers == 0

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch: as many as the worker with the fewest showers can make."""
        return min(self._showers_of(index) for index in range(self.workers)) // self.batch

    @property
    def left_out(self) -> int:
        """Showers of all workers that an epoch does not use."""
        return self.manifest.parts["train"] - self.steps_per_epoch * self.batch * self.workers

    def batches(self, *, start: int, stop: int) -> Any:
        """A tf.data.Dataset of the batches of steps ``start`` up to ``stop`` (numbered over all epochs).

        A batch is a dict of float32 tensors: cells (B, X, Y, Z) in network units, energy_gev, angle_rad,
        measured_angle_rad, ecal_sum (B,). The batches of a step do not depend on where a training was resumed.
        """
        first_epoch, skipped = divmod(start, self.steps_per_epoch)
        last_epoch = math.ceil(stop / self.steps_per_epoch)
        showers = self._showers()

        @tf.autograph.experimental.do_not_convert
        def epoch_batches(epoch: Any) -> Any:
            batches = self._order(showers, epoch).batch(self.batch, drop_remainder=True).take(self.steps_per_epoch)
            numbered = batches.enumerate(epoch * self.steps_per_epoch)
            return numbered.map(self._prepare, num_parallel_calls=1, deterministic=True)

        dataset = tf.data.Dataset.range(first_epoch, last_epoch).flat_map(epoch_batches)
        dataset = dataset.skip(skipped).take(stop - start).prefetch(2)
        options = tf.data.Options()
        options.deterministic = True
        options.threading.private_threadpool_size = 1
        return dataset.with_options(options)

    def explain(self, error: tf.errors.OpError) -> ShowerFileError:
        """Which shard a failure of the pipeline comes from: reads them one by one until one fails."""
        for shard in self.shards:
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
        reason = " ".join(str(error.message).split())[:300]
        return ShowerFileError(
            f"cannot be read: {reason}", file=self.folder, remedy="check the disk, then start again: it goes on"
        )

    def _showers_of(self, index: int) -> int:
        if self.by_file:
            return sum(shard.showers for shard in self.shards[index :: self.workers])
        return (self.manifest.parts["train"] + self.workers - 1 - index) // self.workers

    def _showers(self) -> Any:
        """Serialised showers of this worker, one by one, in the order of the shards."""
        mine = self.shards[self.worker_index :: self.workers] if self.by_file else self.shards
        records = read_dataset([self.folder / shard.file for shard in mine])
        if not self.by_file:
            records = records.shard(self.workers, self.worker_index)
        if self._showers_of(self.worker_index) * self._shower_bytes <= CACHED_BYTES:
            records = records.cache()
        return records

    def _order(self, showers: Any, epoch: Any) -> Any:
        """The showers of an epoch, drawn from a buffer by the seed and the epoch."""
        buffer = min(self._showers_of(self.worker_index), max(1, SHUFFLED_BYTES // self._shower_bytes))
        # An odd multiplier keeps the seeds of epochs, and of trainings with neighbouring seeds, apart.
        seed = (self.seed * 1_000_003 + epoch) * 2 + 1
        return showers.shuffle(buffer, seed=seed, reshuffle_each_iteration=False)

    @tf.autograph.experimental.do_not_convert
    def _prepare(self, step: Any, serialised: Any) -> dict[str, Any]:
        batch = parse_example(self.manifest.shape)(serialised)
        if not self.mirror:
            return batch
        draws = tf.random.stateless_uniform(
            (2, self.batch), seed=tf.stack([step, self.seed * 4096 + self.worker_index])
        )
        return mirrored(batch, across_x=draws[0] < 0.5, across_y=draws[1] < 0.5)

    @property
    def _shower_bytes(self) -> int:
        return 4 * math.prod(self.manifest.shape)


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


def readable_batches(dataset: Any, showers: TrainingShowers) -> Iterator[dict[str, Any]]:
    """The batches of a dataset; a broken record raises ShowerFileError naming its shard."""
    iterator = iter(dataset)
    while True:
        try:
            batch = next(iterator)
        except StopIteration:
            return
        except tf.errors.OpError as error:
            raise showers.explain(error) from error
        yield batch
