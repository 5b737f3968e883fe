"""Residuals of ensembles against closed forms."""

from pathlib import Path

import numpy as np
import pytest

from caloscale.errors import InputError
from caloscale.sagips.ensemble import (
    ensemble_of,
    parameters_of,
    read_solved,
    residuals_over_time,
    same_kind,
    sub_ensembles,
)
from caloscale.sagips.saves import Problem, write_checkpoint, write_problem
from caloscale.spec import Solver, dump_run, load_solver_run

TRUTH = (0.5, 0.25)


def test_residuals_of_proposals_that_are_known(tmp_path: Path) -> None:
    """Two generators, two noise vectors: mean 0.4 for a truth of 0.5, generators 0.1 apart, noise 0.2 apart."""
    proposals = np.array([[[0.25], [0.45]], [[0.35], [0.55]]], np.float32)
    for rank, own in enumerate(proposals):
        write_checkpoint(tmp_path, rank, 3, 1.0 + rank, own, {})
    write_checkpoint(tmp_path, 0, 4, 2.0, proposals[0], {})  # rank 1 has not written it yet
    (found,) = residuals_over_time(tmp_path, [0.5], Solver(ranks=2))
    assert (found.epoch, found.seconds) == (3, 1.5) and found.mean == pytest.approx([0.2])
    assert found.spread == pytest.approx([0.05 / 0.5]) and found.noise == pytest.approx([0.1 / 0.5])
    mean, spread = parameters_of([0.5], found.mean, found.spread)
    assert mean == pytest.approx([0.4]) and spread == pytest.approx([0.05])
    # One generator, or ranks with the same one, have no spread: 0 would be an uncertainty.
    for alone in (Solver(ranks=1), Solver(ranks=2, exchange="all-reduce")):
        assert residuals_over_time(tmp_path, None, alone)[0].spread is None


def test_resampling_gives_the_standard_error_of_the_mean() -> None:
    random = np.random.default_rng(1)
    offsets = random.normal(0, 0.05, (100, 1, 2))
    found = ensemble_of(TRUTH, np.array(TRUTH) + offsets + np.zeros((1, 7, 1)))
    assert found.members == 100
    np.testing.assert_allclose(found.mean, -offsets.mean(axis=(0, 1)) / TRUTH, rtol=1e-9)
    np.testing.assert_allclose(found.spread, offsets.std(axis=0)[0] / TRUTH, rtol=1e-9)
    np.testing.assert_allclose(found.mean_uncertainty, found.spread / 10, rtol=0.15)
    np.testing.assert_allclose(found.rmse, np.sqrt((offsets**2).mean(axis=0)[0]) / TRUTH, rtol=1e-9)


def test_sub_ensembles_of_independent_members_have_residuals_that_fall_with_the_root_of_their_size() -> None:
    offsets = np.random.default_rng(1).normal(0, 0.05, (200, 1, 2))
    found = sub_ensembles(TRUTH, np.array(TRUTH) + offsets + np.zeros((1, 7, 1)))
    assert list(found) == [1, 2, 4, 8, 16, 32, 64, 128]
    expected = np.mean(0.05 / np.array(TRUTH)) * np.sqrt(2 / np.pi)  # mean of the absolute of a normal number
    for size in (1, 4, 16):
        assert found[size][0] == pytest.approx(expected / np.sqrt(size), rel=0.15)
    assert found[16][1] < found[1][1]
    # A sub-ensemble of all members has no deviation.
    members = np.array([0.2, 0.4])[:, np.newaxis, np.newaxis] * np.ones((1, 3, 2))
    assert sub_ensembles(TRUTH, members)[2] == pytest.approx(((0.4 + 0.2) / 2, 0.0))  # 0.3 of 0.5 and of 0.25
    assert ensemble_of(TRUTH, members).covered == 1  # 0.3 +- 0.1 covers 0.25, and not 0.5


def test_an_ensemble_without_a_truth_has_parameters_and_no_residuals() -> None:
    """Members at 0.2 and 0.4. The mean of two draws is 0.2, 0.3, 0.3 or 0.4: a deviation of 0.1 over the root of 2."""
    members = np.array([0.2, 0.4])[:, np.newaxis, np.newaxis] * np.ones((1, 3, 2))
    for truth in (None, TRUTH):
        found = ensemble_of(truth, members).as_values()
        assert found["parameters"]["mean"] == pytest.approx([0.3, 0.3])
        assert found["parameters"]["std"] == pytest.approx([0.1, 0.1])
    unknown = ensemble_of(None, members).as_values()
    assert unknown["uncertainty"]["mean"] == pytest.approx([0.1 / 2**0.5] * 2, rel=0.1)
    assert [unknown[name] for name in ("residuals", "covered", "rmse", "meanAbsolute")] == [None] * 4
    assert ensemble_of(None, members[:1]).as_values()["parameters"]["std"] is None


def write_run(
    folder: Path,
    seed: int,
    exchange: str,
    values: list[float],
    truth: tuple[float, ...] | None = TRUTH,
    sample: float = 1.0,
    **files: str,
) -> Path:
    """A run whose ranks propose these values for both parameters. sample: what its pipeline makes."""
    folder.mkdir()
    overrides = [f"solver.seed={seed}", f"solver.exchange={exchange}", f"solver.ranks={len(values)}"]
    (folder / "run.yaml").write_text(dump_run(load_solver_run(preset="proxy", overrides=overrides)))
    write_problem(folder, Problem(("a", "b"), truth, samples=((sample,),), files=files))
    for epoch in (0, 10):
        for rank, value in enumerate(values):
            write_checkpoint(folder, rank, epoch, 2.0 * epoch, np.full((3, 2), value, np.float32), {})
    return folder


def test_ranks_that_exchange_are_one_member_and_seeds_are_one_ensemble(tmp_path: Path) -> None:
    runs = [
        read_solved(write_run(tmp_path / "a", 1, "ring", [0.2, 0.4])),
        read_solved(write_run(tmp_path / "b", 2, "ring", [0.5, 0.7])),
        read_solved(write_run(tmp_path / "c", 1, "none", [0.2, 0.4])),
    ]
    assert [run.members[:, 0, 0].tolist() for run in runs] == [
        [pytest.approx(0.3)],
        [pytest.approx(0.6)],
        [pytest.approx(0.2), pytest.approx(0.4)],
    ]
    assert [run.between_ranks for run in runs] == pytest.approx([0.3, 0.3, 0.3])  # 0.1 x (1/0.5 + 1/0.25) / 2
    assert read_solved(tmp_path / "a", epoch=0).epochs == 0
    runs.append(read_solved(write_run(tmp_path / "d", 3, "ring", [0.5, 0.7], (0.5, 0.5))))
    runs.append(read_solved(write_run(tmp_path / "e", 4, "ring", [0.5, 0.7], None)))
    runs.append(read_solved(write_run(tmp_path / "f", 5, "ring", [0.5, 0.7], None, proxy="another hash")))
    runs.append(read_solved(write_run(tmp_path / "g", 6, "ring", [0.5, 0.7], None, 1.1)))
    runs.append(read_solved(write_run(tmp_path / "h", 7, "ring", [0.5, 0.7], None, 1.10001)))
    names = [[Path(run.name).name for run in group] for group in same_kind(runs)]
    # Residuals of another truth, and parameters of other measured events or pipelines, are not of the same ensemble.
    assert names == [["a", "b"], ["c"], ["d"], ["e"], ["f"], ["g", "h"]]
    assert runs[4].between_ranks is None
    with pytest.raises(InputError, match=r"a and .*a are the same run"):
        same_kind([*runs, read_solved(tmp_path / "a")])
    write_checkpoint(tmp_path / "b", 0, 20, 9.0, np.zeros((3, 2), np.float32), {})  # rank 1 has not written it yet
    assert read_solved(tmp_path / "b").epochs == 10
    assert [r.epoch for r in residuals_over_time(tmp_path / "a", TRUTH, Solver(ranks=2))] == [0, 10]
    assert residuals_over_time(tmp_path / "a", TRUTH, Solver(ranks=2))[-1].mean == pytest.approx([0.4, -0.2])


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run"):
        read_solved(tmp_path)
    folder = write_run(tmp_path / "a", 1, "ring", [0.2])
    with pytest.raises(InputError, match="no such checkpoint"):
        read_solved(folder, epoch=7)
