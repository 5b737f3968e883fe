"""A folder of shards that a stage reads: on a disk, or the needed files of one in a bucket."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from caloscale.errors import ShowerFileError
from caloscale.showers.arrays import Showers
from caloscale.showers.tfrecord.manifest import MANIFEST, Manifest, Shard, Split, check_shards, read_manifest
from caloscale.showers.tfrecord.shards import read_split
from caloscale.storage.objects import download, is_remote


class ShardFolder:
    """Shards in the folder ``path``; with ``uri`` a copy of those in a bucket, each fetched when it is first needed.

    Fetched, not streamed: a training batch has records of all shards, and later epochs need no bucket.
    Raises ShowerFileError (there is no manifest) and StorageError.
    """

    def __init__(self, path: Path, uri: str | None = None) -> None:
        self.path, self.uri = path, uri
        self._whole: set[str] = set()
        if uri is not None and not download(f"{uri.rstrip('/')}/{MANIFEST}", path):
            remedy = "give a folder that `caloscale preprocess` made and that was copied as a whole"
            raise ShowerFileError("contains no shards: there is no manifest", file=uri, remedy=remedy)
        self.manifest: Manifest = read_manifest(path)

    def need(self, shards: Sequence[Shard] | None = None) -> None:
        """Fetch these shards (absent: all) and check them. Raises ShowerFileError for the first that is not intact."""
        # On a disk all are checked, once: a damaged shard is reported before the training begins.
        wanted = self.manifest.shards if shards is None or self.uri is None else shards
        fresh = tuple(shard for shard in wanted if shard.file not in self._whole)
        here = {file.name: file.stat().st_size for file in self.path.iterdir() if file.is_file()}
        absent = tuple(shard.file for shard in fresh if here.get(shard.file) != shard.bytes)
        if absent and self.uri is not None:
            download(self.uri, self.path, absent)
        check_shards(self.path, fresh)
        self._whole.update(shard.file for shard in fresh)

    def read(self, split: Split, showers: NDArray[np.intp] | None = None) -> Showers:
        """As `read_split`; shards that are missing here are fetched first."""
        numbers = np.arange(self.manifest.splits[split]) if showers is None else showers
        self.need([shard for shard, _ in self.manifest.wanted_of(split, numbers)])
        return read_split(self.path, split, numbers)


@contextmanager
def open_shards(source: str | Path | ShardFolder) -> Iterator[ShardFolder]:
    """The shards of a folder or of gs://bucket/prefix, the latter in a temporary folder."""
    if isinstance(source, ShardFolder):
        yield source
    elif is_remote(str(source)):
        with tempfile.TemporaryDirectory(prefix="caloscale-") as scratch:
            yield ShardFolder(Path(scratch), str(source))
    else:
        yield ShardFolder(Path(source))
