"""`python -m tools.physics_benchmark` without a training: what is compared and printed."""

from pathlib import Path

import numpy as np
import pytest

from caloscale.physics.distances import Estimate, fpd, kpd
from caloscale.spec import load_run
from tools import held_out, physics_benchmark
from tools.classifiers import Judgement


def test_showers_that_the_run_was_trained_on_do_not_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["physics_benchmark", f"--run={tmp_path}", f"--held-out={tmp_path}/dataset/../dataset"]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit, match="2"):
        physics_benchmark.options()
    assert "was trained on these showers" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", [*arguments[:2], f"--held-out={tmp_path}/others"])
    assert physics_benchmark.options().showers == physics_benchmark.SHOWERS


@pytest.mark.integration
def test_showers_that_judge_are_none_that_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small parametrised simulation; shards are written once."""
    monkeypatch.setattr(held_out, "RUNS", tmp_path / "runs")
    monkeypatch.setenv("CALOSCALE_CACHE", str(tmp_path / "cache"))
    overrides = ["data.simulation.engine=parametrised", "data.simulation.showersPerFile=20"]
    run = load_run(preset="compact", overrides=[*overrides, "data.energyGev=[10, 20]"])
    showers = held_out.held_out_showers(40, run)
    assert 30 < len(showers) <= 40 and showers.source == "parametrised"
    assert showers.energy_gev.min() > 10 and showers.energy_gev.max() < 20
    assert load_run(preset="compact").data.seed != held_out.SEED
    monkeypatch.setattr(held_out, "preprocess_showers", lambda *_: pytest.fail("written again"))
    again = held_out.held_out_showers(40, run)
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
