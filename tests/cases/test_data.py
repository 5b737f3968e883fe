"""Files of the user's own whose numbers are not all there, or cannot be read here: refused with what is the case."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from caloscale.errors import InputError, ShowerFileError
from caloscale.sagips.data import measured_events
from caloscale.showers.hdf5.layouts import open_layout
from caloscale.showers.hdf5.reader import read_showers
from caloscale.showers.inspection import describe_file
from caloscale.spec import DataSet, Geometry, LayerGroup

GEOMETRY = Geometry(
    cells=(3, 3, 2), layers=(LayerGroup(count=2, absorber_mm=1),), active_mm=0.5, depth_mm=10, cell_mm=5
)
SHAPE = (4, 3, 3, 2)
CELLS = np.full(SHAPE, 0.5, "f4")
"""In 1/50 GeV: 18 cells of 10 MeV."""


def write(path: Path, *without: str, libver: str = "v110", **columns: np.ndarray) -> h5py.File:
    """An open file of four showers; without some of its datasets, or with others."""
    file = h5py.File(path, "w", libver=(libver, "latest"))
    given = {"ECAL": CELLS, "energy": np.full(4, 20.0), "theta": np.full(4, 1.5), **columns}
    for name, values in given.items():
        if name not in without:
            file[name] = values
    return file


def elsewhere(path: Path, *, external: bool) -> None:
    """Cells in another file, raw or of a virtual dataset."""
    with write(path, "ECAL") as file:
        if external:
            raw = str(path.parent / "cells.bin")
            file.create_dataset("ECAL", SHAPE, "f4", external=[(raw, 0, h5py.h5f.UNLIMITED)])[...] = CELLS
        else:
            layout = h5py.VirtualLayout(SHAPE, "f4")
            layout[:] = h5py.VirtualSource("part.h5", "cells", shape=SHAPE)
            file.create_virtual_dataset("ECAL", layout)


def filtered(path: Path) -> None:
    """As zstd writes it, where zstd is not installed."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((1, *SHAPE[1:]))
    properties.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (3,))
    with write(path, "ECAL", libver="earliest") as file:
        space = h5py.h5s.create_simple(SHAPE)
        cells = h5py.h5d.create(file.id, b"ECAL", h5py.h5t.IEEE_F32LE, space, properties)
        for shower in range(4):
            cells.write_direct_chunk((shower, 0, 0, 0), b"compressed", 0)


def unwritten(path: Path, **options: object) -> None:
    with write(path, "ECAL") as file:
        cells = file.create_dataset("ECAL", SHAPE, "f4", **options)
        if options:
            cells[:2] = CELLS[:2]


def linked(path: Path, name: str, link: object) -> None:
    with write(path, name) as file:
        file[name] = link


@pytest.mark.parametrize(
    ("make", "field", "says"),
    [
        (lambda p: elsewhere(p, external=False), "ECAL", "has its numbers in other files"),
        (lambda p: elsewhere(p, external=True), "ECAL", "has its numbers in other files"),
        (filtered, "ECAL", r"needs the HDF5 filter 32015 \(zstd\).*pip install hdf5plugin.*HDF5_PLUGIN_PATH"),
        (unwritten, "ECAL", "not, or not wholly, written"),
        (lambda p: unwritten(p, chunks=(1, 3, 3, 2)), "ECAL", "not, or not wholly, written"),
        (lambda p: linked(p, "ECAL", h5py.SoftLink("/gone")), "ECAL", "is a link, and there is nothing.*/gone"),
        (lambda p: linked(p, "theta", h5py.ExternalLink("no.h5", "/a")), "theta", "is a link.*no.h5:/a"),
        (lambda p: linked(p, "pdg", h5py.SoftLink("/gone")), "pdg", "is a link, and there is nothing"),
        (lambda p: write(p, "energy").create_group("energy"), "energy", "is no dataset.*Group"),
        (lambda p: write(p, ECAL=CELLS.astype(complex)), "ECAL", "does not hold numbers.*complex128"),
        (lambda p: write(p, energy=np.array([b"20"] * 4)), "energy", "does not hold numbers"),
        (lambda p: write(p, energy=np.array([20, np.nan, 20, 20])), "energy.*", "shower 1 has"),
        (lambda p: write(p, theta=np.array([1.5, 1.5, np.inf, 1.5])), "theta|angle_rad", "shower 2 has"),
        (lambda p: write(p, ECAL=CELLS - (np.arange(4) == 3)[:, None, None, None]), "ECAL", "shower 3 has a negative"),
    ],
)
def test_numbers_that_are_not_all_there_are_refused(
    make: Callable[[Path], object], field: str, says: str, tmp_path: Path
) -> None:
    """Also by `inspect`; HDF5 would give zeros for many of them."""
    path = tmp_path / "s.h5"
    left_open = make(path)
    if left_open is not None:
        (left_open if isinstance(left_open, h5py.File) else left_open.file).close()  # type: ignore[attr-defined]
    for read in (lambda: read_showers(path, geometry=GEOMETRY), lambda: describe_file(path)):
        with pytest.raises(ShowerFileError, match=rf"(?s)s\.h5: ({field}): .*{says}") as refused:
            read()
        assert "truncated" not in str(refused.value) and refused.value.remedy


@pytest.mark.parametrize("libver", ["earliest", "v110"])
def test_links_and_user_blocks_are_read(libver: str, tmp_path: Path) -> None:
    """And attributes that are arrays of one."""
    path = tmp_path / "s.h5"
    with write(path, "energy") as file:
        file["hidden"] = np.full((4, 1), 20.0)
        file["energy"] = h5py.SoftLink("/hidden")
    np.testing.assert_allclose(read_showers(path, geometry=GEOMETRY).cells_gev, 0.01)
    with h5py.File(path, "w", userblock_size=1024, libver=(libver, "latest")) as file:
        file["ECAL"], file["energy"], file["theta"] = CELLS, np.full(4, 20.0), np.full(4, 1.5)
        file["sum"] = np.zeros(3)
        file.attrs["unitsPerGev"] = np.array([100.0])
        file.attrs["source"] = np.array(["geant4"], object)
        file.attrs["particle"] = np.array([b"gamma"])
        file.attrs["calibrated"], file.attrs["versions"] = True, np.array([1.5, 2.0])
    found = describe_file(path)
    assert (found.units_per_gev, found.source, found.particles) == (100, "geant4", ("gamma",))
    assert found.attributes["calibrated"] is True and found.attributes["versions"] == "[1.5 2. ]"
    assert found.sum_gev == (0.09, 0.09), "of the cells, whatever the file stores as their sum"


def test_a_file_that_another_process_writes_is_in_use(tmp_path: Path) -> None:
    path = tmp_path / "s.h5"
    write(path).close()
    program = f"import h5py; file = h5py.File({str(path)!r}, 'a'); print(1, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == b"1\n"
        with pytest.raises(ShowerFileError, match=r"(?s)in use by another process.*HDF5_USE_FILE_LOCKING=FALSE"):
            describe_file(path)
        writer.communicate(b"\n")
    assert describe_file(path).showers == 4


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError("Unable to open file (unable to lock file, errno = 37, error message = 'No locks')"), "has no locks"),
        (OSError("Unable to open file (file is already open for write (may use <h5clear file>))"), "being written"),
        (OSError("Can't read data (file read failed: errno = 5, error message = 'x')"), "Input/output error"),
        (MemoryError("Unable to allocate 26 GiB"), "does not fit into memory"),
        (KeyError("bad object header"), "truncated or damaged"),
    ],
)
def test_an_error_of_hdf5_says_what_is_the_case(error: Exception, says: str, tmp_path: Path) -> None:
    write(tmp_path / "s.h5").close()
    with pytest.raises(ShowerFileError, match=says), open_layout(tmp_path / "s.h5"):
        raise error


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda file: file.create_dataset("events", (5, 1)), "not wholly, written"),
        (lambda file: file.create_dataset("events", data=np.ones((5, 1), complex)), "does not hold numbers"),
    ],
)
def test_measured_events_that_are_not_there_are_refused(
    make: Callable[[h5py.File], object], says: str, tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "e.h5", "w") as file:
        make(file)
    source = {"environment": "tests.sagips.toy.Normal", "source": str(tmp_path / "e.h5")}
    with pytest.raises(InputError, match=says):
        measured_events(DataSet.model_validate(source), 0, 1)
