"""What is in a file or folder of showers: what `caloscale inspect` prints and draws."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from caloscale.errors import ShowerFileError
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.layouts import CALOCHALLENGE_CELLS, Source
from caloscale.showers.hdf5.reader import FileDescription, describe_file, read_showers, span
from caloscale.showers.picture import draw_shower
from caloscale.showers.preprocessing import to_gev
from caloscale.showers.tfrecord.manifest import MANIFEST, Manifest, Part, read_manifest
from caloscale.spec.block import Block
from caloscale.spec.data import Geometry, LayerGroup, Preprocessing, Range

_XYZ = ("cell in x", "cell in y", "layer")
_CYLINDER = ("bin in alpha", "bin in r", "layer")


class FolderDescription(Block):
    """What a folder of shards holds, from its manifest."""

    file: str
    """Path of the folder."""
    shape: tuple[int, int, int]
    """Cells of a shower, after re-binning."""
    showers: dict[Part, int]
    """Showers in each part."""
    shards: dict[Part, int]
    """Files in each part."""
    bytes: int
    """Size of all shards."""
    energy_gev: Range
    """Selected primary energies, GeV."""
    angle_deg: Range
    """Selected angles, degrees."""
    source: Source
    """Origin of the showers."""
    split: str
    """How validation was kept apart."""
    dropped: dict[str, int]
    """Showers left out, by reason."""
    preprocessing: Preprocessing
    """What was done to the cells."""
    files: tuple[str, ...]
    """Names of the files that the showers come from."""
    versions: dict[str, str]
    """Software that made the shards."""


class ShardDescription(Block):
    """What a TFRecord file holds, from reading it."""

    file: str
    """Path of the file."""
    showers: int
    """Number of records."""
    shape: tuple[int, int, int]
    """Cells of a shower, after re-binning (from the manifest beside it)."""
    bytes: int
    """Size of the file."""
    energy_gev: Range | None
    """Lowest and highest primary energy, GeV."""
    angle_deg: Range | None
    """Lowest and highest angle, degrees."""
    sum_gev: Range | None
    """Lowest and highest sum of cells, GeV."""
    source: Source
    """Origin of the showers."""


def describe(path: str | Path) -> FileDescription | FolderDescription | ShardDescription:
    """What a path holds: an HDF5 file, a folder of shards or one shard. Raises ShowerFileError."""
    path = Path(path)
    if path.is_dir() or path.name == MANIFEST:
        return describe_folder(path if path.is_dir() else path.parent)
    return describe_shard(path) if path.suffix == ".tfrecord" else describe_file(path)


def describe_folder(folder: str | Path) -> FolderDescription:
    """What a folder of shards holds, without reading the shards. Raises ShowerFileError."""
    manifest = read_manifest(folder)
    return FolderDescription(
        file=str(folder),
        shape=manifest.shape,
        showers=manifest.parts,
        shards={part: len(manifest.shards_of(part)) for part in manifest.parts},
        bytes=sum(shard.bytes for shard in manifest.shards),
        energy_gev=manifest.energy_gev,
        angle_deg=manifest.angle_deg,
        source=manifest.source,
        split=manifest.provenance.split,
        dropped={reason: count for reason, count in manifest.dropped.items() if count},
        preprocessing=manifest.preprocessing,
        files=tuple(file.name for file in manifest.provenance.files),
        versions=manifest.provenance.versions,
    )


def describe_shard(path: Path) -> ShardDescription:
    """What a shard holds; reads it all. Raises ShowerFileError (also without a manifest beside it)."""
    from caloscale.showers.tfrecord.records import SCALARS, read_batches

    manifest = _manifest_beside(path)
    batches = [{name: batch[name] for name in SCALARS} for batch in read_batches(path, manifest.shape)]
    if not batches:
        raise ShowerFileError("holds no showers", file=path, remedy="make it again with `caloscale preprocess`")
    values = {name: np.concatenate([batch[name] for batch in batches]).astype(float) for name in SCALARS}
    return ShardDescription(
        file=str(path),
        showers=len(values["ecal_sum"]),
        shape=manifest.shape,
        bytes=path.stat().st_size,
        energy_gev=span(values["energy_gev"]),
        angle_deg=span(np.degrees(values["angle_rad"])),
        sum_gev=span(values["ecal_sum"] / manifest.preprocessing.units_per_gev),
        source=manifest.source,
    )


def draw(path: str | Path, shower: int, target: str | Path) -> None:
    """Draw shower number ``shower`` of an HDF5 file, a shard or a folder of shards (training part) as PNG.

    Raises ShowerFileError when it cannot be read or there is none of this number, StorageError for the PNG.
    """
    path = Path(path)
    if path.is_dir() or path.name == MANIFEST:
        folder = path if path.is_dir() else path.parent
        path, shower = _shard_of(folder, shower)
    if path.suffix == ".tfrecord":
        showers, axes = _one_of_shard(path, shower), _XYZ
    else:
        showers, axes = _one_of_file(path, shower)
    if len(showers) == 0:
        raise _no_such(path, shower)
    draw_shower(showers, 0, target, axes=axes)


def _shard_of(folder: Path, shower: int) -> tuple[Path, int]:
    """The shard that holds a shower of the training part, and its number there."""
    before = 0
    for shard in read_manifest(folder).shards_of("train"):
        if shower < before + shard.showers:
            return folder / shard.file, shower - before
        before += shard.showers
    raise _no_such(folder, shower, before)


def _one_of_shard(path: Path, shower: int) -> Showers:
    from caloscale.showers.tfrecord.records import read_batches

    manifest = _manifest_beside(path)
    start = 0
    for batch in read_batches(path, manifest.shape):
        count = len(batch["cells"])
        if start <= shower < start + count:
            one = slice(shower - start, shower - start + 1)
            cells_gev = to_gev(batch["cells"][one], manifest.preprocessing)
            return Showers(cells_gev, batch["energy_gev"][one], batch["angle_rad"][one], manifest.source)
        start += count
    raise _no_such(path, shower, start)


def _one_of_file(path: Path, shower: int) -> tuple[Showers, tuple[str, str, str]]:
    described = describe_file(path)
    if not 0 <= shower < described.showers:
        raise _no_such(path, shower, described.showers)
    shape = described.shape
    cells = CALOCHALLENGE_CELLS.get(shape[0]) if len(shape) == 1 else (shape[0], shape[1], shape[2])
    if cells is None:
        raise ShowerFileError(
            "has a number of voxels of which the layout is not known",
            file=path,
            field="showers",
            value=shape,
            remedy=f"known: {', '.join(map(str, CALOCHALLENGE_CELLS))} voxels",
        )
    axes = _XYZ if len(shape) == 3 else _CYLINDER
    return read_showers(path, geometry=_any_geometry(cells), start=shower, stop=shower + 1), axes


def _any_geometry(cells: tuple[int, int, int]) -> Geometry:
    """A geometry of these cells: a file does not say its materials, and a picture does not need them."""
    layers = (LayerGroup(count=cells[2], absorber_mm=1.0),)
    return Geometry.model_construct(cells=cells, layers=layers, depth_mm=math.inf)


def _manifest_beside(path: Path) -> Manifest:
    if not path.is_file():
        raise ShowerFileError("cannot be read: there is no such file", file=path, remedy="give the path of a shard")
    return read_manifest(path.parent)


def _no_such(path: Path, shower: int, count: int = 0) -> ShowerFileError:
    remedy = f"choose 0 to {count - 1}" if count else "give a file with showers"
    return ShowerFileError(f"holds {count} showers", file=path, field="shower", value=shower, remedy=remedy)
