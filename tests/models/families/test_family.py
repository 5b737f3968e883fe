"""A family as a package adds one, a scaled mean: trained, resumed bit for bit, validated, billed, exported, planned."""

from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

import caloscale
from caloscale.errors import ConfigurationError
from caloscale.inference.export.files import check_file, export_model
from caloscale.models.families.family import Arithmetic, Family
from caloscale.spec import Run, build_any_run, family, load_run
from caloscale.spec.block import Block
from caloscale.training.loop import train
from caloscale.training.state import TrainingState
from caloscale.training.transfer import start_from_model
from tests.training.conftest import quickly, shards, small_run

__all__ = ["quickly", "shards"]
TOY = ("model.family=toy", "model.settings={hidden: 6}", "train.decay=constant", "train.averageDecay=0.5")
TINY = (
    *("data.geometry.cells=[9, 9, 5]", "data.geometry.layers=[{count: 5, absorberMm: 4}]", "data.geometry.depthMm=30"),
    *("data.showers=240", "data.simulation.engine=parametrised", "train.epochs=2", "train.precision=float32"),
    *("validation.bootstraps=10", "validation.showers=60"),
)


class ToySettings(Block):
    """Parameters of the toy."""

    hidden: int = 8
    """Units of its layer."""


class Toy(Family):
    """The mean of the training showers, an adapted weight, times a trained function of the input."""

    Settings = ToySettings
    losses_shown = ("distance",)
    adaptations = 0

    def build(self, model, data, *, synchronized=False):
        import tensorflow as tf

        latent = tf.keras.Input((self.latent_size(model, data),), name="latent")
        x = tf.keras.layers.Dense(self.settings(model).hidden, activation="relu", name="hidden")(latent)
        x = tf.keras.layers.Dense(int(np.prod(data.shape)), activation="softplus", name="factor")(x)
        mean = tf.keras.layers.EinsumDense("bc,c->bc", int(np.prod(data.shape)), name="mean", trainable=False)
        return {
            "generator": tf.keras.Model(latent, tf.keras.layers.Reshape((*data.shape, 1))(mean(x)), name="generator")
        }

    def train_step(self, step):
        import tensorflow as tf

        def loss(index, micro, random):
            made = step.networks["generator"](step.latent(micro, random), training=True)
            distance = tf.reduce_mean(tf.square(made - micro.cells), axis=(1, 2, 3, 4))
            return distance, {"distance": distance}

        return step.finish("generator", 0, loss, named=lambda losses: {"distance": losses["distance"]})

    def adapted_weights(self, network):
        return network.get_layer("mean").weights

    def adapt(self, run, networks, draw):
        type(self).adaptations += 1
        return {"generator": [draw(50)["cells"].mean(axis=0).reshape(-1)]}

    def arithmetic(self, model, data):
        return Arithmetic(1e-6 * self.settings(model).hidden, (0.01,), 0.1)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if a package had named it."""
    point = EntryPoint("toy", f"{__name__}:Toy", family.GROUP)
    monkeypatch.setattr(family, "entry_points", lambda group: [*entry_points(group=group), point])
    family.installed.cache_clear()
    yield
    family.installed.cache_clear()
    family.find_family.cache_clear()


def checkpoint(folder: Path) -> dict[str, np.ndarray]:
    """The variables of the newest checkpoint."""
    return load_file(max((folder / "checkpoints").glob("step-*.safetensors")))


def test_trained_and_resumed_bit_for_bit(quickly: None, shards: Path, tmp_path: Path) -> None:
    """The adapted weights are in the checkpoint, and a resumed training does not adapt again."""
    run, half = (small_run(*TOY, f"train.epochs={epochs}", "train.warmupEpochs=0") for epochs in (2, 1))
    before = Toy.adaptations
    train(run, shards, tmp_path / "whole")
    train(half, shards, tmp_path / "parts")
    record = train(run, shards, tmp_path / "parts")
    assert Toy.adaptations == before + 2 and record.resumed_from_step == 5 and set(record.parameters) == {"generator"}
    whole, parts = checkpoint(tmp_path / "whole"), checkpoint(tmp_path / "parts")
    assert {name.partition("/")[0] for name in whole} == {"generator", "average", "generator_optimizer", "step"}
    for name, values in whole.items():
        np.testing.assert_array_equal(parts[name], values, err_msg=name)
    mean = next(values for name, values in whole.items() if name.startswith("generator/") and values.shape == (168,))
    assert (mean > 0).any()

    started = small_run(*TOY, f"train.startFrom={tmp_path / 'whole' / 'model'}")
    state = TrainingState(started)
    (adapted,) = state.adapted_variables().values()
    adapted.assign(tf.fill(adapted.shape, 7.0))
    taken = start_from_model(state, started).weights
    assert (adapted.numpy() == 7).all(), "they are those of the showers of this training"
    assert taken == record.parameters["generator"]


@pytest.mark.integration
def test_run_validated_billed_exported(tmp_path: Path) -> None:
    run = load_run(preset="compact", overrides=[*TOY, *TINY, "data.preprocessing.rebin=[1, 1, 1]"])
    summary = caloscale.run(run, name="toy", runs=tmp_path)
    folder = tmp_path / "toy"
    assert summary.outcome == "succeeded" and summary.physics is not None and summary.bill.usd >= 0
    model = folder / "training" / "model"
    assert sorted(file.name for file in model.glob("*.keras")) == ["generator.keras"]
    export_model(model, "onnx", tmp_path / "onnx")
    assert check_file(tmp_path / "onnx" / "generator.onnx").deviation < 1e-4


def test_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    run = load_run(preset="compact", overrides=[*TOY, *TINY, "data.preprocessing.rebin=[1, 1, 1]", "budget.maxUsd=50"])
    assert run.model.network == "toy" and caloscale.plan(run).network == "toy"
    monkeypatch.setattr(Toy, "arithmetic", Family.arithmetic)
    with pytest.raises(ConfigurationError, match="states no arithmetic"):
        caloscale.plan(run)


def test_settings_are_filled_in_and_checked() -> None:
    assert load_run(preset="compact", overrides=["model.family=toy"]).model.settings == {"hidden": 8}
    for overrides, field, message in (
        (["model.family=toy", "model.settings.hiden=2"], "model.settings.hiden", "did you mean 'hidden'"),
        (["model.family=compakt"], "model.family", "did you mean 'compact'"),
        (["model.family=fixed-angle"], None, "set model.preset to fixed-angle"),
        (["model.family=toy", "model.latentSize=2"], "model.latentSize", ""),
    ):
        with pytest.raises(ConfigurationError) as refused:
            load_run(preset="compact", overrides=overrides)
        assert refused.value.exit_code == 2 and refused.value.field == field and message in refused.value.remedy


def test_an_operator_need_not_have_the_family() -> None:
    raw = {"model": {"preset": "compact", "family": "elsewhere", "settings": {"any": 1}}}
    run = build_any_run(raw)
    assert isinstance(run, Run) and run.model.settings == {"any": 1}


@pytest.mark.parametrize(
    ("preset", "field", "value", "remedy"),
    [
        ("flow", "model.latentSize", "64", "compact, fixed-angle, variable-angle"),
        ("flow", "model.dropout", "0.3", "compact"),
        ("flow", "model.filters", "multiples-of-16", "fixed-angle, variable-angle"),
        ("flow", "model.binCounts", "true", "compact"),
        ("flow", "train.lossWeights.hits", "2.5", "compact"),
        ("flow", "train.discriminatorLearningRate", "0.5", "compact"),
        ("flow", "train.precision", "bfloat16", "compact, fixed-angle, variable-angle"),
        ("compact", "model.filters", "multiples-of-16", "fixed-angle, variable-angle"),
        ("par04", "model.filters", "multiples-of-16", "fixed-angle, variable-angle"),
    ],
)
def test_a_field_that_the_family_does_not_use_is_refused(preset, field, value, remedy):
    with pytest.raises(ConfigurationError) as caught:
        load_run(preset=preset, overrides=[f"{field}={value}"])
    error = caught.value
    assert field.startswith(error.field) and "is not used by the family" in error.problem
    assert str(error.value) == value or "2.5" in str(error.value) or error.value is True
    assert remedy in error.remedy and "flow" not in error.remedy


def test_what_a_preset_sets_for_its_own_family_is_not_refused_with_another():
    """compact sets model.latentSize, also in a written run configuration; the flow has no such number."""
    run = load_run(preset="compact", overrides=["model.family=flow"])
    assert run.model.latent_size == 64 and load_run(preset="compact", overrides=["model.family=toy"])
    with pytest.raises(ConfigurationError, match=r"is not used by the family flow"):
        load_run(preset="compact", overrides=["model.family=flow", "model.latentSize=65"])
