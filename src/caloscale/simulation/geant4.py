"""Showers by Geant4, through calzone. Only the worker process imports it: the wheel has its own licence (NOTICE)."""

from __future__ import annotations

import math
from typing import Any

import calzone
import numpy as np
from numpy.typing import NDArray

from caloscale.simulation.primaries import aim_depth_mm
from caloscale.spec import Data, Geometry

SOURCE = "geant4"
PHYSICS_LIST = "standard"
"""G4EmStandardPhysics, option 0. Option 1 gives a silicon response that is 25% lower."""

BATCH_ENERGY_GEV = 100.0
"""About 0.7 s of transport between two reports of progress."""

_MATERIALS = {"tungsten": "G4_W"}
_START_BEFORE_FACE_MM = 5.0
_MARGIN_MM = 50.0
"""The plates end this far outside the window and outside the entry points, several Molière radii, so that what
is scattered out of the window and back is there."""
_MM_PER_CM = 10.0
_MEV_PER_GEV = 1e3

Deposits = dict[str, Any]


class Geant4:
    """The calorimeter of a run document in Geant4."""

    source = SOURCE
    batch_energy_gev = BATCH_ENERGY_GEV

    def __init__(self, data: Data) -> None:
        self._geometry = data.geometry
        cut_cm = data.simulation.cut_mm / _MM_PER_CM
        self._simulation = calzone.Simulation(
            {"World": describe_detector(data.geometry, data.angle_deg)},
            physics=calzone.Physics(PHYSICS_LIST, default_cut=cut_cm),
            sample_deposits="detailed",
            sample_particles=False,
        )

    @staticmethod
    def versions() -> dict[str, str]:
        """Versions of calzone and of the Geant4 in it."""
        return {"calzone": calzone.VERSION, "geant4": calzone.GEANT4_VERSION}

    def seed(self, transport: np.random.SeedSequence) -> None:
        """Begin a stream of random numbers; Geant4 keeps none of its own, so showers depend on it alone."""
        high, low = (int(word) for word in transport.generate_state(2, np.uint64))
        self._simulation.random = calzone.Random(high << 64 | low)

    def showers(self, energy_gev: NDArray[np.float32], angle_rad: NDArray[np.float32]) -> NDArray[np.float32]:
        """Cells in GeV, (N, X, Y, Z), of electrons with these energies and angles, (N,)."""
        angle = angle_rad.astype(np.float64)
        direction = np.stack([np.cos(angle), np.zeros_like(angle), np.sin(angle)], axis=1)
        aim_mm = aim_depth_mm(self._geometry)
        path_mm = (aim_mm + _START_BEFORE_FACE_MM) / direction[:, 2:]
        particles = calzone.particles(
            len(angle),
            pid="e-",
            energy=energy_gev.astype(np.float64) * _MEV_PER_GEV,
            position=(np.array([[0.0, 0.0, aim_mm]]) - direction * path_mm) / _MM_PER_CM,
            direction=direction,
        )
        return bin_deposits(self._simulation.run(particles), len(angle), self._geometry)


def describe_detector(geometry: Geometry, angle_deg: tuple[float, float]) -> dict[str, Any]:
    """calzone's description, in cm: absorber, silicon and gap in turn from z = 0, the window's axis at x = y = 0."""
    half_x_mm, half_y_mm = (
        n * geometry.cell_mm / 2 + _MARGIN_MM + reach
        for n, reach in zip(geometry.cells[:2], (_entry_outside_mm(geometry, angle_deg), 0.0))
    )
    plate = [2 * half_x_mm / _MM_PER_CM, 2 * half_y_mm / _MM_PER_CM]
    world_mm = 2 * (max(half_x_mm, half_y_mm, geometry.depth_mm) + 10 * _START_BEFORE_FACE_MM)
    world: dict[str, Any] = {"material": "G4_Galactic", "box": [world_mm / _MM_PER_CM] * 3}
    z_mm = 0.0
    for layer, absorber_mm in enumerate(geometry.absorber_mm):
        parts: tuple[tuple[str, str, float, dict[str, str]], ...] = (
            ("Absorber", _MATERIALS[geometry.absorber], absorber_mm, {}),
            ("Silicon", "G4_Si", geometry.silicon_mm, {"role": "record_deposits"}),
        )
        for name, material, thick_mm, role in parts:
            centre_cm = (z_mm + thick_mm / 2) / _MM_PER_CM
            box = {"box": [*plate, thick_mm / _MM_PER_CM], "position": [0, 0, centre_cm]}
            world[f"{name}{layer}"] = {"material": material, **box, **role}
            z_mm += thick_mm
        z_mm += geometry.gap_mm
    return world


def _entry_outside_mm(geometry: Geometry, angle_deg: tuple[float, float]) -> float:
    """How far outside the window the most inclined electron enters the front face, mm."""
    entry_mm = max(aim_depth_mm(geometry) / abs(math.tan(math.radians(a))) for a in angle_deg)
    return max(0.0, entry_mm - geometry.cells[0] * geometry.cell_mm / 2)


def bin_deposits(deposits: Deposits, count: int, geometry: Geometry) -> NDArray[np.float32]:
    """Steps in the silicon of ``count`` showers into cells, GeV: each at its middle, those outside dropped."""
    shape = (count, *geometry.cells)
    indices, energies = [], []
    for layer in range(geometry.cells[2]):
        sampled = deposits.get(f"World.Silicon{layer}")
        if sampled is None:
            continue
        for steps in (sampled.line, sampled.point):
            if len(steps):
                position = (steps["start"] + steps["end"]) / 2 if "start" in steps.dtype.names else steps["position"]
                index, inside = _cell_index(steps["event"], position, layer, geometry)
                indices.append(index)
                energies.append(steps["value"][inside])
    if not indices:
        return np.zeros(shape, np.float32)
    cells = np.bincount(np.concatenate(indices), np.concatenate(energies), minlength=int(np.prod(shape)))
    return (cells.reshape(shape) / _MEV_PER_GEV).astype(np.float32)


def _cell_index(
    event: NDArray[np.integer], position_cm: NDArray[np.float64], layer: int, geometry: Geometry
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    nx, ny, nz = geometry.cells
    cell_cm = geometry.cell_mm / _MM_PER_CM
    ix = np.floor(position_cm[:, 0] / cell_cm + nx / 2).astype(np.int64)
    iy = np.floor(position_cm[:, 1] / cell_cm + ny / 2).astype(np.int64)
    inside = (ix >= 0) & (ix < nx) & (iy >= 0) & (iy < ny)
    index = ((event.astype(np.int64) * nx + ix) * ny + iy) * nz + layer
    return index[inside], inside
