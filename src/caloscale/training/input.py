"""Showers for training: read, shuffled, mirrored and batched, the same way whenever a training is repeated."""

import math
import os
from collections.abc import Callable
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from caloscale.errors import ShowerFileError
from caloscale.random import MIRROR_SECTION, EventDraws
from caloscale.showers.tfrecord.manifest import Manifest
from caloscale.showers.tfrecord.records import parse_example, read_batches, read_member, record_positions
from caloscale.spec import Data
from caloscale.spec.data import BEAM_LINE, first_unlike

CACHED_BYTES = 512 * 2**20
"""Showers that take less memory than this stay in it after they were read once."""


def epoch_order(seed: int, epoch: int, showers: int) -> NDArray[np.intp]:
    """The order of an epoch: a random permutation of the numbers of the showers (showers,).

    It sorts 64 random bits for each shower: the bits of Philox are the same with every version of NumPy.
    """
    return np.argsort(np.random.Philox(key=np.array([seed, epoch], np.uint64)).random_raw(showers), kind="stable")


class TrainingShowers:
    """The training split of a folder of shards, as one worker of several sees it.

    batch: showers in the global batch, of which a worker has consecutive positions. Step s of an epoch has the showers
    s * batch up to (s + 1) * batch of `epoch_order`. Those that do not fill a last batch are not used in that epoch.
    Memory: 24 bytes for each shower of the split, and the showers themselves where they take less than CACHED_BYTES.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        batch: int,
        seed: int,
        mirror: bool,
        workers: int = 1,
        worker_index: int = 0,
    ) -> None:
        self.folder, self.manifest, self.batch, self.seed, self.mirror = folder, manifest, batch, seed, mirror
        self.shards = manifest.shards_of("train")
        """Each worker reads records of all of them."""
        self.showers = manifest.splits["train"]
        self.steps_per_epoch, self.left_out = divmod(self.showers, batch)
        """Steps of an epoch, and showers that it does not use."""
        self.share = batch // workers
        """Showers of this worker in a batch."""
        self.first = self.share * worker_index
        """Position of this worker's first shower in a batch."""
        if self.steps_per_epoch == 0:
            problem = f"holds fewer training showers than one batch of {batch}"
            remedy = "lower train.batchPerReplica or train.globalBatchSize, or use more showers (data.showers)"
            raise ShowerFileError(problem, file=folder, field="splits.train", value=self.showers, remedy=remedy)

    def batches(self, *, start: int, stop: int, slices: int = 1) -> tf.data.Dataset:
        """This worker's share of the batches of steps ``start`` up to ``stop`` (numbered over all epochs), each in
        ``slices`` elements one after the other.

        An element is a dict of float32 tensors: cells (B, X, Y, Z) in network units, the columns of the table of
        primaries, measured_angle_rad, ecal_sum (B,). Raises ShowerFileError for shards whose records cannot be found.
        """
        count, read_record = self.share // slices, self._read_record
        order = lru_cache(maxsize=2)(partial(epoch_order, self.seed, showers=self.showers))

        def read(step: np.int64, first: np.int64) -> NDArray[np.object_]:
            epoch, step_of_epoch = divmod(int(step), self.steps_per_epoch)
            start = step_of_epoch * self.batch + int(first)
            numbers = order(epoch)[start : start + count]
            # Of objects: NumPy's own strings lose the zeros at their end.
            return np.array([read_record(number) for number in numbers.tolist()], object)

        @tf.autograph.experimental.do_not_convert
        def element(index: tf.Tensor) -> dict[str, tf.Tensor]:
            step, first = index // slices, self.first + index % slices * count
            serialised = tf.ensure_shape(tf.numpy_function(read, (step, first), tf.string), (count,))
            return self._prepare(step, first, serialised)

        # One where the processor trains too, more on the many cores of a machine with accelerators.
        threads = max(1, (os.cpu_count() or 1) // 8)
        dataset = tf.data.Dataset.range(start * slices, stop * slices)
        dataset = dataset.map(element, num_parallel_calls=threads, deterministic=True).prefetch(2 * slices)
        options = tf.data.Options()
        options.deterministic = True
        # Nothing here is left to tuning.
        options.autotune.enabled = False
        options.threading.private_threadpool_size = threads
        return dataset.with_options(options)

    def describe(self) -> str:
        """The input in a sentence, for the log."""
        return (
            f"{self.showers} showers in {len(self.shards)} shards; batches of {self.batch}, "
            f"{self.steps_per_epoch} steps per epoch, {self.left_out} showers left out of each"
        )

    def broken_shard(self) -> ShowerFileError | None:
        """The error of the first shard that cannot be read as it was written; None: all can be read now."""
        for shard in self.shards:
            path = self.folder / shard.file
            try:
                for _ in read_batches(path, self.manifest.shape, self.manifest.spans, showers=shard.showers):
                    pass
            except ShowerFileError as broken:
                return broken
        return None

    @cached_property
    def _read_record(self) -> Callable[[int], bytes]:
        """From the number of a shower over all shards to what is serialised of it. Raises ShowerFileError."""
        paths = [self.folder / shard.file for shard in self.shards]
        positions = [record_positions(path, shard.showers) for path, shard in zip(paths, self.shards)]
        ends = np.cumsum([shard.showers for shard in self.shards])

        def read(number: int) -> bytes:
            """Raises OSError and zlib.error."""
            shard = int(np.searchsorted(ends, number, side="right"))
            position = number - int(ends[shard])  # from the end, so negative
            return read_member(paths[shard], int(positions[shard][position - 1]), int(positions[shard][position]))

        return cache(read) if 4 * math.prod(self.manifest.shape) * self.showers <= CACHED_BYTES else read

    @tf.autograph.experimental.do_not_convert
    def _prepare(self, step: tf.Tensor, first: tf.Tensor, serialised: tf.Tensor) -> dict[str, tf.Tensor]:
        batch = parse_example(serialised, self.manifest.shape, self.manifest.spans)
        if not self.mirror:
            return batch
        draws = EventDraws(self.seed, step, MIRROR_SECTION, first, serialised.shape[0]).uniform((2,))
        if self.manifest.geometry.cell_shape == "cylinder":
            azimuths = self.manifest.shape[0]
            return turned(batch, tf.cast(draws[:, 0] * azimuths, tf.int32) % azimuths, draws[:, 1] < 0.5)
        return mirrored(batch, across_x=draws[:, 0] < 0.5, across_y=draws[:, 1] < 0.5)


def mirrored(batch: dict[str, tf.Tensor], across_x: tf.Tensor, across_y: tf.Tensor) -> dict[str, tf.Tensor]:
    """The batch with some showers mirrored: x -> -x with angle -> pi - angle, and y -> -y.

    The displacement along the axis changes its sign, and so does the azimuth, in both: of (cos a cos p, cos a sin p,
    sin a), pi - a and -p change the first component alone, -p the second. across_x, across_y: bool (B,), which showers.
    """
    cells = batch["cells"]
    cells = tf.where(across_x[:, None, None, None], tf.reverse(cells, axis=[1]), cells)
    cells = tf.where(across_y[:, None, None, None], tf.reverse(cells, axis=[2]), cells)
    angles = {
        name: tf.where(across_x, math.pi - batch[name], batch[name]) for name in ("angle_rad", "measured_angle_rad")
    }
    opposite = (("azimuth_rad", tf.not_equal(across_x, across_y)), ("entry_x_mm", across_x), ("entry_y_mm", across_y))
    signed = {name: tf.where(which, -batch[name], batch[name]) for name, which in opposite if name in batch}
    return {**batch, **angles, **signed, "cells": cells}


def turned(batch: dict[str, tf.Tensor], steps: tf.Tensor, mirrored: tf.Tensor) -> dict[str, tf.Tensor]:
    """The batch, cells in azimuth, radius and depth, with showers turned around the axis.

    steps (B,): by how many cells of azimuth; mirrored, bool (B,): which are mirrored before, y -> -y.
    """
    cells = batch["cells"]
    numbers = tf.range(cells.shape[1])[None] - steps[:, None]  # of the cells that come to 0, 1, 2 ...
    numbers = tf.where(mirrored[:, None], cells.shape[1] - 1 - numbers, numbers) % cells.shape[1]
    return {**batch, "cells": tf.gather(cells, numbers, axis=1, batch_dims=1)}


def check_manifest(folder: Path, manifest: Manifest, data: Data) -> None:
    """ShowerFileError unless the shards were made for this run: same shape, detector, beam line, preprocessing,
    primaries with their ranges, which the networks and their model card take from the run."""
    beam_line = () if manifest.front is None else BEAM_LINE
    if (unlike := first_unlike(manifest, data, "energy_gev", "angle_deg", *beam_line)) is not None:
        field, theirs, ours = unlike
        problem = "the shards were made for another run configuration"
        remedy = f"make them again with `caloscale preprocess`; the run wants {str(ours)[:200]}"
        file, value = folder / "manifest.json", str(theirs)[:200]
        raise ShowerFileError(problem, file=file, field=field, value=value, remedy=remedy)
