"""A run over a list of primaries with entries and azimuths, from Geant4 to a hybrid simulation with its generator."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.pipelines.conftest import AS_TINY, run

LIST = [
    "data.particle=[e-, gamma]",
    "data.entryMm=[-7.65, 7.65]",
    "data.azimuthDeg=[-180, 180]",
    "data.showers=96",
    "model.latentSize=16",
]
OVERRIDES = [*AS_TINY, *(word for override in LIST for word in ("--set", override))]


@pytest.mark.integration
def test_a_list_of_primaries_from_geant4_to_a_hybrid_simulation(home: Path) -> None:
    def caloscale(*words: str) -> str:
        done = run(home, "-m", "caloscale.cli.main", *words)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    caloscale("run", "--preset", "compact", "--name", "list", *OVERRIDES)
    folder = home / "runs" / "list"
    physics = json.loads((folder / "validation" / "physics.json").read_text())
    assert [one["particle"] for one in physics["particles"]] == ["e-", "gamma"]
    assert sum(one["generated"] for one in physics["particles"]) == 64
    assert "gamma, all energies, Monte Carlo" in (folder / "report.html").read_text()

    words = ("--particles", "gamma", "--azimuths", "0,90", "--entry-x", "-2..2", "--entry-y", "0", "--count", "8")
    caloscale("generate", "--model", "runs/list/model", *words, "-o", "photons.h5")
    with h5py.File(home / "photons.h5") as file:
        assert set(file["pdg"][:]) == {22} and np.ptp(file["entry_x_mm"][:]) > 0
        assert {round(float(np.degrees(a))) for a in file["azimuth_rad"][:]} == {0, 90}

    caloscale("export", "--target", "onnx", "--model", "runs/list/model", "-o", "exported")
    check = json.loads(caloscale("export", "--check", "exported/generator.onnx", "--json"))
    assert check["showers"] == 100 and check["deviation"] <= check["tolerance"] == 1e-4

    front = ("--set", "data.front=[{material: lead, thicknessMm: 2}]", "--set", "data.showers=16")
    options = ("--preset", "compact", *OVERRIDES, *front, "--with", "runs/list/model", "-o", "hybrid", "--json")
    record = json.loads(caloscale("simulate", *options))
    assert record["showers"] >= 16 and record["generated"] > 0 and 0 < record["generatedEnergy"] <= 1
