"""The manifest of a folder of shards, and checks that the shards are complete. Does not import TensorFlow."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from caloscale.errors import ShowerFileError
from caloscale.showers.hdf5.layouts import Layout, Source
from caloscale.spec.block import Block, read_block
from caloscale.spec.data import FrontLayer, Geometry, Preprocessing, PrimaryRanges

Split = Literal["train", "validation"]
SplitMethod = Literal["by file", "by shower"]
MANIFEST = "manifest.json"

_Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
_REMAKE = "make the folder again with `caloscale preprocess`"


class Shard(Block):
    """A TFRecord file."""

    file: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*\.tfrecord$")
    """Name within the folder."""
    split: Split
    """Training or validation."""
    showers: int = Field(gt=0)
    """Records in it."""
    bytes: int = Field(gt=0)
    """Size of the file."""
    sha256: _Sha256
    """Checksum of the file."""


class SourceFile(Block):
    """A file of showers that went into the shards."""

    name: str
    """Name of the file (without folder)."""
    sha256: _Sha256
    """Checksum of the file."""
    showers: int = Field(ge=0)
    layout: Layout
    used: dict[Split, int]
    """Showers of the file in each split."""


class Provenance(Block):
    """Where the showers come from."""

    source: str
    """The path or URI that was given."""
    files: tuple[SourceFile, ...]
    """The files, in the order in which they were used."""
    seed: int
    """Seed of the split."""
    validation_fraction: float
    """Requested fraction of the showers for validation."""
    split_method: SplitMethod
    """How the validation showers were chosen: whole files, or single showers."""
    versions: dict[str, str]
    """Versions of the software that prepared the showers."""


class Manifest(PrimaryRanges):
    """A folder of shards: ``manifest.json`` beside the TFRecord files."""

    format: Literal[3] = 3
    """Version of the manifest and of the records; incremented when older ones would be misread. From 3 on, showers are
    in random order: the first of a split are a sample of it."""
    shape: tuple[int, int, int]
    """Cells of a shower along x, y, z, after re-binning."""
    splits: dict[Split, int]
    """Showers in each split."""
    shards: tuple[Shard, ...]
    """The TFRecord files."""
    preprocessing: Preprocessing
    """Preprocessing of the cells."""
    geometry: Geometry
    """The detector, before re-binning."""
    front: tuple[FrontLayer, ...] | None = None
    """Plates before the detector; absent, as in older manifests: beam line not known."""
    pair_distance_mm: float | None = None
    """Distance of the two primaries of a shower, mm; absent: one primary."""
    source: Source
    """Origin of the showers: geant4, parametrised, generated or file (unknown)."""
    dropped: dict[str, int]
    """Showers that were left out, by reason."""
    provenance: Provenance
    """Where the showers come from."""

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        for split in ("train", "validation"):
            listed = sum(shard.showers for shard in self.shards if shard.split == split)
            if listed != self.splits.get(split):
                raise ValueError(f"the {split} shards contain {listed} showers, splits gives {self.splits.get(split)}")
        if len({shard.file for shard in self.shards}) != len(self.shards):
            raise ValueError("a shard is listed twice")
        expected = tuple(n // r for n, r in zip(self.geometry.cells, self.preprocessing.rebin))
        if expected != self.shape:
            raise ValueError(f"shape {self.shape} does not follow from geometry and rebin, which give {expected}")
        return self

    def shards_of(self, split: Split) -> tuple[Shard, ...]:
        """The shards of a split, in order."""
        return tuple(shard for shard in self.shards if shard.split == split)

    @property
    def train_sha256(self) -> str:
        """Checksum of the training shards."""
        return hashlib.sha256("".join(shard.sha256 for shard in self.shards_of("train")).encode()).hexdigest()

    def wanted_of(self, split: Split, showers: NDArray[np.intp]) -> list[tuple[Shard, NDArray[np.intp]]]:
        """The shards with these showers of a split (numbers from 0, ascending), and their numbers in the shard."""
        shards = self.shards_of(split)
        ends = np.cumsum([shard.showers for shard in shards])
        parts = zip(shards, np.split(showers, np.searchsorted(showers, ends[:-1])), ends)
        return [(shard, numbers - (end - shard.showers)) for shard, numbers, end in parts if len(numbers)]


def read_manifest(folder: str | Path) -> Manifest:
    """The manifest of a folder of shards; raises ShowerFileError when it is missing, broken or of another kind."""
    path, remedy = Path(folder) / MANIFEST, f"give a folder of shards, or {_REMAKE}"
    return read_block(Manifest, path, remedy=remedy, error=ShowerFileError, what="a manifest of shards")


def check_shards(folder: str | Path, shards: Sequence[Shard]) -> None:
    """Every shard is there with the size and checksum of the manifest; raises ShowerFileError naming the first that is
    not."""
    for shard in shards:
        path = Path(folder) / shard.file
        try:
            size = path.stat().st_size
        except OSError as error:
            problem = f"shard cannot be read: {error.strerror}"
            raise ShowerFileError(problem, file=path, field="shards", value=shard.file, remedy=_REMAKE) from error
        if size != shard.bytes:
            problem, field, value = f"has another size than the {shard.bytes} bytes of the manifest", "bytes", str(size)
        elif (checksum := sha256_of(path)) != shard.sha256:
            problem, field, value = "does not match the manifest's checksum", "sha256", checksum
        else:
            continue
        raise ShowerFileError(f"shard {problem}", file=path, field=field, value=value, remedy=_REMAKE)


def sha256_of(path: Path) -> str:
    """Checksum of a file, in constant memory; OSError passes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
