"""The calorimeter as volumes of Geant4, and its steps as cells. Does not import Geant4: descriptions and arrays."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caloscale.detector.geometry import absorber_mm, aim_depth_mm, gap_mm, half_window_mm, sum_cells
from caloscale.detector.materials import MATERIALS
from caloscale.spec import Data, Geometry
from caloscale.spec.data import FrontLayer

START_BEFORE_FACE_MM = 5.0
"""Primaries start this far before the front face, or before the plates in front of it, which end as far before it; mm
along the normal, in vacuum."""
CATCHER_MM = 1.0
"""Thickness of the volume before the face that keeps particles: they are kept where they enter it."""
_MARGIN_MM = 50.0
"""The plates end this far outside the window and outside the entry points, several Molière radii, so that what
is scattered out of the window and back is there."""
_MM_PER_CM = 10.0
_MEV_PER_GEV = 1e3


def describe_detector(data: Data, *, catch: bool = False) -> dict[str, Any]:
    """calzone's description, in cm: the layers (absorber, sensor, gap) from z = 0, the window's axis at x = y = 0, and
    the plates in front of them. catch: not the layers, but a volume before the face that stops and keeps particles."""
    geometry, front = data.geometry, data.front
    before_mm = start_before_face_mm(front)
    half_x_mm, half_y_mm = (
        half_mm + _MARGIN_MM + reach for half_mm, reach in zip(half_window_mm(geometry), _outside_mm(data, before_mm))
    )
    plate = [2 * half_x_mm / _MM_PER_CM, 2 * half_y_mm / _MM_PER_CM]
    world_mm = 2 * (max(half_x_mm, half_y_mm, geometry.depth_mm, before_mm) + 10 * START_BEFORE_FACE_MM)
    world: dict[str, Any] = {"material": "G4_Galactic", "box": [world_mm / _MM_PER_CM] * 3}
    z_mm = START_BEFORE_FACE_MM - before_mm
    for number, each in enumerate(front):
        world[f"Front{number}"] = _plate(MATERIALS[each.material].geant4, plate, z_mm, each.thickness_mm)
        z_mm += each.thickness_mm
    if catch:
        catcher = _plate("G4_Galactic", plate, -CATCHER_MM, CATCHER_MM)
        return {**world, "Face": {**catcher, "role": "catch_ingoing"}}
    z_mm = 0.0
    for layer, thickness_mm in enumerate(absorber_mm(geometry)):
        world[f"Absorber{layer}"] = _plate(MATERIALS[geometry.absorber].geant4, plate, z_mm, thickness_mm)
        z_mm += thickness_mm
        sensor = _plate(MATERIALS[geometry.active].geant4, plate, z_mm, geometry.active_mm)
        world[f"Sensor{layer}"] = {**sensor, "role": "record_deposits"}
        z_mm += geometry.active_mm
        z_mm += gap_mm(geometry)
    return world


def _plate(material: str, sides_cm: list[float], z_mm: float, thickness_mm: float) -> dict[str, Any]:
    """A plate across the beam that begins at a depth."""
    position = [0, 0, (z_mm + thickness_mm / 2) / _MM_PER_CM]
    return {"material": material, "box": [*sides_cm, thickness_mm / _MM_PER_CM], "position": position}


def start_before_face_mm(front: Sequence[FrontLayer]) -> float:
    """Distance of the primaries' start from the face, along its normal, mm: a gap before it, the plates, a gap."""
    plates_mm = sum(each.thickness_mm for each in front)
    return plates_mm + (2 if front else 1) * START_BEFORE_FACE_MM


def _outside_mm(data: Data, before_mm: float) -> tuple[float, float]:
    """How far outside the window the most inclined primary starts, or, without plates, enters the face, along x and y,
    mm. With a range of azimuths the inclination counts in both directions."""
    depth_mm = aim_depth_mm(data.geometry) + (before_mm if before_mm > START_BEFORE_FACE_MM else 0.0)
    inclined_mm = max(depth_mm / abs(math.tan(math.radians(a))) for a in data.angle_deg)
    entry_mm = 0.0 if data.entry_mm is None else max(map(abs, data.entry_mm))
    reach_mm = (inclined_mm + entry_mm, (0.0 if data.azimuth_deg is None else inclined_mm) + entry_mm)
    x_mm, y_mm = (max(0.0, reach - half) for reach, half in zip(reach_mm, half_window_mm(data.geometry)))
    return x_mm, y_mm


def bin_deposits(
    deposits: Mapping[str, Any], count: int, geometry: Geometry, shower: NDArray[np.integer] | None = None
) -> NDArray[np.float32]:
    """Steps in the sensors of ``count`` showers as cells, GeV: each at its middle, those outside the window dropped.

    shower: number of the shower that each primary belongs to; absent: each has its own.
    """
    parts = []
    for layer in range(geometry.cells[2] * geometry.layers_per_cell):
        sampled = deposits.get(f"World.Sensor{layer}")
        if sampled is None:
            continue
        for steps in (sampled.line, sampled.point):
            if len(steps):
                position = (steps["start"] + steps["end"]) / 2 if "start" in steps.dtype.names else steps["position"]
                event = steps["event"] if shower is None else shower[steps["event"]]
                parts.append((event, position[:, 0], position[:, 1], np.full(len(steps), layer), steps["value"]))
    if not parts:
        return np.zeros((count, *geometry.cells), np.float32)
    columns = map(np.concatenate, zip(*parts))
    cells_mev = sum_cells(*columns, count=count, size=geometry.cell_mm / _MM_PER_CM, geometry=geometry)
    return (cells_mev / _MEV_PER_GEV).astype(np.float32)
