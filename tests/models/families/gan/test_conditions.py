"""The condition of networks: its numbers, where the compact generator puts the axis, and that a training learns it."""

import numpy as np
import pytest
import tensorflow as tf

from caloscale.models import build, latent, noise_size
from caloscale.models.families.compact.layers import FromLine, Line
from caloscale.models.families.family import condition
from caloscale.models.families.gan.conditions import judged
from caloscale.models.optimizers import Schedule
from caloscale.spec import load_run
from caloscale.training.state import TrainingState, compile_step

SMALL = (
    "data.geometry.cells=[6, 5, 3]",
    "data.geometry.layers=[{count: 3, absorberMm: 4}]",
    "data.geometry.depthMm=30",
    "data.geometry.cellMm=4",
    "data.preprocessing.rebin=[2, 1, 1]",
    "model.latentSize=20",
    "train.precision=float32",
    "data.showers=8",
)
ALL = ("data.particle=[e-, gamma]", "data.entryMm=[-4, 4]", "data.azimuthDeg=[-180, 180]")
TABLE = {
    "energy_gev": np.array([10, 20], np.float32),
    "angle_rad": np.array([1.2, 1.8], np.float32),
    "azimuth_rad": np.array([0.5, -2.0], np.float32),
    "entry_x_mm": np.array([4, -2], np.float32),
    "entry_y_mm": np.array([1, -3], np.float32),
    "pdg": np.array([22, 11], np.float32),
}


def test_a_condition_has_a_number_for_each_column() -> None:
    data = load_run(preset="compact", overrides=[*SMALL, *ALL]).data
    found = np.concatenate([np.asarray(part) for part in condition(TABLE, data)], axis=1)
    expected = [[np.cos(0.5), np.sin(0.5), 4 / 8, 1 / 4, 0, 1], [np.cos(-2.0), np.sin(-2.0), -2 / 8, -3 / 4, 1, 0]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.shape[1] == data.condition_size
    assert condition(TABLE, load_run(preset="compact", overrides=SMALL).data) == []


def test_the_axis_crosses_a_layer_where_the_line_does() -> None:
    run = load_run(preset="compact", overrides=[*SMALL, *ALL])
    noise = np.zeros((2, noise_size(run.model, run.data)), np.float32)
    line = Line(azimuth=True, entry=True, size=6)(latent(noise, TABLE, run.model, run.data)).numpy()
    cotangent = 1 / np.tan(TABLE["angle_rad"])
    slope_x, slope_y = cotangent * np.cos(TABLE["azimuth_rad"]), cotangent * np.sin(TABLE["azimuth_rad"])
    np.testing.assert_allclose(line[:, :4].T, [slope_x, [0.5, -0.25], slope_y, [0.25, -0.75]], rtol=1e-5)
    features = FromLine(5, [-1.0, 3.0], [8.0], axis=1)(line).numpy()  # the distance is the last feature, over 5/2
    expected = np.arange(5) - 2 - (slope_y[:, None, None] * np.array([[[-1.0], [3.0]]]) + line[:, 3, None, None])
    np.testing.assert_allclose(features[..., -1], expected * 2 / 5, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("preset", ["compact", "fixed-angle"])
def test_generator_and_discriminator_depend_on_the_primary(preset: str) -> None:
    overrides = [*SMALL, *ALL] if preset == "compact" else ["data.particle=[e-, gamma]", "model.latentSize=10"]
    run = load_run(preset=preset, overrides=overrides)
    networks = build(run.model, run.data)
    noise = np.random.default_rng(1).standard_normal((2, noise_size(run.model, run.data)), np.float32)
    same = {name: np.repeat(column[:1], 2) for name, column in TABLE.items()}
    for name in run.data.spans:
        changed = {**same, name: TABLE[name]}
        showers = networks["generator"](latent(noise[:1].repeat(2, 0), changed, run.model, run.data)).numpy()
        assert not np.allclose(showers[0], showers[1], rtol=1e-4), name
        outputs = networks["discriminator"](judged(tf.repeat(showers[:1], 2, axis=0), changed, run.data))
        assert outputs["energy"][0, 0] != outputs["energy"][1, 0], name
        np.testing.assert_allclose(outputs["ecal_sum"][0], outputs["ecal_sum"][1], rtol=1e-6)


@pytest.mark.integration
def test_a_training_learns_where_showers_enter() -> None:
    """Showers of one cell at the entry: after some steps the generated barycentre moves by half the entry or more."""
    run = load_run(
        preset="compact",
        overrides=[*SMALL, "data.preprocessing.rebin=[1, 1, 1]", "data.entryMm=[-8, 8]", "data.angleDeg=[90, 90]"],
    )
    random, state = np.random.default_rng(1), TrainingState(run)
    step = compile_step(state, Schedule(0, "constant"))
    for _ in range(60):
        cells = np.zeros((16, 6, 5, 3), np.float32)
        column = random.integers(0, 4, 16)  # cells 1 to 4 along x have their middle at -6, -2, 2, 6 mm
        energy = random.uniform(5, 40, 16).astype(np.float32)
        cells[np.arange(16), 1 + column, 2, :] = (0.01 * energy[:, None] * 50) ** 0.85
        batch = {
            "cells": cells,
            "energy_gev": energy,
            "angle_rad": np.full(16, np.pi / 2, np.float32),
            "entry_x_mm": (4.0 * column - 6).astype(np.float32),
            "entry_y_mm": np.zeros(16, np.float32),
            "measured_angle_rad": np.full(16, np.pi / 2, np.float32),
            "ecal_sum": 0.03 * energy * 50,
        }
        step({name: tf.constant(value, tf.float32) for name, value in batch.items()}, tf.constant(0.0))
    entry = np.repeat([-6, 6], 50).astype(np.float32)
    table = {
        "energy_gev": np.full(100, 20, np.float32),
        "angle_rad": np.full(100, np.pi / 2, np.float32),
        "entry_x_mm": entry,
        "entry_y_mm": np.zeros(100, np.float32),
    }
    noise = random.standard_normal((100, noise_size(run.model, run.data))).astype(np.float32)
    made = state.networks["generator"](latent(noise, table, run.model, run.data)).numpy()[..., 0] ** (1 / 0.85)
    columns = [half.sum(axis=(0, 2, 3)) for half in (made[:50], made[50:])]  # single showers may still be empty
    left, right = (energy @ ((np.arange(6) - 2.5) * 4) / energy.sum() for energy in columns)
    assert right - left > 6
