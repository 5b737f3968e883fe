"""Ranks that drift and are killed at any point resume within the interval of saving. Each rank is a thread of this
process that runs the real epochs and saves; a schedule says which one continues."""

import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import caloscale.sagips.optimizers as optimizers
import caloscale.sagips.rank as rank_module
from caloscale.errors import CheckpointError
from caloscale.sagips import exchange
from caloscale.sagips.optimizers import Step
from caloscale.sagips.rank import solve
from caloscale.sagips.saves import common_epoch, rank_folder, saved_epochs, write_state
from caloscale.spec import Solver, load_solver_run
from tests.sagips.recorder import Recorder

RANKS, EPOCHS = 2, 7


@cache
def solver_of(save_every: int) -> Solver:
    overrides = ["solver.optimizer=tests.sagips.recorder.Recorder", "solver.analysisSamples=2", "solver.exchange=none"]
    overrides += [f"solver.ranks={RANKS}", f"solver.epochs={EPOCHS}", "solver.checkpoints=2"]
    return load_solver_run(preset="proxy", overrides=[*overrides, f"solver.saveEvery={save_every}"]).solver


class Killed(BaseException):
    """The rank was killed."""


class World:
    """Ranks that continue when it is their turn. It is the communicator of all of them, seen by `rank`."""

    size = RANKS

    def __init__(self, folder: Path) -> None:
        self.folder, self.killed = folder, False
        self.done = [0] * RANKS
        self.wrote: list[set[int]] = [set() for _ in range(RANKS)]
        self.errors: list[Exception] = []
        self._turns = [threading.Semaphore(0) for _ in range(RANKS)]
        self._paused = threading.Semaphore(0)
        self._meetings = [0] * RANKS
        self._said: list[list[object]] = [[] for _ in range(RANKS)]
        self._local = threading.local()

    @property
    def rank(self) -> int:
        return self._local.rank

    def pause(self) -> None:
        self._paused.release()
        self._turns[self.rank].acquire()
        if self.killed:
            raise Killed

    def Ibarrier(self) -> None:
        self._meetings[self.rank] += 1
        while min(self._meetings) < self._meetings[self.rank]:
            self.pause()

    def allgather(self, value: object) -> list[object]:
        said = self._said[self.rank]
        said.append(value)
        self.Ibarrier()
        return [others[len(said) - 1] for others in self._said]

    def run(self, schedule: Sequence[int], save_every: int) -> list[int]:
        """Continue in this order, then kill all ranks; epochs that each has done."""
        solver, ended = solver_of(save_every), [False] * RANKS

        def run_rank(rank: int) -> None:
            self._local.rank = rank
            try:
                self._turns[rank].acquire()
                if not self.killed:
                    solve(solver, self.folder, self)
            except Killed:
                pass
            except Exception as error:
                self.errors.append(error)
            finally:
                ended[rank] = True
                self._paused.release()

        threads = [threading.Thread(target=run_rank, args=(rank,)) for rank in range(RANKS)]
        for thread in threads:
            thread.start()
        for rank in schedule:
            if not ended[rank]:
                self._turns[rank].release()
                self._paused.acquire()
        self.killed = True
        for turn in self._turns:
            turn.release()
        for thread in threads:
            thread.join()
        return self.done


@pytest.fixture(scope="module", autouse=True)
def world():
    """The world that the ranks of the present test are in, as the only item of a list."""
    present: list[World] = []

    class Paused(Recorder):
        def step(self, epoch: int) -> Step:
            present[0].pause()
            return super().step(epoch)

        def apply(self, gradient: np.ndarray, step: Step, epoch: int) -> None:
            super().apply(gradient, step, epoch)
            present[0].done[present[0].rank] = epoch + 1

    def paused_write(*arguments) -> None:
        present[0].pause()
        write_state(*arguments)
        present[0].wrote[present[0].rank].add(arguments[1].epoch)
        present[0].pause()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_module.saves, "write_state", paused_write)
        patch.setattr(exchange, "wait", lambda requests: None)
        patch.setattr(optimizers, "load_class", lambda name, field: Paused)
        yield present


bursts = st.lists(st.tuples(st.integers(0, RANKS - 1), st.integers(1, 6)), max_size=16)
schedules = st.lists(
    bursts.map(lambda several: [rank for rank, turns in several for _ in range(turns)]), min_size=1, max_size=3
)


@settings(max_examples=50, deadline=None)
@given(schedules=schedules, intervals=st.lists(st.integers(1, 3), min_size=3, max_size=3))
def test_ranks_that_drift_and_are_killed_resume_within_the_interval_of_saving(world, schedules, intervals) -> None:
    with TemporaryDirectory() as name:
        folder, reached = Path(name), 0
        for schedule, every in zip([*schedules, [*range(RANKS)] * 200], [*intervals, 2]):
            world[:] = [present := World(folder)]
            done = present.run(schedule, every)
            assert present.errors == []
            resumed = common_epoch(saved_epochs(folder, RANKS))
            assert resumed is not None and resumed >= reached
            assert max(done) - resumed <= every
            # All states of this epoch are of one attempt: this one, or the one before.
            assert resumed == 0 or len({resumed in epochs for epochs in present.wrote}) == 1
            reached = resumed
        assert reached == EPOCHS


@pytest.mark.parametrize(
    ("saved", "seen", "epoch"),
    [
        ([[], []], [], 0),
        ([[0], []], [0], 0),
        ([[0, 10], [0]], [], 0),
        ([[10, 20], [20, 30]], [], 20),
        ([[180, 190], [10, 20]], [], None),
        ([[10, 20], []], [10, 20], None),
        ([[0, 10], []], [], None),
        ([[], []], [10, 20], None),
    ],
)
def test_a_run_whose_ranks_have_no_epoch_in_common_begins_only_where_nothing_is_lost(saved, seen, epoch) -> None:
    assert common_epoch(saved, seen) == epoch


def test_ranks_that_lack_their_states_refuse_to_begin_anew(world, tmp_path: Path) -> None:
    world[:] = [first := World(tmp_path)]
    first.run([*range(RANKS)] * 200, 2)
    rank_folder(tmp_path, 1).rename(tmp_path / "elsewhere")
    world[:] = [second := World(tmp_path)]
    second.run([*range(RANKS)] * 200, 2)
    assert len(second.errors) == RANKS and all(isinstance(error, CheckpointError) for error in second.errors)
    assert "rank 1 lacks what others have" in str(second.errors[0]) and "--name" in str(second.errors[0])
