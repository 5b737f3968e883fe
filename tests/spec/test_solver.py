"""The run configuration of the inverse-problem workload."""

from pathlib import Path

import pytest
import yaml

from caloscale import spec
from caloscale.errors import ConfigurationError


@pytest.mark.parametrize("preset", spec.SOLVER_PRESETS)
def test_resolved_configuration_is_the_same_run(preset: str, tmp_path: Path) -> None:
    run = spec.load_solver_run(preset=preset)
    assert run.solver.preset == preset
    (tmp_path / "run.yaml").write_text(spec.dump_run(run))
    assert spec.load_solver_run(tmp_path / "run.yaml") == run


def test_preset_of_the_paper_has_the_published_values() -> None:
    solver = spec.load_solver_run(preset="proxy-paper").solver
    assert (solver.epochs, solver.parameter_samples, solver.events_per_sample) == (100_000, 1024, 100)
    assert (solver.generator.learning_rate, solver.discriminator.learning_rate) == (1e-5, 1e-4)
    assert len(solver.checkpoint_epochs) == 21 and solver.checkpoint_epochs[-1] == solver.epochs


@pytest.mark.parametrize(
    ("load", "text", "words"),
    [
        (spec.load_run, "solver: {ranks: 2}", "caloscale solve"),
        (spec.load_solver_run, "model: {preset: compact}", "caloscale run"),
        (spec.load_run, "model: {preset: compact}\nsolver: {ranks: 2}", "not both"),
        (spec.load_solver_run, "solver: {ranks: 2}\nmodel: {preset: compact}", "not both"),
        (spec.load_solver_run, "solver: {optimizer: bayesian, ranks: 1}", "energy-distance"),
        (spec.load_solver_run, "solver: {dataSets: [{name: a}, {name: a}]}", "the same name twice"),
        (spec.load_solver_run, "solver: {preset: proxi}", "did you mean 'proxy'?"),
        (
            spec.load_solver_run,
            "solver: {objective: energy-distance, ranks: 1, parameterSamples: 1, eventsPerSample: 1}",
            "compares the events of an epoch with each other",
        ),
    ],
)
def test_impossible_configurations_are_refused_with_a_remedy(load, text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=words) as caught:
        load(file)
    assert caught.value.remedy
    assert str(file) in str(caught.value)


def test_scaled_samples_divide_the_batch_by_the_ranks() -> None:
    overrides = ["solver.ranks=4", "solver.parameterSamples=1024", "solver.eventsPerSample=100"]
    solver = spec.load_solver_run(preset="proxy", overrides=overrides).solver
    assert solver.events_per_rank == 102_400
    scaled = spec.load_solver_run(preset="proxy", overrides=[*overrides, "solver.scaleSamples=true"]).solver
    assert scaled.events_per_rank == 25_600
    for samples, nearest in (
        (3, 4),
        (10, 8),
        (1023, 1024),
    ):  # one each would be 4 instead of 3, two each 8 instead of 10
        few = [*overrides, "solver.scaleSamples=true", f"solver.parameterSamples={samples}"]
        with pytest.raises(ConfigurationError, match=rf"by ranks 4, with a rest.*\n*.*parameterSamples: {nearest},"):
            spec.load_solver_run(preset="proxy", overrides=few)
    assert yaml.safe_load(spec.dump_run(spec.load_solver_run(preset="proxy")))["solver"]["ranks"] == 4


TRAINING, SOLVING = "model: {preset: compact}\ndata: {seed: 5}\n", "solver: {ranks: 3}\n"


def test_either_workload_is_told_by_its_block_or_preset(tmp_path: Path) -> None:
    train, solve = tmp_path / "train.yaml", tmp_path / "solve.yaml"
    train.write_text(TRAINING)
    solve.write_text(SOLVING)
    assert spec.load_any_run(train) == spec.load_run(train) == spec.parse_any_run(TRAINING)
    assert spec.load_any_run(solve) == spec.load_solver_run(solve) == spec.parse_any_run(SOLVING)
    assert spec.parse_any_run("solver: {seed: 1099511627776}\n").solver.seed == 2**40
    assert spec.parse_any_run(SOLVING).solver.ranks == 3 and spec.parse_run(TRAINING).data.seed == 5
    ranks, seed = ["solver.ranks=7"], ["data.seed=9"]
    assert spec.load_any_run(solve, overrides=ranks) == spec.load_solver_run(solve, overrides=ranks)
    assert spec.load_any_run(preset="proxy-paper", overrides=ranks).solver.preset == "proxy-paper"
    assert spec.load_any_run(solve, preset="proxy-paper").solver.events_per_sample == 100
    assert spec.load_any_run(train, preset="fixed-angle", overrides=seed).data.seed == 9
    assert spec.load_any_run(preset="compact", overrides=["data.showers=3"]).data.showers == 3
    with pytest.raises(ConfigurationError, match="either model or solver, not both"):
        spec.parse_any_run(TRAINING + SOLVING)
    with pytest.raises(ConfigurationError, match="solver or model, not both") as caught:
        spec.load_any_run(train, preset="proxy")
    assert caught.value.file == f"{train}:1" and caught.value.field == "model"


def test_a_custom_resource_has_no_file() -> None:
    for raw, field in (({"solver": {"ranks": 0}}, "solver.ranks"), ({"train": {"epochs": 0}}, "train.epochs")):
        with pytest.raises(ConfigurationError) as caught:
            spec.build_any_run(raw)
        assert (caught.value.file, caught.value.field) == (None, field)
    with pytest.raises(ConfigurationError) as caught:
        spec.parse_any_run("solver: {ranks: 0}")
    assert caught.value.file is None
    several = {"model": {"preset": "compact"}, "data": {"showers": 9}, "train": {"workersPerNode": 2}, "hardware": {}}
    with pytest.raises(ConfigurationError, match="is for this machine") as caught:  # of two blocks: it has no place
        spec.build_run(several, file="run.yaml")
    assert caught.value.file == "run.yaml"


def test_a_preset_that_was_read_can_be_changed() -> None:
    spec.load_preset("compact")["data"]["preprocessing"]["rebin"][0] = 99
    spec.load_preset("compact")["model"]["preset"] = "other"
    assert spec.load_run(preset="compact").data.preprocessing.rebin == (3, 3, 1)


def test_a_dumped_run_has_its_blocks_in_order_and_its_letters_as_they_are() -> None:
    text = spec.dump_run(spec.load_run(preset="compact", overrides=["data.source=/daten/Köln", "budget.maxUsd=9.5"]))
    assert list(yaml.safe_load(text)) == [field.alias for field in spec.Run.model_fields.values()]
    assert "/daten/Köln" in text and yaml.safe_load(text)["budget"]["maxUsd"] == "9.5"
