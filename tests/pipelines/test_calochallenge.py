"""A run of the preset par04 on a file as the CaloChallenge writes them: MeV, calibrated, no attributes."""

import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml

from caloscale.detector.sampling import visible_fraction
from caloscale.inference.generator import load_generator
from caloscale.simulation.parametrised import Parametrised
from caloscale.spec import load_run
from tests.pipelines.conftest import no_gates

OVERRIDES = {
    "data": {"energyGev": [2, 4], "geometry": {"calibrated": True}, "showers": None},
    "train": {"epochs": 1, "batchPerReplica": 8, "maxMinutes": None},
    "validation": {
        "showers": 64,
        "energyBins": 1,
        "bootstraps": 20,
        "gates": no_gates("par04"),
        "hitsThresholdGev": 0.006,
    },
}


@pytest.mark.integration
def test_a_file_of_the_challenge_trains_the_preset(tmp_path: Path) -> None:
    preset = load_run(preset="par04", overrides=["data.showers=80", "data.simulation.engine=parametrised"])
    energy_gev = np.random.default_rng(1).uniform(2, 4, 80).astype(np.float32)
    perpendicular = np.full(80, np.pi / 2, np.float32)
    cells_gev = Parametrised(preset.data).showers(
        {"energy_gev": energy_gev, "angle_rad": perpendicular}
    ) / visible_fraction(preset.data.geometry)
    with h5py.File(tmp_path / "dataset_2_1.hdf5", "w") as file:
        file["incident_energies"] = 1000 * energy_gev[:, None]
        file["showers"] = 1000 * cells_gev.transpose(0, 3, 1, 2).reshape(80, 6480)  # depth, azimuth, radius
    document = {"model": {"preset": "par04"}, **OVERRIDES}
    document["data"] = {**OVERRIDES["data"], "source": "dataset_2_1.hdf5"}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(document))
    words = [sys.executable, "-m", "caloscale.cli.main", "run", "run.yaml", "--name", "challenge"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "where data.geometry samples" not in done.stderr  # the sums are those of the calibrated detector
    summary = json.loads((tmp_path / "runs/challenge/summary.json").read_text())
    assert summary["outcome"] == "succeeded" and summary["physics"]
    generator = load_generator(tmp_path / "runs/challenge/model")
    noise = np.random.default_rng(2).standard_normal((32, 62), np.float32)
    generated = generator.generate_batch(noise, np.full(32, 3, np.float32), np.full(32, np.pi / 2, np.float32))
    assert generated.shape == (32, 16, 9, 45)
    # Untrained as it is, the generator begins at the response of calibrated cells, 35 times that of deposits.
    assert 0.4 < generated.sum(axis=(1, 2, 3)).mean() / 3 < 2.5
