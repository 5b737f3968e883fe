"""The electrons: uniform, from seed and file number alone, and enough of them after the split."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from caloscale.showers.sources import SurveyedFile, split_files
from caloscale.simulation import file_count
from caloscale.simulation.primaries import batches, draw_primaries, showers_in_file
from caloscale.spec import Data


def data(**fields: object) -> Data:
    return Data.model_validate({"showers": 1000, "energyGev": [5, 40], "angleDeg": [60, 120], **fields})


def test_energies_and_angles_are_uniform_in_the_ranges_of_the_configuration() -> None:
    document = data(simulation={"showersPerFile": 1000})
    energies = np.concatenate([draw_primaries(document, index)[0]["energy_gev"] for index in range(5)])
    angles = np.concatenate([np.rad2deg(draw_primaries(document, index)[0]["angle_rad"]) for index in range(5)])
    assert kstest(energies, "uniform", args=(5, 35)).pvalue > 1e-3
    assert kstest(angles, "uniform", args=(60, 60)).pvalue > 1e-3
    assert abs(np.corrcoef(energies, angles)[0, 1]) < 4 / np.sqrt(len(energies))


def test_a_range_of_one_value_gives_that_value() -> None:
    primaries, _ = draw_primaries(data(energyGev=[20, 20], angleDeg=[90, 90]), 0)
    assert set(primaries["energy_gev"]) == {np.float32(20)}
    assert set(primaries["angle_rad"]) == {np.float32(np.pi / 2)}


def test_files_differ_from_each_other_and_seeds_from_seeds() -> None:
    drawn = [draw_primaries(data(seed=seed), index) for seed, index in ((1, 0), (1, 1), (2, 0), (0, 2))]
    assert len({primaries["energy_gev"].tobytes() for primaries, _ in drawn}) == 4
    assert len({transport.generate_state(4).tobytes() for _, transport in drawn}) == 4
    primaries, transport = draw_primaries(data(seed=1), 1)
    assert primaries["energy_gev"].tobytes() == drawn[1][0]["energy_gev"].tobytes()
    assert transport.generate_state(4).tobytes() == drawn[1][1].generate_state(4).tobytes()


@given(showers=st.integers(1, 5000), per_file=st.integers(1, 300), fraction=st.floats(0.01, 0.6))
def test_the_split_leaves_the_training_showers_that_were_asked_for(
    showers: int, per_file: int, fraction: float
) -> None:
    document = data(showers=showers, validationFraction=fraction, simulation={"showersPerFile": per_file})
    files, per_file = file_count(document), showers_in_file(document)
    primaries = {"energy_gev": np.ones(per_file, np.float32), "angle_rad": np.ones(per_file, np.float32)}
    none = {"energy": np.zeros(per_file, bool)}
    surveyed = [SurveyedFile(Path(str(i)), "variable-angle", "geant4", primaries, none) for i in range(files)]
    slices, method = split_files(surveyed, document)
    assert method == "by file"
    train = sum(one.selected for one in slices if one.split == "train")
    validation = sum(one.selected for one in slices if one.split == "validation")
    assert train >= showers
    assert validation > 0
    assert train - showers < 3 * per_file or train < 1.5 * showers


@given(energies=st.lists(st.floats(0.125, 300, width=32), min_size=1, max_size=200), limit=st.floats(1, 500))
def test_batches_are_consecutive_and_small(energies: list[float], limit: float) -> None:
    slices = batches(np.array(energies, np.float32), limit)
    assert [i for part in slices for i in range(part.start, part.stop)] == list(range(len(energies)))
    for part in slices:
        count = part.stop - part.start
        assert 1 <= count <= 32
        assert count == 1 or sum(energies[part]) <= limit * (1 + 1e-6)
