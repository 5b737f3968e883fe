"""What a shower is in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from caloscale.errors import InputError


@dataclass(frozen=True)
class Showers:
    """N showers: deposited energy per cell, primary energy and angle.

    cells_gev: float32 (N, X, Y, Z), GeV deposited in the silicon (visible energy), never negative.
    energy_gev: float32 (N,), energy of the primary, GeV.
    angle_rad: float32 (N,), angle between direction and face in the x-z plane, rad; pi/2 is perpendicular.
    source: "geant4", "parametrised", "generated" or "file" (unknown origin).
    """

    cells_gev: NDArray[np.float32]
    energy_gev: NDArray[np.float32]
    angle_rad: NDArray[np.float32]
    source: str = "file"

    def __post_init__(self) -> None:
        count = len(self.cells_gev)
        if self.cells_gev.ndim != 4 or self.energy_gev.shape != (count,) or self.angle_rad.shape != (count,):
            raise InputError(
                "arrays do not belong together",
                field="cells_gev, energy_gev, angle_rad",
                value=(self.cells_gev.shape, self.energy_gev.shape, self.angle_rad.shape),
                remedy="give (N, X, Y, Z), (N,) and (N,)",
            )

    def __len__(self) -> int:
        return len(self.cells_gev)

    def __getitem__(self, index: slice | NDArray[np.generic]) -> Showers:
        """The showers of a slice, a mask or an index array."""
        return replace(
            self,
            cells_gev=self.cells_gev[index],
            energy_gev=self.energy_gev[index],
            angle_rad=self.angle_rad[index],
        )

    @property
    def ecal_sum_gev(self) -> NDArray[np.float32]:
        """Sum of the cells of each shower, GeV (N,)."""
        sums: NDArray[np.float32] = self.cells_gev.sum(axis=(1, 2, 3), dtype=np.float64).astype(np.float32)
        return sums
