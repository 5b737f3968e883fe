"""A folder of shards that a step reads: on a disk, or as much of one in a bucket as the step needs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from caloscale.errors import ShowerFileError
from caloscale.showers.manifest import MANIFEST, Manifest, Part, Shard, check_shards, read_manifest
from caloscale.showers.storage import download, is_remote


class ShardFolder:
    """Shards in the folder ``path``; with ``uri`` a copy of those in a bucket, each fetched when it is first needed.

    Fetched, not streamed: the shuffle begins when its buffers are full, which takes a good part of the shards, so a
    stream would begin no sooner; later epochs need no bucket; and each worker fetches only what it reads.
    Raises ShowerFileError (there is no manifest) and StorageError.
    """

    def __init__(self, path: Path, uri: str | None = None) -> None:
        self.path, self.uri = path, uri
        self._whole: set[str] = set()
        if uri is not None and not download(f"{uri.rstrip('/')}/{MANIFEST}", path):
            raise ShowerFileError(
                "holds no shards: there is no manifest",
                file=uri,
                remedy="give a folder that `caloscale preprocess` made and that was copied as a whole",
            )
        self.manifest: Manifest = read_manifest(path)

    def need(self, shards: Sequence[Shard] | None = None) -> None:
        """Have these shards (absent: all) here, whole. Raises ShowerFileError naming the one that is not."""
        # On a disk all are looked at, once: what is wrong with a shard should be known before the training begins.
        wanted = self.manifest.shards if shards is None or self.uri is None else shards
        fresh = tuple(shard for shard in wanted if shard.file not in self._whole)
        absent = tuple(shard.file for shard in fresh if not self._is_here(shard))
        if absent and self.uri is not None:
            download(self.uri, self.path, absent)
        check_shards(self.path, self.manifest, fresh)
        self._whole.update(shard.file for shard in fresh)

    def need_part(self, part: Part, *, limit: int | None = None) -> None:
        """Have the first ``limit`` showers (absent: all) of a part here."""
        shards, showers = [], 0
        for shard in self.manifest.shards_of(part):
            if limit is not None and showers >= limit:
                break
            shards.append(shard)
            showers += shard.showers
        self.need(shards)

    def _is_here(self, shard: Shard) -> bool:
        file = self.path / shard.file
        return file.is_file() and file.stat().st_size == shard.bytes


@contextmanager
def open_shards(place: str | Path | ShardFolder) -> Iterator[ShardFolder]:
    """The shards of a folder or of gs://bucket/prefix, the latter in a temporary folder."""
    if isinstance(place, ShardFolder):
        yield place
    elif is_remote(str(place)):
        with tempfile.TemporaryDirectory(prefix="caloscale-") as scratch:
            yield ShardFolder(Path(scratch), str(place))
    else:
        yield ShardFolder(Path(place))
