"""`make bench BENCH=physics` and `BENCH=compact` without a training: what is kept, compared and written."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from caloscale.bench.deformations import narrow_response
from caloscale.physics.distances import fpd, kpd
from caloscale.spec import Validation, load_run
from tests.bench.test_page import MACHINE
from tests.physics.conftest import DATA, make_showers
from tools import benchmark, compact_ablation, physics_benchmark, trained_runs

SMALL = (
    "data.geometry.cells=[6, 6, 12]",
    "data.geometry.layers=[{count: 8, absorberMm: 4.8}, {count: 4, absorberMm: 7.2}]",
    "data.geometry.depthMm=100",
    "data.preprocessing.rebin=[1, 1, 1]",
)
MACHINE_JSON = MACHINE.model_dump(mode="json", by_alias=True)


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
    showers = trained_runs.held_out_showers(40, preset="compact", overrides=overrides)
    assert 30 < len(showers) <= 40 and showers.source == "parametrised"
    assert showers.energy_gev.min() > 5 and showers.energy_gev.max() < 40
    assert load_run(preset="compact").data.seed != trained_runs.HELD_OUT_SEED
    monkeypatch.setattr(trained_runs, "preprocess_showers", lambda *_: pytest.fail("written again"))
    again = trained_runs.held_out_showers(40, preset="compact", overrides=overrides)
    assert np.array_equal(again.cells_gev, showers.cells_gev)


def test_every_variant_is_a_configuration_of_its_own() -> None:
    runs = [load_run(preset="compact", overrides=changed) for changed in compact_ablation.VARIANTS.values()]
    assert len({trained_runs.identity(run) for run in runs}) == len(runs)
    assert runs[0] == load_run(preset="compact")


@pytest.fixture(scope="module")
def compared() -> dict[str, dict[str, Any]]:
    """Showers of the same distribution; the same with half the spread of the response; wider by a quarter."""
    run: Any = SimpleNamespace(data=DATA, validation=Validation(bootstraps=50))
    real = make_showers(800, 1)
    samples = {
        "equal": make_showers(800, 2),
        "narrow": narrow_response(make_showers(800, 3)),
        "wide": make_showers(800, 4, width=1.25),
    }
    return {name: compact_ablation.compare_with(real, sample, run) for name, sample in samples.items()}


@pytest.mark.integration
def test_equal_showers_have_ratios_of_one(compared: dict[str, dict[str, Any]]) -> None:
    for name, found in compared["equal"].items():
        expected = 0.5 if name == "auc" else 1.0
        assert abs(found["value"] - expected) < 3.5 * found["uncertainty"], name
        assert 0 < found["uncertainty"] < 0.1


@pytest.mark.integration
def test_a_known_difference_is_its_ratio(compared: dict[str, dict[str, Any]]) -> None:
    narrow, wide = compared["narrow"], compared["wide"]
    # The spread within a range of energy has the slope of the response in it, which is not narrowed.
    assert narrow["responseSpread"]["value"] == pytest.approx(0.5, abs=0.1)
    assert narrow["response"]["value"] == pytest.approx(1, abs=0.01)
    for axis in "xy":
        assert 1.1 < wide[f"transverseWidth {axis}"]["value"] < 1.3
    assert wide["auc"]["value"] > 0.9 and wide["auc"]["showers"] == 400


def test_the_measured_angle_follows_the_primary_and_scatters_about_it() -> None:
    """Angles by hand: half the slope, and twice the scatter about a slope of one."""
    rng = np.random.default_rng(1)
    primary, scatter = rng.uniform(1.1, 2.0, 2000), rng.normal(0, 0.05, 2000)
    weights = np.concatenate([np.ones((1, 2000)), rng.multinomial(2000, np.full(2000, 1 / 2000), 20)])

    def sample(measured: np.ndarray) -> Any:
        observed = SimpleNamespace(empty=np.arange(2000) < 3, angle_rad=primary, angle_error_rad=measured - primary)
        return SimpleNamespace(observed=observed, weights=weights)

    real = sample(primary + scatter)
    shrunk = compact_ablation.angle_ratios(real, sample(1.5 + 0.5 * (primary - 1.5) + scatter))
    assert shrunk["angleSlope"]["value"] == pytest.approx(0.5, abs=0.02)
    wide = compact_ablation.angle_ratios(real, sample(primary + 2 * scatter))
    assert wide["angleSpread"]["value"] == pytest.approx(2, abs=1e-3)
    assert wide["angleSlope"]["value"] == pytest.approx(1, abs=0.02)


def test_the_interval_of_a_variant_has_bootstrap_and_seeds() -> None:
    found = [{"value": 0.9, "uncertainty": 0.03}, {"value": 1.1, "uncertainty": 0.04}]
    # Mean 1; standard deviation of the mean of two values .2 apart: .1; bootstrap .04.
    assert compact_ablation.pooled(found) == f"1.000 ± {1.96 * np.hypot(0.1, 0.04):.3f}"
    assert compact_ablation.pooled([{"value": None, "uncertainty": None}]) == "too few showers"


@pytest.mark.integration
def test_the_section_of_the_ablation(compared: dict[str, dict[str, Any]]) -> None:
    rows = [
        {"variant": variant, "seed": seed, "run": "r", "found": compared[name]}
        for variant, name in (("the preset", "equal"), ("no energy score", "narrow"))
        for seed in (1, 2)
    ]
    result = {"source": "geant4", "showers": 800, "overrides": [], "rows": rows, "machine": MACHINE_JSON}
    text = compact_ablation.section(result, "make bench BENCH=compact")
    assert "| no energy score | `train.energyScoreWeight=0` | 2 |" in text and "`make bench BENCH=compact`" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 4 and len({line.count("|") for line in lines}) == 1


def test_a_distance_and_its_null() -> None:
    """Gaussians: a shift of a quarter of the largest feature is found, equal samples are within the null."""
    rng = np.random.default_rng(1)
    real, alike, others, shifted = (rng.normal(mean, 1, (600, 4)) for mean in (0, 0, 0, 0.8))
    for measure in (fpd, kpd):
        equal, unequal = (physics_benchmark.distance(measure, real, one, others, seed=1) for one in (alike, shifted))
        assert equal["nullShowers"] == equal["showers"] == 600
        assert abs(equal["value"] - equal["null"]) < 5 * equal["nullUncertainty"]
        assert unequal["value"] - unequal["null"] > 10 * unequal["nullUncertainty"]
    few = physics_benchmark.distance(fpd, real, alike, others[:200], seed=1)
    assert few["nullShowers"] == 400


def test_what_was_measured_is_kept(tmp_path: Path) -> None:
    first = physics_benchmark.kept(tmp_path / "new", "dense", lambda: {"auc": 0.7})
    again = physics_benchmark.kept(tmp_path / "new", "dense", lambda: pytest.fail("measured again"))
    assert first == again and first["auc"] == 0.7 and first["seconds"] >= 0


def test_the_section_of_the_physics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = {"auc": 0.8768, "auc_uncertainty": 0.002, "jsd": 0.31, "epochs": 50, "best_epoch": 7}
    classifier |= {"parameters": 21_669_889, "showers": [6000, 2000, 2000], "seconds": 600}
    one = {"value": 0.5, "uncertainty": 0.01, "showers": 10000, "null": 0.01, "nullUncertainty": 0.001}
    found: dict[str, Any] = dict.fromkeys(physics_benchmark.JUDGES, classifier)
    found["distances"] = {"fpd": one | {"nullShowers": 10000}, "kpd": one | {"nullShowers": 10000}, "seconds": 60}
    result = {"source": "geant4", "showers": 10000, "trainingShowers": 9990, "epochs": 20, "cells": 7225}
    result |= {"energyGev": [5, 40], "overrides": [], "found": found, "machine": MACHINE_JSON}
    monkeypatch.setattr(benchmark, "RESULTS", tmp_path)
    (tmp_path / "physics.json").write_text(json.dumps(result))
    page = benchmark.write_page("# Title\n", benchmark.SECTIONS, [])
    assert "| **ours** (geant4) | 7,225 | 0.877 | 0.877 | 0.877 | 500 | 500 |" in page
    assert "| CaloDREAM | 6,480 | 0.531 | 0.521 | 0.681 | 24.7 | 0.02 |" in page
    assert (
        "0.8768 ± 0.0020" in page
        and "6,000 showers are 10 times fewer" in page
        and "`make bench BENCH=physics`" in page
    )
    assert benchmark.write_page(page, benchmark.SECTIONS, []) == page
