"""Real Geant4 showers that several tests look at, simulated once per session."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import h5py
import numpy as np
import pytest

from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.reader import read_showers
from caloscale.showers.primaries import joined
from caloscale.simulation import simulate
from caloscale.spec import Data
from caloscale.spec.data import PrimaryRanges

Sampler = Callable[..., Showers]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of Geant4 are assembled for the session, not taken from the user's cache."""
    monkeypatch.setenv("CALOSCALE_CACHE", str(cache))
    monkeypatch.delenv("GEANT4_DATA_DIR", raising=False)
    monkeypatch.delenv("G4LEDATA", raising=False)


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Sampler]:
    """sample(showers, energyGev, angleDeg, engine): eight files by all cores, kept for the session."""
    known: dict[str, Showers] = {}

    def get(
        showers: int,
        energy_gev: tuple[float, float],
        angle_deg: tuple[float, float] = (90, 90),
        engine: str = "geant4",
        cells: tuple[int, int, int] = (51, 51, 25),
        particle: str = "e-",
    ) -> Showers:
        data = Data(
            showers=showers // 2,
            particle=particle,
            energy_gev=energy_gev,
            angle_deg=angle_deg,
            validation_fraction=0.5,
            simulation={"engine": engine, "showers_per_file": showers // 8},
            seed=7,
            geometry={"cells": cells},
        )
        key = data.model_dump_json()
        if key not in known:
            folder = tmp_path_factory.mktemp("showers")
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("CALOSCALE_CACHE", str(cache))
                known[key] = simulated(data, folder)
        return known[key]

    yield get


def read_folder(folder: Path, data: Data) -> Showers:
    """All showers of a simulation, in the order of the files."""
    parts = [read_showers(path, geometry=data.geometry) for path in sorted(folder.glob("showers-*.h5"))]
    cells = np.concatenate([part.cells_gev for part in parts])
    return Showers.of(cells, joined([part.primaries for part in parts]), parts[0].source)


def simulated(data: Data, folder: Path, accepted: Sequence[PrimaryRanges] = ()) -> Showers:
    """The showers of a new simulation."""
    simulate(data, folder, accepted)
    return read_folder(folder, data)


def digests(folder: Path) -> dict[str, str]:
    """Hash of all that each file of showers holds (its bytes hold the time of writing, too)."""
    return {path.name: digest(path) for path in sorted(folder.glob("showers-*.h5"))}


def digest(path: Path) -> str:
    """Hash of the names, types and bytes of all datasets and attributes of a file."""
    found = hashlib.sha256()
    with h5py.File(path) as file:
        for name in sorted(file):
            found.update(f"{name} {file[name].dtype} {file[name].shape}".encode() + file[name][...].tobytes())
        for name in sorted(file.attrs):
            found.update(f"{name} {file.attrs[name]!r}".encode())
    return found.hexdigest()
