"""The compact network: what is built into it, against closed forms and symmetries."""

import math

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from caloscale.detector.angle import measured_angle_rad
from caloscale.detector.geometry import cylinder_mm
from caloscale.models import build, count_parameters, latent, noise_size
from caloscale.models.arithmetic import flops
from caloscale.models.families.compact.layers import (
    CellNoise,
    CountsAbove,
    CylinderPadding,
    Deposit,
    Exponentials,
    FromAxis,
    LogCells,
    Primary,
    Profile,
    Response,
    SeparableMaps,
)
from caloscale.models.layers.constraints import EMPTY_ANGLE_RAD
from caloscale.spec import load_run

RUN = load_run(preset="compact")
GOLDEN = [1.30160, -0.92129, 0.66418, 1.00278]
"""sqrt(2) sin(3 n.d + p) with numbers of RandomState(0)."""


@pytest.fixture(scope="module")
def networks():
    tf.keras.utils.set_random_seed(1)
    return build(RUN.model, RUN.data)


def fed(count, energy=20.0, angle=math.pi / 2, seed=1):
    noise = np.random.default_rng(seed).standard_normal((count, noise_size(RUN.model, RUN.data)), np.float32)
    primaries = {"energy_gev": np.full(count, energy), "angle_rad": np.full(count, angle)}
    return latent(noise, primaries, RUN.model, RUN.data)


def cells_of(shower):
    return np.asarray(shower)[..., 0] ** (1 / 0.85)


PAR04 = load_run(preset="par04")


@pytest.fixture(scope="module")
def cylinder():
    tf.keras.utils.set_random_seed(1)
    return build(PAR04.model, PAR04.data)


def test_a_cylinder_is_generated_and_judged(cylinder):
    noise = np.random.default_rng(1).standard_normal((3, noise_size(PAR04.model, PAR04.data)), np.float32)
    primaries = {"energy_gev": np.full(3, 20.0), "angle_rad": np.full(3, math.pi / 2)}
    shower = cylinder["generator"](latent(noise, primaries, PAR04.model, PAR04.data))
    assert shower.shape == (3, 16, 9, 45, 1) and float(tf.reduce_min(shower)) >= 0
    outputs = cylinder["discriminator"](shower)
    assert outputs["transverse"].shape == (3, 25) and outputs["layers"].shape == (3, 45)
    expected = measured_angle_rad(cells_of(shower), PAR04.data.geometry)
    np.testing.assert_allclose(outputs["angle"][:, 0], expected, atol=2e-4)


def test_a_turned_cylinder_is_convolved_to_the_turned_result(cylinder):
    """The first convolutions of the discriminator see no border in azimuth: a plain reference turns what comes out."""
    first = tf.keras.Model(cylinder["discriminator"].input, cylinder["discriminator"].get_layer("leaky1").output)
    shower = np.random.default_rng(2).exponential(1.0, (1, 16, 9, 45, 1)).astype(np.float32)
    expected = np.roll(first(shower), 5, axis=1)
    np.testing.assert_allclose(first(np.roll(shower, 5, axis=1)), expected, atol=1e-5)
    assert np.abs(expected - first(shower)).max() > 0.01


def test_the_neighbours_of_a_cylinders_cells():
    """Against positions: the cell inside the smallest radius lies a cell's size across the axis."""
    x_mm, y_mm = cylinder_mm(8, 3, 2.0)
    padded = CylinderPadding()(np.stack([x_mm, y_mm], axis=-1)[None]).numpy()[0]
    assert padded.shape == (10, 5, 2)
    steps_mm = np.hypot(*np.moveaxis(padded[1:-1, 1] - padded[1:-1, 0], -1, 0))
    np.testing.assert_allclose(steps_mm, 2.0, rtol=1e-6)
    arcs_mm = np.hypot(*np.moveaxis(padded[1:, 1:-1] - padded[:-1, 1:-1], -1, 0))
    np.testing.assert_allclose(arcs_mm, np.tile(2 * np.sin(np.pi / 8) * np.array([1.0, 3.0, 5.0]), (9, 1)), rtol=1e-6)
    assert not padded[:, -1].any()


def test_size(networks):
    """Tens of MFLOP per shower, so that some thousand steps fit into minutes."""
    assert [count_parameters(network) for network in networks.values()] == [148_465, 87_170]
    assert flops(networks["generator"]) < 35e6
    assert flops(networks["discriminator"]) < 12e6


def test_shower_and_outputs(networks):
    shower = networks["generator"](fed(3))
    assert shower.shape == (3, 17, 17, 25, 1)
    assert float(tf.reduce_min(shower)) >= 0
    outputs = networks["discriminator"](shower)
    assert {name: value.shape[1] for name, value in outputs.items()} == {
        "real_fake": 1,
        "energy": 1,
        "angle": 1,
        "ecal_sum": 1,
        "layers": 25,
        "transverse": 34,
        "depth": 25,
        "counts": 6,
        "hits": 25,
    }


def deposited(logarithms):
    """Cells (X, Y, L) of a primary of 20 GeV with a response of 1%, in units of 1/50 GeV: a sum of 10."""
    layer = Deposit(units=50 * 100, faintest=1e-3, power=0.85)
    latents, response = np.full((1, 3), 0.2, np.float32), np.full((1, 1), math.log(0.01), np.float32)
    return cells_of(layer([np.asarray(logarithms, np.float32)[None], latents, response]))[0]


def test_the_sum_is_the_energy_times_the_response(networks):
    """The total is explicit: E * unitsPerGev * exp(response), whatever the shape of the shower."""
    generator = networks["generator"]
    response = tf.keras.Model(generator.input, generator.get_layer("response").output)
    for energy in (5.0, 40.0):
        batch = fed(4, energy)
        sums = cells_of(generator(batch)).sum(axis=(1, 2, 3))
        np.testing.assert_allclose(sums, 50 * energy * np.exp(response(batch))[:, 0], rtol=1e-3)
        # Before the training the response is an estimate from the materials: about 26 MeV per GeV.
        assert sums.mean() / 50 / energy == pytest.approx(0.026, rel=0.2)


def test_fluctuations_of_the_response_have_a_constant_and_a_stochastic_term():
    layer = Response(middle=0.2)
    energies = np.array([[0.05, 1.5], [0.2, 1.5], [0.8, 1.5]], np.float32)
    mean, one = np.full((3, 1), -3.0, np.float32), np.ones((3, 1), np.float32)
    constant, stochastic = (
        layer([mean, np.concatenate(both, axis=1), energies]) for both in ((one, 0 * one), (0 * one, one))
    )
    np.testing.assert_allclose(constant[:, 0], [-2, -2, -2])
    np.testing.assert_allclose(stochastic[:, 0], [-1, -2, -2.5], rtol=1e-6)


def test_sums_of_two_squares_are_exponentially_distributed():
    """Kolmogorov-Smirnov of 20,000 numbers against the exponential distribution; they are independent."""
    noise = np.random.default_rng(4).standard_normal((10_000, 5)).astype(np.float32)
    found = np.asarray(Exponentials(2)(noise))
    assert found.shape == (10_000, 2)
    for column in found.T:
        assert stats.kstest(column + 1, "expon").pvalue > 1e-3
    assert abs(stats.spearmanr(*found.T).statistic) < 0.04  # 4 standard deviations


def test_mean_maps_are_symmetric_in_y(networks):
    maps = tf.keras.Model(networks["generator"].input, networks["generator"].get_layer("maps").output)(
        fed(2, angle=1.2)
    )
    np.testing.assert_allclose(maps, maps[:, :, ::-1], atol=1e-5)
    assert not np.allclose(maps, maps[:, ::-1], atol=1e-3)


def test_primary():
    layer = Primary(centre=math.log(0.2), width=0.5)
    values = layer(np.array([[0.2, math.pi / 2, 9], [0.2 * math.e, math.pi / 4, 9]], np.float32))
    np.testing.assert_allclose(values, [[0, 0, 0], [2, 1, 1]], atol=1e-6)


def test_coordinates_follow_the_axis():
    """An inclined shower is upright: where the axis is, the distance is 0 in every layer."""
    layer = FromAxis(9, shift=[-1, 0, 2], wavelengths=[4.0, 16.0])
    for cotangent in (0.0, 1.0, -1.5):
        values = layer(np.array([[0, cotangent, cotangent**2]], np.float32)).numpy()[0]
        distance = (np.arange(9) - 4)[None] - cotangent * np.array([-1, 0, 2])[:, None]
        np.testing.assert_allclose(values[..., 4], distance / 4.5, atol=1e-6)
        np.testing.assert_allclose(values[..., 0], np.sin(2 * np.pi * distance / 4), atol=1e-5)
        np.testing.assert_allclose(values[..., 3], np.cos(2 * np.pi * distance / 16), atol=1e-5)


def test_the_axis_is_where_the_simulation_shoots():
    """Deposits along the axis of the network's coordinates have the angle that was asked for."""
    networks = build(RUN.model, RUN.data)
    layer = networks["generator"].get_layer("from_axis")
    for angle in (1.1, math.pi / 2, 1.9):
        axis = np.array(layer.shift) / math.tan(angle)
        cells = np.zeros((1, 17, 17, 25), np.float32)
        for number, position in enumerate(axis + 8):
            left = int(position)
            cells[0, left, 8, number], cells[0, left + 1, 8, number] = left + 1 - position, position - left
        measured = measured_angle_rad(cells, RUN.data.geometry, RUN.data.preprocessing.rebin)
        assert measured[0] == pytest.approx(angle, abs=1e-3)


@pytest.mark.parametrize("showers", [1, 2])
def test_separable_maps_are_the_sum_they_say(showers):
    """With functions of y that are the same for all showers, or not."""
    rng = np.random.default_rng(1)
    x, a, y, b = (rng.normal(size=s).astype(np.float32) for s in ((2, 3, 4, 5), (2, 15), (showers, 3, 6, 5), (2, 3)))
    every = np.broadcast_to(y, (2, 3, 6, 5))
    expected = np.einsum("blxk,blk,blyk->bxyl", x, a.reshape(2, 3, 5), every) / np.sqrt(5) + b[:, None, None]
    np.testing.assert_allclose(SeparableMaps()([x, a, y, b]), expected, rtol=1e-4, atol=1e-5)


def test_cell_noise_is_random_enough():
    """Mean 0, variance 1, and no two cells that go together more than chance allows."""
    layer = CellNoise((5, 4, 3))
    values = layer(np.random.default_rng(1).standard_normal((4000, 62), np.float32)).numpy().reshape(4000, 60)
    np.testing.assert_allclose(values.mean(axis=0), 0, atol=0.08)
    np.testing.assert_allclose(values.std(axis=0), 1, atol=0.05)
    for moment in (values, values**2):
        correlation = np.corrcoef(moment.T) - np.eye(60)
        assert np.abs(correlation).max() < 5 / math.sqrt(4000)


def test_profiles_and_counts():
    cells = np.random.default_rng(1).gamma(0.3, 1.0, (2, 4, 5, 3, 1)).astype(np.float32)
    np.testing.assert_allclose(Profile([3])(cells), cells.sum(axis=(1, 2, 4)), rtol=1e-5)
    both = np.concatenate([cells.sum(axis=(2, 3, 4)), cells.sum(axis=(1, 3, 4))], axis=1)
    np.testing.assert_allclose(Profile([1, 2])(cells), both, rtol=1e-5)
    logarithms = LogCells(0.01)(cells).numpy()
    np.testing.assert_allclose(logarithms, np.log1p(cells[..., 0] / 0.01), rtol=1e-4)
    steep = CountsAbove([3.0, 1.0], slope=1e4)(logarithms)
    exact = [[np.count_nonzero(shower > t) for t in (3.0, 1.0)] for shower in logarithms]
    np.testing.assert_allclose(steep, exact, atol=0.01)
    per_layer = CountsAbove([3.0], per_layer=True, slope=1e4)(logarithms)
    np.testing.assert_allclose(per_layer, np.count_nonzero(logarithms > 3.0, axis=(1, 2)), atol=0.01)


def test_cell_noise_is_the_same_with_every_version_of_numpy():
    """The constants are drawn anew in every process; a released generator depends on them."""
    noise = np.linspace(-1, 1, 4, dtype=np.float32)[None]
    values = CellNoise((2, 1, 2), sines=1)(noise).numpy().ravel()
    np.testing.assert_allclose(values, GOLDEN, atol=1e-5)


def test_an_empty_cell_is_empty_for_the_constraints():
    """Counts against numpy, with cells of exactly 0, also in a shower of as many cells as the published ones."""
    run = load_run(
        preset="compact", overrides=["model.binCounts=true", "data.preprocessing.rebin=[1, 1, 1]", "data.mirror=false"]
    )
    discriminator = build(run.model, run.data)["discriminator"]
    outputs = tf.keras.Model(discriminator.input, {name: discriminator.output[name] for name in ("angle", "bins")})
    shower = np.zeros((2, *run.data.shape, 1), np.float32)
    energies = np.random.default_rng(1).uniform(0.001, 0.1, 500).astype(np.float32)
    shower[1].ravel()[:500] = energies**0.85
    found = outputs(shower)
    assert found["angle"].numpy()[0, 0] == EMPTY_ANGLE_RAD
    edges = [0.0, 0.003, 0.008, 0.0125, 0.02, 0.03, 0.05, np.inf]
    counts = np.histogram(energies, edges)[0][::-1]
    np.testing.assert_array_equal(found["bins"].numpy()[1], [*counts, np.prod(run.data.shape) - 500])
    np.testing.assert_array_equal(found["bins"].numpy()[0], [0] * 7 + [np.prod(run.data.shape)])


def test_cells_without_energy_are_exactly_zero():
    """The generator's fringe is empty, not faint."""
    logarithms = np.zeros((2, 2, 2))
    logarithms[0, 0, 0] = 1
    assert np.count_nonzero(deposited(logarithms)) == 1


def test_soft_counts_have_a_gradient():
    """A cell at the threshold counts half; there the derivative is the slope."""
    logarithms = tf.fill((1, 1, 1, 1), 2.0)
    with tf.GradientTape() as tape:
        tape.watch(logarithms)
        count = CountsAbove([2.0], slope=3.0)(logarithms)
    assert count.numpy().item() == pytest.approx(0.5)
    assert tape.gradient(count, logarithms).numpy().item() == pytest.approx(3.0)


def test_gradients_are_finite_where_showers_are_empty(networks):
    shower = tf.zeros((1, 17, 17, 25, 1))
    with tf.GradientTape() as tape:
        tape.watch(shower)
        total = tf.add_n([tf.reduce_sum(value) for value in networks["discriminator"](shower).values()])
    assert np.isfinite(tape.gradient(total, shower)).all()


def test_saved_and_loaded_it_is_the_same(networks, tmp_path):
    shower = networks["generator"](fed(2))
    for name, value in (("generator", fed(2)), ("discriminator", shower)):
        network = networks[name]
        network.save(str(tmp_path / f"{name}.keras"))
        again = tf.keras.models.load_model(str(tmp_path / f"{name}.keras"))
        tf.nest.map_structure(np.testing.assert_array_equal, again(value), network(value))
