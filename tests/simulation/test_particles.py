"""Photons and charged pions by Geant4, against the Review of Particle Physics; what a primary changes elsewhere."""

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from pydantic import ValidationError

from caloscale.errors import SimulationError
from caloscale.simulation import fingerprint, simulate
from caloscale.simulation.tables import PARTICLE_FOLDER, data_folder, elements_of, tables_identity
from caloscale.spec import Data, Geometry
from tests.simulation.conftest import Sampler, simulated
from tests.simulation.shower_fits import shower_maximum

PION_LENGTH_MM, TUNGSTEN_MM = 113.3, 17 * 2.4 + 8 * 4.8
"""Interaction length of pions in tungsten (Review of Particle Physics, atomic and nuclear properties); its depth."""


def data_of(particle: str, **fields: object) -> Data:
    return Data.model_validate({"showers": 4, "particle": particle, **fields})


@pytest.mark.integration
def test_photons_reach_their_maximum_one_radiation_length_deeper(sample: Sampler) -> None:
    """Review of Particle Physics: t_max = ln(E / Ec) - 0.5 of electrons, + 0.5 of photons; within 0.3 X0 and three
    standard deviations of these samples, which together are less than the difference."""
    electron = shower_maximum(sample(160, (3.0, 3.0)))
    photon = shower_maximum(sample(160, (3.0, 3.0), particle="gamma"))
    error = float(np.hypot(electron.error_x0, photon.error_x0))
    assert 0.3 + 3 * error < 1, error
    assert abs(photon.depth_x0 - electron.depth_x0 - 1) < 0.3 + 3 * error, (electron, photon)


@pytest.fixture
def hadronic(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The assembled tables with cross sections of slow neutrons, geometric above 0.5 MeV, in place of Geant4's own.

    They decide nothing that is tested here: cross sections of pions are formulas in Geant4.
    """
    folder = tmp_path / "datasets"
    shutil.copytree(data_folder(elements_of(Geometry()), {"CALOSCALE_CACHE": str(cache)}), folder)
    neutron = folder / PARTICLE_FOLDER / "neutron"
    neutron.mkdir()
    energy_mev = np.geomspace(1e-11, 20, 100)
    for z in range(1, 93):
        geometric_mm2 = np.pi * (1.25e-12 * (2.5 * z) ** (1 / 3)) ** 2
        for name, values in (("inel", geometric_mm2 * (energy_mev > 0.5)), ("el", geometric_mm2), ("cap", 0.0)):
            rows = "".join(f"{a:.9g} {b:.9g}\n" for a, b in np.broadcast(energy_mev, values))
            (neutron / f"{name}{z}").write_text(f"{energy_mev[0]:.9g} {energy_mev[-1]:.9g} 100\n100\n{rows}")
    monkeypatch.setenv("GEANT4_DATA_DIR", str(folder))
    return folder


@pytest.mark.integration
def test_pions_cross_the_calorimeter_as_tracks_as_often_as_their_interaction_length_says(
    hadronic: Path, tmp_path: Path, sample: Sampler
) -> None:
    """exp(-L / lambda) = 0.50 of them do; those that interact leave less than electrons and fluctuate more."""
    simulation = {"showers_per_file": 40}
    data = data_of("pi-", showers=120, energy_gev=[10, 10], angle_deg=[90, 90], simulation=simulation)
    pions = simulated(data, tmp_path / "pions").ecal_sum_gev.astype(np.float64)
    electrons = sample(56, (10.0, 10.0)).ecal_sum_gev.astype(np.float64)
    # 25 sensors of 0.5 mm, 0.39 MeV/mm at the minimum (Review of Particle Physics): 4.9 MeV and Landau's tail
    tracks = np.mean(pions < 0.010)
    expected = np.exp(-TUNGSTEN_MM / PION_LENGTH_MM)
    assert abs(tracks - expected) < 0.03 + 3 * np.sqrt(expected * (1 - expected) / len(pions)), tracks
    assert np.median(pions[pions < 0.010]) == pytest.approx(0.0049, rel=0.1)
    assert pions.mean() < 0.4 * electrons.mean()
    assert pions.std() / pions.mean() > 5 * electrons.std() / electrons.mean()
    with h5py.File(tmp_path / "pions" / "showers-00000.h5") as file:
        assert file.attrs["particle"] == b"pi-"


def test_pions_without_their_datasets_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for own in (None, str(tmp_path)):
        if own:
            monkeypatch.setenv("GEANT4_DATA_DIR", own)
        with pytest.raises(SimulationError, match=r"cross sections of neutrons.*\[1, 14, 74\](.|\n)*calzone download"):
            simulate(data_of("pi-"), tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.h5"))


@pytest.mark.integration
def test_the_neutrons_count_in_the_identity(hadronic: Path) -> None:
    before = tables_identity(elements_of(Geometry()))
    (hadronic / PARTICLE_FOLDER / "neutron" / "el74").write_text("0 1 2\n2\n0 0\n1 0\n")
    assert tables_identity(elements_of(Geometry())) != before


def test_electrons_keep_their_cache() -> None:
    simulation = {"engine": "parametrised", "showersPerFile": 4, "processes": 1}
    electrons = Data.model_validate(
        {"showers": 4, "energyGev": [0.5, 2], "validationFraction": 0.25, "simulation": simulation}
    )
    assert fingerprint(electrons) == "899684e6d3417d2cf13597353f62c4f0"  # of the version that knew no other primary
    assert fingerprint(data_of("e-")) == fingerprint(Data(showers=4))


def test_primaries_that_an_engine_does_not_know_are_refused() -> None:
    with pytest.raises(ValidationError, match="makes showers of electrons, not of gamma"):
        data_of("gamma", simulation={"engine": "parametrised"})
    with pytest.raises(ValidationError, match="particle"):
        data_of("muon")
    assert data_of("gamma", source="mine", simulation={"engine": "parametrised"}).particle == "gamma"
