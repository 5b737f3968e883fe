"""The tables that Geant4 reads, against published values and closed forms."""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from caloscale.errors import SimulationError, StorageError
from caloscale.installation import install_command
from caloscale.simulation.tables import LOW_ENERGY_FOLDER, data_folder, elements_of, tables_identity
from caloscale.spec import Geometry
from tests.processes import without

ELEMENTS = {
    1: (1.008, 63.04),
    6: (12.011, 42.70),
    14: (28.0855, 21.82),
    24: (51.996, 14.94),
    26: (55.845, 13.84),
    28: (58.693, 12.68),
    29: (63.546, 12.86),
    74: (183.84, 6.76),
    82: (207.2, 6.37),
}
"""Atomic mass, g/mol, and radiation length, g/cm^2 (Review of Particle Physics), by atomic number."""
AVOGADRO = 6.02214076e23
BARN_CM2 = 1e-24
ELECTRON_MEV = 0.51099895


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp("tables")
    return data_folder(elements_of(Geometry()), {"CALOSCALE_CACHE": str(cache)}) / LOW_ENERGY_FOLDER


def read_vector(path: Path) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.array(path.read_text().split(), float)
    count = int(numbers[3])
    assert numbers[2] == count
    assert len(numbers) == 4 + 2 * count
    x, y = numbers[4::2], numbers[5::2]
    assert numbers[0] == x[0]
    assert numbers[1] == x[-1]
    return x, y


def klein_nishina_barn(energy_mev: float) -> float:
    """Cross section of an electron (Review of Particle Physics; classical radius 2.8179 fm)."""
    k = energy_mev / ELECTRON_MEV
    first = (1 + k) / k**2 * (2 * (1 + k) / (1 + 2 * k) - np.log(1 + 2 * k) / k)
    second = np.log(1 + 2 * k) / (2 * k) - (1 + 3 * k) / (1 + 2 * k) ** 2
    return 2 * np.pi * 0.28179403**2 * (first + second)


@pytest.fixture(scope="module")
def all_tables(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The low-energy folder with the tables of each element of the known materials."""
    environment = {"CALOSCALE_CACHE": str(tmp_path_factory.mktemp("all"))}
    found: dict[int, Path] = {}
    silicon = [(absorber, "silicon") for absorber in ("lead", "copper", "steel")]
    for absorber, active in [*silicon, ("tungsten", "scintillator")]:
        geometry = Geometry.model_validate({"absorber": absorber, "active": active})
        folder = data_folder(elements_of(geometry), environment) / LOW_ENERGY_FOLDER
        found.update(dict.fromkeys(elements_of(geometry), folder))
    return found


@pytest.mark.parametrize(
    ("z", "energy_mev", "published_cm2_g"),
    # NIST, X-ray mass attenuation coefficients, table 3; tungsten and lead on both sides of the K edge of tungsten.
    [
        (1, 0.1, 0.2944),
        (1, 0.5, 0.1729),
        (6, 0.1, 0.1514),
        (6, 0.5, 0.08715),
        (14, 0.1, 0.1835),
        (14, 0.5, 0.08748),
        (26, 0.1, 0.3717),
        (26, 0.5, 0.08414),
        (29, 0.1, 0.4584),
        (29, 0.5, 0.08362),
        (74, 0.0695249, 2.552),
        (74, 0.0695251, 11.23),
        (74, 0.1, 4.438),
        (74, 0.2, 0.7844),
        (74, 0.5, 0.1378),
        (82, 0.1, 5.549),
        (82, 0.2, 0.9985),
        (82, 0.5, 0.1614),
    ],
)
def test_attenuation_is_the_published_one(
    all_tables: dict[int, Path], z: int, energy_mev: float, published_cm2_g: float
) -> None:
    """Photoelectric and Rayleigh from the tables plus Klein and Nishina for the Compton effect, within 3%."""
    energy, scaled = read_vector(all_tables[z] / "epics2017" / "phot" / f"pe-cs-{z}.dat")
    photoelectric = np.exp(np.interp(np.log(energy_mev), np.log(energy), np.log(scaled))) / energy_mev**3
    energy, scaled = read_vector(all_tables[z] / "epics2017" / "rayl" / f"re-cs-{z}.dat")
    rayleigh = np.exp(np.interp(np.log(energy_mev), np.log(energy), np.log(scaled))) / energy_mev**2 / 1e-22
    barn = photoelectric + rayleigh + z * klein_nishina_barn(energy_mev)
    assert barn * BARN_CM2 * AVOGADRO / ELEMENTS[z][0] == pytest.approx(published_cm2_g, rel=0.03)


@pytest.mark.parametrize("z", ELEMENTS)
def test_bremsstrahlung_gives_the_published_radiation_length(all_tables: dict[int, Path], z: int) -> None:
    """At high energy the radiative loss per length is E / X0; within 1%."""
    atomic_mass, radiation_length = ELEMENTS[z]
    rows = (all_tables[z] / "brem_SB" / f"br{z}").read_text().splitlines()
    kind, columns, lines = (int(n) for n in rows[0].split())
    fraction, log_energy = (np.array(row.split(), float) for row in rows[1:3])
    scaled_mbarn = np.array([row.split() for row in rows[3:]], float)
    assert kind == 4
    assert scaled_mbarn.shape == (lines, columns) == (len(log_energy), len(fraction))
    assert np.exp(log_energy[[0, -1]]) == pytest.approx([1e-3, 1e4])
    per_atom_cm2 = z**2 * np.trapezoid(scaled_mbarn[-1], fraction) * 1e-3 * BARN_CM2
    assert atomic_mass / (per_atom_cm2 * AVOGADRO) == pytest.approx(radiation_length, rel=0.01)


def test_only_the_elements_of_the_geometry_are_there(tables: Path) -> None:
    assert elements_of(Geometry()) == (1, 14, 74)
    assert elements_of(Geometry(absorber="steel", active="scintillator")) == (1, 6, 24, 26, 28)
    assert {file.name for file in (tables / "brem_SB").iterdir()} == {"br1", "br14", "br74"}


def test_energies_ascend_strictly(tables: Path) -> None:
    for file in [*(tables / "epics2017" / "phot").glob("pe-cs-*"), *(tables / "epics2017" / "rayl").iterdir()]:
        energy, value = read_vector(file)
        assert (np.diff(energy) > 0).all()
        assert (value > 0).all()


def test_assembled_once_even_by_many_at_a_time(tmp_path: Path) -> None:
    environment = {"CALOSCALE_CACHE": str(tmp_path)}
    with ThreadPoolExecutor(3) as threads:
        folders = set(threads.map(lambda _: data_folder(elements_of(Geometry()), environment), range(3)))
    assert len(folders) == 1
    assert [path.name for path in (tmp_path / "geant4").iterdir()] == [folders.pop().name]


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file.*\n.*remedy"):
        data_folder(elements_of(Geometry()), {"CALOSCALE_CACHE": str(tmp_path / "file")})


def test_own_tables_come_first_and_count_in_the_identity(tables: Path, tmp_path: Path) -> None:
    own = {"GEANT4_DATA_DIR": str(tables.parent), "G4LEDATA": "/nowhere", "CALOSCALE_CACHE": str(tmp_path)}
    assert data_folder(elements_of(Geometry()), own) == tables.parent
    assert not list(tmp_path.iterdir())
    identity = tables_identity(elements_of(Geometry()), own)
    assert identity != tables_identity(elements_of(Geometry()), {})

    low_energy_only = {"G4LEDATA": str(tables), "CALOSCALE_CACHE": str(tmp_path)}
    built = data_folder(elements_of(Geometry()), low_energy_only)
    assert tables_identity(elements_of(Geometry()), low_energy_only) not in (identity, tables_identity((74,), {}))
    assert (built / LOW_ENERGY_FOLDER / "brem_SB" / "br74").samefile(tables / "brem_SB" / "br74")
    assert {p.name for p in built.iterdir()} == {p.name for p in tables.parent.iterdir()}


@pytest.mark.parametrize(
    "file", ["G4EMLOW8.8/brem_SB/br74", "G4EMLOW8.8/epics2017/phot/pe-high-74.dat", "G4PARTICLEXS4.2/gamma/inel74"]
)
def test_each_own_table_that_geant4_reads_counts_in_the_identity(file: str, tables: Path, tmp_path: Path) -> None:
    own = {"GEANT4_DATA_DIR": str(shutil.copytree(tables.parent, tmp_path / "own"))}
    before = tables_identity(elements_of(Geometry()), own)
    path = tmp_path / "own" / file
    path.write_text(path.read_text().replace("0", "1"))
    assert tables_identity(elements_of(Geometry()), own) != before


@pytest.mark.parametrize("variable", ["GEANT4_DATA_DIR", "G4LEDATA"])
def test_own_tables_that_lack_an_element_are_refused(variable: str, tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match=rf"{variable}: .*\[1, 14, 74\](.|\n)*remedy: let it name"):
        data_folder(elements_of(Geometry()), {variable: str(tmp_path)})


@pytest.mark.parametrize("wheel", ["xpecgen", "ompmc", "calzone"])
def test_a_missing_wheel_is_named_with_both_remedies(wheel: str, tmp_path: Path) -> None:
    """In a process where the wheel is not importable, as where it was not installed."""
    program = f"""{without(wheel)}
from pathlib import Path
from caloscale.errors import SimulationError
from caloscale.simulation import simulate
from caloscale.spec import Data
try:
    simulate(Data(showers=2), Path({str(tmp_path / "out")!r}))
except SimulationError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert f"the wheel {wheel} is not installed" in done.stdout
    assert install_command("simulate") in done.stdout
    assert "data.simulation.engine=parametrised" in done.stdout
    assert not list((tmp_path / "out").glob("*.h5"))
