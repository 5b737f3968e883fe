"""What `caloscale inspect` shows of a path: the content of files and folders of showers, and one shower."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from caloscale.errors import ShowerFileError
from caloscale.progress import bar
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.layouts import CALOCHALLENGE_CELLS, Layout, Source, open_layout
from caloscale.showers.hdf5.reader import REMOVE, read_showers, read_sums, refuse_first
from caloscale.showers.preprocessing import to_gev
from caloscale.showers.sources import hdf5_files
from caloscale.showers.tfrecord.manifest import MANIFEST, Manifest, Split, read_manifest
from caloscale.spec.block import Block
from caloscale.spec.data import CellShape, Geometry, LayerGroup, Particle, Preprocessing, Range

_AXES: dict[CellShape, Names] = {
    "grid": ("cell in x", "cell in y", "layer"),
    "cylinder": ("cell in azimuth", "cell in radius", "layer"),
}
Names = tuple[str, str, str]
"""Names of the three axes of a shower."""


class _Content(Block):
    """Content of a path."""

    file: str
    """The path."""
    bytes: int
    """Size of all its files."""
    energy_gev: Range | None
    """Lowest and highest primary energy, GeV; in a folder of shards the selected ones; absent without showers."""
    angle_deg: Range | None
    """The same of the angles, degrees."""
    particles: tuple[Particle, ...]
    """Primaries: from the dataset pdg or the attribute of a file, else that of the published data in its layout."""
    azimuth_deg: Range | None
    """Lowest and highest azimuth, degrees; absent: the files have none, or all are 0."""
    entry_mm: Range | None
    """Lowest and highest displacement along x or y, mm; absent: the files have none, or all are 0."""


class FileDescription(_Content):
    """Content of an HDF5 file of showers."""

    layout: Layout
    """Published layout of the file."""
    showers: int
    """Number of showers."""
    shape: tuple[int, ...]
    """Shape of one shower as stored: (X, Y, Z), or (voxels,) in the CaloChallenge layout."""
    sum_gev: Range | None
    """Lowest and highest sum of cells (ECAL sum), GeV; absent without showers."""
    units_per_gev: float
    """Units of a stored cell per GeV."""
    source: Source
    """Origin of the showers."""
    datasets: dict[str, str]
    """Type and shape of each dataset."""
    attributes: dict[str, str | bool | int | float]


class SourceFolderDescription(_Content):
    """Content of a folder of HDF5 files."""

    files: int
    """Number of HDF5 files."""
    showers: int
    """Showers in all files."""
    showers_per_file: tuple[int, int]
    """Lowest and highest number of showers in a file."""
    layouts: tuple[Layout, ...]
    """Published layouts of the files."""
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of a shower as stored."""
    sum_gev: Range | None
    """Lowest and highest sum of cells (ECAL sum), GeV."""
    units_per_gev: tuple[float, ...]
    """Units of a stored cell per GeV."""
    sources: tuple[Source, ...]
    """Origins of the showers; a data set must have one."""


class ShardFolderDescription(_Content):
    """Content of a folder of shards, from its manifest."""

    shape: tuple[int, int, int]
    """Cells of a shower, after re-binning."""
    showers: dict[Split, int]
    """Showers in each split."""
    shards: dict[Split, int]
    """Files in each split."""
    source: Source
    """Origin of the showers."""
    split_method: str
    """How the validation showers were chosen."""
    dropped: dict[str, int]
    """Showers left out, by reason."""
    preprocessing: Preprocessing
    """Preprocessing of the cells."""
    files: tuple[str, ...]
    """Names of the files that the showers come from."""
    versions: dict[str, str]
    """Software that made the shards."""


class ShardDescription(_Content):
    """Content of a TFRecord file."""

    showers: int
    """Number of records."""
    shape: tuple[int, int, int]
    """Cells of a shower, after re-binning (from the manifest beside the file)."""
    sum_gev: Range | None
    """Lowest and highest sum of cells (ECAL sum), GeV."""
    source: Source
    """Origin of the showers."""


Description = FileDescription | SourceFolderDescription | ShardFolderDescription | ShardDescription


def describe(path: str | Path) -> Description:
    """Content of a path: an HDF5 file or a folder of them, a folder of shards or one shard. Raises ShowerFileError."""
    path = Path(path)
    if path.name == MANIFEST or (path / MANIFEST).exists():
        return describe_shards(path.parent if path.name == MANIFEST else path)
    if path.is_dir():
        return describe_files(path)
    return describe_shard(path) if path.suffix == ".tfrecord" else describe_file(path)


def describe_file(path: str | Path) -> FileDescription:
    """Content of an HDF5 file; reads all of it.

    Raises ShowerFileError as `open_layout` does, and for numbers that are not finite and negative cells.
    """
    with open_layout(path) as opened:
        primaries = opened.primaries()
        refuse_first(
            path,
            [(name, "a number that is not finite", ~np.isfinite(c), c, REMOVE) for name, c in primaries.items()],
        )
        datasets = {n: d for n, d in opened.file.items() if isinstance(d, h5py.Dataset)}
        return FileDescription(
            file=str(path),
            layout=opened.layout,
            showers=len(opened.cells),
            shape=opened.shape,
            bytes=Path(path).stat().st_size,
            energy_gev=_span(primaries["energy_gev"]),
            angle_deg=_span(np.degrees(primaries["angle_rad"])),
            sum_gev=_span(read_sums(opened)),
            units_per_gev=opened.units_per_gev,
            source=opened.source,
            particles=opened.particles,
            **_further_spans(primaries),
            datasets={name: f"{d.dtype} {d.shape}" for name, d in datasets.items()},
            attributes=opened.attributes,
        )


def describe_files(folder: Path) -> SourceFolderDescription:
    """Content of a folder of HDF5 files. Raises ShowerFileError for the first that cannot be read, or without any."""
    paths = _files_of(folder)
    with bar("inspect", len(paths), "files", disable=len(paths) < 10) as progress:
        found = []
        for path in paths:
            found.append(describe_file(path))
            progress.update()
    counts = [one.showers for one in found]
    return SourceFolderDescription(
        file=str(folder),
        files=len(found),
        showers=sum(counts),
        showers_per_file=(min(counts), max(counts)),
        layouts=tuple(sorted({one.layout for one in found})),
        shapes=tuple(sorted({one.shape for one in found})),
        bytes=sum(one.bytes for one in found),
        energy_gev=_union(one.energy_gev for one in found),
        angle_deg=_union(one.angle_deg for one in found),
        sum_gev=_union(one.sum_gev for one in found),
        units_per_gev=tuple(sorted({one.units_per_gev for one in found})),
        sources=tuple(sorted({one.source for one in found})),
        particles=tuple(sorted({particle for one in found for particle in one.particles})),
        azimuth_deg=_union(one.azimuth_deg for one in found),
        entry_mm=_union(one.entry_mm for one in found),
    )


def describe_shards(folder: str | Path) -> ShardFolderDescription:
    """Content of a folder of shards, without reading the shards. Raises ShowerFileError."""
    manifest = read_manifest(folder)
    return ShardFolderDescription(
        file=str(folder),
        shape=manifest.shape,
        showers=manifest.splits,
        shards={split: len(manifest.shards_of(split)) for split in manifest.splits},
        bytes=sum(shard.bytes for shard in manifest.shards),
        energy_gev=manifest.energy_gev,
        angle_deg=manifest.angle_deg,
        source=manifest.source,
        particles=manifest.particles,
        azimuth_deg=manifest.azimuth_deg,
        entry_mm=manifest.entry_mm,
        split_method=manifest.provenance.split_method,
        dropped={reason: count for reason, count in manifest.dropped.items() if count},
        preprocessing=manifest.preprocessing,
        files=tuple(file.name for file in manifest.provenance.files),
        versions=manifest.provenance.versions,
    )


def describe_shard(path: Path) -> ShardDescription:
    """Content of a shard; reads all of it. Raises ShowerFileError (also without a manifest beside it)."""
    from caloscale.showers.tfrecord.records import SCALARS, read_batches

    manifest = _manifest_beside(path)
    names = (*SCALARS, *manifest.spans)
    batches = [{name: batch[name] for name in names} for batch in read_batches(path, manifest.shape, manifest.spans)]
    if not batches:
        raise ShowerFileError("contains no showers", file=path, remedy="make it again with `caloscale preprocess`")
    values = {name: np.concatenate([batch[name] for batch in batches]).astype(float) for name in names}
    return ShardDescription(
        file=str(path),
        showers=len(values["ecal_sum"]),
        shape=manifest.shape,
        bytes=path.stat().st_size,
        energy_gev=_span(values["energy_gev"]),
        angle_deg=_span(np.degrees(values["angle_rad"])),
        sum_gev=_span(values["ecal_sum"] / manifest.preprocessing.units_per_gev),
        source=manifest.source,
        particles=manifest.particles,
        **_further_spans(values),
    )


def read_one(path: str | Path, shower: int) -> tuple[Showers, Names]:
    """Shower number ``shower`` of what `describe` describes, and the names of its axes.

    Of a folder of shards: of its training split. Raises ShowerFileError when it cannot be read or does not exist.
    """
    path = Path(path)
    if path.name == MANIFEST or (path / MANIFEST).exists():
        path, shower = _shard_of(path.parent if path.name == MANIFEST else path, shower)
    elif path.is_dir():
        path, shower = _file_of(path, shower)
    return _of_shard(path, shower) if path.suffix == ".tfrecord" else _of_file(path, shower)


def _files_of(folder: Path) -> list[Path]:
    files = hdf5_files(folder)
    if not files:
        raise ShowerFileError(
            "cannot be read: it contains neither shards (manifest.json) nor HDF5 files",
            file=folder,
            remedy="give a folder that `caloscale simulate` or `caloscale preprocess` made, or a file of showers",
        )
    return files


def _file_of(folder: Path, shower: int) -> tuple[Path, int]:
    """The HDF5 file of a folder that contains a shower, and the number of the shower there."""
    before = 0
    for path in _files_of(folder):
        with open_layout(path) as opened:
            count = len(opened.cells)
        if shower < before + count:
            return path, shower - before
        before += count
    raise _no_such(folder, shower, before)


def _shard_of(folder: Path, shower: int) -> tuple[Path, int]:
    """The shard that contains a shower of the training split, and the number of the shower there."""
    before = 0
    for shard in read_manifest(folder).shards_of("train"):
        if shower < before + shard.showers:
            return folder / shard.file, shower - before
        before += shard.showers
    raise _no_such(folder, shower, before)


def _of_shard(path: Path, shower: int) -> tuple[Showers, Names]:
    from caloscale.showers.tfrecord.records import read_batches

    manifest = _manifest_beside(path)
    start = 0
    for batch in read_batches(path, manifest.shape, manifest.spans):
        count = len(batch["cells"])
        if start <= shower < start + count:
            one = slice(shower - start, shower - start + 1)
            cells_gev = to_gev(batch["cells"][one], manifest.preprocessing)
            primaries = {name: batch[name][one] for name in manifest.columns}
            found = Showers.of(cells_gev, primaries, manifest.source)
            return found, _AXES[manifest.geometry.cell_shape]
        start += count
    raise _no_such(path, shower, start)


def _of_file(path: Path, shower: int) -> tuple[Showers, Names]:
    with open_layout(path) as opened:
        count, shape, cell_shape, rebin = len(opened.cells), opened.shape, opened.cell_shape, opened.rebin
    if not 0 <= shower < count:
        raise _no_such(path, shower, count)
    cells = CALOCHALLENGE_CELLS.get(shape[0]) if len(shape) == 1 else (shape[0], shape[1], shape[2])
    if cells is None:
        raise ShowerFileError(
            "has a number of voxels of which the layout is not known",
            file=path,
            field="showers",
            value=shape,
            remedy=f"known: {', '.join(map(str, CALOCHALLENGE_CELLS))} voxels",
        )
    x, y, z = (number * factor for number, factor in zip(cells, rebin))
    geometry = _any_geometry((x, y, z), cell_shape)
    return read_showers(path, geometry=geometry, rebin=rebin, start=shower, stop=shower + 1), _AXES[cell_shape]


def _any_geometry(cells: tuple[int, int, int], cell_shape: CellShape) -> Geometry:
    """A geometry of these cells: a file does not state its materials, and a picture does not need them."""
    layers = (LayerGroup(count=cells[2], absorber_mm=1.0),)
    return Geometry.model_construct(cells=cells, cell_shape=cell_shape, layers=layers, depth_mm=math.inf)


def _manifest_beside(path: Path) -> Manifest:
    if not path.is_file():
        raise ShowerFileError("cannot be read: there is no such file", file=path, remedy="give the path of a shard")
    return read_manifest(path.parent)


def _no_such(path: Path, shower: int, count: int) -> ShowerFileError:
    remedy = f"choose 0 to {count - 1}" if count else "give a file with showers"
    return ShowerFileError(f"contains {count} showers", file=path, field="shower", value=shower, remedy=remedy)


def _span(values: NDArray[np.generic]) -> Range | None:
    """Lowest and highest finite value, to the six digits that float32 has; None without any."""
    finite = values[np.isfinite(values)] if values.dtype.kind in "fiu" else np.empty(0)
    return (float(f"{finite.min():.6g}"), float(f"{finite.max():.6g}")) if finite.size else None


def _further_spans(primaries: Mapping[str, NDArray[np.floating]]) -> dict[str, Range | None]:
    """Fields of a description: the ranges of azimuths and entries of a table, None where it has none."""
    azimuth = primaries.get("azimuth_rad", np.empty(0))
    entries = [primaries[name] for name in ("entry_x_mm", "entry_y_mm") if name in primaries]
    return {
        "azimuth_deg": _span(np.degrees(azimuth)),
        "entry_mm": _span(np.concatenate(entries)) if entries else None,
    }


def _union(spans: Iterable[Range | None]) -> Range | None:
    known = [span for span in spans if span is not None]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else None
