import numpy as np
import pytest

from caloscale.training.selection import is_chosen, physics_deviation

from .conftest import random_showers


def test_equal_showers_do_not_deviate():
    showers = random_showers(90, 1)
    assert physics_deviation(showers, showers)["deviation"] == 0


def test_each_term_sees_its_deviation():
    real = random_showers(90, 1)

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


def test_later_epochs_are_preferred_within_the_noise():
    assert is_chosen(0.5, None)
    assert is_chosen(0.3, 0.5)
    assert is_chosen(0.55, 0.5)
    assert not is_chosen(0.8, 0.5)
    assert not is_chosen(float("nan"), 0.5)
