"""The epochs of a rank, in this process, with an optimiser that records its calls."""

import hashlib
from pathlib import Path

import h5py
import numpy as np
import pytest

from caloscale.errors import CheckpointError, InputError, TrainingError
from caloscale.sagips import rank
from caloscale.sagips.optimizers import Step
from caloscale.sagips.rank import gpu_of_rank, solve
from caloscale.sagips.saves import (
    Progress,
    checkpoint_file,
    list_checkpoints,
    list_states,
    rank_folder,
    read_checkpoints,
    read_problem,
)
from caloscale.spec import Solver, dump_run, load_solver_run
from tests.sagips.recorder import CALLS, Recorder
from tests.sagips.toy import Normal


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


def solver(*overrides: str) -> Solver:
    own = ["solver.optimizer=tests.sagips.recorder.Recorder", "solver.ranks=1", "solver.checkpoints=2"]
    return load_solver_run(preset="proxy", overrides=[*own, "solver.analysisSamples=2", *overrides]).solver


def test_a_gradient_is_applied_in_its_epoch(tmp_path: Path) -> None:
    solve(solver("solver.epochs=4"), tmp_path, None)
    assert CALLS == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert list_checkpoints(tmp_path) == [0, 4]
    assert read_checkpoints(tmp_path, 4, 1)[1].tolist() == [[[4], [4]]]


def test_with_delay_a_gradient_is_applied_an_epoch_late_and_none_is_left_at_a_save(tmp_path: Path) -> None:
    solve(solver("solver.epochs=6", "solver.saveEvery=3", "solver.delay=1"), tmp_path, None)
    assert CALLS == [(1, 0), (2, 1), (2, 2), (4, 3), (5, 4), (5, 5)]


def test_minutes_end_a_run_at_a_save_and_a_longer_limit_resumes_it(tmp_path: Path) -> None:
    for _ in range(2):  # run again it has ended
        progress = solve(solver("solver.epochs=40", "solver.saveEvery=10", "solver.maxMinutes=1e-9"), tmp_path, None)
        assert (progress.stopped, progress.epoch) == ("maxMinutes", 10)
    assert list_checkpoints(tmp_path) == [0, 10]
    progress = solve(solver("solver.epochs=40", "solver.saveEvery=10"), tmp_path, None)
    assert (progress.stopped, progress.epoch) == ("epochs", 40)
    assert [gradient for _, gradient in CALLS] == list(range(40))
    assert list_states(rank_folder(tmp_path, 0)) == [30, 40]
    assert progress.history["epoch"] == list(range(1, 41))
    assert progress.exchanges == 39  # of epoch 0 nothing is exchanged


def test_a_run_that_is_done_computes_nothing_again(tmp_path: Path) -> None:
    solve(solver("solver.epochs=4"), tmp_path, None)
    last = checkpoint_file(tmp_path, 4, 0)
    copied = read_checkpoints(tmp_path, 4, 1)[1]
    last.unlink()  # it was damaged
    solve(solver("solver.epochs=4"), tmp_path, None)
    assert len(CALLS) == 4 and (read_checkpoints(tmp_path, 4, 1)[1] == copied).all()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_run_goes_on_with_the_events_that_it_began_with(tmp_path: Path, is_stopped: bool) -> None:
    """One that is done, too: its result is not that of other events."""
    file = tmp_path / "events.h5"
    measured = np.random.default_rng(1).normal(size=(50, 1))

    def run(minutes: str) -> Progress:
        data = f"solver.dataSets=[{{environment: tests.sagips.toy.Normal, source: {file}}}]"
        small = ["objective=energy-distance", "generator={width: 2, layers: 1, noise: 2}", "eventsPerSample=4"]
        small += ["parameterSamples=2", "ranks=1", "epochs=6", "saveEvery=2", "checkpoints=2", f"maxMinutes={minutes}"]
        return solve(
            load_solver_run(preset="proxy", overrides=[data, *map("solver.{}".format, small)]).solver, folder, None
        )

    folder = tmp_path / "run"
    write(file, measured)
    assert run("1e-9" if is_stopped else "null").epoch == (2 if is_stopped else 6)
    write(file, measured + 0.01)
    with pytest.raises(InputError, match="other measured events") as caught:
        run("null")
    assert (caught.value.field, caught.value.file) == ("solver.dataSets.0.source", str(file))
    write(file, measured)
    assert read_problem(folder).files == {"proxy": hashlib.sha256(file.read_bytes()).hexdigest()}
    assert run("null").epoch == 6


@pytest.mark.parametrize("is_stopped", [False, True])
@pytest.mark.parametrize("change", ["truth", "events"])
def test_a_run_goes_on_with_the_pipeline_that_it_began_with(
    tmp_path, monkeypatch, change: str, is_stopped: bool
) -> None:
    """The code of the user has changed: its residuals would be those of another problem."""
    small = ["optimizer=bayesian", "objective=energy-distance", "normTerms=false", "eventsPerSample=4", "epochs=6"]
    small += ["parameterSamples=2", "ranks=1", "saveEvery=2", "checkpoints=2"]
    data = "solver.dataSets=[{environment: tests.sagips.toy.Normal, events: 50}]"

    def run(minutes: str = "null") -> Progress:
        overrides = [data, *map("solver.{}".format, [*small, f"maxMinutes={minutes}"])]
        return solve(load_solver_run(preset="proxy", overrides=overrides).solver, tmp_path, None)

    assert run("1e-9" if is_stopped else "null").epoch == (2 if is_stopped else 6)
    before = read_problem(tmp_path)
    with monkeypatch.context() as changed:
        if change == "truth":
            changed.setattr(Normal.__init__, "__defaults__", ((0.65, 0.5),))
        else:
            changed.setattr(
                Normal,
                "__call__",
                lambda self, values, draws, make=Normal.__call__: {
                    name: 1.1 * tensor for name, tensor in make(self, values, draws).items()
                },
            )
        with pytest.raises(InputError, match="another truth, or makes other events") as caught:
            run()
    assert (caught.value.field, read_problem(tmp_path)) == ("solver.dataSets.0.environment", before)
    assert run().epoch == 6


def write(file: Path, events: np.ndarray) -> None:
    with h5py.File(file, "w") as opened:
        opened["events"] = events


@pytest.mark.parametrize("gradient", [[np.nan], []])
def test_a_run_without_a_finite_gradient_or_value_has_no_result(tmp_path: Path, monkeypatch, gradient: list) -> None:
    monkeypatch.setattr(Recorder, "step", lambda self, epoch: Step({"generator": np.nan}, np.float32(gradient)))
    monkeypatch.setattr(Recorder, "apply", lambda *_: None)
    for _ in range(2):  # also when it resumes at its end
        with pytest.raises(TrainingError, match="no gradient of the 4 epochs was finite"):
            solve(solver("solver.epochs=4"), tmp_path, None)


@pytest.mark.parametrize(
    ("offset", "old", "new"),
    [(0, b"PK\x03\x04", b""), (10, b"PK\x01\x02", b"c"), (0, b"progress", b"P")],
    ids=["empty", "compressed by a method that zipfile does not know", "without progress"],
)
def test_a_damaged_save_is_named(tmp_path: Path, offset: int, old: bytes, new: bytes) -> None:
    solve(solver("solver.epochs=4"), tmp_path, None)
    file = rank_folder(tmp_path, 0) / "state-00000004.npz"
    content, place = file.read_bytes(), 0
    while new and (place := content.find(old, place + 1)) > 0:
        content = content[: place + offset] + new + content[place + offset + 1 :]
    file.write_bytes(content if new else b"")
    with pytest.raises(CheckpointError, match=r"state-00000004.npz: cannot be read") as caught:
        solve(solver("solver.epochs=8"), tmp_path, None)
    assert caught.value.remedy


def test_an_error_of_an_optimizer_of_ones_own_is_no_damaged_save(tmp_path: Path, monkeypatch) -> None:
    solve(solver("solver.epochs=4"), tmp_path, None)
    monkeypatch.setattr(Recorder, "restore", lambda self, state: state["momentum"])
    with pytest.raises(KeyError, match="momentum"):
        solve(solver("solver.epochs=8"), tmp_path, None)


def test_each_rank_of_a_node_has_a_gpu_of_its_own_as_long_as_there_are_enough() -> None:
    assert [gpu_of_rank(("a", "b", "c", "d"), rank) for rank in range(6)] == ["a", "b", "c", "d", "a", "b"]
    assert gpu_of_rank((), 3) is None


@pytest.mark.parametrize("code", ["no calibration of 1995", 0])
def test_a_pipeline_that_ends_by_sys_exit_is_an_error(tmp_path: Path, monkeypatch, capsys, code) -> None:
    """And no rank that was lost, whose run is tried again, or that has solved."""

    def leave(*_: object) -> None:
        raise SystemExit(code)

    (tmp_path / "run.yaml").write_text(dump_run(load_solver_run(preset="proxy")))
    monkeypatch.setattr(rank, "_load_tensorflow", lambda _: None)
    monkeypatch.setattr(rank, "solve", leave)
    with pytest.raises(SystemExit) as ended:
        rank.main(tmp_path)
    assert ended.value.code == 1 and f"SystemExit: {code}" in capsys.readouterr().out
