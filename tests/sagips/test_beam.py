"""The beam: its observables against plain loops, gradients, and an energy that is found."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from caloscale.detector.geometry import sensor_depth_mm
from caloscale.errors import CheckpointError, ConfigurationError, InputError
from caloscale.models.card import GENERATOR, load_network, read_card, read_configuration
from caloscale.random import EventDraws
from caloscale.sagips.beam import Beam
from caloscale.sagips.data import measured_events
from caloscale.sagips.environment import EVENTS, PARAMETERS
from caloscale.sagips.optimizers import make_optimizer
from caloscale.sagips.rank import solve
from caloscale.spec import DataSet, load_solver_run
from tests.inference.model_folders import COMPACT, shared_model

OPTIONS = "{model: '%s', truth: [0.4, 0.6]}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compact model of 5 x 4 x 3 cells with fresh weights."""
    return shared_model(tmp_path_factory, "compact", COMPACT)


def test_observables_are_those_of_plain_loops(folder: Path) -> None:
    card = read_card(folder)
    cells = np.random.default_rng(1).random((1, 4, *card.shape), np.float32) ** 4
    events = Beam(4, model=str(folder)).measure(tf.constant(cells)).numpy()[0]
    depths = sensor_depth_mm(card.geometry)
    for shower, (total, depth, slope) in zip(cells[0].astype(float), events):
        points = [
            (shower[x, y, z], (x - 2) * card.geometry.cell_mm, depths[z])
            for x in range(5)
            for y in range(4)
            for z in range(3)
        ]
        weight, x, z = np.array(points).T
        assert (total, depth) == pytest.approx((weight.sum(), np.average(z, weights=weight)), rel=1e-5)
        assert slope == pytest.approx(np.polyfit(z, x, 1, w=np.sqrt(weight))[0], rel=1e-3, abs=1e-4)


def test_rows_have_their_own_showers_and_the_sum_has_a_gradient(folder: Path) -> None:
    beam = Beam(50, model=str(folder))
    parameters = tf.constant([[0.2, 0.6], [0.8, 0.6]])
    with tf.GradientTape() as tape:
        tape.watch(parameters)
        events = beam({PARAMETERS: parameters}, EventDraws(1, 0, 0, 0, 2))[EVENTS]
        total = tf.reduce_mean(events[:, :, 0])
    assert events.shape == (2, 50, 3)
    gradient = tape.gradient(total, parameters).numpy()
    assert np.isfinite(gradient).all() and (gradient[:, 0] != 0).all()
    again = beam({PARAMETERS: parameters}, EventDraws(1, 0, 0, 0, 2))[EVENTS]
    np.testing.assert_array_equal(events, again)
    alone = beam({PARAMETERS: parameters[1:]}, EventDraws(1, 0, 0, 1, 1))[EVENTS]
    np.testing.assert_allclose(alone[0], events[1], rtol=1e-4, atol=1e-5)


def test_measured_showers_have_no_truth_that_was_not_given(folder: Path) -> None:
    """Residuals and norms of a default would be of no beam."""
    assert Beam(2, model=str(folder)).truth is None
    assert Beam(2, model=str(folder), truth=(0.3, 0.7)).truth == (0.3, 0.7)
    data = DataSet(environment="caloscale.sagips.beam.Beam", options={"model": str(folder)})
    with pytest.raises(ConfigurationError, match=r"is not known.*\n*.*give the environment a truth"):
        measured_events(data, 0, 1)


@pytest.mark.integration
def test_the_energy_of_a_beam_is_found(folder: Path) -> None:
    overrides = [
        "solver.ranks=1",
        "solver.normTerms=false",
        "solver.objective=energy-distance",
        f"solver.dataSets=[{{environment: caloscale.sagips.beam.Beam, options: {OPTIONS % folder}, events: 1000}}]",
        "solver.generator={width: 16, layers: 2, noise: 3, learningRate: 0.01}",
        "solver.parameterSamples=4",
        "solver.eventsPerSample=32",
        "solver.epochs=150",
        "solver.learningRateDecay=constant",
    ]
    optimizer = make_optimizer(load_solver_run(preset="proxy", overrides=overrides).solver, 0)
    for epoch in range(150):
        step = optimizer.step(epoch)
        optimizer.apply(step.gradient, step, epoch)
    assert optimizer.problem.parameters == ("energy", "angle")
    assert optimizer.propose().mean(axis=0)[0] == pytest.approx(0.4, abs=0.04)


@pytest.mark.integration
def test_a_run_resumes_with_the_generator_that_it_began_with(folder: Path, tmp_path: Path) -> None:
    """Its folder, such as runs/latest/model, may be that of a newer training by then."""
    model = tmp_path / "model"
    shutil.copytree(folder, model)
    small = ["objective=energy-distance", "generator={width: 2, layers: 1, noise: 2}", "eventsPerSample=2", "ranks=1"]
    small += [f"dataSets=[{{environment: caloscale.sagips.beam.Beam, options: {OPTIONS % model}, events: 8}}]"]
    small += ["parameterSamples=2", "saveEvery=1", "checkpoints=2", "normTerms=false"]

    def run(epochs: int) -> int:
        overrides = [f"solver.{each}" for each in (*small, f"epochs={epochs}")]
        return solve(load_solver_run(preset="proxy", overrides=overrides).solver, tmp_path / "run", None).epoch

    assert run(1) == 1
    network = load_network(model / GENERATOR, read_configuration(model).model)
    for weights in network.trainable_weights:
        weights.assign(1.01 * weights)
    network.save(model / GENERATOR)
    with pytest.raises(InputError, match="makes other events") as caught:
        run(2)
    assert caught.value.field == "solver.dataSets.0.environment"


def test_models_that_cannot_be_used_are_refused(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        Beam(10, model=str(tmp_path))
    photons = shared_model(tmp_path_factory, "compact", (*COMPACT, "data.particle=[e-, gamma]", "model.latentSize=8"))
    with pytest.raises(ConfigurationError, match="other primaries") as caught:
        Beam(10, model=str(photons))
    assert caught.value.field == "model"
