"""Particles that enter the calorimeter, and which of them a generator takes over. Does not import Geant4."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from caloscale.detector.angle import direction_of
from caloscale.detector.geometry import aim_depth_mm
from caloscale.showers.primaries import Floats
from caloscale.spec import Geometry
from caloscale.spec.data import PDG_CODES, Particle, PrimaryRanges
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
        ("azimuth_rad", "<f4"),
        ("pdg", "<f4"),
        ("x_mm", "<f4"),
        ("y_mm", "<f4"),
    ]
)
"""A particle that a generator takes over: its shower, the generator, the primary as which it is generated, where it
crosses the face and in which direction."""


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


def has_entering(folder: Path, index: int) -> bool:
    """Whether that file is there, and whole."""
    try:
        return read_entering(folder, index).dtype == ENTERING
    except (OSError, ValueError, EOFError):
        return False


def assign(
    code: NDArray[np.integer],
    energy_gev: NDArray[np.float64],
    direction: NDArray[np.float64],
    accepted: Sequence[PrimaryRanges],
) -> NDArray[np.void]:
    """The particles with the fields of `ENTERING`: generator is the first that accepts a particle, or `NOBODY`; angle
    and azimuth of one that is accepted lie within the trained ranges.

    code, energy_gev (N,); direction (N, 3), unit vectors, the third component into the calorimeter; accepted: what each
    generator was trained with.
    """
    entering = np.zeros(len(code), ENTERING)
    entering["generator"], entering["energy_gev"] = NOBODY, energy_gev
    for number, each in enumerate(accepted):
        low, high = each.energy_gev
        angle_rad, azimuth_rad, near = _nearest_trained(direction, each)
        near &= (energy_gev >= low) & (energy_gev <= high) & (entering["generator"] == NOBODY)
        for particle in each.particles:
            taken = near & np.isin(code, TAKEN_CODES.get(particle, ()))
            entering["generator"][taken], entering["pdg"][taken] = number, PDG_CODES[particle]
            entering["angle_rad"][taken], entering["azimuth_rad"][taken] = angle_rad[taken], azimuth_rad[taken]
    return entering


def _nearest_trained(
    direction: NDArray[np.float64], trained: PrimaryRanges
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Angle and azimuth within the trained ranges, rad, and whether they are within the tolerance, (N,) each."""
    least_deg, most_deg = trained.angle_deg
    if trained.azimuth_deg is None:
        angle_deg = np.degrees(np.arctan2(direction[:, 2], direction[:, 0]))
        out_of_plane_deg = np.degrees(np.abs(np.arcsin(np.clip(direction[:, 1], -1, 1))))
        near = (angle_deg >= least_deg - TOLERANCE_DEG) & (angle_deg <= most_deg + TOLERANCE_DEG)
        near &= out_of_plane_deg <= TOLERANCE_DEG
        return np.radians(np.clip(angle_deg, least_deg, most_deg)), np.zeros(len(direction)), near
    middle_deg, half_deg = np.mean(trained.azimuth_deg), np.ptp(trained.azimuth_deg) / 2
    across = np.hypot(direction[:, 0], direction[:, 1])
    found, best = np.zeros((2, len(direction))), np.full(len(direction), -np.inf)
    # A direction has two descriptions: angle and azimuth, and 180 degrees minus the angle with the opposite azimuth.
    for sign in (1, -1):
        angle_deg = np.degrees(np.arctan2(direction[:, 2], sign * across))
        azimuth_deg = np.degrees(np.arctan2(sign * direction[:, 1], sign * direction[:, 0]))
        from_middle_deg = (azimuth_deg - middle_deg + 180) % 360 - 180
        candidate = np.radians(
            [np.clip(angle_deg, least_deg, most_deg), middle_deg + np.clip(from_middle_deg, -half_deg, half_deg)]
        )
        cosine = np.sum(direction * direction_of({"angle_rad": candidate[0], "azimuth_rad": candidate[1]}), axis=1)
        nearer = cosine > best
        found[:, nearer], best[nearer] = candidate[:, nearer], cosine[nearer]
    return found[0], found[1], best >= math.cos(math.radians(TOLERANCE_DEG))


def placed(
    entering: NDArray[np.void], trained: PrimaryRanges, geometry: Geometry, rebin: tuple[int, int, int]
) -> tuple[dict[str, Floats], NDArray[np.int64]]:
    """The table of primaries that a generator makes of particles, and by how many re-binned cells along x and y each
    shower is moved, (N, 2).

    A generator's showers enter where its primaries did, which aim at a point on the window's axis. The nearest whole
    cell is the move. What is left, up to half a cell, is the entry of a generator that was trained with a range of it;
    any other generator's shower is on average a quarter of a cell from the truth.
    """
    columns = {name: entering[name] for name in entering.dtype.names or ()}
    direction = direction_of(columns)
    expected_mm = -aim_depth_mm(geometry) * direction[:, :2] / direction[:, 2:]
    size_mm = geometry.cell_mm * np.array(rebin[:2])
    distance_mm = np.stack([entering["x_mm"], entering["y_mm"]], axis=1) - expected_mm
    cells = np.rint(distance_mm / size_mm).astype(np.int64)
    if trained.entry_mm is not None:
        within_mm = np.clip(distance_mm - cells * size_mm, *trained.entry_mm).astype(np.float32)
        columns["entry_x_mm"], columns["entry_y_mm"] = within_mm.T
    return {name: columns[name] for name in trained.columns}, cells


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
