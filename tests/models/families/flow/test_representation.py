"""Numbers of a shower: the layers come back, moments have their definitions, mirrored showers mirrored numbers."""

import numpy as np
import pytest
import tensorflow as tf

from caloscale.models.families.flow.detector import MOMENTS, Detector
from caloscale.models.families.flow.representation import (
    ROUNDED,
    describe_primary,
    filled,
    layer_numbers,
    layers_of_numbers,
    mirror_numbers,
    mirror_primary,
    moments,
)
from caloscale.spec import Data, load_run


def detector(**data) -> Detector:
    return Detector.of(load_run(preset="flow").data.model_copy(update=data))


@pytest.mark.parametrize("weights", [(1.0,) * 5, (1.0, 1.0, 2.0, 2.0, 2.0), (1.0, 2.0, 3.0)])
def test_layers_come_back_from_their_numbers(weights):
    one = Detector.model_validate(
        {**detector().model_dump(), "layer_weight": list(weights), "shape": [3, 3, len(weights)]}
    )
    layers = np.exp(np.random.default_rng(0).normal(-5, 3, (200, len(weights)))).astype(np.float32)
    energy = np.linspace(5, 40, 200, dtype=np.float32)
    numbers = layer_numbers(tf.constant(layers), tf.constant(energy), one)
    assert numbers.shape == layers.shape
    np.testing.assert_allclose(layers_of_numbers(numbers, tf.constant(energy), one), layers, rtol=2e-4)


def test_the_first_number_is_the_weighted_response_and_a_logit_the_share_of_a_layer():
    one = detector().model_copy(update={"layer_weight": (1.0, 1.0, 2.0), "shape": (3, 3, 3)})
    numbers = layer_numbers(tf.constant([[1.0, 3.0, 2.0]]), tf.constant([10.0]), one).numpy()
    # 1 + 3 + 2 * 2 of 10 GeV; 4 in front against 4 behind; 1 against 3 in the front group.
    np.testing.assert_allclose(numbers, [[np.log(0.8), 0.0, np.log(1 / 3)]], rtol=1e-6, atol=1e-7)


def test_empty_layers_get_values_below_the_faintest_cell():
    one = detector()
    layers = tf.constant([[0.0] * 24 + [1.0]])
    got = filled(layers, tf.random.stateless_normal((1, 25), (1, 2)), one).numpy()
    assert (got[0, :24] < one.floor_gev / 2.7).all() and (got > 0).all() and got[0, 24] == 1


def test_moments_of_two_cells():
    """One layer, cells at -1 and +1 about the axis with 1 and 3 units: mean 1/2, variance 3/4, third moment -3/4."""
    one = detector().model_copy(update={"shape": (5, 5, 1), "layer_weight": (1.0,)})
    cells = np.zeros((1, 5, 5, 1), np.float32)
    cells[0, 1, 2, 0], cells[0, 3, 2, 0] = 1, 3
    got = moments(tf.constant(cells), tf.zeros((1, 2, 1)), one).numpy()[0]
    mean, _, width, skewness = got[:4]
    np.testing.assert_allclose(mean, 0.5, rtol=1e-5)
    np.testing.assert_allclose(width, np.log(0.75) / 2, atol=1e-5)
    np.testing.assert_allclose(np.sinh(skewness), -0.75 / 0.75**1.5, rtol=1e-4)
    np.testing.assert_allclose(got[4], 0, atol=1e-6)
    np.testing.assert_allclose(got[9], np.log(10 / 16), rtol=1e-4)
    np.testing.assert_allclose(got[10], np.log(3), rtol=1e-6)


def test_a_shifted_axis_shifts_the_barycentre_and_a_slope_is_found():
    one = detector()
    depth = np.arange(25)
    axis = np.stack([0.1 * depth, 0 * depth]).astype(np.float32)[None]
    cells = np.zeros((1, 17, 17, 25), np.float32)
    cells[0, 10, 5] = 1
    got = moments(tf.constant(cells), tf.constant(axis), one).numpy()[0]
    np.testing.assert_allclose(got[0], 2 - 1.2, rtol=1e-4)
    np.testing.assert_allclose(got[1], -0.1 * 12.5, rtol=1e-3)  # a change of 2 in the scaled depth is 25 layers
    np.testing.assert_allclose(got[4:6], [-3, 0], atol=1e-4)


def test_moments_of_a_cylinder_are_those_of_its_cells_in_the_plane():
    """Against NumPy in float64, with x = r cos p and y = r sin p of the middle of each cell."""
    one = Detector.of(load_run(preset="flow-par04", overrides=["data.geometry.cells=[5, 4, 45]"]).data)
    rng = np.random.default_rng(2)
    cells = rng.exponential(0.01, (6, 5, 4, 45)) * (rng.random((6, 5, 4, 45)) < 0.1)
    azimuth, radius = np.meshgrid((np.arange(5) + 0.5) * 2 * np.pi / 5 - np.pi, np.arange(4) + 0.5, indexing="ij")
    depth = ((np.arange(45) - 22) * 2 / 45)[None, None]
    for shower, found in zip(cells, moments(tf.constant(cells, tf.float32), tf.zeros((1, 2, 45)), one).numpy()):

        def mean(values, shower=shower):
            return np.average(values * np.ones(shower.shape), weights=shower)

        behind, truth, distances = depth - mean(depth), [], []
        for position in (radius * np.cos(azimuth), radius * np.sin(azimuth)):
            distance = position[:, :, None] - mean(position[:, :, None])
            width = np.sqrt(mean(distance**2))
            slope = mean(distance * behind) / mean(behind**2)
            truth += [mean(position[:, :, None]), slope, np.log(width), np.arcsinh(mean(distance**3) / width**3)]
            distances.append(distance)
        truth.append(np.log(mean(np.sqrt(distances[0] ** 2 + distances[1] ** 2 + ROUNDED))))
        truth.append(np.log((shower**2).sum() / shower.sum() ** 2))
        truth += [np.log1p((shower > limit).sum()) for limit in (one.floor_gev, one.hit_gev)]
        np.testing.assert_allclose(found, truth, rtol=5e-3, atol=2e-3)


@pytest.mark.parametrize(("across_x", "across_y"), [(True, False), (False, True), (True, True)])
def test_mirrored_showers_have_mirrored_numbers_and_primaries(across_x, across_y):
    data: Data = load_run(preset="flow", overrides=["data.azimuthDeg=[-180,180]", "data.entryMm=[-5,5]"]).data
    one = Detector.of(data)
    rng = np.random.default_rng(1)
    cells = rng.exponential(size=(4, 17, 17, 25)).astype(np.float32) * (rng.random((4, 17, 17, 25)) < 0.1)
    angle, azimuth = rng.uniform(1.2, 1.9, 4), rng.uniform(-3, 3, 4)
    entry = rng.uniform(-0.3, 0.3, (4, 2))

    def measured(cells, angle, azimuth, entry):
        latent = np.column_stack([np.full(4, 0.2), angle, np.cos(azimuth), np.sin(azimuth), entry])
        _, primary, axis = describe_primary(tf.constant(latent, tf.float32), one)
        return primary, moments(tf.constant(cells), axis, one)

    primary, numbers = measured(cells, angle, azimuth, entry)
    mirrored = cells[:, ::-1] if across_x else cells
    mirrored = mirrored[:, :, ::-1] if across_y else mirrored
    signs = [-1 if across_x else 1, -1 if across_y else 1]
    direction = np.cos(angle) * np.cos(azimuth) * signs[0], np.cos(angle) * np.sin(azimuth) * signs[1]
    tilted = np.hypot(*direction)
    wanted = measured(mirrored, np.arccos(tilted), np.arctan2(direction[1], direction[0]), entry * signs)
    np.testing.assert_allclose(mirror_primary(primary, across_x, across_y), wanted[0], atol=2e-4)
    zeros = tf.zeros((4, 25))
    got = mirror_numbers(tf.concat([zeros, numbers], axis=1), across_x, across_y)[:, 25:]
    assert got.shape[1] == MOMENTS
    np.testing.assert_allclose(got, wanted[1], atol=2e-3)
