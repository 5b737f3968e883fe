"""Both optimisers on the toy problem, where the truth is known; resumed steps; several data sets."""

from pathlib import Path
from types import SimpleNamespace as Namespace

import h5py
import numpy as np
import pytest
import tensorflow as tf

from caloscale.errors import ConfigurationError
from caloscale.sagips.optimizers import _Comparison, _problem, make_optimizer
from caloscale.sagips.saves import Problem
from caloscale.spec import Solver, load_solver_run

NORMAL = "{environment: tests.sagips.toy.Normal, events: 4000, options: {truth: [0.65, 0.4]}}"
SMALL = [
    "solver.ranks=1",
    f"solver.dataSets=[{NORMAL}]",
    "solver.generator={width: 16, layers: 2, noise: 3, learningRate: 0.003}",
    "solver.discriminator={width: 16, layers: 2, learningRate: 0.003}",
    "solver.parameterSamples=8",
    "solver.eventsPerSample=32",
    "solver.analysisSamples=64",
]


def solver(*overrides: str) -> Solver:
    return load_solver_run(preset="proxy", overrides=[*SMALL, *overrides]).solver


def run(settings: Solver, epochs: int):
    optimizer = make_optimizer(settings, 0)
    for epoch in range(epochs):
        step = optimizer.step(epoch)
        optimizer.apply(step.gradient, step, epoch)
    return optimizer


@pytest.mark.integration
@pytest.mark.parametrize("objective", ["energy-distance", "likelihood"])
def test_toy_problem_is_solved_without_a_gan(objective: str) -> None:
    optimizer = run(solver(f"solver.objective={objective}", "solver.epochs=300"), 300)
    np.testing.assert_allclose(optimizer.propose().mean(axis=0), [0.65, 0.4], atol=0.04)


def test_toy_problem_is_solved_by_bayesian_optimisation() -> None:
    settings = solver("solver.optimizer=bayesian", "solver.objective=likelihood", "solver.parameterSamples=64")
    optimizer = run(settings, 18)
    np.testing.assert_allclose(optimizer.propose()[0], [0.65, 0.4], atol=0.08)
    assert optimizer.step(18).gradient.size == 0  # nothing to exchange


def test_members_of_an_ensemble_are_compared_at_equal_noise() -> None:
    """They differ in the seed: with equal weights they propose the same."""
    first, second = (make_optimizer(solver(f"solver.seed={seed}"), 0) for seed in (1, 2))
    assert (first.propose() != second.propose()).any()
    second.restore(first.state())
    np.testing.assert_array_equal(first.propose(), second.propose())


def test_a_restored_optimizer_repeats_the_steps_of_the_first() -> None:
    first = run(solver(), 3)
    state = {name: value.copy() for name, value in first.state().items()}
    steps = []
    for optimizer in (first, make_optimizer(solver("solver.threads=1"), 0)):
        if optimizer is not first:
            optimizer.restore(state)
        step = optimizer.step(3)
        optimizer.apply(step.gradient, step, 3)
        steps.append([step.gradient, optimizer.propose()])
    for one, other in zip(*steps):
        np.testing.assert_array_equal(one, other)


def test_ranks_share_the_first_generator_but_not_noise_and_discriminators() -> None:
    settings = [make_optimizer(solver("solver.ranks=2"), rank) for rank in range(2)]
    one, other = (o.state() for o in settings)
    np.testing.assert_array_equal(one["generator.weights.value"], other["generator.weights.value"])
    assert not np.array_equal(one["objective0.weights.value"], other["objective0.weights.value"])
    assert not np.array_equal(settings[0].step(0).gradient, settings[1].step(0).gradient)
    apart = [make_optimizer(solver("solver.ranks=2", "solver.exchange=none"), rank).generator() for rank in range(2)]
    assert not np.array_equal(apart[0]["weights"], apart[1]["weights"])


def test_only_weights_are_exchanged_unless_biases_are_asked_for() -> None:
    assert make_optimizer(solver(), 0).step(0).gradient.size == 3 * 16 + 16 * 16 + 16 * 2
    with_biases = make_optimizer(solver("solver.exchangeBiases=true"), 0)
    assert with_biases.step(0).gradient.size == 3 * 16 + 16 * 16 + 16 * 2 + 32


def test_events_of_an_epoch_are_drawn_with_replacement_and_anew_in_each() -> None:
    settings = solver()
    comparison = _Comparison(settings, settings.data_sets[0], 0, 0)
    measured = comparison.measured.numpy()
    first, again, next_one = (comparison.bootstrap(4000, tf.constant(n, tf.int64)).numpy() for n in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, next_one)
    for drawn in (first, next_one):
        assert np.isin(drawn, measured).all()
        share = len(np.unique(drawn, axis=0)) / len(np.unique(measured, axis=0))
        assert share == pytest.approx(1 - np.exp(-1), abs=0.03)


@pytest.mark.integration
def test_two_data_sets_share_the_parameters(tmp_path: Path) -> None:
    """The second data are of 0.45 and 0.4: the sum of both objectives has its smallest value between both."""
    with h5py.File(tmp_path / "events.h5", "w") as file:
        file["events"] = np.random.default_rng(1).normal(4 * 0.45 - 2, 0.2 + 1.8 * 0.4, (4000, 1))
    other = NORMAL.replace("events", f"name: second, source: {tmp_path / 'events.h5'}, events")
    settings = solver(f"solver.dataSets=[{NORMAL}, {other}]", "solver.objective=energy-distance", "solver.epochs=300")
    mean = run(settings, 300).propose().mean(axis=0)[0]
    assert 0.5 < mean < 0.6
    proxy = "{name: other, events: 1000}"
    with pytest.raises(ConfigurationError, match="are not those of the first data set"):
        make_optimizer(solver(f"solver.dataSets=[{NORMAL}, {proxy}]"), 0)


def test_data_sets_have_one_truth_or_none() -> None:
    """A residual is the distance from one truth."""

    def problem(*truths: tuple[float, ...] | None) -> Problem:
        made = [Namespace(parameters=("a", "b"), truth=truth) for truth in truths]
        return _problem([Namespace(environment=one, digest="", sample=()) for one in made])

    assert [problem(None, None).truth, problem(None, (0.65, 0.4)).truth] == [None, (0.65, 0.4)]
    with pytest.raises(ConfigurationError, match=r"its truth \(0.45, 0.4\) is not that of another data set") as caught:
        problem(None, (0.65, 0.4), (0.45, 0.4))
    assert caught.value.field == "solver.dataSets.2.environment"
