"""What `caloscale inspect` shows of a path: the content of files and folders of showers, and one shower."""

import math
from collections.abc import Iterable
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from caloscale.errors import ShowerFileError
from caloscale.progress import bar
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.layouts import CALOCHALLENGE_CELLS, WITHOUT_GENERATED_ATTRIBUTE, Layout, Source, open_layout
from caloscale.showers.hdf5.reader import REMOVE, check_order, read_showers, read_sums, refuse_first
from caloscale.showers.sources import hdf5_files
from caloscale.showers.tfrecord.manifest import MANIFEST, Split, read_manifest
from caloscale.spec.block import Block
from caloscale.spec.data import CellShape, Geometry, LayerGroup, Particle, Preprocessing, Range

Names = tuple[str, str, str]
"""Names of the three axes of a shower."""
_AXES: dict[CellShape, Names] = {
    "grid": ("cell in x", "cell in y", "layer"),
    "cylinder": ("cell in azimuth", "cell in radius", "layer"),
}
_RANGES = ("energy_gev", "angle_deg", "azimuth_deg", "entry_mm")
ENTRIES = ("entry_x_mm", "entry_y_mm")


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
    without_generated: str | None
    """The particles that generators took over, whose energy the cells lack; absent: whole showers."""


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


def describe(path: str | Path) -> FileDescription | SourceFolderDescription | ShardFolderDescription:
    """Content of a path: an HDF5 file or a folder of them, or a folder of shards. Raises ShowerFileError."""
    if (shards := _shard_folder(path)) is not None:
        return describe_shards(shards)
    return describe_files(Path(path)) if Path(path).is_dir() else describe_file(path)


def _shard_folder(path: str | Path) -> Path | None:
    """The folder of shards at a path, which may be the path of its manifest; None: there is none."""
    path = Path(path)
    if path.name == MANIFEST:
        return path.parent
    return path if (path / MANIFEST).exists() else None


def describe_file(path: str | Path) -> FileDescription:
    """Content of an HDF5 file; reads all of it.

    Raises ShowerFileError as `open_layout` and `check_order`, and for numbers that are not finite and negative cells.
    """
    with open_layout(path) as opened:
        primaries = opened.primaries()
        refuse_first(
            path, [(name, "a number that is not finite", ~np.isfinite(c), c, REMOVE) for name, c in primaries.items()]
        )
        if len(opened.shape) == 1 and (cells := CALOCHALLENGE_CELLS.get(opened.shape[0])) is not None:
            check_order(opened, cells)
        entries = [primaries[name] for name in ENTRIES if name in primaries]
        return FileDescription(
            file=str(path),
            layout=opened.layout,
            showers=len(opened.cells),
            shape=opened.shape,
            bytes=Path(path).stat().st_size,
            energy_gev=_span(primaries["energy_gev"]),
            angle_deg=_span(np.degrees(primaries["angle_rad"])),
            azimuth_deg=_span(np.degrees(primaries.get("azimuth_rad", np.empty(0)))),
            entry_mm=_span(np.concatenate([np.empty(0), *entries])),
            sum_gev=_span(read_sums(opened)),
            units_per_gev=opened.units_per_gev,
            source=opened.source,
            particles=opened.particles,
            datasets={n: f"{d.dtype} {d.shape}" for n, d in opened.file.items() if isinstance(d, h5py.Dataset)},
            attributes=opened.attributes,
        )


def describe_files(folder: Path) -> SourceFolderDescription:
    """Content of a folder of HDF5 files. Raises ShowerFileError for the first that cannot be read, or without any."""
    paths = _files_of(folder)
    found = []
    with bar("inspect", len(paths), "files", disable=len(paths) < 10) as progress:
        for path in paths:
            found.append(describe_file(path))
            progress.update()
    counts = [one.showers for one in found]
    taken = [one.attributes.get(WITHOUT_GENERATED_ATTRIBUTE) for one in found]
    return SourceFolderDescription(
        file=str(folder),
        files=len(found),
        showers=sum(counts),
        showers_per_file=(min(counts), max(counts)),
        layouts=tuple(sorted({one.layout for one in found})),
        shapes=tuple(sorted({one.shape for one in found})),
        bytes=sum(one.bytes for one in found),
        **{name: _union(getattr(one, name) for one in found) for name in (*_RANGES, "sum_gev")},
        units_per_gev=tuple(sorted({one.units_per_gev for one in found})),
        sources=tuple(sorted({one.source for one in found})),
        without_generated="; ".join(sorted({str(one) for one in taken if one is not None})) or None,
        particles=tuple(sorted({particle for one in found for particle in one.particles})),
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
        **{name: getattr(manifest, name) for name in (*_RANGES, "source", "particles", "preprocessing")},
        split_method=manifest.provenance.split_method,
        dropped={reason: count for reason, count in manifest.dropped.items() if count},
        files=tuple(file.name for file in manifest.provenance.files),
        versions=manifest.provenance.versions,
    )


def read_one(path: str | Path, shower: int) -> tuple[Showers, Names]:
    """Shower number ``shower`` of what `describe` describes, and the names of its axes.

    Of a folder of shards: of its training split. Raises ShowerFileError when it cannot be read or does not exist.
    """
    if (shards := _shard_folder(path)) is not None:
        manifest = read_manifest(shards)
        if shower >= manifest.splits["train"]:
            raise _no_such(shards, shower, manifest.splits["train"])
        from caloscale.showers.tfrecord.shards import read_split

        return read_split(shards, "train", np.array([shower])), _AXES[manifest.geometry.cell_shape]
    path = Path(path)
    if not path.is_dir():
        return _of_file(path, shower)
    before = 0
    for file in _files_of(path):
        with open_layout(file) as opened:
            count = len(opened.cells)
        if shower < before + count:
            return _of_file(file, shower - before)
        before += count
    raise _no_such(path, shower, before)


def _files_of(folder: Path) -> list[Path]:
    files = hdf5_files(folder)
    if not files:
        problem = "cannot be read: it contains neither shards (manifest.json) nor HDF5 files"
        remedy = "give a folder that `caloscale simulate` or `caloscale preprocess` made, or a file of showers"
        raise ShowerFileError(problem, file=folder, remedy=remedy)
    return files


def _of_file(path: Path, shower: int) -> tuple[Showers, Names]:
    with open_layout(path) as opened:
        count, shape, cell_shape, rebin = len(opened.cells), opened.shape, opened.cell_shape, opened.rebin
    if shower >= count:
        raise _no_such(path, shower, count)
    cells = CALOCHALLENGE_CELLS.get(shape[0]) if len(shape) == 1 else (shape[0], shape[1], shape[2])
    if cells is None:
        problem = "has a number of voxels of which the layout is not known"
        remedy = f"known: {', '.join(map(str, CALOCHALLENGE_CELLS))} voxels"
        raise ShowerFileError(problem, file=path, field="showers", value=shape, remedy=remedy)
    x, y, z = (number * factor for number, factor in zip(cells, rebin))
    # A file does not state its materials, and a picture does not need them.
    layers = (LayerGroup(count=z, absorber_mm=1.0),)
    geometry = Geometry.model_construct(cells=(x, y, z), cell_shape=cell_shape, layers=layers, depth_mm=math.inf)
    return read_showers(path, geometry=geometry, rebin=rebin, start=shower, stop=shower + 1), _AXES[cell_shape]


def _no_such(path: Path, shower: int, count: int) -> ShowerFileError:
    remedy = f"choose 0 to {count - 1}" if count else "give a file with showers"
    return ShowerFileError(f"contains {count} showers", file=path, field="shower", value=shower, remedy=remedy)


def _span(values: NDArray[np.generic]) -> Range | None:
    """Lowest and highest finite value, to the six digits that float32 has; None without any."""
    finite = values[np.isfinite(values)] if values.dtype.kind in "fiu" else np.empty(0)
    return (float(f"{finite.min():.6g}"), float(f"{finite.max():.6g}")) if finite.size else None


def _union(spans: Iterable[Range | None]) -> Range | None:
    known = [span for span in spans if span is not None]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else None
