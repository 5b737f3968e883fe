"""How showers are generated for a comparison, and what a validation leaves in the model folder."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import kstest

from caloscale import spec
from caloscale.errors import CheckpointError, InputError, ShowerFileError
from caloscale.inference.export.runtimes import is_exported, verdict
from caloscale.models.card import load_network, read_card
from caloscale.physics import Evaluation
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.writer import write_showers
from caloscale.showers.primaries import draw_table
from caloscale.showers.tfrecord.manifest import read_manifest
from caloscale.showers.tfrecord.shards import preprocess_showers, read_split
from caloscale.spec.workspace_layout import TRAINED
from caloscale.stages import validation
from caloscale.stages.generation import Generation, generate
from caloscale.stages.validation import _evaluated, _publish, draw_primaries, generated_showers, validate, validate_int8
from caloscale.training.selection import selection_showers
from tests.inference.model_folders import COMPACT as DETECTOR
from tests.inference.model_folders import make_model, shared_model

COMPACT = spec.load_run(preset="compact")
ACCEPTED, UNDECIDED, REJECTED = (
    Evaluation.model_construct(decision=decision, gates=(), reasons=(), warnings=())
    for decision in ("accepted", "undecided", "rejected")
)
NETWORKS = ["generator.keras", "verdict.json"]


def showers_of(energy_gev: np.ndarray, angle_rad: np.ndarray) -> Showers:
    return Showers(np.zeros((len(energy_gev), 1, 1, 1), np.float32), energy_gev, angle_rad, "geant4")


def test_primaries_of_simulated_data_have_the_distribution_of_the_configuration() -> None:
    """Uniform in its ranges (Kolmogorov-Smirnov), whatever showers judge, and none of theirs."""
    run = spec.load_run(preset="compact")
    training = showers_of(np.full(50, 7, np.float32), np.full(50, 1.5, np.float32))
    energy_gev, angle_rad = draw_primaries(run, training, 4000).values()
    assert kstest(energy_gev, "uniform", args=(5, 35)).pvalue > 0.01
    assert kstest(np.rad2deg(angle_rad), "uniform", args=(60, 60)).pvalue > 0.01
    assert abs(np.corrcoef(energy_gev, angle_rad)[0, 1]) < 0.05
    assert len(np.unique(energy_gev)) > 3900
    other = spec.load_run(preset="compact", overrides=["validation.seed=2"])
    assert not np.array_equal(draw_primaries(other, training, 4000)["energy_gev"], energy_gev)
    np.testing.assert_array_equal(draw_primaries(run, training, 4000)["energy_gev"], energy_gev)


def test_primaries_of_own_data_are_those_of_the_training_showers_in_pairs() -> None:
    run = spec.load_run(preset="compact", overrides=["data.source=somewhere"])
    energy_gev = np.array([6, 12, 30], np.float32)
    found = list(draw_primaries(run, showers_of(energy_gev, energy_gev / 20), 600).values())
    np.testing.assert_allclose(found[1], found[0] / 20, rtol=1e-6)
    assert all(150 < np.sum(found[0] == e) < 250 for e in energy_gev)


@pytest.mark.parametrize(
    ("preset", "overrides", "showers"),
    [("compact", [], 10_000), ("compact", ["validation.showers=60"], 60), ("variable-angle", [], 4128)],
)
def test_as_many_showers_are_generated_as_memory_has_room_for(preset: str, overrides: list[str], showers: int) -> None:
    assert generated_showers(spec.load_run(preset=preset, overrides=overrides)) == showers


def test_the_model_folder_holds_the_last_verdict_alone(tmp_path: Path) -> None:
    """A network that was accepted before is not used in place of one that is rejected."""
    trained, model = tmp_path / "trained", tmp_path / "model"
    trained.mkdir()
    for number, (evaluation, left) in enumerate(
        [(ACCEPTED, NETWORKS), (REJECTED, ["REJECTED.md"]), (REJECTED, ["REJECTED.md"]), (UNDECIDED, NETWORKS)]
    ):
        (trained / "generator.keras").write_text(str(number))
        _publish(evaluation, f"verdict {number}", trained, model)
        assert sorted(path.name for path in model.iterdir()) == left
        assert str(number) in (model / left[0]).read_text()
        if left == NETWORKS:
            assert json.loads((model / "verdict.json").read_text())["decision"] == evaluation.decision
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "trained"]


@pytest.mark.parametrize("other", [None, Path("x/../model")])
def test_a_model_is_not_validated_in_its_own_output_folder(tmp_path: Path, other: Path | None) -> None:
    other = None if other is None else tmp_path / other
    (tmp_path / "model").mkdir()
    (tmp_path / "model/generator.keras").write_text("network")
    with pytest.raises(InputError, match="is the folder that is replaced") as error:
        validate(COMPACT, tmp_path, tmp_path / "dataset", tmp_path / "model", other)
    assert error.value.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("showers")
    random = np.random.default_rng(1)
    for number in range(2):
        energy = random.uniform(10, 40, 20).astype(np.float32)
        cells = random.gamma(0.3, 0.02, (20, 5, 4, 3)).astype(np.float32)
        showers = Showers(cells, energy, np.full(20, 1.5, np.float32), "geant4")
        write_showers(folder / f"showers-{number}.h5", showers, attributes={})
    preprocess_showers(spec.load_run(preset="compact", overrides=DETECTOR).data, folder, folder / "shards")
    return folder / "shards"


@pytest.mark.usefixtures("without_networks")
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("data.geometry.cellMm=6", "geometry"),
        ("data.preprocessing.power=0.8", "preprocessing"),
        ("data.particle=gamma", "particle"),
        ("data.front=[{material: lead, thicknessMm: 5.6}]", "front"),
        ("data.pairDistanceMm=5", "pairDistanceMm"),
    ],
)
def test_inputs_of_another_configuration_are_not_compared(
    shards: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, change: str, field: str
) -> None:
    """Neither shards nor networks: their gigaelectronvolts and millimetres would be others."""
    others = (*DETECTOR, change)
    networks = shared_model(tmp_path_factory, "compact", others)
    for overrides, error, message in (
        (DETECTOR, CheckpointError, f"model.json: {field}: the networks were trained for another run configuration"),
        (others, ShowerFileError, f"{field}: the shards were made for another run configuration"),
    ):
        run = spec.load_run(preset="compact", overrides=overrides)
        with pytest.raises(error, match=message) as raised:
            validate(run, tmp_path / error.__name__, shards, networks, tmp_path / "model")
        assert raised.value.exit_code == 2 and raised.value.remedy
    assert not (tmp_path / "model").exists()


@pytest.mark.usefixtures("without_networks")
def test_a_verdict_is_on_the_whole_range_that_was_trained(
    shards: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    networks = shared_model(tmp_path_factory, "compact", (*DETECTOR, "data.energyGev=[5, 41]"))
    with pytest.raises(
        CheckpointError, match=r"(?s)energyGev: .* wider range than is judged.*set data.energyGev to \[5"
    ):
        validate(spec.load_run(preset="compact", overrides=DETECTOR), tmp_path, shards, networks)


@pytest.fixture
def without_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The card of a model is read, its networks are neither loaded nor used: nothing of them is looked at."""
    monkeypatch.setattr(validation, "load_generator", lambda path, **_: SimpleNamespace(card=read_card(path)))
    monkeypatch.setattr(
        validation, "_generate", lambda _, table, seed: (showers_of(**table), float(len(table["energy_gev"])))
    )


class JudgedError(Exception):
    """Ends a validation with the showers that it is about to compare with."""


@pytest.mark.usefixtures("without_networks")
@pytest.mark.parametrize(("most", "judging"), [(10_000, 15), (15, 15), (4, 4)])
def test_showers_that_selected_the_epoch_do_not_validate(
    shards: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    judging: int,
) -> None:
    def judge(reference: Showers, *_: object, **__: object) -> None:
        raise JudgedError(reference)

    monkeypatch.setattr(validation, "compare", judge)
    run = spec.load_run(preset="compact", overrides=[*DETECTOR, f"validation.referenceShowers={most}"])
    networks = shared_model(tmp_path_factory, "compact", DETECTOR)
    with pytest.raises(JudgedError) as judged:
        validate(run, tmp_path, shards, networks, tmp_path / "model")
    held_out = read_split(shards, "validation")
    chose = held_out[selection_showers([len(held_out)])].energy_gev
    used = judged.value.args[0].energy_gev
    assert (len(chose), len(used)) == (5, judging)
    assert len({*used, *chose}) == 5 + judging and {*used, *chose} <= set(held_out.energy_gev)


@pytest.mark.parametrize("known", ["these", "others", "not"])
def test_networks_of_other_shards_are_marked(
    shards: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, command: Callable, known: str
) -> None:
    """They may have been trained on what is held out here: the result, from which summary and report are made, and the
    verdict of the model say so."""
    networks = tmp_path / TRAINED
    shutil.copytree(shared_model(tmp_path_factory, "compact", DETECTOR), networks)
    card = json.loads((networks / "model.json").read_text())
    card["showersSha256"] = {"these": read_manifest(shards).train_sha256, "others": "0" * 64, "not": None}[known]
    (networks / "model.json").write_text(json.dumps(card))
    few = ("validation.showers=60", "validation.bootstraps=10")
    (tmp_path / "run.yaml").write_text(spec.dump_run(spec.load_run(preset="compact", overrides=[*DETECTOR, *few])))
    done = command("validate", "-w", tmp_path, "--dataset", shards)
    assert done.code == 0, done.err
    evaluation = Evaluation.model_validate_json((tmp_path / "validation" / "physics.json").read_bytes())
    assert any("other shards" in warning for warning in evaluation.warnings) == (known == "others")
    for shown in (done.out, (tmp_path / "model" / "REJECTED.md").read_text()):
        assert ("trained on other shards" in shown) == (known == "others")
    # The networks are in no folder with a verdict: an export of them has that of the run, until they change.
    decided = verdict(networks, "onnx")
    assert decided["decision"] == evaluation.decision == "rejected" and decided["reasons"] == list(evaluation.reasons)
    wanted = Generation(output=tmp_path / "a.h5", count=3)
    assert generate(networks, wanted).warnings == (f"the gates of its run rejected the generator in {networks}",)
    (networks / "model.json").write_text(json.dumps({**card, "step": 2}))
    assert verdict(networks, "onnx")["decision"] == verdict(networks, "openvino-int8")["decision"] == "not assessed"


@pytest.mark.parametrize("lowest_gev", [5, 12])
def test_other_primaries_than_those_of_the_held_out_showers_are_marked(
    lowest_gev: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the showers of the lowest energies are below data.preprocessing.minimumSumGev."""
    monkeypatch.setattr(validation, "evaluate", lambda _: ACCEPTED)
    drawn, held_out = (showers_of(**draw_table(COMPACT.data, 1000, np.random.default_rng(seed))) for seed in (1, 2))
    held_out = held_out[held_out.energy_gev > lowest_gev]
    compared = SimpleNamespace(generated_showers=drawn, reference_showers=held_out)
    shards = SimpleNamespace(manifest=SimpleNamespace(train_sha256="0"))
    card = SimpleNamespace(showers_sha256="0", configuration={"train": {"startFrom": "runs/first/model"}})
    warnings = _evaluated(COMPACT, compared, card, shards).warnings
    marked = ["compared at other primaries than the held-out showers have (energy_gev, Kolmogorov-Smirnov statistic 0."]
    assert [text[: len(marked[0])] for text in warnings] == (marked if lowest_gev > 5 else [])


@pytest.mark.parametrize(("source", "start", "marked"), [("own", "a/model", 1), ("own", None, 0), ("simulate", "a", 0)])
def test_networks_that_began_with_a_model_of_own_data_are_marked(
    source: str, start: str | None, marked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which showers of own files are held out depends on the ranges and the seed of the run."""
    monkeypatch.setattr(validation, "evaluate", lambda _: ACCEPTED)
    run = spec.load_run(preset="compact", overrides=[f"data.source={source}"])
    drawn = showers_of(**draw_table(run.data, 9, np.random.default_rng(1)))
    compared = SimpleNamespace(generated_showers=drawn, reference_showers=drawn)
    shards = SimpleNamespace(manifest=SimpleNamespace(train_sha256="0"))
    card = SimpleNamespace(showers_sha256="0", configuration={"train": {"startFrom": start}})
    warnings = _evaluated(run, compared, card, shards).warnings
    assert [text.split(" (")[0] for text in warnings] == ["trained from the weights of a/model"] * marked


@pytest.mark.parametrize("bad", [np.nan, pytest.param(np.inf, marks=pytest.mark.integration)])
def test_a_generator_with_cells_that_are_not_finite_is_rejected(
    shards: Path, tmp_path: Path, command: Callable, bad: float
) -> None:
    """By the command, with a real network: a verdict, no error. Its bad showers count as empty."""
    networks = make_model(tmp_path / TRAINED, "compact", DETECTOR)
    network = load_network(networks / "generator.keras", COMPACT.model)
    weights = network.trainable_variables[-1].numpy()
    weights.flat[0] = bad
    network.trainable_variables[-1].assign(weights)
    network.save(networks / "generator.keras")
    few = ("validation.showers=60", "validation.bootstraps=10")
    (tmp_path / "run.yaml").write_text(spec.dump_run(spec.load_run(preset="compact", overrides=[*DETECTOR, *few])))
    done = command("validate", "-w", tmp_path, "--dataset", shards, "--json")
    assert done.code == 0, done.err
    found = Evaluation.model_validate_json(done.out)
    unusable = found.showers.unusable
    assert 0 < unusable <= found.showers.empty <= 60 and (bad != np.inf or unusable < 60)
    assert found.decision == "rejected"
    assert f"{unusable} generated showers have cells that are not finite" in "; ".join(found.reasons)
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["REJECTED.md"]


def test_a_generator_in_int8_has_a_verdict_of_its_own(
    shards: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Showers are made as long as the gates do not reject it, with a warning unless they accept it."""
    model = shutil.copytree(shared_model(tmp_path_factory, "compact", DETECTOR), tmp_path / "model")
    (model / "verdict.json").write_text('{"decision": "accepted"}')
    wanted = Generation(output=tmp_path / "a.h5", count=3, runtime="openvino", precision="int8")
    (warning,) = generate(model, wanted).warnings
    assert "int8 is not assessed" in warning

    few = ("validation.showers=60", "validation.bootstraps=10")
    outcome = validate_int8(spec.load_run(preset="compact", overrides=[*DETECTOR, *few]), shards, model)
    kept = model / "exports" / "openvino-int8" / "verdict.json"
    assert json.loads(kept.read_text())["decision"] == outcome.decision != "accepted"
    assert json.loads((model / "verdict.json").read_text()) == {"decision": "accepted"}
    assert is_exported(model, "openvino-int8")  # the verdict is no part of what was exported

    for decision, warnings in (("accepted", 0), ("undecided", 1)):
        kept.write_text(json.dumps({"decision": decision}))
        assert len(generate(model, wanted).warnings) == warnings
    kept.write_text('{"decision": "rejected"}')
    with pytest.raises(CheckpointError, match="is rejected by its gates in int8"):
        generate(model, wanted)
