"""One rank of a solver: `python -m caloscale.sagips.rank FOLDER`, started by `caloscale.sagips.launch`.

It reads FOLDER/run.yaml, resumes from the newest epoch that all ranks have saved, and writes its progress as lines that
begin with `REPORT` to the standard output. With a further argument, `CHECK`, it ends when it would resume.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from caloscale.errors import CaloscaleError, CheckpointError, InputError, TrainingError
from caloscale.sagips import saves
from caloscale.spec import Solver, load_solver_run
from caloscale.spec.solver import GROUPED
from caloscale.tensorflow_import import load_tensorflow_quietly

if TYPE_CHECKING:
    from mpi4py import MPI

    from caloscale.sagips.exchange import Exchange
    from caloscale.sagips.optimizers import Optimizer, Step
    from caloscale.sagips.remote_memory import Floats

T = TypeVar("T")
REPORT = "@rank "
CHECK = "check"
_BETWEEN_REPORTS = 0.5
"""Seconds between two lines of progress."""
_NOTED = 500
"""Points of the loss curves."""


def main(folder: Path, mode: str = "") -> None:
    """Solve as one rank, or `CHECK`. An error is reported as a line, and ends all ranks with its exit code."""
    communicator = _communicator()
    rank = communicator.rank if communicator else 0
    try:
        solver = load_solver_run(folder / "run.yaml").solver
        for index, data in enumerate(solver.data_sets):
            if data.source != "truth" and not Path(data.source).is_file():  # before TensorFlow is loaded: seconds
                problem, remedy = "does not exist on this machine", "copy it to this path on the machine of each rank"
                field = f"solver.dataSets.{index}.source"
                raise InputError(problem, file=data.source, field=field, remedy=remedy)
        _load_tensorflow(solver)
        (begin if mode == CHECK else solve)(solver, folder, communicator)
    except CaloscaleError as error:
        fields: dict[str, Any] = {name: getattr(error, name) for name in ("problem", "file", "field", "remedy")}
        fields["value"] = error.value if isinstance(error.value, str | int | float | None) else str(error.value)
        _fail(communicator, rank, error.exit_code, fields)
    except (Exception, SystemExit) as error:  # a pipeline may end by sys.exit: no rank that was lost
        traceback.print_exc()
        _fail(communicator, rank, 1, {"problem": f"{type(error).__name__}: {error}"})


def _communicator() -> MPI.Intracomm | None:
    """The communicator of all ranks; None for a rank that was started alone, without MPI."""
    if "OMPI_COMM_WORLD_SIZE" not in os.environ and "PMIX_RANK" not in os.environ:
        return None
    from mpi4py import MPI

    return MPI.COMM_WORLD


def _fail(communicator: MPI.Intracomm | None, rank: int, code: int, fields: dict[str, Any]) -> NoReturn:
    _report({"rank": rank, "error": fields, "exitCode": code})
    sys.stderr.flush()
    if communicator is not None:
        communicator.Abort(code)
    sys.exit(code)


def _report(values: dict[str, Any]) -> None:
    """One write, so that lines of several ranks do not mix."""
    sys.stdout.write(f"{REPORT}{json.dumps(values)}\n")
    sys.stdout.flush()


def _load_tensorflow(solver: Solver) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    load_tensorflow_quietly()
    import tensorflow as tf

    cores = len(os.sched_getaffinity(0))
    here = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1"))
    tf.config.threading.set_intra_op_parallelism_threads(solver.threads or max(1, cores // here))
    tf.config.threading.set_inter_op_parallelism_threads(1)
    own = gpu_of_rank(tf.config.list_physical_devices("GPU"), int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0")))
    if own is not None:
        tf.config.set_visible_devices(own, "GPU")
        tf.config.experimental.set_memory_growth(own, True)  # ranks that share a GPU take what they need


def gpu_of_rank(gpus: Sequence[T], local_rank: int) -> T | None:
    """The GPU of a rank, by its number on its node; ranks share GPUs where there are more ranks. None without GPUs."""
    return gpus[local_rank % len(gpus)] if gpus else None


def solve(solver: Solver, folder: Path, communicator: MPI.Intracomm | None) -> saves.Progress:
    """Solve until the epochs or the minutes are over. Collective over the communicator.

    Raises TrainingError where no gradient of any rank was finite: nothing was learnt.
    """
    from caloscale.showers.tfrecord.manifest import sha256_of  # it loads h5py

    rank = communicator.rank if communicator else 0
    states = saves.rank_folder(folder, rank)
    optimizer, progress = begin(solver, folder, communicator)
    if rank == 0:
        files = {data.name: sha256_of(Path(data.source)) for data in solver.data_sets if data.source != "truth"}
        saves.write_problem(folder, replace(optimizer.problem, files=files))
    exchange = _make_exchange(solver, communicator, progress)
    progress.measured = list(optimizer.problem.measured)
    progress.samples = list(map(list, optimizer.problem.samples))
    if progress.epoch == 0:
        _copy(folder, rank, optimizer, progress)
        saves.write_state(states, progress, optimizer.state())
    with ThreadPoolExecutor(1) as thread:
        _Loop(solver, folder, rank, optimizer, exchange, thread, communicator, progress).run()
    if not agree(progress.finite, communicator):
        problem = f"no gradient of the {progress.epoch} epochs was finite"
        remedy = "look for an observable with a single value, or for events of the pipeline that are not finite"
        raise TrainingError(problem, remedy=remedy)
    if not saves.checkpoint_file(folder, progress.epoch, rank).is_file():  # ended by maxMinutes, or deleted
        _copy(folder, rank, optimizer, progress)
    # All ranks close together: one that has failed must not wait for the others here.
    exchange.close()
    saves.write_record(states, progress)
    return progress


def begin(solver: Solver, folder: Path, communicator: MPI.Intracomm | None) -> tuple[Optimizer, saves.Progress]:
    """The optimizer as it begins or resumes, and its progress until then. Collective; raises as `_resume`."""
    from caloscale.sagips.optimizers import make_optimizer

    rank = communicator.rank if communicator else 0
    optimizer = make_optimizer(solver, rank)
    return optimizer, _resume(optimizer, solver, folder, rank, communicator)


def _copy(folder: Path, rank: int, optimizer: Optimizer, progress: saves.Progress) -> None:
    """Write a checkpoint of the optimizer as it is now."""
    seconds, generator = progress.seconds, optimizer.generator()
    saves.write_checkpoint(folder, rank, progress.epoch, seconds, optimizer.propose(), generator)


def _resume(
    optimizer: Optimizer, solver: Solver, folder: Path, rank: int, communicator: MPI.Intracomm | None
) -> saves.Progress:
    """The progress of the newest epoch that all ranks have saved; a new one where the run begins.

    Raises CheckpointError where files of earlier attempts are missing: the run does not begin anew by itself;
    InputError where the measured events or the pipeline are others.
    """
    states = saves.rank_folder(folder, rank)
    own = saves.list_states(states)
    # A rank that has saved nothing on this machine may have saved on another one: then it sees the states of others.
    seen = own, [] if own else list(chain.from_iterable(saves.saved_epochs(folder, solver.ranks)))
    everywhere = [seen] if communicator is None else communicator.allgather(seen)
    saved = [epochs for epochs, _ in everywhere]
    epoch = saves.common_epoch(saved, {epoch for _, epochs in everywhere for epoch in epochs})
    if epoch is None:
        behind = min(range(len(saved)), key=lambda other: max(saved[other], default=-1))
        problem = f"there is no epoch that all ranks have saved: rank {behind} lacks what others have"
        remedy = "give all machines the folder in which the ranks have saved, or choose another --name to begin anew"
        raise CheckpointError(problem, file=folder / "ranks", value=saved[:8], remedy=remedy)
    # Others may be without what this rank saved last: it must not become a common epoch of two attempts.
    saves.remove_states(states, [other for other in own if other > epoch])
    if epoch not in own:  # then it is 0
        return saves.Progress(finite=False)
    progress, arrays = saves.read_state(states, epoch)
    for index, (data, before, now) in enumerate(zip(solver.data_sets, progress.measured, optimizer.problem.measured)):
        if before != now:
            problem = "has other measured events than those with which the run began"
            remedy = "restore the file, or choose another --name to begin anew"
            raise InputError(problem, file=data.source, field=f"solver.dataSets.{index}.source", remedy=remedy)
    for index, pair in enumerate(zip(progress.samples, optimizer.problem.samples)):
        if not saves.are_alike(*pair):
            problem = "has another truth, or makes other events, than that with which the run began"
            remedy = "restore its code and options, or choose another --name to begin anew"
            field, name = f"solver.dataSets.{index}.environment", solver.data_sets[index].environment
            raise InputError(problem, field=field, value=name, remedy=remedy)
    optimizer.restore(arrays)
    return progress


def agree(over: bool, communicator: MPI.Intracomm | None) -> bool:
    """Whether any rank says so. All ranks wait for each other."""
    if communicator is None:
        return over
    from caloscale.sagips.exchange import wait

    wait([communicator.Ibarrier()])
    return any(communicator.allgather(over))


def _make_exchange(solver: Solver, communicator: MPI.Intracomm | None, progress: saves.Progress) -> Exchange:
    """The exchange, in the groups of earlier attempts; groups are written into the progress."""
    from caloscale.sagips.exchange import Exchange, equal_groups, make_exchange, node_groups

    if communicator is None or solver.exchange == "none":
        progress.groups = solver.ranks
        return Exchange()
    groups = tuple(map(tuple, progress.members))
    if solver.exchange in GROUPED:
        if not groups:
            groups = equal_groups(solver.groups, solver.ranks) if solver.groups else node_groups(communicator)
        progress.groups, progress.members = len(groups), list(map(list, groups))
    options: dict[str, Any] = {"outer_every": solver.outer_every, "leader": solver.leader, "seed": solver.seed}
    return make_exchange(solver.exchange, communicator, groups, **options)


@dataclass
class _Loop:
    """The epochs of a rank."""

    solver: Solver
    folder: Path
    rank: int
    optimizer: Optimizer
    exchange: Exchange
    thread: ThreadPoolExecutor
    """Exchanges with a delay."""
    communicator: MPI.Intracomm | None
    progress: saves.Progress
    pending: tuple[Future[Floats], Step] | None = None
    reported: float = 0.0

    def run(self) -> None:
        solver, progress = self.solver, self.progress
        checkpoints = set(solver.checkpoint_epochs)
        every = max(1, solver.epochs // _NOTED)
        first = progress.epoch
        before = asdict(progress)
        if self._is_over():  # by what is saved: a run that has ended makes no epoch when it is run again
            return
        start = time.perf_counter() - progress.seconds
        for epoch in range(first, solver.epochs):
            began, processor = time.perf_counter(), time.process_time()
            waited = self.exchange.counts.exchange_seconds
            losses, transfer = self._epoch(epoch)
            ended, processor = time.perf_counter(), time.process_time() - processor
            done = epoch + 1
            saving = done % solver.save_epochs == 0 or done == solver.epochs or done in checkpoints
            if saving:
                self._drain(epoch)  # a gradient that is under way is not saved
            if epoch > first:
                progress.timed_epochs += 1
                progress.timed_seconds += ended - began
                progress.processor_seconds += processor
                progress.exchange_seconds += self.exchange.counts.exchange_seconds - waited
                progress.transfer_seconds += transfer
            progress.epoch, progress.seconds = done, ended - start
            if done % every == 0 or done == 1:
                for name, value in {"epoch": done, "seconds": progress.seconds, **losses}.items():
                    progress.history.setdefault(name, []).append(value)
            if saving and self._save(done, checkpoints, before):
                break
            if ended - self.reported >= _BETWEEN_REPORTS or done == solver.epochs:
                self.reported = ended
                _report({"rank": self.rank, "epoch": done, "losses": losses})

    def _epoch(self, epoch: int) -> tuple[dict[str, float], float]:
        """Losses, and the seconds in which the gradient was copied into host memory."""
        step = self.optimizer.step(epoch)
        values = step.gradient if step.gradient.size else [*step.losses.values()]
        self.progress.finite = self.progress.finite or bool(np.isfinite(values).all())
        if step.gradient.size == 0:
            self.optimizer.apply(step.gradient, step, epoch)
        elif self.solver.delay:
            self._drain(epoch)
            self.pending = self.thread.submit(self.exchange.average, step.gradient, epoch), step
        else:
            self.optimizer.apply(self.exchange.average(step.gradient, epoch), step, epoch)
        return dict(step.losses), step.transfer_seconds

    def _drain(self, epoch: int) -> None:
        """Apply the gradient that is under way, if there is one."""
        if self.pending is not None:
            future, step = self.pending
            self.optimizer.apply(future.result(), step, epoch)
            self.pending = None

    def _save(self, done: int, checkpoints: set[int], before: dict[str, Any]) -> bool:
        """Save the state; returns whether the minutes are over. No rank continues before all have saved."""
        import tensorflow as tf

        solver, progress = self.solver, self.progress
        for name, count in vars(self.exchange.counts).items():
            if name != "exchange_seconds":
                setattr(progress, name, before[name] + count)
        if tf.config.list_logical_devices("GPU"):
            progress.device_memory_bytes = int(tf.config.experimental.get_memory_info("GPU:0")["peak"])
        if done == solver.epochs:
            progress.stopped = "epochs"
        if done in checkpoints:
            _copy(self.folder, self.rank, self.optimizer, progress)
        saves.write_state(saves.rank_folder(self.folder, self.rank), progress, self.optimizer.state())
        return self._is_over()

    def _is_over(self) -> bool:
        """Whether the minutes are over for a rank before the last epoch. All ranks wait for each other."""
        limit = self.solver.max_minutes
        over = agree(limit is not None and self.progress.seconds >= 60 * limit, self.communicator)
        if over and self.progress.epoch < self.solver.epochs:
            self.progress.stopped = "maxMinutes"
            return True
        return False


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
