"""Small showers in all layouts, a bucket server and a disk that fills up."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.writer import write_showers
from caloscale.showers.tfrecord.shards import preprocess_showers
from caloscale.spec import Data, Geometry, LayerGroup, Preprocessing

CELLS = (6, 4, 5)


@pytest.fixture(scope="session")
def geometry() -> Geometry:
    """A calorimeter of 6 x 4 x 5 cells, the last two layers behind thicker absorbers."""
    layers = (LayerGroup(count=3, absorber_mm=2.0), LayerGroup(count=2, absorber_mm=4.0))
    return Geometry(cells=CELLS, cell_mm=5, layers=layers, active_mm=0.5, depth_mm=30)


@pytest.fixture(scope="session")
def data(geometry: Geometry) -> Data:
    """Selects what `make_showers` makes."""
    return Data(
        source="files",
        energy_gev=(10, 20),
        angle_deg=(60, 120),
        geometry=geometry,
        preprocessing=Preprocessing(rebin=(2, 1, 1), threshold_gev=1e-4, minimum_sum_gev=0.01),
    )


def make_showers(count: int, seed: int = 0, source: str = "geant4", cells: tuple[int, ...] = CELLS) -> Showers:
    """Random showers: half of the cells empty, 10-20 GeV, 60-120 degrees."""
    rng = np.random.default_rng(seed)
    cells_gev = rng.gamma(0.5, 0.02, (count, *cells)) * (rng.random((count, *cells)) < 0.5)
    return Showers(
        cells_gev.astype(np.float32),
        rng.uniform(10, 20, count).astype(np.float32),
        np.radians(rng.uniform(60, 120, count)).astype(np.float32),
        source,
    )


@pytest.fixture
def folder_of_showers(tmp_path: Path) -> Callable[..., Path]:
    """A function that makes a folder of HDF5 files with so many showers each."""

    def make(*counts: int, source: str = "geant4") -> Path:
        folder = tmp_path / "showers"
        for index, count in enumerate(counts):
            showers = make_showers(count, seed=index, source=source)
            write_showers(folder / f"showers-{index:03d}.h5", showers, attributes={})
        return folder

    return make


@pytest.fixture
def prepared(folder_of_showers: Callable[..., Path], data: Data, tmp_path: Path) -> Path:
    """A folder of shards of two files with 20 and 10 showers, beside the folder of the files."""
    preprocess_showers(data, folder_of_showers(20, 10), tmp_path / "out")
    return tmp_path / "out"


def write_published(path: Path, showers: Showers, layout: str, *, libver: str = "earliest") -> Path:
    """The files as other people's code writes them: plain h5py, with its default format ("earliest").

    The format "v110" reads faster, because it needs no process that walks through the file first.
    """
    count = len(showers)
    with h5py.File(path, "w", libver=(libver, "latest")) as file:
        if layout == "variable-angle":
            cells = showers.cells_gev.swapaxes(1, 2) * 50
            file.create_dataset("ECAL", data=cells, compression="gzip", chunks=(1, *cells.shape[1:]))
            file["energy"] = showers.energy_gev[:, None]
            file["theta"] = showers.angle_rad
        elif layout == "fixed-angle":
            file["ECAL"] = showers.cells_gev
            file["target"] = np.stack([np.full(count, 11.0), showers.energy_gev], axis=1)
        else:
            # (N, alpha, r, layer) -> layer-major voxels, MeV
            voxels = showers.cells_gev.transpose(0, 3, 1, 2).reshape(count, -1)
            file.create_dataset("showers", data=voxels.astype(np.float64) * 1000, compression="gzip")
            file["incident_energies"] = showers.energy_gev[:, None].astype(np.float64) * 1000
    return path
