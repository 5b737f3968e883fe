"""The networks of the paper, their start and their optimiser, against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from caloscale.sagips.networks import Adam, Network
from caloscale.sagips.optimizers import make_optimizer
from caloscale.spec import load_solver_run


def test_parameter_counts_are_those_of_the_public_code() -> None:
    solver = load_solver_run(preset="proxy-paper", overrides=["solver.dataSets=[{events: 1000}]"]).solver
    optimizer = make_optimizer(solver, 0)
    generator = optimizer.generator()
    assert (generator["weights"].size, generator["biases"].size) == (50_688, 512)  # exchanged: 203 kB
    discriminator = {n: v for n, v in optimizer.state().items() if n.startswith("objective0") and n.endswith("value")}
    assert sum(v.size for v in discriminator.values()) == 50_048


def test_network_is_that_of_numpy_and_its_output_has_no_bias() -> None:
    network = Network((3, 5, 4, 2), np.random.default_rng(1))
    network.biases.assign(np.arange(9, dtype=np.float32) - 4)
    x = np.random.default_rng(2).normal(size=(7, 3)).astype(np.float32)
    w, b = network.weights.numpy(), network.biases.numpy()
    h = x @ w[:15].reshape(3, 5) + b[:5]
    h = np.where(h > 0, h, 0.2 * h) @ w[15:35].reshape(5, 4) + b[5:]
    expected = np.where(h > 0, h, 0.2 * h) @ w[35:].reshape(4, 2)
    np.testing.assert_allclose(network(tf.constant(x)).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_start_has_the_variance_of_he() -> None:
    weights = Network((6, 128, 128, 1), np.random.default_rng(3)).weights.numpy()
    first, second = weights[: 6 * 128], weights[6 * 128 : 6 * 128 + 128 * 128]
    assert first.var() == pytest.approx(2 / 6, rel=0.1)
    assert second.var() == pytest.approx(2 / 128, rel=0.05)


def test_adam_is_that_of_its_paper_and_leaves_out_what_is_not_finite() -> None:
    random = np.random.default_rng(4)
    start = random.normal(size=20).astype(np.float32)
    variable = tf.Variable(start)
    adam = Adam(variable)
    value, m, v = start.astype(np.float64), np.zeros(20), np.zeros(20)
    for t in range(1, 6):
        g = random.normal(size=20).astype(np.float32)
        adam.apply(tf.constant(g), tf.constant(0.01))
        m, v = 0.5 * m + 0.5 * g, 0.999 * v + 0.001 * g.astype(np.float64) ** 2
        value -= 0.01 * (m / (1 - 0.5**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    np.testing.assert_allclose(variable.numpy(), value, rtol=1e-4, atol=1e-5)

    network = Network((2, 3, 1), random)
    before = network.weights.numpy()
    network.apply(tf.fill((9,), np.nan), tf.zeros((3,)), tf.constant(0.1))
    np.testing.assert_array_equal(network.weights.numpy(), before)
