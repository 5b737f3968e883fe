import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from caloscale.showers.preprocessing import rebin, to_gev, to_network
from caloscale.spec import Preprocessing

cells = arrays(np.float32, (3, 4), elements=st.one_of(st.just(0.0), st.floats(2**-20, 16, width=32)))
settings_of_runs = st.builds(
    Preprocessing,
    units_per_gev=st.floats(0.5, 2000),
    threshold_gev=st.one_of(st.just(0.0), st.floats(1e-6, 1)),
    power=st.floats(0.3, 1),
)


def test_values_by_hand() -> None:
    preprocessing = Preprocessing(units_per_gev=50, threshold_gev=0.01, power=0.5)
    x = to_network(np.array([0.0, 0.0099, 0.01, 0.02, 2.0], np.float32), preprocessing)
    np.testing.assert_allclose(x, [0, 0, np.sqrt(0.5), 1, 10], rtol=1e-6)
    back = to_gev(np.array([-1.0, 0.0, 0.5, 1.0, 10.0], np.float32), preprocessing)
    np.testing.assert_allclose(back, [0, 0, 0, 0.02, 2], rtol=1e-6)

    published = to_network(np.array([0.2], np.float32), Preprocessing())  # 0.85 of 50 x GeV, as in the 3DGAN papers
    assert published[0] == pytest.approx(10**0.85, rel=1e-6)
    bad = np.array([np.nan, np.inf, -np.inf], np.float32)  # a validation must see them
    for values in (bad, tf.constant(bad)):
        np.testing.assert_array_equal(to_gev(values, preprocessing), [np.nan, np.inf, 0])


@given(cells, settings_of_runs)
def test_inverse_above_the_threshold(cells_gev: np.ndarray, preprocessing: Preprocessing) -> None:
    kept = np.where(cells_gev >= np.float32(preprocessing.threshold_gev), cells_gev, 0)
    back = to_gev(to_network(cells_gev, preprocessing), preprocessing)
    assert back.dtype == np.float32
    np.testing.assert_allclose(back, kept, rtol=3e-5)


@given(cells, settings_of_runs)
def test_threshold_is_idempotent(cells_gev: np.ndarray, preprocessing: Preprocessing) -> None:
    once = to_gev(to_network(cells_gev, preprocessing), preprocessing)
    twice = to_gev(to_network(once, preprocessing), preprocessing)
    assert np.array_equal(once > 0, twice > 0)
    np.testing.assert_allclose(twice, once, rtol=3e-5)


@given(cells, settings_of_runs)
@settings(max_examples=30, deadline=None)
def test_tensors_and_arrays_agree(cells_gev: np.ndarray, preprocessing: Preprocessing) -> None:
    # Cells within rounding of the threshold may fall on either side.
    near = np.isclose(cells_gev, preprocessing.threshold_gev, rtol=1e-4)
    cells_gev = np.where(near, 0, cells_gev)
    x = to_network(cells_gev, preprocessing)
    np.testing.assert_allclose(to_network(tf.constant(cells_gev), preprocessing).numpy(), x, rtol=1e-5)
    np.testing.assert_allclose(to_gev(tf.constant(x), preprocessing).numpy(), to_gev(x, preprocessing), rtol=3e-5)


def test_gradients_are_finite_at_empty_cells() -> None:
    for function in (to_network, to_gev):
        variable = tf.constant([0.0, 0.5])
        with tf.GradientTape() as tape:
            tape.watch(variable)
            total = tf.reduce_sum(function(variable, Preprocessing()))
        gradient = tape.gradient(total, variable).numpy()
        assert gradient[0] == 0 and np.isfinite(gradient[1]) and gradient[1] > 0


@given(
    arrays(np.float32, (2, 4, 6, 3), elements=st.floats(0, 100, width=32)),
    st.sampled_from([(1, 1, 1), (2, 3, 1), (4, 6, 3), (1, 2, 3)]),
)
@settings(max_examples=40, deadline=None)
def test_rebin_keeps_the_sum_and_the_positions(cells_gev: np.ndarray, factors: tuple[int, int, int]) -> None:
    coarse = rebin(cells_gev, factors)
    fx, fy, fz = factors
    assert coarse.shape == (2, 4 // fx, 6 // fy, 3 // fz)
    np.testing.assert_allclose(coarse.sum(axis=(1, 2, 3)), cells_gev.sum(axis=(1, 2, 3)), rtol=1e-4, atol=1e-4)
    by_hand = cells_gev[1, fx * (4 // fx - 1) :, :fy, fz * (3 // fz - 1) :].sum()
    np.testing.assert_allclose(coarse[1, -1, 0, -1], by_hand, rtol=1e-4, atol=1e-4)
