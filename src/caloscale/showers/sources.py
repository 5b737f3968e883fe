"""Which files of showers a data set is made of, what of them is selected, and what is held back."""

from __future__ import annotations

import glob
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from caloscale.errors import ShowerFileError
from caloscale.showers.hdf5.layouts import Layout, Source, open_layout
from caloscale.showers.hdf5.reader import check_primaries
from caloscale.showers.tfrecord.manifest import Part
from caloscale.spec.data import Data, Range
from caloscale.storage.objects import download, is_remote

HDF5_NAMES = ("*.h5", "*.hdf5")
Split = Literal["by file", "end of the only file"]
_ANGLE_ROUNDING_DEG, _ENERGY_ROUNDING = 1e-4, 1e-6
"""float32 files must not lose the showers at the edge of a range, such as 90 degrees of [90, 90]."""


@dataclass(frozen=True)
class SurveyedFile:
    """A file of showers, read but for its cells."""

    path: Path
    layout: Layout
    source: Source
    energy_gev: NDArray[np.float32]
    angle_rad: NDArray[np.float32]
    outside_energy: NDArray[np.bool_]
    """Showers outside data.energyGev (N,)."""
    outside_angle: NDArray[np.bool_]
    """Showers within data.energyGev, outside data.angleDeg (N,)."""

    def __len__(self) -> int:
        return len(self.energy_gev)

    @property
    def is_selected(self) -> NDArray[np.bool_]:
        """Showers that the document selects by energy and angle (N,)."""
        return ~(self.outside_energy | self.outside_angle)


@dataclass(frozen=True)
class Piece:
    """Consecutive showers of a file that go to one part."""

    file: SurveyedFile
    part: Part
    start: int
    stop: int

    @property
    def selected(self) -> int:
        """Number of showers that the document selects in it."""
        return int(self.file.is_selected[self.start : self.stop].sum())


def find_files(source: str | Path, scratch: Path) -> list[Path]:
    """The HDF5 files of a path, folder, glob or gs:// URI (downloaded into ``scratch``), sorted by name.

    Raises ShowerFileError when there is none; StorageError from a bucket.
    """
    text = str(source)
    path = Path(text)
    if is_remote(text):
        found = download(text, scratch, HDF5_NAMES)
    elif path.is_dir():
        found = [inner for pattern in HDF5_NAMES for inner in path.glob(pattern)]
    elif path.exists() or not glob.has_magic(text):
        return [path]
    else:
        found = [Path(name) for name in glob.glob(text, recursive=True)]  # noqa: PTH207 (absolute patterns)
    files = sorted(file for file in found if file.is_file() and not file.name.startswith("."))
    if not files:
        raise ShowerFileError(
            "no showers found",
            file=source,
            field="data.source",
            remedy=f"give a file, a folder, a glob or gs://bucket/prefix of {' or '.join(HDF5_NAMES)} files",
        )
    return files


def survey_file(path: Path, data: Data) -> SurveyedFile:
    """Read what selects the showers of a file; raises ShowerFileError as reading would, but for the cells."""
    with open_layout(path) as opened:
        opened.check_shape(data.geometry)
        energy_gev, angle_rad = opened.energies_gev(), opened.angles_rad()
        layout, source = opened.layout, opened.source
    check_primaries(path, layout, energy_gev, angle_rad)
    low, high = data.energy_gev
    outside_energy = _outside(energy_gev, (low * (1 - _ENERGY_ROUNDING), high * (1 + _ENERGY_ROUNDING)))
    low, high = data.angle_deg
    angle_deg = np.degrees(angle_rad, dtype=np.float64)
    outside_angle = _outside(angle_deg, (low - _ANGLE_ROUNDING_DEG, high + _ANGLE_ROUNDING_DEG))
    return SurveyedFile(path, layout, source, energy_gev, angle_rad, outside_energy, outside_angle & ~outside_energy)


def split(files: Sequence[SurveyedFile], data: Data) -> tuple[list[Piece], Split]:
    """Training and validation pieces, validation first, files in an order drawn from ``data.seed``.

    Whole files go to validation: their part rounded, at least one. Of a single file the last showers do.
    """
    if len(files) == 1:
        count = len(files[0])
        first = max(0, count - max(1, round(data.validation_fraction * count)))
        pieces = [Piece(files[0], "validation", first, count), Piece(files[0], "train", 0, first)]
        return pieces, "end of the only file"
    order = np.random.default_rng(data.seed).permutation(len(files))
    held_back = min(len(files) - 1, max(1, round(data.validation_fraction * len(files))))
    shuffled = [files[index] for index in order]
    pieces = [
        Piece(file, "validation" if index < held_back else "train", 0, len(file)) for index, file in enumerate(shuffled)
    ]
    return pieces, "by file"


def check_one_origin(files: Sequence[SurveyedFile]) -> Source:
    """The origin that all files share; raises ShowerFileError when Monte Carlo and other showers are mixed."""
    origin = files[0].source
    other = next((file for file in files if file.source != origin), None)
    if other is not None:
        raise ShowerFileError(
            f"comes from another source than {files[0].path.name} ({origin})",
            file=other.path,
            field="attribute source",
            value=other.source,
            remedy="do not mix showers of different origin: the artifacts could not be labelled",
        )
    return origin


def check_selection(pieces: Sequence[Piece], data: Data, source: str | Path) -> None:
    """Raise ShowerFileError when the ranges of the document leave a part empty."""
    for part in ("train", "validation"):
        if sum(piece.selected for piece in pieces if piece.part == part) == 0:
            raise empty_selection(part, pieces, data, source)


def empty_selection(part: str, pieces: Sequence[Piece], data: Data, source: str | Path) -> ShowerFileError:
    """The error that no shower is left for a part, with what the files hold."""
    files = {piece.file.path: piece.file for piece in pieces}.values()
    energies = np.concatenate([file.energy_gev for file in files])
    angles = np.degrees(np.concatenate([file.angle_rad for file in files]))
    return ShowerFileError(
        f"no showers are left for {part}: the files hold {len(energies)} showers of "
        f"{_range(energies)} GeV and {_range(angles)} degrees",
        file=source,
        field="data.energyGev, data.angleDeg, data.preprocessing.minimumSumGev",
        value=(list(data.energy_gev), list(data.angle_deg), data.preprocessing.minimum_sum_gev),
        remedy="widen the ranges to what the files hold, lower the minimum sum, or give more showers or files; "
        "energies are in GeV, angles in rad",
    )


def _outside(values: NDArray[np.floating], limits: Range) -> NDArray[np.bool_]:
    return ~((values >= limits[0]) & (values <= limits[1]))


def _range(values: NDArray[np.floating]) -> str:
    finite = values[np.isfinite(values)]
    return f"{finite.min():.4g} to {finite.max():.4g}" if finite.size else f"{math.nan}"
