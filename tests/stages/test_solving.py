"""What a solved inverse problem states, with and without a truth, from one rank in this process."""

import json

import h5py
import numpy as np
import pytest

from caloscale.errors import InputError
from caloscale.sagips.rank import begin
from caloscale.sagips.rank import solve as solve_rank
from caloscale.sagips.saves import read_checkpoints
from caloscale.spec import load_solver_run
from caloscale.stages import solving
from tests.sagips.toy import Normal

BAYESIAN = ["optimizer=bayesian", "ranks=1", "objective=energy-distance", "parameterSamples=2", "eventsPerSample=16"]


class Unknown(Normal):
    """The toy problem, of which nobody knows the truth."""

    def __init__(self, events_per_sample: int) -> None:
        super().__init__(events_per_sample)
        self.truth = None


@pytest.mark.parametrize("known", [True, False])
def test_the_parameters_are_stated_with_and_without_a_truth(tmp_path, monkeypatch, capsys, known: bool) -> None:
    monkeypatch.setattr(solving, "solve_with_ranks", lambda run, folder, _: solve_rank(run.solver, folder, None))
    with h5py.File(tmp_path / "events.h5", "w") as file:
        file["events"] = np.random.default_rng(1).normal(0.6, 0.92, (500, 1))
    kind = "tests.sagips.toy.Normal" if known else f"{__name__}.Unknown"
    small = [f"dataSets=[{{environment: {kind}, source: {tmp_path / 'events.h5'}}}]", *BAYESIAN]
    small += ["epochs=6", "saveEvery=2", "maxMinutes=1e-9", "checkpoints=2"]
    run = load_solver_run(preset="proxy", overrides=[f"solver.{one}" for one in small])
    folder = solving.new_solver_folder(run, tmp_path / "runs", "one")
    summary = solving.solve_and_report(run, folder)
    solution = read_checkpoints(folder, 2, 1)[1][0].astype(float).mean(axis=0)
    assert summary.parameters.names == ("mean", "width") and summary.parameters.mean == pytest.approx(tuple(solution))
    residuals = tuple((np.array([0.65, 0.4]) - solution) / [0.65, 0.4])
    assert summary.residuals.mean == pytest.approx(residuals if known else ())
    assert summary.parameters.std is None and summary.residuals.std == (None if known else ())  # one generator
    solving.print_solution(folder)
    page, printed = (folder / "report.html").read_text(), capsys.readouterr().out
    assert f"mean {solution[0]:.3f}  width {solution[1]:.3f}" in printed and ("residuals" in printed) == known
    assert (
        "2 epochs, ended by solver.maxMinutes" in printed and json.loads(summary.as_json())["stopped"] == "maxMinutes"
    )
    assert (f"{solution[0]:.4f}" in page and "The truth is not known" in page) != known
    metrics, table = solving.validate_solution(run, folder, folder)
    assert "|  |" in table  # one generator has no spread: 0 would be an uncertainty
    assert metrics["residual-mean" if known else "parameter-mean"] == pytest.approx(
        (residuals if known else solution)[0]
    )
    assert f"{residuals[0]:+.4f}" in table if known else f"{solution[0]:.4f}" in table


def test_a_finished_run_that_would_not_resume_stays_as_it_is(tmp_path, monkeypatch) -> None:
    def in_this_process(run, folder, *_, check: bool = False) -> None:
        (begin if check else solve_rank)(run.solver, folder, None)

    def measure(mean: float) -> None:
        with h5py.File(tmp_path / "events.h5", "w") as file:
            file["events"] = np.random.default_rng(1).normal(mean, 0.92, (500, 1))

    def left() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    monkeypatch.setattr(solving, "solve_with_ranks", in_this_process)
    measure(0.6)
    small = [f"dataSets=[{{environment: tests.sagips.toy.Normal, source: {tmp_path / 'events.h5'}}}]", *BAYESIAN]
    run = load_solver_run(preset="proxy", overrides=[f"solver.{one}" for one in [*small, "epochs=2", "checkpoints=2"]])
    folder = solving.new_solver_folder(run, tmp_path / "runs", "one")
    solving.solve_and_report(run, folder)
    made = left()
    assert solving.new_solver_folder(run, tmp_path / "runs", "one") == folder and left() == made
    measure(0.7)
    with pytest.raises(InputError, match="has other measured events"):
        solving.new_solver_folder(run, tmp_path / "runs", "one")
    assert left() == made


def test_a_single_epoch_is_not_timed(tmp_path, monkeypatch, capsys) -> None:
    """It builds the graph: a time of 0 would be a rate of nothing."""
    monkeypatch.setattr(solving, "solve_with_ranks", lambda run, folder, _: solve_rank(run.solver, folder, None))
    sets = ", ".join(f"{{name: {name}, environment: tests.sagips.toy.Normal, events: 500}}" for name in "ab")
    small = [f"dataSets=[{sets}]", *BAYESIAN, "epochs=1", "checkpoints=2"]
    run = load_solver_run(preset="proxy", overrides=[f"solver.{one}" for one in small])
    folder = solving.new_solver_folder(run, tmp_path / "runs", "one")
    summary = solving.solve_and_report(run, folder)
    assert summary.seconds_per_epoch is summary.exchange_seconds_per_epoch is summary.analysis_rate is None
    assert summary.metrics == {"epochs": 1.0, "stale": 0.0, "dropped": 0.0}
    solving.print_solution(folder)
    page = (folder / "report.html").read_text()
    assert "not timed" in page and "not timed" in capsys.readouterr().out
    assert "64 events a rank and epoch" in page  # 2 x 16 of each data set
