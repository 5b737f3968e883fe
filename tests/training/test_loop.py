"""Whole trainings of a few steps, with real faults."""

import json
import math
import os
import shutil
import signal

import numpy as np
import pytest
import tensorflow as tf

from caloscale.errors import CheckpointError, ConfigurationError, ShowerFileError, Terminated
from caloscale.inference.generator import load_generator
from caloscale.models.optimizers import PackedOptimizer
from caloscale.showers.hdf5.writer import write_showers
from caloscale.showers.tfrecord.shards import preprocess_showers
from caloscale.training import schedule, trainer
from caloscale.training.checkpoint.store import CheckpointFolder
from caloscale.training.coordination.signals import StopSignals
from caloscale.training.loop import train

from . import quick_networks
from .conftest import random_showers, small_run
from .processes import assert_equal, newest_step, weights

STEPS, EPOCHS = 40, 8
QUICK = (*quick_networks.QUICK, "train.deterministic=true", f"train.epochs={EPOCHS}")

pytestmark = pytest.mark.usefixtures("quickly")


@pytest.fixture(scope="module")
def whole(shards, tmp_path_factory, quickly):
    """A training of forty steps from its beginning to its end."""
    output = tmp_path_factory.mktemp("whole")
    return train(small_run(*QUICK), shards, output), output


def test_record_and_folder(whole, shards):
    record, output = whole
    assert (record.steps, record.epochs, record.showers, record.stopped) == (STEPS, EPOCHS, 8 * STEPS, "epochs")
    assert record.parameters["generator"] > 0
    assert record.resumed_from_step is None
    assert record.source == "geant4"
    assert 0 < record.seconds_first_step < record.seconds
    assert 1 <= record.selected_epoch <= EPOCHS
    assert sorted(path.name for path in (output / "checkpoints").glob("step-*")) == [
        "step-000000038.safetensors",
        "step-000000039.safetensors",
        "step-000000040.safetensors",
    ]
    history = json.loads((output / "history.json").read_text())
    assert history["step"] == [20, 40]
    assert len(history["generator"]) == 2
    assert history["validation"]["epoch"] == list(range(1, EPOCHS + 1))
    assert set(history["validation"]) >= {"deviation", "profile_z", "resolution"}


def test_the_model_folder(whole):
    record, output = whole
    generator = load_generator(output / "model")
    assert generator.card.epoch == record.selected_epoch
    assert generator.card.shape == (7, 6, 4)
    assert generator.card.parameters == record.parameters
    energy, angle = np.full(5, 20, np.float32), np.full(5, 1.5, np.float32)
    trained = generator.generate(energy, angle, seed=1)
    untrained = load_generator(output / "model", untrained=True).generate(energy, angle, seed=1)
    assert trained.cells_gev.shape == (5, 7, 6, 4)
    assert not np.allclose(trained.cells_gev, untrained.cells_gev)
    discriminator = tf.keras.models.load_model(str(output / "model" / "discriminator.keras"))
    assert np.isfinite(discriminator(np.ones((1, 7, 6, 4, 1), np.float32))["real_fake"]).all()


def test_training_curves_for_tensorboard(whole):
    _, output = whole
    (events,) = (output / "logs").iterdir()
    tags = {}
    for event in tf.compat.v1.train.summary_iterator(str(events)):
        for value in event.summary.value:
            assert value.metadata.plugin_data.plugin_name == "scalars"
            tags.setdefault(value.tag, []).append((event.step, float(tf.make_ndarray(value.tensor))))
    history = json.loads((output / "history.json").read_text())
    curve = zip(history["step"], history["generator"], strict=True)
    assert tags["loss/generator"] == [(step, pytest.approx(loss, rel=1e-6)) for step, loss in curve]
    assert [step for step, _ in tags["validation/deviation"]] == list(range(5, STEPS + 1, 5))


def test_an_interrupted_training_equals_an_undisturbed_one(whole, shards, tmp_path, monkeypatch, behind_checkpoint):
    """SIGTERM, then Ctrl-C. Lost: nothing; the same weights, optimisers and physics at the end, bit for bit."""
    stops = [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)]
    stopped_at = 0
    limits = []
    monkeypatch.setattr(StopSignals, "_end_after", lambda self, seconds, code: limits.append(seconds))
    for number, raised in stops:
        behind_checkpoint(stopped_at + 2, lambda: os.kill(os.getpid(), number))  # noqa: B023
        with pytest.raises(raised):
            train(small_run(*QUICK, "cluster.terminationGracePeriodSeconds=600"), shards, tmp_path)
        assert stopped_at + 2 <= newest_step(tmp_path) < STEPS
        stopped_at = newest_step(tmp_path)
    done = range(1, stopped_at * EPOCHS // STEPS + 1)
    assert json.loads((tmp_path / "history.json").read_text())["validation"]["epoch"] == [*done] != []
    assert limits == [598], "time that a step has after SIGTERM"
    record = train(small_run(*QUICK), shards, tmp_path)
    assert (record.resumed_from_step, record.steps, record.epochs) == (stopped_at, STEPS, EPOCHS)
    assert (record.showers, record.restarts, record.steps_lost) == (8 * STEPS, 2, 0)
    assert record.saves > 10 and record.saved_bytes > 10_000_000
    assert 0 < record.seconds_saving < record.seconds
    assert_equal(weights(tmp_path), weights(whole[1]))
    histories = [json.loads((output / "history.json").read_text()) for output in (whole[1], tmp_path)]
    assert histories[0] == histories[1]


@pytest.mark.usefixtures("eagerly")
@pytest.mark.integration
def test_the_last_epoch_is_compared_once(shards, tmp_path, monkeypatch):
    """Also where its generator is not selected, where it ends no group of epochs, and where the command is repeated."""
    monkeypatch.setattr(trainer, "is_selected", lambda *_: False)
    monkeypatch.setattr(schedule, "VALIDATIONS", 2)  # of epochs 2 and 4, and the last
    for _ in range(2):
        record = train(small_run(*QUICK, "train.epochs=5"), shards, tmp_path)
        assert record.selected_epoch == 2
        assert json.loads((tmp_path / "history.json").read_text())["validation"]["epoch"] == [2, 4, 5]


@pytest.mark.usefixtures("eagerly")
def test_a_training_that_begins_again_in_its_folder_says_so(shards, tmp_path, caplog):
    """Another place for its checkpoints may be given in between, and holds none."""
    for place, said in (("one", []), ("one", []), ("two", [f"{tmp_path / 'two'} holds no checkpoint"])):
        train(small_run(*QUICK, "train.epochs=1", f"checkpoint.uri={tmp_path / place}"), shards, tmp_path / "output")
        assert [text.partition(":")[0] for text in caplog.messages if "begins again" in text] == said


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize(("last", "selected"), [(0.5, (2, 0.5)), (math.nan, (1, None))])
def test_showers_that_are_not_finite_are_no_figure_of_merit(shards, tmp_path, monkeypatch, last, selected):
    """Those of a network that has learnt little: it is replaced, or its verdict says so."""
    deviations = iter([math.nan, last])
    monkeypatch.setattr(trainer, "physics_deviation", lambda *_, **__: {"deviation": next(deviations)})
    record = train(small_run(*QUICK, "train.epochs=2"), shards, tmp_path)
    card = load_generator(tmp_path / "model").card
    assert (record.selected_epoch, record.selected_deviation) == (card.epoch, card.deviation) == selected


@pytest.mark.usefixtures("eagerly")
def test_a_model_whose_selected_generator_is_lost_is_that_of_the_last_step(shards, tmp_path, monkeypatch):
    """Its card and record say so."""
    monkeypatch.setattr(trainer, "is_selected", lambda *_: False)
    monkeypatch.setattr(CheckpointFolder, "selected", lambda _: None)
    record = train(small_run(*QUICK, "train.epochs=2"), shards, tmp_path)
    card = load_generator(tmp_path / "model").card
    assert (card.step, card.epoch, record.selected_epoch) == (10, 2, 2)


def test_a_finished_training_is_not_repeated(whole, shards, tmp_path):
    record, output = whole
    shutil.copytree(output, tmp_path / "whole")
    for _ in range(2):
        again = train(small_run(*QUICK), shards, tmp_path / "whole")
        assert (again.steps, again.resumed_from_step, again.selected_epoch) == (STEPS, STEPS, record.selected_epoch)
        assert again.showers_per_second == record.showers_per_second, "the speed of the attempt that made the steps"


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize(
    ("moment", "number", "raised"),
    [("release", signal.SIGTERM, Terminated), ("TrainingRecord", signal.SIGINT, KeyboardInterrupt)],
)
def test_a_signal_after_the_last_step_ends_the_command(shards, tmp_path, monkeypatch, moment, number, raised):
    """Lost: nothing; all is saved and released, and the next stage does not begin."""
    usual = getattr(trainer, moment)

    def recorded(*args, **more):
        os.kill(os.getpid(), number)
        return usual(*args, **more)

    monkeypatch.setattr(trainer, moment, recorded)
    with pytest.raises(raised):
        train(small_run(*QUICK, "train.epochs=1"), shards, tmp_path)
    assert newest_step(tmp_path) == 5
    assert load_generator(tmp_path / "model").card.step == 5


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("loop", ["custom", "builtin"])
def test_learning_rates_by_hand(shards, tmp_path, monkeypatch, loop):
    """Warm-up of 7.5 steps, cosine over 10, a global batch of 8 instead of 32: of three updates of each step."""
    rates, apply = [], PackedOptimizer.apply
    monkeypatch.setattr(PackedOptimizer, "apply", lambda *args: rates.append(float(args[2])) or apply(*args))
    scaled = ("train.learningRateScaling=linear", "train.learningRateBatch=32", "train.warmupEpochs=1.5")
    base = ("train.learningRate=0.002", "train.discriminatorLearningRate=0.0005", "train.decay=cosine")
    train(small_run(*QUICK, *scaled, *base, "train.epochs=2", f"train.loop={loop}"), shards, tmp_path)
    factors = [min(1, (n + 1) / 7.5) * (0.01 + 0.495 * (1 + math.cos(math.pi * n / 10))) / 4 for n in range(10)]
    expected = [rate * factor for factor in factors for rate in (0.0005, 0.0005, 0.002)]
    np.testing.assert_allclose(rates, expected, rtol=1e-5)


def test_minutes_end_a_training(shards, tmp_path, eagerly):
    run = small_run(*QUICK, "train.epochs=100000", "train.maxMinutes=0.04")
    record = train(run, shards, tmp_path)
    assert record.stopped == "maxMinutes"
    assert 1 <= record.steps < 500_000
    assert load_generator(tmp_path / "model").card.step == record.steps
    again = train(run, shards, tmp_path)
    assert (again.steps, again.stopped, again.resumed_from_step) == (record.steps, "maxMinutes", record.steps)


@pytest.mark.usefixtures("eagerly")
@pytest.mark.integration
def test_the_selection_knows_when_minutes_end_a_training(shards, tmp_path, monkeypatch):
    """Of steps that take 1.5 s, five an epoch, half a minute ends after four epochs and a step."""
    monkeypatch.setattr(trainer.Trainer, "seconds", property(lambda self: 1.5 * self.state.steps_made))
    ends = []
    monkeypatch.setattr(trainer, "is_selected", lambda *given: ends.append(given[3]))
    record = train(small_run(*QUICK, "train.epochs=20", "train.maxMinutes=0.5"), shards, tmp_path)
    assert (record.stopped, ends) == ("maxMinutes", [4] * 4)
    history = json.loads((tmp_path / "history.json").read_text())
    assert history["validation"]["epoch"] == [1, 2, 3, 4, 4.2]


def test_checkpoints_of_more_epochs(whole, shards):
    """The model would be of these, and its card of fewer."""
    with pytest.raises(ConfigurationError, match=f"set train.epochs to {EPOCHS} or more"):
        train(small_run(*QUICK, f"train.epochs={EPOCHS - 1}"), shards, whole[1])


def test_a_checkpoint_of_another_network(whole, shards):
    with pytest.raises(CheckpointError, match=r"model.latentSize: is a checkpoint of another network.*got 6"):
        train(small_run(*QUICK, "model.latentSize=7"), shards, whole[1])


def test_a_validation_shower_that_selects_and_none_that_judges(tmp_path):
    """Before the training instead of behind it."""
    write_showers(tmp_path / "showers.h5", random_showers(3, 1), attributes={})
    preprocess_showers(small_run().data, tmp_path / "showers.h5", tmp_path / "shards")
    with pytest.raises(ShowerFileError, match=r"splits\.validation.*none that judges"):
        train(small_run(*QUICK, "train.batchPerReplica=2"), tmp_path / "shards", tmp_path / "out")


def test_shards_that_do_not_match_their_manifest(shards, tmp_path):
    for path in shards.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    victim = min(tmp_path.glob("train-*"))
    victim.write_bytes(victim.read_bytes()[:-1] + b"!")
    with pytest.raises(ShowerFileError, match=victim.name):
        train(small_run(), tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
