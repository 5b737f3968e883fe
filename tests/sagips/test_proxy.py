"""The proxy application and its sampler, against NumPy in double precision."""

import numpy as np
import pytest
import tensorflow as tf

from caloscale.random import EventDraws
from caloscale.sagips.environment import EVENTS, NORMS, PARAMETERS
from caloscale.sagips.proxy import TRUTH, Proxy, sample_by_inverse

X = 0.1 + (0.99999 - 0.1) / 1000 * np.arange(1000)
LOW, HIGH = np.array([0, -1, 0, 0, -1, 0.0]), np.array([3, 1, 5, 3, 1, 5.0])


def densities(normalised: np.ndarray) -> np.ndarray:
    """sigma1 and sigma2 (2, 1000)."""
    p = LOW + normalised * (HIGH - LOW)
    u = p[0] * X ** p[1] * (1 - X) ** p[2]
    d = p[3] * X ** p[4] * (1 - X) ** p[5]
    return np.stack([4 * u + d, 4 * d + u])


def invert(density: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Events of uniform numbers, by NumPy's interpolation."""
    survival = np.cumsum(density[::-1]) / density.sum()
    return np.interp(uniform, survival, X[::-1])


def test_events_are_those_of_numpys_interpolation_also_at_the_edges() -> None:
    uniform = np.concatenate([[0.0, 1e-7, 0.9998999], np.random.default_rng(1).random(500) * 0.9999])
    sigma = densities(np.array(TRUTH))
    rows = np.repeat(uniform[np.newaxis], 2, axis=0).astype(np.float32)
    events = sample_by_inverse(tf.constant(sigma, tf.float32), tf.constant(X, tf.float32), tf.constant(rows))
    for made, density in zip(events.numpy(), sigma):
        np.testing.assert_allclose(made, invert(density, uniform), atol=2e-5)


@pytest.mark.parametrize("points", [2, 40, 47, 93])
def test_events_and_gradients_of_any_number_of_points(points: int) -> None:
    """Numbers that are no multiple of the blocks in which the survival function is summed."""
    random = np.random.default_rng(points)
    grid, density = np.linspace(-1, 2, points), random.random(points) + 0.1
    uniform, weights = random.random(20), random.normal(size=20)

    def total(density: np.ndarray) -> float:
        return float(weights @ np.interp(uniform, np.cumsum(density[::-1]) / density.sum(), grid[::-1]))

    densities, rows = tf.constant([density], tf.float32), tf.constant([uniform], tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(densities)
        events = sample_by_inverse(densities, tf.constant(grid, tf.float32), rows)
        value = tf.reduce_sum(events * weights.astype(np.float32))
    assert float(value) == pytest.approx(total(density), abs=1e-4)
    differences = [(total(density + 1e-6 * e) - total(density - 1e-6 * e)) / 2e-6 for e in np.eye(points)]
    np.testing.assert_allclose(tape.gradient(value, densities).numpy()[0], differences, atol=2e-3)


def test_gradients_with_respect_to_parameters_are_finite_differences() -> None:
    count = 200
    draws, again = (EventDraws(7, 0, 0, 0, 1) for _ in range(2))
    environment = Proxy(count)
    uniform = again.uniform((2, count)).numpy()[0].astype(np.float64) * 0.9999
    parameters = tf.constant([TRUTH], tf.float32)
    weights = np.random.default_rng(2).normal(size=(count, 2))
    with tf.GradientTape() as tape:
        tape.watch(parameters)
        values = environment({PARAMETERS: parameters}, draws)
        total = tf.reduce_sum(values[EVENTS][0] * tf.constant(weights, tf.float32))
    gradient = tape.gradient(total, parameters).numpy()[0]

    def of(normalised: np.ndarray) -> float:
        events = [invert(density, u) for density, u in zip(densities(normalised), uniform)]
        return float((np.stack(events, axis=1) * weights).sum())

    step = 1e-5
    differences = [(of(TRUTH + step * e) - of(TRUTH - step * e)) / (2 * step) for e in np.eye(6)]
    np.testing.assert_allclose(gradient, differences, rtol=5e-3, atol=5e-3 * np.abs(differences).max())


def test_norms_and_gradients_of_norms() -> None:
    parameters = tf.constant([TRUTH, np.full(6, 0.5)], tf.float32)
    values = Proxy(1)({PARAMETERS: parameters}, EventDraws(1, 0, 0, 0, 2))
    expected = [densities(p)[:, :-1].sum(axis=1) * (0.99999 - 0.1) / 1000 for p in parameters.numpy().astype(float)]
    np.testing.assert_allclose(values[NORMS].numpy(), expected, rtol=1e-5)


def test_sampling_holds_no_array_of_events_times_points() -> None:
    """Sorted search: the largest array is that of the densities or of the events."""
    count = 5000
    environment = Proxy(count)

    @tf.function
    def gradient(sigma: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(sigma)
            events = environment.sample(sigma, EventDraws(1, 0, 0, 0, 1))
        return tape.gradient(events, sigma)

    graph = gradient.get_concrete_function(tf.TensorSpec((1, 2, 1000))).graph
    sizes = [t.shape.num_elements() or 0 for operation in graph.get_operations() for t in operation.outputs]
    assert max(sizes) <= 4 * count


@pytest.mark.parametrize("normalised", [np.full(6, 0.001), np.full(6, 0.999)])
def test_extreme_parameters_give_finite_events_and_gradients(normalised: np.ndarray) -> None:
    parameters = tf.constant(normalised[np.newaxis], tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(parameters)
        events = Proxy(2000)({PARAMETERS: parameters}, EventDraws(3, 0, 0, 0, 1))[EVENTS]
    assert np.isfinite(tape.gradient(events, parameters).numpy()).all()
    assert events.numpy().min() >= X[0] and events.numpy().max() <= np.float32(X[-1])
