"""Objectives against brute force in NumPy and SciPy; chunks against the whole batch."""

import numpy as np
import pytest
import tensorflow as tf
from scipy.spatial.distance import cdist

from caloscale.errors import ConfigurationError
from caloscale.sagips.objectives import BinnedLikelihood, Discriminator, EnergyDistance, make_objective
from caloscale.spec import load_solver_run

RANDOM = np.random.default_rng(5)
GENERATED = RANDOM.normal(0.3, 1.2, (96, 2)).astype(np.float32)
MEASURED = RANDOM.normal(size=(96, 2)).astype(np.float32)


def solver(*overrides: str):
    return load_solver_run(preset="proxy", overrides=["solver.discriminator={width: 16, layers: 2}", *overrides]).solver


@pytest.mark.parametrize("chunk", [7, 32, 48, 96, 1000])
def test_chunks_give_the_update_and_the_gradient_of_the_whole_batch(chunk: int) -> None:
    found = []
    for size in (96, chunk):
        settings = solver(f"solver.discriminator.chunk={size}")
        one = Discriminator(settings, tf.constant(MEASURED), np.random.default_rng(1))
        loss = one.learn(tf.constant(GENERATED), tf.constant(MEASURED), tf.constant(1.0))
        value, gradient = one.compare(tf.constant(GENERATED), tf.constant(MEASURED))
        found.append([loss, value, gradient, *one.state().values()])
    for whole, chunked in zip(*found):
        np.testing.assert_allclose(chunked.numpy(), whole.numpy(), rtol=2e-4, atol=2e-6)


def test_discriminator_is_trained_with_least_squares() -> None:
    one = Discriminator(solver(), tf.constant(MEASURED), np.random.default_rng(1))
    real, fake = one.network(tf.constant(MEASURED)).numpy(), one.network(tf.constant(GENERATED)).numpy()
    value, _ = one.compare(tf.constant(GENERATED), tf.constant(MEASURED))
    assert float(value) == pytest.approx(((fake - 1) ** 2).mean(), rel=1e-5)
    loss = one.learn(tf.constant(GENERATED), tf.constant(MEASURED), tf.constant(1.0))
    assert float(loss) == pytest.approx(((real - 1) ** 2).mean() + (fake**2).mean(), rel=1e-5)


def test_bfloat16_changes_the_arithmetic_of_the_layers_alone() -> None:
    """Eight bits of mantissa: values agree within a hundredth, weights and sums stay float32."""
    values = []
    for precision in ("float32", "bfloat16"):
        one = Discriminator(solver(f"solver.precision={precision}"), tf.constant(MEASURED), np.random.default_rng(1))
        one.learn(tf.constant(GENERATED), tf.constant(MEASURED), tf.constant(1.0))
        value, gradient = one.compare(tf.constant(GENERATED), tf.constant(MEASURED))
        values.append(float(value))
        assert {value.dtype, gradient.dtype} == {tf.float32}
        assert {variable.dtype for variable in one.state().values()} <= {tf.float32, tf.int64, tf.int32}
    assert values[0] != values[1] and values[1] == pytest.approx(values[0], rel=0.01)


def test_energy_distance_is_that_of_all_pairs() -> None:
    distance = EnergyDistance(solver(), tf.constant(MEASURED), RANDOM)
    scale = MEASURED.std(axis=0)
    x, y = GENERATED / scale, MEASURED / scale
    n = len(x)
    within = [cdist(a, a).sum() / (n * (n - 1)) for a in (x, y)]
    expected = 2 * cdist(x, y).mean() - sum(within)
    value, gradient = distance.compare(tf.constant(GENERATED), tf.constant(MEASURED))
    assert float(value) == pytest.approx(expected, abs=1e-5)
    step = np.zeros_like(x, np.float64)
    step[3, 1] = 1e-4
    differences = []
    for sign in (1, -1):
        moved = (GENERATED + sign * step) / scale
        differences.append(2 * cdist(moved, y).mean() - cdist(moved, moved).sum() / (n * (n - 1)))
    assert gradient.numpy()[3, 1] == pytest.approx((differences[0] - differences[1]) / 2e-4, abs=2e-4)


def test_likelihood_is_the_divergence_of_linear_histograms() -> None:
    likelihood = BinnedLikelihood(solver(), tf.constant(MEASURED), RANDOM)
    low, high = np.quantile(MEASURED, [0.001, 0.999], axis=0)

    def histogram(events: np.ndarray) -> np.ndarray:
        shares = np.zeros((2, 50))
        for event in events:
            for column, x in enumerate(event):
                at = np.clip((x - low[column]) / (high[column] - low[column]) * 49, 0, 49)
                left = min(int(at), 48)
                shares[column, left] += (1 - (at - left)) / len(events)
                shares[column, left + 1] += (at - left) / len(events)
        return (shares + 1e-4) / (1 + 50 * 1e-4)

    p, q = histogram(MEASURED), histogram(GENERATED)
    value, _ = likelihood.compare(tf.constant(GENERATED), tf.constant(MEASURED))
    assert float(value) == pytest.approx((p * np.log(p / q)).sum(), rel=2e-3)
    same, _ = likelihood.compare(tf.constant(MEASURED), tf.constant(MEASURED))
    assert float(same) == pytest.approx(0, abs=1e-6)


def test_an_objective_of_ones_own_is_a_class_and_a_missing_one_is_named() -> None:
    own = make_objective(
        solver("solver.objective=caloscale.sagips.objectives.EnergyDistance"), tf.constant(MEASURED), RANDOM
    )
    assert isinstance(own, EnergyDistance)
    with pytest.raises(ConfigurationError, match="has no class Missing"):
        make_objective(solver("solver.objective=tests.sagips.toy.Missing"), tf.constant(MEASURED), RANDOM)
