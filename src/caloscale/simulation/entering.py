"""Particles that enter the calorimeter, and which of them a generator takes over. Does not import Geant4."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from caloscale.detector.geometry import aim_depth_mm
from caloscale.spec import Geometry
from caloscale.spec.block import Block
from caloscale.spec.data import Particle, Range
from caloscale.storage.atomic import atomic_writer

TAKEN_CODES: dict[Particle, tuple[int, ...]] = {"e-": (11, -11), "gamma": (22,)}
"""Numbers of the Particle Data Group that a generator takes, by its primary: positrons shower as electrons do."""
NOBODY = -1
"""Number of the generator of a particle that Geant4 keeps."""
TOLERANCE_DEG = 2.0
"""A direction may leave the trained angles, and the plane of the inclination, by this: a degree at the depth of the
shower's maximum is 1 mm."""
ENTERING = np.dtype(
    [
        ("event", "<i4"),
        ("generator", "<i4"),
        ("energy_gev", "<f4"),
        ("angle_rad", "<f4"),
        ("x_mm", "<f4"),
        ("y_mm", "<f4"),
    ]
)
"""A particle that a generator takes over: its shower, the generator, where it crosses the face and at which angle."""


class Acceptance(Block):
    """What a generator takes over."""

    particle: Particle
    """The primary that it was trained with."""
    energy_gev: Range
    """Energies that it was trained with, GeV."""
    angle_deg: Range
    """Angles that it was trained with, degrees."""


def entering_name(index: int) -> str:
    """Name of the file with the particles that enter in the showers of file ``index``."""
    return f"entering-{index:05d}.npy"


def write_entering(folder: Path, index: int, entering: NDArray[np.void]) -> None:
    """Write the particles of a file, whole or not at all."""
    with atomic_writer(folder / entering_name(index)) as temporary, temporary.open("wb") as file:
        np.save(file, entering)


def read_entering(folder: Path, index: int) -> NDArray[np.void]:
    """The particles of file ``index`` that generators take over, with the fields of `ENTERING`."""
    return np.asarray(np.load(folder / entering_name(index), allow_pickle=False))


def assign(
    code: NDArray[np.integer],
    energy_gev: NDArray[np.float64],
    direction: NDArray[np.float64],
    accepted: Sequence[Acceptance],
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The generator of each particle, the first that accepts it, or `NOBODY`; and its angle within the trained ones.

    code, energy_gev (N,); direction (N, 3), unit vectors, the third component into the calorimeter.
    """
    angle_deg = np.degrees(np.arctan2(direction[:, 2], direction[:, 0]))
    out_of_plane_deg = np.degrees(np.abs(np.arcsin(np.clip(direction[:, 1], -1, 1))))
    generator, angle_rad = np.full(len(code), NOBODY, np.int32), np.radians(angle_deg)
    for number, each in enumerate(accepted):
        (low, high), (least_deg, most_deg) = each.energy_gev, each.angle_deg
        taken = np.isin(code, TAKEN_CODES.get(each.particle, ())) & (generator == NOBODY)
        taken &= (energy_gev >= low) & (energy_gev <= high) & (out_of_plane_deg <= TOLERANCE_DEG)
        taken &= (angle_deg >= least_deg - TOLERANCE_DEG) & (angle_deg <= most_deg + TOLERANCE_DEG)
        generator[taken] = number
        angle_rad[taken] = np.radians(np.clip(angle_deg[taken], least_deg, most_deg))
    return generator, angle_rad


def shift_of(
    entering: NDArray[np.void], geometry: Geometry, rebin: tuple[int, int, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """By how many re-binned cells along x and y the shower of each particle is moved, (N,).

    A generator's showers enter where its primaries did, which aim at a point on the window's axis. The nearest whole
    cell: on average a quarter of a cell from the truth.
    """
    expected_mm = -aim_depth_mm(geometry) / np.tan(entering["angle_rad"].astype(np.float64))
    x, y = (entering["x_mm"] - expected_mm) / rebin[0], entering["y_mm"] / rebin[1]
    return np.rint(x / geometry.cell_mm).astype(np.int64), np.rint(y / geometry.cell_mm).astype(np.int64)


def moved(cells: NDArray[np.float32], x: int, y: int) -> NDArray[np.float32]:
    """The cells of a shower (X, Y, Z) moved by whole cells; what leaves the window is dropped."""
    result = np.zeros_like(cells)
    if abs(x) < cells.shape[0] and abs(y) < cells.shape[1]:
        to, source = ([slice(max(s, 0), n + min(s, 0)) for s, n in zip(by, cells.shape)] for by in ((x, y), (-x, -y)))
        result[tuple(to)] = cells[tuple(source)]
    return result


def at_face(position_mm: NDArray[np.float64], direction: NDArray[np.float64]) -> NDArray[np.float64]:
    """x and y where straight lines cross the face, mm: (N, 3), (N, 3) -> (N, 2)."""
    length_mm = -position_mm[:, 2] / direction[:, 2]
    return np.asarray(position_mm[:, :2] + length_mm[:, None] * direction[:, :2])
