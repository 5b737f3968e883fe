"""Showers as sharded TFRecord files: written from HDF5 in constant memory, verified, read."""

import math
import os
import platform
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Self

import h5py
import numpy as np
from numpy.typing import NDArray

import caloscale
from caloscale.detector.angle import measured_angle_rad
from caloscale.errors import ShowerFileError, StorageError
from caloscale.progress import bar
from caloscale.showers import sources
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.reader import read_showers
from caloscale.showers.preprocessing import rebin, to_gev, to_network
from caloscale.showers.primaries import Table, rows
from caloscale.showers.tfrecord.manifest import (
    MANIFEST,
    Manifest,
    Provenance,
    Shard,
    SourceFile,
    Split,
    read_manifest,
    sha256_of,
)
from caloscale.showers.tfrecord.records import member, read_batches, serialise
from caloscale.showers.tfrecord.twins import Twins
from caloscale.spec.data import Data
from caloscale.storage.atomic import PARTIAL, atomic_writer

_SHARD_BYTES = 128 * 1024 * 1024
"""Unpacked cells in a shard (about a twentieth of that on disk for 51 x 51 x 25 cells)."""
_LEAST_TRAIN_SHARDS = 8
_MULTIPLE = 64
FAINT = "sum below data.preprocessing.minimumSumGev"
"""Reason to leave out a shower that is too faint."""
BEYOND_SHOWERS = "beyond data.showers"
"""Reason to leave out a shower that was asked for: more are selected than are wanted."""
_GROUP = 16
"""Shards among which consecutive showers are spread."""


def plan_shards(split: Split, showers: int, shape: tuple[int, int, int]) -> tuple[int, int]:
    """How many shards for a number of showers, and how many showers in each: about 128 MB of cells.

    Training gets 8, 16, 32, 64 or a multiple of 64, so that workers in powers of two get equally many.
    """
    count = math.ceil(showers * 4 * math.prod(shape) / _SHARD_BYTES)
    if split == "train":
        count = max(count, _LEAST_TRAIN_SHARDS)
        power = 2 ** math.ceil(math.log2(count))
        count = power if count <= _MULTIPLE else math.ceil(count / _MULTIPLE) * _MULTIPLE
    count = max(1, min(count, showers))
    return count, max(1, math.ceil(showers / count))


class ShardWriter:
    """Keeps showers in the order in which they are read, and at the end writes them in theirs, spread over shards.

    Consecutive showers of a group go to its shards one after the other, group after group: the shards of a group
    differ by at most one shower. The memory is some numbers for each shower: records are kept as they are written, in
    a file.
    """

    def __init__(self, folder: Path, split: Split, shards: int, showers_per_shard: int) -> None:
        self._folder, self._split, self._shards, self._showers_per_shard = folder, split, shards, showers_per_shard
        self._kept = folder / f".{split}"
        self._file = self._kept.open("w+b")
        self._places: list[NDArray[np.intp]] = []
        self._ends = [0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, prepared: Table, places: NDArray[np.intp]) -> None:
        """Keep showers (see `prepare`) and their places in the order of the split (N,). OSError when the disk
        refuses."""
        for index in range(len(places)):
            self._ends.append(self._ends[-1] + self._file.write(member(serialise(rows(prepared, index)))))
        self._places.append(places)

    def finish(self) -> list[Shard]:
        """Write the shards (``train-00000-of-00008.tfrecord``); their entries. OSError when the disk refuses."""
        self._file.flush()
        order = np.argsort(np.concatenate(self._places))
        dealt: list[NDArray[np.intp]] = []
        while len(order):
            fresh = max(1, min(_GROUP, self._shards - len(dealt)))
            group, order = np.split(order, [fresh * self._showers_per_shard])
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


_BLOCK_BYTES = 32 * 1024 * 1024
"""Cells that are in memory at a time, as stored; the work on them takes some times as much."""


def preprocess_showers(data: Data, source: str | Path, output: Path, *, record: Path | None = None) -> Manifest:
    """Select, re-bin and compress the showers of ``source`` into shards in the folder ``output``.

    ``source``: an HDF5 file, a folder or glob of them, or gs://bucket/prefix. ``record``: a file that is copied beside
    the shards. The folder appears when it is complete and replaces an earlier folder of shards, with or without the
    record; after a failure the output is unchanged.
    Raises ShowerFileError (files that are broken, do not fit, leave nothing selected or repeat showers) and
    StorageError.
    """
    output = Path(output)
    _check_replaceable(output, record)
    with atomic_writer(output, replace_folder=True) as folder:
        folder.mkdir()
        if record is not None:
            shutil.copyfile(record, folder / record.name)
        with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=output.parent) as scratch:
            files = [sources.survey_file(path, data) for path in sources.find_files(source, Path(scratch))]
            manifest = _Preprocessor(data, str(source), files, folder).run()
        text = manifest.model_dump_json(by_alias=True, indent=2)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")
    return manifest


def read_split(folder: str | Path, split: Split, showers: NDArray[np.intp] | None = None) -> Showers:
    """The showers of a split (absent: all; else those with these numbers from 0, ascending) in GeV, re-binned, above
    the threshold.

    Raises ShowerFileError for a broken manifest or record.
    """
    manifest = read_manifest(folder)
    numbers = np.arange(manifest.splits[split]) if showers is None else showers
    cells = np.empty((len(numbers), *manifest.shape), np.float32)
    primaries = {name: np.empty(len(numbers), np.float32) for name in manifest.columns}
    done = 0
    for shard, wanted in manifest.wanted_of(split, numbers):
        path = Path(folder) / shard.file
        for batch in read_batches(path, manifest.shape, manifest.spans, wanted=wanted, showers=shard.showers):
            fresh = slice(done, done + len(batch["cells"]))
            cells[fresh] = to_gev(batch["cells"], manifest.preprocessing)
            for name, column in primaries.items():
                column[fresh] = batch[name]
            done = fresh.stop
    return Showers.of(cells, primaries, manifest.source, manifest.geometry.cell_shape)


class _Preprocessor:
    """One pass over the files, block by block."""

    def __init__(self, data: Data, source: str, files: list[sources.SurveyedFile], folder: Path) -> None:
        self.data, self.source, self.folder = data, source, folder
        self.origin = sources.check_one_origin(files)
        if data.source == "simulate" and self.origin == "file":
            problem = "are no simulated showers, whose energies and order are known (data.source: simulate)"
            remedy = "set data.source to this path"
            raise ShowerFileError(problem, file=source, field="attribute source", value=self.origin, remedy=remedy)
        self.slices, self.split_method = sources.split_files(files, data)
        sources.check_selection(self.slices, data, source)
        self.dropped: Counter[str] = Counter()
        self.sources: dict[Path, SourceFile] = {}
        self.checksums: dict[str, Path] = {}
        self.twins = Twins()
        self.centres: list[NDArray[np.float64]] = []

    def run(self) -> Manifest:
        shards = [shard for split in ("train", "validation") for shard in self._write_split(split)]
        self.twins.check()
        if self.origin != "generated":  # a bad generator may make anything
            sources.check_depth(np.concatenate(self.centres), self.data, self.source)
        splits: dict[Split, int] = {"train": 0, "validation": 0}
        for shard in shards:
            splits[shard.split] += shard.showers
        data = self.data
        return Manifest(
            splits=splits,
            shards=tuple(shards),
            **data.values_of("shape", "preprocessing", "geometry", "front", "pair_distance_mm"),
            **dict(data.primary_ranges()),
            source=self.origin,
            dropped=dict(sorted(self.dropped.items())),
            provenance=Provenance(
                source=self.source,
                files=tuple(self.sources.values()),
                seed=data.seed,
                validation_fraction=data.validation_fraction,
                split_method=self.split_method,
                versions={
                    "caloscale": caloscale.__version__,
                    "python": platform.python_version(),
                    "numpy": np.__version__,
                    "h5py": h5py.__version__,
                },
            ),
        )

    def _write_split(self, split: Split) -> list[Shard]:
        slices = [one for one in self.slices if one.split == split]
        for one in slices:
            for reason, outside in one.file.outside.items():
                self.dropped[reason] += int((outside & one.members).sum())
        places = np.sort(np.concatenate([one.places[one.is_selected] for one in slices]))
        limit = min(len(places), self.data.showers or len(places)) if split == "train" else len(places)
        read = written = 0
        with (
            ShardWriter(self.folder, split, *plan_shards(split, limit, self.data.shape)) as writer,
            bar(f"preprocess {split}", limit, "showers") as progress,
        ):
            while written < limit and read < len(places):  # again for as many as were too faint
                next_places = places[read : read + limit - written]
                read += len(next_places)
                for one in slices:
                    wanted = one.is_selected & (one.places >= next_places[0]) & (one.places <= next_places[-1])
                    for prepared, of_prepared in self._prepare(one, wanted):
                        writer.write(prepared, of_prepared)
                        count = len(of_prepared)
                        progress.update(count)
                        used = self.sources[one.file.path].used
                        used[split] = used.get(split, 0) + count
                        written += count
            self.dropped[BEYOND_SHOWERS] += len(places) - read
            if written == 0:
                raise sources.empty_selection(split, self.slices, self.data, self.source)
            return writer.finish()

    def _prepare(self, one: sources.FileSlice, wanted: NDArray[np.bool_]) -> Iterator[tuple[Table, NDArray[np.intp]]]:
        """The wanted showers of a slice (N,) that are not too faint, and their places, in blocks of the file."""
        path = one.file.path
        size = max(1, _BLOCK_BYTES // (4 * int(np.prod(self.data.geometry.cells))))
        for start in range(0, len(one.file), size):
            selected = np.flatnonzero(wanted[start : start + size])
            if len(selected) == 0:
                continue
            self._keep(one.file)
            stop = min(start + size, len(one.file))
            showers = read_showers(path, geometry=self.data.geometry, start=start, stop=stop)[selected]
            # A file of one primary has no column of it.
            further = {name: one.file.primaries[name][start + selected] for name in self.data.spans}
            showers = replace(showers, further=further)
            sources.check_deposits(one.file, showers, start + selected, self.data)
            prepared, is_bright, cells_gev = prepare(showers, self.data)
            bright = showers[is_bright]
            measured = prepared["measured_angle_rad"]
            sources.check_inclination(one.file, bright.angle_rad, measured, cells_gev[is_bright], self.data)
            self.dropped[FAINT] += int((~is_bright).sum())
            self.twins.add(path, bright, start + selected[is_bright])
            self.centres.append(sources.centres_of(bright.energy_gev, cells_gev[is_bright]))
            if len(bright):
                yield prepared, one.places[start + selected][is_bright]

    def _keep(self, file: sources.SurveyedFile) -> None:
        """Remember the file; the same showers under two names could be in both splits."""
        path = file.path
        if path in self.sources:
            return
        checksum = sha256_of(path)
        twin = self.checksums.setdefault(checksum, path)
        if twin != path:
            problem = f"contains the same showers as {twin.name}"
            remedy = "remove one of the two: a shower must not be in training and validation"
            raise ShowerFileError(problem, file=path, field="sha256", value=checksum, remedy=remedy)
        self.sources[path] = SourceFile(name=path.name, sha256=checksum, showers=len(file), layout=file.layout, used={})


def prepare(showers: Showers, data: Data) -> tuple[Table, NDArray[np.bool_], NDArray[np.float32]]:
    """The showers whose sum is not too small, by the names of their features: cells in network units, numbers; which of
    those given they are (N,); and the energies in GeV that networks see of all that are given (N, X, Y, Z)."""
    preprocessing = data.preprocessing
    cells = to_network(rebin(showers.cells_gev, preprocessing.rebin), preprocessing)
    cells_gev = to_gev(cells, preprocessing)
    sums_gev = cells_gev.sum(axis=(1, 2, 3), dtype=np.float64)
    prepared = {
        "cells": cells,
        **{name: showers.primaries[name] for name in data.columns},
        "measured_angle_rad": measured_angle_rad(cells_gev, data.geometry, preprocessing.rebin),
        "ecal_sum": (sums_gev * preprocessing.units_per_gev).astype(np.float32),
    }
    is_bright = sums_gev > preprocessing.minimum_sum_gev
    return rows(prepared, is_bright), is_bright, cells_gev


def _check_replaceable(output: Path, record: Path | None) -> None:
    """Only a folder of shards is replaced; other files are never deleted."""
    if output.exists() and not output.is_dir():
        raise StorageError("is a file", file=output, remedy="choose another name for the output folder")
    own = (MANIFEST, None if record is None else record.name)
    there = sorted(output.iterdir()) if output.is_dir() else []
    whole = output / MANIFEST in there  # TFRecord files without it are of others
    if foreign := [path.name for path in there if path.name not in own and not (whole and path.suffix == ".tfrecord")]:
        problem = "contains other files than shards, which would be deleted"
        raise StorageError(problem, file=output, value=foreign[:5], remedy="choose another output folder")
