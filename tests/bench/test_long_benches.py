"""`python -m tools.physics_benchmark` without a training: what is compared and printed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caloscale.physics.distances import Estimate, fpd, kpd
from caloscale.spec import load_run
from tools import physics_benchmark, trained_runs
from tools.classifiers import Judgement


def test_a_finished_run_of_the_same_configuration_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def make(command: list[str], **_: Any) -> None:
        commands.append(command)
        name = command[command.index("--name") + 1]
        (Path(command[command.index("--runs") + 1]) / name / "validation").mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "validation" / "physics.json").touch()

    monkeypatch.setattr(trained_runs, "TRAINED_RUNS", tmp_path)
    monkeypatch.setattr(trained_runs.subprocess, "run", make)
    first, same, other = (
        trained_runs.trained(preset="compact", overrides=[f"train.seed={seed}"]) for seed in (3, 3, 4)
    )
    assert first == same != other
    assert [command[-2:] for command in commands] == [["--set", "train.seed=3"], ["--set", "train.seed=4"]]
    # A preset that is edited afterwards does not find the former runs.
    edited = trained_runs.identity(load_run(preset="compact", overrides=["train.seed=3", "train.learningRate=0.001"]))
    assert not first.name.endswith(edited)
    (first / "validation" / "physics.json").unlink()  # interrupted before it was judged
    assert trained_runs.trained(preset="compact", overrides=["train.seed=3"]) == first
    assert len(commands) == 3


@pytest.mark.integration
def test_showers_that_judge_are_none_that_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small parametrised simulation; shards are written once."""
    monkeypatch.setattr(trained_runs, "TRAINED_RUNS", tmp_path / "trained")
    monkeypatch.setenv("CALOSCALE_CACHE", str(tmp_path / "cache"))
    overrides = ["data.simulation.engine=parametrised", "data.simulation.showersPerFile=20"]
    run = load_run(preset="compact", overrides=[*overrides, "data.energyGev=[10, 20]"])
    showers = trained_runs.held_out_showers(40, run)
    assert 30 < len(showers) <= 40 and showers.source == "parametrised"
    assert showers.energy_gev.min() > 10 and showers.energy_gev.max() < 20
    assert load_run(preset="compact").data.seed != trained_runs.HELD_OUT_SEED
    monkeypatch.setattr(trained_runs, "preprocess_showers", lambda *_: pytest.fail("written again"))
    again = trained_runs.held_out_showers(40, run)
    assert np.array_equal(again.cells_gev, showers.cells_gev)


def test_a_distance_and_its_null() -> None:
    """Gaussians: a shift of a quarter of the largest feature is found, equal samples are within the null."""
    rng = np.random.default_rng(1)
    real, alike, others, shifted = (rng.normal(mean, 1, (600, 4)) for mean in (0, 0, 0, 0.8))
    for measure in (fpd, kpd):
        equal, unequal = (physics_benchmark.distance(measure, real, one, others, seed=1) for one in (alike, shifted))
        assert equal.null_showers == equal.showers == 600
        assert abs(equal.found.value - equal.null) < 5 * equal.null_uncertainty
        assert unequal.found.value - unequal.null > 10 * unequal.null_uncertainty
    few = physics_benchmark.distance(fpd, real, alike, others[:200], seed=1)
    assert few.null_showers == 400


def test_the_tables_of_the_physics() -> None:
    found = Judgement(
        auc=0.8768, auc_uncertainty=0.002, jsd=0.31, epochs=50, best_epoch=7, parameters=21_669_889,
        showers=(6000, 2000, 2000),
    )  # fmt: skip
    one = physics_benchmark.Distance(Estimate(0.5, 0.01), 10_000, 0.01, 0.001, 10_000)
    shown = physics_benchmark.tables({"dense network": found}, {"FPD": one})
    assert "| dense network | 0.8768 ± 0.0020 | 0.310 | 21,669,889 | 50, 7 | 6000 / 2000 / 2000 |" in shown
    assert "| FPD | 500 ± 10 | 10 ± 1 | 10000 (10000) |" in shown
