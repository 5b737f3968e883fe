"""The search for hyper-parameters on whole runs: ranges, seeds, what is selected; and the mixture of an ensemble."""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from caloscale.errors import ConfigurationError, TrainingError
from caloscale.installation import install_command
from caloscale.studies import search as module
from caloscale.studies.search import ensemble, search
from tests.studies.test_recovery import TINY

RANGES = {"train.learningRate": [0.0003, 0.01], "train.batchPerReplica": [16, 64]}


def bowl(inputs: dict) -> float:
    rate, batch = inputs.get("train.learningRate", 0.002), inputs.get("train.batchPerReplica", 32)
    return np.log(rate / 0.002) ** 2 + np.log(batch / 32) ** 2


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """Whole runs that are a bowl over the two fields: its lowest point is at 0.002 and 32; the list of their inputs."""
    made: list[dict] = []

    def whole_run(inputs, folder: Path, watch=lambda validations: None):
        made.append({**inputs, "folder": folder.name})
        deviation = bowl(inputs) + 0.1 * inputs.get("train.seed", 0)
        for epochs in range(1, inputs.get("train.epochs", 3) + 1):
            watch({"epoch": list(range(1, epochs + 1)), "deviation": [deviation + 1 / n for n in range(1, epochs + 1)]})
            made[-1]["epochs"] = epochs
        physics = {"classifierAuc": 0.5 + deviation, "resolutionDeviation": deviation}
        return {"quality": {"lowest": float(deviation) if deviation < 20 else None}, "physics": physics}

    monkeypatch.setattr(module, "whole_run", whole_run)
    return made


@pytest.mark.filterwarnings("error")
def test_the_comparison_within_the_last_epoch_counts_as_one_at_its_end(tmp_path, monkeypatch):
    """train.maxMinutes may end a training there."""

    def whole_run(inputs, folder, watch):
        watch({"epoch": [1, 2, 2.5], "deviation": [3.0, 2.0, 1.0]})
        return {"quality": {"lowest": 1.0}, "physics": {"classifierAuc": 0.5, "resolutionDeviation": 0.1}}

    monkeypatch.setattr(module, "whole_run", whole_run)
    assert search({"trials": 2, "ranges": RANGES}, tmp_path)["deviation"] == 1


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_trials_are_within_the_ranges_and_follow_the_seed(runs, sampler, tmp_path):
    asked = {"sampler": sampler, "trials": 15, "ranges": RANGES, "model.preset": "compact"}
    found, again = search(asked, tmp_path), search(asked, tmp_path)
    assert {**found, "seconds": 0} == {**again, "seconds": 0} and found["failed"] == 0
    assert all(0.0003 <= run["train.learningRate"] <= 0.01 for run in runs)
    assert all(
        isinstance(run["train.batchPerReplica"], int) and 16 <= run["train.batchPerReplica"] <= 64 for run in runs
    )
    assert [run["folder"][:10] for run in runs[:2]] == ["trial-000-", "trial-001-"]
    assert runs[0]["model.preset"] == "compact"
    deviations = [bowl(run) for run in runs[:15]]
    assert found["deviation"] == pytest.approx(min(deviations))
    assert found["bestTrial"] == 1 + int(np.argmin(deviations))
    assert found["deviationOfTrials"] == pytest.approx(np.median(deviations))
    assert search({**asked, "samplerSeed": 2}, tmp_path)["best"] != found["best"]
    (tmp_path / "trial-000").mkdir()  # of an attempt that was interrupted
    assert found["seconds"] > 0 and search(asked, tmp_path)["seconds"] is None


def test_after_a_third_of_the_trials_the_estimator_proposes_others(runs, tmp_path):
    for sampler in ("random", "tpe"):
        search({"sampler": sampler, "trials": 6, "ranges": RANGES}, tmp_path)
    rates = [run["train.learningRate"] for run in runs]
    assert rates[6:8] == rates[:2]
    assert not set(rates[8:]) & set(rates[2:6])


def test_trials_that_are_proposed_after_another_outcome_have_another_folder(runs, tmp_path, monkeypatch):
    """Runs that failed succeed when the search resumes. The estimator then proposes other values: the finished runs
    in the folder of the search are not theirs."""
    made, asked = module.whole_run, {"trials": 9, "ranges": RANGES}

    def failing(inputs, folder, watch):
        if folder.name.startswith(("trial-000", "trial-001", "trial-002")):
            raise TrainingError("killed")
        return made(inputs, folder, watch)

    monkeypatch.setattr(module, "whole_run", failing)
    assert search(asked, tmp_path)["failed"] == 3
    monkeypatch.setattr(module, "whole_run", made)
    search(asked, tmp_path)
    values = {run["folder"]: {(name, run[name]) for name in RANGES} for run in runs}
    assert len(values) > 9
    assert all({(name, run[name]) for name in RANGES} == values[run["folder"]] for run in runs)


def test_a_trial_that_is_worse_than_the_median_of_those_before_is_ended_after_a_third_of_its_epochs(runs, tmp_path):
    asked = {"sampler": "random", "trials": 9, "ranges": RANGES, "train.epochs": 9}
    every = search(asked, tmp_path)
    deviations = [bowl(run) for run in runs]
    assert every["stopped"] == 0 and {run["epochs"] for run in runs} == {9}
    runs.clear()
    found = search({**asked, "stopEarly": True}, tmp_path)
    kept, epochs = [], []
    for number, deviation in enumerate(deviations):
        bad = number >= 3 and deviation > np.median(kept)  # all fall alike, so the order is the same in every epoch
        epochs.append(2 if bad else 9)  # the report of the third epoch is what ends it
        kept += [] if bad else [deviation]
    assert [run["epochs"] for run in runs] == epochs and 0 < found["stopped"] == epochs.count(2) < 6
    assert found["failed"] == 0 and found["deviation"] == every["deviation"]
    assert found["deviationOfTrials"] == pytest.approx(np.median(kept))


def test_runs_without_a_deviation_are_counted_and_all_of_them_are_an_error(runs, tmp_path):
    with pytest.raises(TrainingError, match="failed"):
        search({"trials": 2, "ranges": {"train.learningRate": [2, 3.0]}}, tmp_path)


def test_without_optuna_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(TrainingError) as error:
        search({"ranges": RANGES}, tmp_path)
    assert error.value.remedy == install_command("studies")


def test_of_an_ensemble_the_lowest_deviation_is_selected(runs, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "judge_mixture", lambda fields, folders: {"classifierAuc": 0.25})
    with pytest.raises(ConfigurationError, match=r"train\.seed: is given, and seeds, too"):
        ensemble({"seeds": [3, 1, 2], "train.seed": 7}, tmp_path)
    found = ensemble({"seeds": [3, 1, 2], "train.learningRate": 0.002}, tmp_path)
    assert found["deviations"] == pytest.approx([0.3, 0.1, 0.2])
    assert found["classifierAuc"] == pytest.approx({"members": 0.7, "selected": 0.6, "mixture": 0.25})
    assert found["resolution"]["mixture"] is None


@pytest.mark.long
def test_every_member_makes_an_equal_part_of_the_mixture(tmp_path, monkeypatch):
    """With two real runs: the mixture has the primaries of a validation, half of them of each generator."""
    import caloscale.physics

    stream = import_module("caloscale.inference.stream")
    judged, parts = {}, []
    compare, generate = caloscale.physics.compare, stream.generate_table
    monkeypatch.setattr(caloscale.physics, "compare", lambda r, g, **o: judged.update(g=g) or compare(r, g, **o))
    monkeypatch.setattr(stream, "generate_table", lambda *a, **o: parts.append(generate(*a, **o)) or parts[-1])
    found = ensemble({**TINY, "seeds": [1, 2]}, tmp_path)
    assert len(judged["g"]) == 64 and [len(part) for part in parts] == [32, 32]
    assert not np.array_equal(parts[0].cells_gev, parts[1].cells_gev)
    assert len(found["deviations"]) == 2 and found["resolution"]["mixture"] is not None
