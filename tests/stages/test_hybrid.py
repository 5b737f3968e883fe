"""Geant4 and a generator together: sums cell by cell, files that are kept, models that do not fit."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caloscale import simulation
from caloscale.errors import InputError, ShowerFileError
from caloscale.inference.generator import load_generator
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.reader import read_showers
from caloscale.showers.sources import read_of_run
from caloscale.simulation.entering import ENTERING, write_entering
from caloscale.simulation.files import file_name, write_file
from caloscale.simulation.record import SimulationRecord
from caloscale.spec import Data, load_run
from caloscale.stages.hybrid import simulate_hybrid
from tests.inference.model_folders import COMPACT, make_model

OVERRIDES = (*COMPACT, "data.showers=2", "data.simulation.showersPerFile=2", "data.angleDeg=[90,90]")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("hybrid") / "model", "compact", COMPACT)


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Data:
    """Two files of two showers each; Geant4's part is made here, with 0.1 MeV in each cell."""
    run = load_run(preset="compact", overrides=OVERRIDES)

    def geant4(data: Data, folder: Path, accepted: Any) -> SimulationRecord:
        folder.mkdir(parents=True, exist_ok=True)
        energy_gev, angle_rad = np.full(2, 20, np.float32), np.full(2, np.pi / 2, np.float32)
        for index in range(2):
            carried = Showers(np.full((2, 5, 4, 3), 1e-4, np.float32), energy_gev, angle_rad, "geant4")
            entering = np.zeros(3, ENTERING)  # two particles in the second shower, one in the first
            entering["event"], entering["energy_gev"], entering["angle_rad"] = [1, 0, 1], [8, 6, 7], np.pi / 2
            entering["x_mm"] = [0, 5.1, 0]
            write_entering(folder, index, entering)
            write_file(folder, index, carried, data, "geant4")
        times = {"seconds": 1, "core_seconds": 1, "showers_per_second": 4, "core_seconds_per_shower": 0.25}
        fields = {"source": "geant4", "showers": 4, "processes": 1, "seed": 1, "fingerprint": "f", "versions": {}}
        return SimulationRecord.model_validate({**times, **fields})

    monkeypatch.setattr(simulation, "simulate", geant4)
    return run.data


def test_generated_showers_are_added_where_their_particles_entered(data: Data, model: Path, tmp_path: Path) -> None:
    record = simulate_hybrid(data, [model], tmp_path / "showers")
    assert record.showers == 4 and record.generated == 6 and record.generated_energy == pytest.approx(42 / 80)
    files = [read_showers(tmp_path / "showers" / file_name(index), geometry=data.geometry) for index in range(2)]
    network = load_generator(model)
    for index, showers in enumerate(files):
        assert showers.source == "generated" and showers.energy_gev.tolist() == [20, 20]
        (seed,) = np.random.SeedSequence(data.seed, spawn_key=(index, 2, 0)).generate_state(1)
        made = network.generate(np.array([8, 6, 7], np.float32), np.full(3, np.pi / 2, np.float32), seed=int(seed))
        expected = np.full((2, 5, 4, 3), 1e-4)
        expected[1] += made.cells_gev[0] + made.cells_gev[2]
        expected[0, 1:] += made.cells_gev[1, :-1]  # a cell further along x
        np.testing.assert_allclose(showers.cells_gev, expected, rtol=1e-5)
    behind = load_run(preset="compact", overrides=[*OVERRIDES, "data.front=[{material: lead, thicknessMm: 5.6}]"])
    assert len(read_of_run(tmp_path / "showers" / file_name(0), data)) == 2
    with pytest.raises(ShowerFileError, match=r"data\.front: the showers were made with another value"):
        read_of_run(tmp_path / "showers" / file_name(0), behind.data)
    assert (files[0].cells_gev != files[1].cells_gev).any(), "each file has its own random numbers"


def test_finished_files_are_kept_and_others_are_refused_before_geant4_is_run(
    data: Data, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And a model that its gates rejected is a warning."""
    folder = tmp_path / "showers"
    whole = simulate_hybrid(data, [model], folder).generator_seconds_per_shower
    times = [(folder / file_name(index)).stat().st_mtime_ns for index in range(2)]
    (folder / file_name(1)).unlink()
    resumed = simulate_hybrid(data, [model], folder)
    assert (folder / file_name(0)).stat().st_mtime_ns == times[0] and (folder / file_name(1)).exists()
    assert whole > 0 < resumed.generator_seconds_per_shower
    assert not [record for record in caplog.records if record.name.startswith("caloscale")]
    rejected = shutil.copytree(model, tmp_path / "model")
    (rejected / "verdict.json").write_text('{"decision": "rejected"}')
    assert simulate_hybrid(data, [rejected], folder).generator_seconds_per_shower == 0
    warnings = [record.getMessage() for record in caplog.records if record.name.startswith("caloscale")]
    assert warnings == [f"the gates of its run rejected the generator in {rejected}"]
    monkeypatch.setattr(simulation, "simulate", lambda *_: pytest.fail("Geant4"))
    with pytest.raises(ShowerFileError, match="another simulation or other models"):
        simulate_hybrid(data, [model, model], folder)


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        (("data.geometry.absorber=lead",), "geometry"),
        (("data.geometry.cells=[15, 12, 3]", "data.preprocessing.rebin=[3, 3, 1]"), "geometry"),
        (("data.geometry.cells=[10, 8, 3]",), "geometry"),
    ],
)
def test_models_of_another_detector_are_refused(
    overrides: tuple[str, ...], field: str, model: Path, tmp_path: Path
) -> None:
    run = load_run(preset="compact", overrides=(*OVERRIDES, *overrides))
    with pytest.raises(InputError, match="generator of another detector") as refused:
        simulate_hybrid(run.data, [model], tmp_path / "showers")
    assert refused.value.field == field and refused.value.remedy and refused.value.exit_code == 2
    assert not (tmp_path / "showers").exists()


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("data.front=[{material: lead, thicknessMm: 5.6}]", "data.front"),
        ("data.pairDistanceMm=5", "data.pairDistanceMm"),
    ],
)
def test_models_of_more_than_one_particle_at_the_face_are_refused(
    override: str, field: str, data: Data, tmp_path: Path
) -> None:
    """One particle would become a pair, or cross the plates of the training after those of the data."""
    other = make_model(tmp_path / "other", "compact", (*COMPACT, override))
    with pytest.raises(InputError, match="one particle at the face") as refused:
        simulate_hybrid(data, [other], tmp_path / "showers")
    assert refused.value.field == f"configuration.{field}" and refused.value.remedy
    assert not (tmp_path / "showers").exists()


def test_a_primary_that_nobody_hands_over_is_refused(data: Data, tmp_path: Path) -> None:
    pions = make_model(tmp_path / "pions", "compact", (*COMPACT, "data.particle=pi-"))
    with pytest.raises(InputError, match="no primary that a generator takes over"):
        simulate_hybrid(data, [pions], tmp_path / "showers")
