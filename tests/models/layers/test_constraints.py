"""The physics constraints against closed forms, numpy and finite differences."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from caloscale.detector.angle import measured_angle_rad
from caloscale.detector.geometry import sensor_depth_mm
from caloscale.models.layers.constraints import (
    PUBLISHED_BIN_EDGES,
    BinCounts,
    CellEnergy,
    EcalSum,
    MeasuredAngle,
    constraints,
)
from caloscale.showers.preprocessing import rebin, to_network
from caloscale.spec import Data, Geometry, LayerGroup, Preprocessing

CELL_MM = (5.0, 5.0)
DEPTH_MM = (3.0, 9.0, 15.0, 23.0)


def angle_layer(**options):
    return MeasuredAngle(CELL_MM, DEPTH_MM, dtype="float64", **options)


def gradient(function, cells):
    cells = tf.constant(cells)
    with tf.GradientTape() as tape:
        tape.watch(cells)
        value = function(cells)
    return tape.gradient(value, cells)


def random_cells(shape=(3, 7, 5, 4), seed=0):
    rng = np.random.default_rng(seed)
    return (rng.gamma(0.5, 1.0, shape) * (rng.random(shape) < 0.6))[..., None]


def straight_shower(angle_rad, geometry, cells=(51, 51), energies=None, slope_y=0.0):
    """A shower whose layers have their barycentres exactly on a line: each splits its energy on two cells."""
    depths = np.array(sensor_depth_mm(geometry))
    energies = np.ones(len(depths)) if energies is None else np.asarray(energies)
    shower = np.zeros((*cells, len(depths)))
    for layer, (depth, energy) in enumerate(zip(depths, energies)):
        at_x = (depth - depths.mean()) / math.tan(angle_rad) / geometry.cell_mm + (cells[0] - 1) / 2
        at_y = (depth - depths.mean()) * slope_y / geometry.cell_mm + (cells[1] - 1) / 2
        x, y = math.floor(at_x), math.floor(at_y)
        for dx, share_x in ((0, 1 - (at_x - x)), (1, at_x - x)):
            for dy, share_y in ((0, 1 - (at_y - y)), (1, at_y - y)):
                if share_x * share_y > 0:
                    shower[x + dx, y + dy, layer] = energy * share_x * share_y
    return shower


class TestCellEnergy:
    def test_value_and_gradient_are_those_of_the_power(self):
        x = np.array([[0.0, 1e-12, 1e-3, 1.0, 7.5]]).reshape(1, 5, 1, 1, 1)
        layer = CellEnergy(0.85, dtype="float64")
        np.testing.assert_allclose(layer(x), x ** (1 / 0.85), rtol=1e-14)
        np.testing.assert_allclose(gradient(layer, x), x ** (1 / 0.85 - 1) / 0.85, rtol=1e-13)

    def test_negative_cells_are_zero_without_gradient(self):
        x = -np.ones((1, 2, 2, 2, 1))
        layer = CellEnergy(0.85, dtype="float64")
        assert not np.any(layer(x))
        assert not np.any(gradient(layer, x))

    def test_power_one_changes_nothing(self):
        x = random_cells()
        np.testing.assert_array_equal(CellEnergy(1.0, dtype="float64")(x), x)


class TestEcalSum:
    def test_value_and_gradient_through_the_power(self):
        x = random_cells()
        power = CellEnergy(0.85, dtype="float64")
        total = EcalSum(dtype="float64")
        np.testing.assert_allclose(total(power(x)), (x ** (1 / 0.85)).sum(axis=(1, 2, 3)), rtol=1e-13)
        np.testing.assert_allclose(
            gradient(lambda v: total(power(v)), x), x ** (1 / 0.85 - 1) / 0.85, rtol=1e-12, atol=1e-15
        )

    def test_sum_of_a_full_size_shower_in_float32(self):
        cells = np.random.default_rng(2).gamma(0.1, 0.03, (1, 51, 51, 25, 1)).astype(np.float32)
        exact = cells.sum(dtype=np.float64)
        np.testing.assert_allclose(EcalSum()(cells), [[exact]], rtol=2e-6)


class TestBinCounts:
    def test_counts_of_the_published_ranges(self):
        cells = np.array([0.06, 0.05, 0.04, 0.03, 0.025, 0.015, 0.01, 0.005, 0.003, 0.001, 1e-9, 0, 0, 0, 0, 0])
        # at least .05; .03 to .05; .02; .0125; .008; .003; above zero; zero
        expected = [[2, 2, 1, 1, 1, 2, 2, 5]]
        np.testing.assert_array_equal(BinCounts(dtype="float64")(cells.reshape(1, 4, 2, 2, 1)), expected)

    @given(hnp.arrays(np.float64, (2, 3, 4, 5, 1), elements=st.floats(0, 0.1, allow_subnormal=False)))
    def test_agrees_with_numpys_histogram_and_adds_up_to_the_cells(self, cells):
        counts = BinCounts(dtype="float64")(cells)
        edges = [-1.0, np.nextafter(0, 1), *sorted(PUBLISHED_BIN_EDGES), np.inf]
        for one, expected in zip(cells, counts):
            np.testing.assert_array_equal(np.histogram(one, edges)[0][::-1], expected)
        np.testing.assert_array_equal(tf.reduce_sum(counts, axis=1), [60, 60])

    def test_has_no_gradient(self):
        assert gradient(BinCounts(dtype="float64"), random_cells()) is None


class TestMeasuredAngle:
    @pytest.mark.parametrize(("angle_deg", "slope_y"), [(60, 0), (75, 0), (90, 0), (101.5, 0), (120, 0), (70, 0.4)])
    def test_is_the_angle_of_a_straight_shower_with_the_x_axis_in_the_real_geometry(self, angle_deg, slope_y):
        geometry = Geometry()
        energies = None if slope_y else np.random.default_rng(3).random(25) + 0.1
        shower = straight_shower(math.radians(angle_deg), geometry, energies=energies, slope_y=slope_y)
        layer = MeasuredAngle((geometry.cell_mm,) * 2, sensor_depth_mm(geometry), dtype="float64")
        direction = np.array([1 / math.tan(math.radians(angle_deg)), slope_y, 1.0])
        expected = math.acos(direction[0] / np.linalg.norm(direction))
        np.testing.assert_allclose(layer(shower[None, ..., None]), [[expected]], rtol=1e-12)

    def test_mean_is_weighted_by_the_number_of_the_layer(self):
        shower = np.zeros((1, 3, 1, 4, 1))
        shower[0, 1, 0, 0] = 1.0
        shower[0, 1, 0, 1] = 1.0
        shower[0, 2, 0, 3] = 1.0
        # Layer 2 is empty. Barycentre: x = 5/3 mm from the middle, z = 35/3 mm.
        x0, z0 = 5 / 3, (3 + 9 + 23) / 3
        each = [math.pi / 2 - math.atan((x - x0) / (z - z0)) for x, z in ((0, 3), (0, 9), (5, 23))]
        expected = np.average(each, weights=[0.5, 1.5, 3.5])
        np.testing.assert_allclose(angle_layer()(shower), [[expected]], rtol=1e-14)

    @pytest.mark.parametrize("rebinned", [(1, 1, 1), (3, 3, 1), (1, 3, 5)])
    def test_agrees_with_the_measure_of_the_showers(self, rebinned):
        data = Data(showers=1, geometry=Geometry(), preprocessing=Preprocessing(rebin=rebinned))
        rng = np.random.default_rng(4)
        cells = rng.gamma(0.2, 1e-3, (4, 51, 51, 25)).astype(np.float32) * np.exp(-np.arange(51) / 9)[:, None, None]
        cells[0] = 0
        cells = rebin(cells.astype(np.float32), rebinned)
        shower = tf.keras.Input((*data.shape, 1))
        model = tf.keras.Model(shower, constraints(shower, data, bin_counts=False))
        measured = model(to_network(cells, data.preprocessing)[..., None])["angle"][:, 0]
        np.testing.assert_allclose(measured, measured_angle_rad(cells, data.geometry, rebinned), rtol=3e-5)

    def test_mirrored_shower_has_the_supplementary_angle(self):
        cells = random_cells()
        layer = angle_layer()
        np.testing.assert_allclose(layer(cells[:, ::-1]), math.pi - layer(cells), rtol=1e-12)
        np.testing.assert_allclose(layer(cells[:, :, ::-1]), layer(cells), rtol=1e-12)

    def test_empty_shower_has_the_published_value_and_no_gradient(self):
        cells = np.zeros((1, 3, 3, 4, 1))
        assert not np.any(gradient(angle_layer(), cells))
        for energy, angle in ((0, 100.0), (0.2e-6, 100.0), (0.4e-6, math.pi / 2)):  # the limit is a sum of 1e-6
            cells[0, 0, 1, :] = energy
            np.testing.assert_allclose(angle_layer()(cells), [[angle]])

    def test_shower_in_one_layer_has_no_inclination(self):
        cells = np.zeros((1, 3, 3, 4, 1))
        cells[0, 0, 1, 2] = 1.0
        cells[0, 2, 2, 2] = 0.3
        np.testing.assert_allclose(angle_layer()(cells), [[math.pi / 2]], rtol=1e-14)

    @pytest.mark.parametrize("before", [tf.identity, CellEnergy(0.85, dtype="float64")], ids=["alone", "power"])
    def test_gradient_against_finite_differences(self, before):
        cells, layer = random_cells(shape=(2, 5, 4, 4), seed=5) + 0.01, angle_layer()
        by_tape, by_difference = tf.test.compute_gradient(lambda x: layer(before(x)), [tf.constant(cells)], delta=1e-6)
        np.testing.assert_allclose(by_tape[0], by_difference[0], atol=2e-8)
        assert np.abs(by_tape[0]).max() > 0.01


DATA = Data(showers=1, geometry=Geometry(cells=(6, 6, 4), layers=(LayerGroup(count=4, absorber_mm=2.4),), depth_mm=24))


def shower_with(*cells):
    shower = np.zeros((1, 6, 6, 4, 1), np.float32)
    for (x, y, z), energy in cells:
        shower[0, x, y, z] = energy
    return shower


SHOWERS = {
    "empty": shower_with(),
    "cell": shower_with(((2, 3, 1), 1.0)),
    "tiny": shower_with(((2, 3, 1), 1e-30)),
    "denormal": shower_with(((2, 3, 1), 1e-42)),
    "tiny-layers": shower_with(((2, 3, 1), 1e-32), ((5, 3, 2), 1e-32)),
    "layer": shower_with(((2, 3, 1), 1.0), ((3, 0, 1), 2.0)),
    "faint": shower_with(((2, 3, 1), 1.0), ((5, 3, 2), 1e-20)),
    "denormal-layer": shower_with(((2, 3, 1), 1.0), ((5, 3, 2), 1e-38)),
    "at-barycentre": shower_with(((2, 3, 0), 1.0), ((2, 3, 2), 1.0), ((5, 5, 1), 1.0)),
    "huge": shower_with(((0, 0, 0), 1e6), ((5, 5, 3), 1e6)),
    "negative": np.full((1, 6, 6, 4, 1), -1.0, np.float32),
}


class TestConstraints:
    @pytest.mark.parametrize("shower", SHOWERS.values(), ids=SHOWERS)
    def test_values_and_gradients_stay_finite(self, shower):
        x = tf.keras.Input((6, 6, 4, 1))
        model = tf.keras.Model(x, constraints(x, DATA, bin_counts=True))
        outputs = model(shower)
        assert all(np.all(np.isfinite(value)) for value in outputs.values())
        for name in ("angle", "ecal_sum"):
            assert np.all(np.isfinite(gradient(lambda v, name=name: model(v)[name], shower)))

    def test_gradient_of_a_faint_layer_is_bounded(self):
        x = tf.keras.Input((6, 6, 4, 1))
        model = tf.keras.Model(x, constraints(x, DATA, bin_counts=False))
        shower = shower_with(((2, 3, 1), 1.0), ((5, 3, 2), 1e-20))
        assert np.abs(gradient(lambda v: model(v)["angle"], shower)).max() < 1.0

    def test_rebinning_keeps_sum_and_angle(self):
        # Energy only in the middle of each 3 x 3 cells: their sum lies at the same place.
        fine = Data(showers=1)
        coarse = Data(showers=1, preprocessing=Preprocessing(rebin=(3, 3, 1)))
        rng = np.random.default_rng(7)
        cells = np.zeros((2, 51, 51, 25), np.float32)
        cells[:, 1::3, 1::3] = rng.gamma(0.3, 1e-3, (2, 17, 17, 25))
        results = []
        for data in (fine, coarse):
            x = tf.keras.Input((*data.shape, 1))
            model = tf.keras.Model(x, constraints(x, data, bin_counts=False))
            network = to_network(rebin(cells, data.preprocessing.rebin), data.preprocessing)
            results.append(model(network[..., None]))
        np.testing.assert_allclose(results[0]["angle"], results[1]["angle"], rtol=1e-5)
        np.testing.assert_allclose(results[0]["ecal_sum"], results[1]["ecal_sum"], rtol=1e-5)
        np.testing.assert_allclose(results[0]["ecal_sum"][:, 0], 50 * cells.sum(axis=(1, 2, 3)), rtol=1e-5)

    def test_bins_follow_the_unit_of_the_cells(self):
        counts = []
        for units_per_gev in (50.0, 1000.0):
            data = DATA.model_copy(update={"preprocessing": Preprocessing(units_per_gev=units_per_gev)})
            x = tf.keras.Input((6, 6, 4, 1))
            model = tf.keras.Model(x, constraints(x, data, bin_counts=True))
            cells_gev = np.random.default_rng(8).gamma(0.5, 3e-4, (1, 6, 6, 4)).astype(np.float32)
            counts.append(model(to_network(cells_gev, data.preprocessing)[..., None])["bins"])
        np.testing.assert_array_equal(*counts)

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_layers_are_rebuilt_from_their_configuration(self, dtype):
        cells = random_cells().astype(dtype)
        for layer in (
            CellEnergy(0.7, dtype=dtype),
            EcalSum(dtype=dtype),
            BinCounts((0.5, 0.1), dtype=dtype),
            MeasuredAngle(CELL_MM, DEPTH_MM, 7.0, dtype=dtype),
        ):
            again = type(layer).from_config(layer.get_config())
            np.testing.assert_array_equal(layer(cells), again(cells))
            assert again.get_config() == layer.get_config()
            assert again.name == layer.name
