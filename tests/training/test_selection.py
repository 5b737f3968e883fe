import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caloscale.showers.arrays import Showers
from caloscale.spec import load_run
from caloscale.training import selection
from caloscale.training.selection import MOST_SHARDS, MOST_SHOWERS, is_selected, selection_showers

from .conftest import random_showers


def physics_deviation(real, generated, hits_threshold_gev=0.0):
    return selection.physics_deviation(real, generated, hits_threshold_gev=hits_threshold_gev)


def test_each_term_sees_its_deviation():
    real = random_showers(90, 1)
    assert physics_deviation(real, real)["deviation"] == 0

    def changed(cells):
        return physics_deviation(real, type(real)(cells, real.energy_gev, real.angle_rad, "generated"))

    brighter = changed(real.cells_gev * np.float32(1.1))
    assert brighter["sampling_fraction"] == pytest.approx(0.1, rel=1e-4)
    assert brighter["profile_z"] == pytest.approx(0, abs=1e-6)
    turned = changed(real.cells_gev[:, :, :, ::-1])
    assert turned["sampling_fraction"] == pytest.approx(0, abs=1e-6)
    assert turned["profile_z"] > 0.01
    assert turned["profile_x"] == pytest.approx(0, abs=1e-6)
    emptier = real.cells_gev.copy()
    emptier[:, ::2] = 0
    assert changed(emptier)["hits"] == pytest.approx(4 / 7, rel=1e-4)


def test_the_epoch_is_selected_by_the_hits_that_the_gates_count():
    """Cells below the threshold of hits neither select nor judge: twice as many of them, as many hits."""
    random = np.random.default_rng(1)
    cells = np.where(random.random((90, 5, 4, 3)) < 0.5, 1e-3, 0).astype(np.float32)
    noisy = np.where(cells > 0, cells, np.float32(1e-5))
    energy = random.uniform(10, 40, 90).astype(np.float32)
    real, generated = (Showers(one, energy, energy / 20, "geant4") for one in (cells, noisy))
    assert physics_deviation(real, generated, 3e-4)["hits"] == 0
    assert physics_deviation(real, generated, 5e-6)["hits"] == pytest.approx(1, abs=0.1)


def test_the_width_of_the_response_counts():
    real = random_showers(90, 1)
    energy = real.energy_gev
    wide = np.where(np.arange(90) % 2 == 0, 0.8, 1.2).astype(np.float32)
    cells = real.cells_gev * wide[:, None, None, None]
    generated = type(real)(cells, energy, real.angle_rad, "generated")
    # Every real shower here has the same response, so any width is infinitely wide: reported as 1.
    narrow = type(real)(cells * 1.0, energy, real.angle_rad, "geant4")
    assert physics_deviation(narrow, generated)["resolution"] == pytest.approx(0, abs=1e-6)
    half = real.cells_gev * (1 + (wide - 1) / 2)[:, None, None, None]
    assert physics_deviation(generated, type(real)(half, energy, real.angle_rad))["resolution"] == pytest.approx(
        0.5, rel=0.05
    )


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=100))
def test_a_quarter_selects_from_a_few_shards(shards):
    chosen, total = selection_showers(shards), sum(shards)
    assert (np.diff(chosen) > 0).all() and chosen[0] >= 0 and chosen[-1] < total
    assert 1 <= len(chosen) <= max(1, min(MOST_SHOWERS, round(total / 4)))
    of_shards = np.searchsorted(np.cumsum(shards), chosen, side="right")
    assert len(set(of_shards)) <= MOST_SHARDS
    assert np.array_equal(chosen, selection_showers(shards))


@pytest.mark.parametrize("shards", [[1000], [250] * 4, [515] * 40])
def test_showers_in_the_order_of_their_energies_select_by_all_energies(shards):
    energy_gev = np.linspace(10, 500, sum(shards))[selection_showers(shards)]
    assert len(energy_gev) == min(MOST_SHOWERS, sum(shards) // 4)
    # The mean and the deciles of the whole range: four standard errors of as many drawn from it; from eight ranges of
    # it, a sixteenth more.
    assert energy_gev.mean() == pytest.approx(255, abs=4 * 141.5 / np.sqrt(len(energy_gev)))
    quantiles = np.quantile(energy_gev, np.arange(1, 10) / 10)
    assert quantiles == pytest.approx(
        10 + 49.0 * np.arange(1, 10), abs=490 * (4 * 0.5 / np.sqrt(len(energy_gev)) + 1 / 16)
    )


def test_later_epochs_are_preferred_within_the_noise():
    train = load_run(preset="compact", overrides=["train.epochs=8", "train.decay=constant"]).train
    assert is_selected(0.5, {}, train, 8)
    assert is_selected(0.3, {1: 0.5}, train, 8)
    assert is_selected(0.55, {1: 0.5}, train, 8)
    assert not is_selected(0.8, {1: 0.5}, train, 8)
    for bad in (float("nan"), float("inf")):  # a generator whose cells are not finite
        assert not is_selected(bad, {1: 0.5}, train, 8) and not is_selected(bad, {}, train, 8)
        assert is_selected(0.6, {1: bad, 2: 0.5}, train, 8) and not is_selected(0.8, {1: bad, 2: 0.5}, train, 8)


def test_an_epoch_before_the_learning_rate_has_decayed_is_not_selected_by_chance():
    """As it happened: the 13th of 28 epochs had the least deviation by chance (a classifier AUC of .94)."""
    train = load_run(preset="compact", overrides=["train.epochs=28"]).train
    assert train.decay == "cosine"
    chance = {13: 0.15}
    assert is_selected(0.38, chance, train, 28)
    assert not is_selected(0.38, {**chance, 22: 0.2}, train, 28)
    assert is_selected(0.29, {**chance, 22: 0.2}, train, 28)
    # Of a training that its minutes end with epoch 14 the cosine has run over these.
    assert not is_selected(0.38, chance, train, 14) and is_selected(0.38, {10: 0.15}, train, 14)
