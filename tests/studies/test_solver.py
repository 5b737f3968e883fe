"""The studies of the solver: each at tiny size, with runs whose residuals are known, and one with real ranks."""

import datetime as dt
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caloscale.errors import ConfigurationError, RankLostError
from caloscale.sagips.saves import Problem, Progress, rank_folder, write_checkpoint, write_problem, write_record
from caloscale.spec import SolverRun
from caloscale.studies import measures, solver
from caloscale.studies.conclusions import crossing
from caloscale.studies.measures import Context
from caloscale.studies.report import Outcome, run_study
from caloscale.studies.runner import run_points
from caloscale.studies.sweep import Study, load_study

TRUTH = (0.5, 0.25, 0.5, 0.5, 0.5, 0.5)
VARY = ({"solver.learningRateScaling": ("linear",), "solver.normTerms": (True,)},)
CONTEXT = Context(dt.date(2026, 11, 21))
STUDIES = ["convergence", "weak-scaling", "strong-scaling", "ensemble", "outer-frequency"]


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> list[SolverRun]:
    """Instead of a training: rank r of seed s proposes the truth times (1 - e), with e = s (r + 1) / 100 at the end,
    and five times that in the middle. The middle is at 10 s, the end at 20 s; more ranks are slower by as many seconds.
    """
    runs: list[SolverRun] = []

    def solve(run: SolverRun, folder: Path) -> None:
        runs.append(run)
        ranks, epochs = run.solver.ranks, run.solver.epochs
        truth = None if run.solver.data_sets[0].source != "truth" else TRUTH
        write_problem(folder, Problem(tuple("abcdef"), truth))
        for rank in range(ranks):
            for epoch, part, error in ((0, 0, 50), (epochs // 2, 1, 5), (epochs, 2, 1)):
                factor = 1 - error * run.solver.seed * (rank + 1) / 100
                proposals = np.tile(np.array(TRUTH, np.float32) * factor, (3, 1))
                write_checkpoint(folder, rank, epoch, part * (9.0 + ranks), proposals, {})
            write_record(rank_folder(folder, rank), Progress(epochs, processor_seconds=6.0, timed_epochs=3))
        summary = {"ranks": ranks, "exchange": run.solver.exchange, "groups": run.solver.groups, "epochs": epochs}
        speed = {"secondsPerEpoch": run.solver.seed, "exchangeSecondsPerEpoch": 0.5, "analysisRate": 100 * ranks}
        (folder / "summary.json").write_text(json.dumps(summary | speed | {"stale": 2, "dropped": 1}))

    monkeypatch.setattr(solver, "solve", solve)
    return runs


def of_sweep(study: Study, name: str, **given: Any) -> Study:
    """The study with this sweep alone, and other inputs."""
    (sweep,) = (sweep for sweep in study.sweeps if sweep.name == name)
    changed = sweep.model_copy(update={"given": sweep.given | given})
    return study.model_copy(update={"sweeps": (changed,)})


def rings(outer_every: Sequence[int] = (1, 5, 10), **given: Any) -> Study:
    """Points of the study of the outer frequency, by grouped rings alone."""
    study = of_sweep(load_study("sagips-outer-frequency"), "outer", **given)
    vary = ({"solver.exchange": ("grouped-ring",)}, {"solver.outerEvery": tuple(outer_every)})
    return study.model_copy(update={"sweeps": (study.sweeps[0].model_copy(update={"vary": vary}),)})


def rows_of(outcome: Outcome, sweep: str) -> list[dict[str, Any]]:
    (found,) = (table for table in outcome.tables if table.sweep.name == sweep)
    return found.values


@pytest.mark.integration
@pytest.mark.parametrize("name", STUDIES)
def test_each_study_makes_its_tables(solved: list[SolverRun], tmp_path: Path, name: str) -> None:
    """Every point is a valid configuration, and every column is in the result."""
    study = load_study(f"sagips-{name}")
    fewer = [
        sweep
        if sweep.name in ("truth", "small")  # sub-ensembles need the members
        else sweep.model_copy(update={"given": sweep.given | {"seeds": [1, 2]}})
        for sweep in study.sweeps
    ]
    study = study.model_copy(update={"sweeps": tuple(fewer)})
    outcome = run_study(study, CONTEXT, tmp_path, "x")
    configurations = {run.model_dump_json() for run in solved}
    assert len(configurations) == len(solved) > 0
    for sweep in study.sweeps:
        found = rows_of(outcome, sweep.name)
        assert len(found) == len(sweep.points())
        assert all(row[column] is not None for row in found for column in row if "±" not in column)
    run_study(study, CONTEXT, tmp_path, "x")
    assert len(configurations) == len(solved)


def test_equal_epochs_and_equal_seconds_share_their_runs(solved: list[SolverRun], tmp_path: Path) -> None:
    """Seeds 1 and 2 of two ranks: residuals 0.015 and 0.03, so the mean is 0.0225, with an uncertainty of 0.0075 over
    the root of 2 (the standard error of two members by resampling). At 12 s both are in the middle, five times as far.
    """
    study = load_study("sagips-convergence")
    one = {"solver.ranks": 2, "solver.groups": 1, "solver.epochs": 1500, "seeds": [1, 2]}
    sweeps = tuple(
        sweep.model_copy(update={"given": sweep.given | one | changed, "vary": VARY})
        for sweep, changed in zip(study.sweeps, ({}, {"withinSeconds": 12}))
    )
    outcome = run_study(study.model_copy(update={"sweeps": sweeps}), CONTEXT, tmp_path, "x")
    assert [run.solver.seed for run in solved] == [1, 2]
    (end,), (middle,) = rows_of(outcome, "equal-epochs"), rows_of(outcome, "equal-seconds")
    assert (end["runs"], end["epoch"], end["wall s"]) == (2, 1500, 22)
    assert (middle["epoch"], middle["wall s"]) == (750, 11)
    assert [end["p0"], end["mean abs residual"], end["of a run"]] == pytest.approx([0.0225] * 3, rel=1e-5)
    assert end["± p1"] == pytest.approx(0.0075 / 2**0.5, rel=0.1)
    assert end["between ranks"] == pytest.approx((0.005 + 0.01) / 2, rel=1e-5)
    assert middle["p5"] == pytest.approx(5 * 0.0225, rel=1e-5)


def test_one_run_has_no_uncertainty(solved: list[SolverRun], tmp_path: Path) -> None:
    study = of_sweep(load_study("sagips-convergence"), "equal-epochs", seeds=[3])
    assert {row["± p0"] for row in rows_of(run_study(study, CONTEXT, tmp_path, "x"), "equal-epochs")} == {None}


def test_measured_events_without_a_truth_have_a_solution_and_no_residuals(
    solved: list[SolverRun], tmp_path: Path
) -> None:
    """Seeds 1 and 2 of one rank: factors 0.99 and 0.98 of the proposals."""
    measured = {"solver.dataSets": [{"source": "events.h5"}], "seeds": [1, 2]}
    study = load_study("sagips-strong-scaling").changed({**measured, "solver.ranks": [1, 2], "solver.groups": [1, 1]})
    columns = study.sweeps[0].columns | {"value": "parameters.mean.1", "±": "parameters.std.1"}
    study = study.model_copy(update={"sweeps": (study.sweeps[0].model_copy(update={"columns": columns}),)})
    outcome = run_study(study, CONTEXT, tmp_path, "x")
    row = rows_of(outcome, "time")[0]
    assert [row["value"], row["±"]] == pytest.approx([0.25 * 0.985, 0.25 * 0.005], rel=1e-5)
    assert row["mean abs residual"] is None and outcome.statements == []
    assert "The truth is not known" in (tmp_path / "study.md").read_text()


@pytest.mark.parametrize(("name", "sweep"), [("ensemble", "truth"), ("outer-frequency", "outer")])
def test_a_table_or_a_figure_of_residuals_alone_needs_a_truth_at_the_first_point(
    solved: list[SolverRun], tmp_path: Path, name: str, sweep: str
) -> None:
    study = of_sweep(load_study(f"sagips-{name}"), sweep, seeds=[1], **{"solver.dataSets": [{"source": "events.h5"}]})
    with pytest.raises(ConfigurationError, match=f"sweep {sweep}: columns: show residuals, and the truth is not known"):
        run_points(study, CONTEXT, tmp_path)
    assert len(solved) == 1


def test_repetitions_without_another_seed_would_be_the_same_run(solved: list[SolverRun], tmp_path: Path) -> None:
    study = of_sweep(load_study("sagips-strong-scaling"), "time").changed({"repetitions": 2})
    with pytest.raises(ConfigurationError, match=r"sweeps\.time\.repetitions: would show the same runs"):
        run_points(study, CONTEXT, tmp_path)
    (sweep,) = study.sweeps
    given = {name: value for name, value in sweep.given.items() if name != "seeds"}
    sweep = sweep.model_copy(update={"seed": "solver.seed", "given": given})
    assert not solved and run_points(study.model_copy(update={"sweeps": (sweep,)}), CONTEXT, tmp_path)
    assert {run.solver.seed for run in solved} == {1, 2}


def test_sizes_of_sub_ensembles_that_fewer_solvers_do_not_have_are_absent(
    solved: list[SolverRun], tmp_path: Path
) -> None:
    """Two seeds of two ranks are four solvers: there are several draws of two of them, one of all, and none of 16."""
    study = of_sweep(load_study("sagips-ensemble"), "truth", **{"seeds": [1, 2], "solver.ranks": 2})
    (row,) = rows_of(run_study(study, CONTEXT, tmp_path, "x"), "truth")
    assert row["± of 2"] > 0 and row["of 4, drawn"] == row["mean abs residual"] and row["± of 4"] is None
    assert row["of 16, drawn"] is row["± of 16"] is None


def test_a_study_that_was_interrupted_solves_only_what_is_left(
    solved: list[SolverRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second seed of a point is interrupted; the first is kept, although the point has no result yet."""
    working: Callable[[SolverRun, Path], None] = solver.solve

    def interrupted(run: SolverRun, folder: Path) -> None:
        if len(solved) == 3:
            raise KeyboardInterrupt
        working(run, folder)

    study = rings()
    monkeypatch.setattr(solver, "solve", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_study(study, CONTEXT, tmp_path, "x")
    monkeypatch.setattr(solver, "solve", working)
    run_study(study, CONTEXT, tmp_path, "x")
    assert len(solved) == len({run.model_dump_json() for run in solved}) == 6


def test_a_rank_that_is_killed_costs_its_point_alone(
    solved: list[SolverRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    working: Callable[[SolverRun, Path], None] = solver.solve

    def killed(run: SolverRun, folder: Path) -> None:
        if run.solver.exchange == "grouped-ring" and run.solver.outer_every == 5:
            raise RankLostError(1, 9, 20, folder / "ranks.log")
        working(run, folder)

    study = rings(seeds=[1])
    monkeypatch.setattr(solver, "solve", killed)
    points = run_points(study, CONTEXT, tmp_path)["outer"]
    (lost,) = (point.error for point in points if point.error is not None)
    assert isinstance(lost, RankLostError) and "rank 1 was killed by signal 9" in str(lost)
    assert (
        lost.file is not None and lost.file.startswith("sweep outer, point") and '"solver.outerEvery": 5' in lost.file
    )
    monkeypatch.setattr(solver, "solve", working)
    assert all(point.error is None for point in run_points(study, CONTEXT, tmp_path)["outer"])
    assert len(solved) == 3


def test_statements_about_ranks_at_equal_time(solved: list[SolverRun], tmp_path: Path) -> None:
    """More ranks are slower and further from the truth here, so they never cross."""
    statements = run_study(load_study("sagips-strong-scaling"), CONTEXT, tmp_path, "x").statements
    assert [statement.claim[:7] for statement in statements] == ["2 ranks", "4 ranks"] * 2
    assert all("not within the 20 s" in statement.finding for statement in statements)


@pytest.mark.parametrize(
    ("residuals", "expected"),
    [((9, 0.5, 0.1), 2), ((9, 0.5, 0.7), None), ((9, 1.5, 0.4), 4), ((9, 0.9, 0.4), 2), ((9, 1.1, 1.2), None)],
)
def test_crossing_of_two_curves(residuals: tuple[float, ...], expected: float | None) -> None:
    """One rank: 1 at 2 s and 0.6 at 4 s; several are compared at 2 s and 4 s, and their checkpoint at 0 s is not."""
    one = [{"seconds": s, "meanAbsolute": r} for s, r in ((0, 2), (2, 1), (4, 0.6))]
    many = [{"seconds": s, "meanAbsolute": r} for s, r in zip((0, 2, 4), residuals)]
    assert crossing([*many, {"seconds": 9, "meanAbsolute": 0}], one) == expected


def test_another_version_solves_again(solved: list[SolverRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = rings([5], seeds=[1])
    for version in ("1", "1", "2"):
        for module in (measures, solver):
            monkeypatch.setattr(module, "__version__", version)
        run_points(study, CONTEXT, tmp_path)
    assert len(solved) == 2


@pytest.mark.parametrize("given", [{"solver.seed": 7}, {"solver": {"seed": 7}}])
def test_a_seed_that_the_seeds_would_replace_is_refused(
    solved: list[SolverRun], tmp_path: Path, given: dict[str, object]
) -> None:
    with pytest.raises(ConfigurationError, match=r"(?s)solver\.seed: is given, and seeds, too \(got 7\).*seeds: \[7\]"):
        solver.solve_ensemble({**given, "seeds": [1, 2]}, tmp_path)
    assert not solved and solver.solve_ensemble(given, tmp_path)["members"] == 1


@pytest.mark.parametrize("seeds", [[], [1, 1], 3, ["a"]])
def test_seeds_that_cannot_be(tmp_path: Path, seeds: object) -> None:
    study = rings(seeds=seeds)
    with pytest.raises(ConfigurationError, match=r"point .*: seeds") as caught:
        run_study(study, CONTEXT, tmp_path, "x")
    assert caught.value.remedy


@pytest.mark.long
def test_a_study_with_real_ranks(tmp_path: Path) -> None:
    """Two ranks of a toy problem."""
    toy = {"solver.dataSets": [{"environment": "tests.sagips.toy.Normal", "events": 500}]}
    tiny = {"solver.objective": "energy-distance", "solver.epochs": 20, "solver.parameterSamples": 4, "seeds": [5]}
    study = rings([3], **toy, **tiny, **{"solver.ranks": 2})
    (row,) = rows_of(run_study(study, CONTEXT, tmp_path, "x"), "outer")
    assert row["exchange"] == "grouped-ring" and row["outer every"] == 3
    assert np.isfinite(row["mean abs residual"]) and row["exchange s/epoch"] > 0
