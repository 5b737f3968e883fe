"""The start of a training from a trained model."""

import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from caloscale.detector.sampling import mip_fraction
from caloscale.errors import CheckpointError, ConfigurationError
from caloscale.models import build
from caloscale.models.card import CARD, GENERATOR, ModelCard, read_start, save_networks
from caloscale.models.families.compact.network import build_compact
from caloscale.simulation.primaries import draw_primaries
from caloscale.spec import load_run
from caloscale.training.loop import train
from caloscale.training.state import TrainingState
from caloscale.training.transfer import start_from_model
from tests.training.conftest import eagerly, quickly, shards, small_run
from tests.training.quick_networks import QUICK

__all__ = ["eagerly", "quickly", "shards"]


def trained_model(folder: Path, *overrides: str) -> tuple[Path, list[np.ndarray]]:
    """A model folder, and the weights of its generator: random numbers."""
    run, random = small_run(*overrides), np.random.default_rng(1)
    networks = build(run.model, run.data)
    for network in networks.values():
        network.set_weights([random.normal(size=weight.shape).astype(np.float32) for weight in network.get_weights()])
    folder.mkdir()
    save_networks(run, networks, folder)
    card = ModelCard.of(run, source="geant4", versions={}, parameters={})
    (folder / CARD).write_text(card.as_json())
    return folder, networks["generator"].get_weights()


def test_what_has_the_same_shape_is_taken_over_and_the_rest_begins_anew(quickly: None, tmp_path: Path) -> None:
    folder, weights = trained_model(tmp_path / "model")
    same = small_run(f"train.startFrom={folder}", "train.averageDecay=0.9")
    state = TrainingState(same)
    started = start_from_model(state, same)
    for network in (state.networks["generator"], state.average):
        for got, wanted in zip(network.get_weights(), weights):
            np.testing.assert_array_equal(got, wanted)
    assert not started.new and started.weights == sum(
        int(np.prod(w.shape)) for network in state.networks.values() for w in network.trainable_weights
    )

    three = "data.geometry={cells: [7, 6, 3], layers: [{count: 3, absorberMm: 4}], depthMm: 30}"
    other = small_run(three, f"train.startFrom={folder}")
    state, fresh = TrainingState(other), TrainingState(other).networks["generator"].get_weights()
    started = start_from_model(state, other)
    hidden, hidden_bias, cells, cells_bias = state.networks["generator"].get_weights()
    np.testing.assert_array_equal(hidden, weights[0])
    np.testing.assert_array_equal(hidden_bias, weights[1])
    np.testing.assert_array_equal(cells, fresh[2])
    np.testing.assert_array_equal(cells_bias, fresh[3])
    # The discriminator sees the cells of the three layers in its dense layers.
    assert set(started.new) == {
        "generator: cells/kernel",
        "generator: cells/bias",
        "discriminator: real_fake/kernel",
        "discriminator: energy/kernel",
    }


@pytest.mark.integration
def test_the_mean_response_keeps_its_ratio_to_that_of_the_detector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An absorber of twice the thickness: the first guess of the response follows from the detector."""
    # Not the quick networks.
    monkeypatch.setattr("caloscale.models.families.compact.network.build_compact", build_compact)
    folder, _ = trained_model(tmp_path / "model")
    thick = small_run("data.geometry={layers: [{count: 4, absorberMm: 8}], depthMm: 50}", f"train.startFrom={folder}")
    state = TrainingState(thick)
    start_from_model(state, thick)
    before = build(small_run().model, small_run().data)["generator"]
    trained = state.networks["generator"].get_layer("mean_response").bias.numpy()
    index = [weight.path for weight in before.weights].index(before.get_layer("mean_response").bias.path)
    of_model = np.random.default_rng(1)
    drawn = [of_model.normal(size=weight.shape).astype(np.float32) for weight in before.get_weights()][index]
    thin_geometry, thick_geometry = small_run().data.geometry, thick.data.geometry
    expected = drawn + np.log(mip_fraction(thick_geometry, 8.0) / mip_fraction(thin_geometry, 4.0))
    np.testing.assert_allclose(trained, expected, rtol=1e-6)
    assert abs(trained - drawn) > 0.3  # a factor that the first epochs would have to learn


@pytest.mark.parametrize(
    ("change", "error", "problem"),
    [
        (lambda folder: shutil.rmtree(folder), CheckpointError, "cannot be read"),
        (lambda folder: (folder / "discriminator.keras").unlink(), CheckpointError, "is missing"),
        (lambda folder: (folder / GENERATOR).write_bytes(b"PK"), CheckpointError, "truncated"),
    ],
)
def test_a_folder_that_is_no_model_is_refused(
    quickly: None, tmp_path: Path, change: object, error: type[Exception], problem: str
) -> None:
    folder, _ = trained_model(tmp_path / "model")
    change(folder)  # type: ignore[operator]
    run = small_run(f"train.startFrom={folder}")
    with pytest.raises(error, match=problem):
        start_from_model(TrainingState(run), run)


@pytest.mark.parametrize("other", ["preset", "primary"])
def test_a_model_of_another_preset_or_primary_is_refused(quickly: None, tmp_path: Path, other: str) -> None:
    folder, _ = trained_model(tmp_path / "model")
    overrides, problem = (), "preset variable-angle, this run has compact"
    if other == "preset":
        card = ModelCard.of(load_run(preset="variable-angle"), source="geant4", versions={}, parameters={})
        (folder / CARD).write_text(card.as_json())
    else:
        overrides = ("data.particle=gamma", "data.simulation.engine=geant4")
        problem = "showers of e-, this run has showers of gamma"
    run = small_run(f"train.startFrom={folder}", *overrides)
    with pytest.raises(ConfigurationError, match=problem) as caught:
        start_from_model(TrainingState(run), run)
    assert caught.value.field == "train.startFrom" and caught.value.remedy


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ((), False),
        (("data.showers=80", "data.mirror=false"), True),
        (("data.validationFraction=0.3",), True),
        (("data.showers=80", "data.seed=2"), False),
        (("data.showers=80", "data.geometry.absorber=lead"), False),
    ],
)
def test_a_model_that_was_trained_on_held_out_showers_is_refused(
    tmp_path: Path, changes: tuple[str, ...], seen: bool
) -> None:
    """Of one seed the files of a smaller simulation are among those of a larger one; which judge is drawn from all."""
    simulated = "data.source=simulate", "data.simulation.showersPerFile=10"
    before, run = (small_run(*simulated, *more) for more in ((), changes))
    tables = [draw_primaries(one.data, 3)[0]["energy_gev"].tolist() for one in (before, run)]
    assert tables[0] == tables[1] or not seen
    (tmp_path / CARD).write_text(ModelCard.of(before, source="geant4", versions={}, parameters={}).as_json())
    with pytest.raises(ConfigurationError, match="held out to judge") if seen else nullcontext():
        read_start(tmp_path, run)


@pytest.mark.integration
def test_a_training_starts_from_a_model_and_resumes_without_it(
    quickly: None, eagerly: None, shards: Path, tmp_path: Path
) -> None:
    first = train(small_run(*QUICK, "train.epochs=1"), shards, tmp_path / "first")
    assert first.started_from is None
    again = small_run(*QUICK, f"train.startFrom={tmp_path / 'first' / 'model'}", "train.learningRate=1e-30")
    second = train(again, shards, tmp_path / "second")
    assert second.started_from is not None and not second.started_from.new
    # A vanishing learning rate leaves the generator as it began.
    assert second.selected_deviation == pytest.approx(first.selected_deviation, rel=1e-3)
    shutil.rmtree(tmp_path / "first")
    shutil.rmtree(tmp_path / "second" / "model")
    third = train(again, shards, tmp_path / "second")
    assert third.resumed_from_step == 10 and third.selected_deviation == second.selected_deviation
    assert (tmp_path / "second" / "model" / GENERATOR).is_file()
