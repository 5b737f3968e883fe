"""A worker of an elastic training (`elastic_training`): computes parts of each batch, whichever it is given.

One graph computes the step of one part, and a thread runs it for each part that the worker has in that step. Where a
training has its update, the threads wait: the worker sends their gradients, applies the sum over all parts of the
batch, and the threads continue. So nothing is compiled when parts come and go.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import tensorflow as tf

from caloscale.errors import ConfigurationError
from caloscale.models.families.step import Batch, Step, StepContext
from caloscale.models.layers.normalization import running_statistics
from caloscale.models.optimizers import Schedule
from caloscale.showers.primaries import Floats
from caloscale.showers.tfrecord.shard_folder import open_shards
from caloscale.spec import Run
from caloscale.training.checkpoint.format import decode, encode
from caloscale.training.checkpoint.manager import from_host, to_host
from caloscale.training.coordination.peers import Peers
from caloscale.training.input import TrainingShowers
from caloscale.training.schedule import Calendar
from caloscale.training.state import TrainingState, count_step
from caloscale.training.transfer import adapt, start_from_model


class RepeatedStep(Exception):  # noqa: N818
    """A worker was lost, and the step begins anew with its parts divided among the others."""


class _Update(NamedTuple):
    """What the graph of a part has computed when it waits."""

    part: int
    role: str
    gradient: Floats
    rate: Any
    number: Any


class _Waiting:
    """In place of an optimiser within the graph of a part: what is traced after an update waits for it."""

    def __init__(self, wait: Callable[..., bool], part: tf.Tensor, after: ExitStack) -> None:
        self._wait, self._part, self._after = wait, part, after

    def apply(self, gradient: tf.Tensor, rate: tf.Tensor, number: tf.Tensor) -> None:
        """As of `PackedOptimizer`, by the worker. gradient: of this part alone."""
        applied = tf.numpy_function(self._wait, (self._part, gradient, rate, number), tf.bool)
        self._after.enter_context(tf.control_dependencies([applied]))


class Worker:
    """Weights and optimisers, and the steps in which the worker takes part.

    parts: into which each batch is divided. Raises ConfigurationError for networks with batch normalisation.
    """

    def __init__(self, run: Run, dataset: Path, parts: int) -> None:
        tf.config.experimental.enable_op_determinism()
        self.state, self.parts = TrainingState(run), parts
        self.run = run = self.state.run
        if any(running_statistics(network) for network in self.state.networks.values()):
            problem = "has batch normalisation, whose statistics would depend on how a batch is divided"
            raise ConfigurationError(problem, field="model.family", value=run.model.family, remedy="write compact")
        with open_shards(dataset) as shards:
            adapt(self.state, shards, Peers())
            manifest = shards.manifest
        if run.train.start_from is not None:
            start_from_model(self.state, run)
        self.batch = run.train.replica_batch(1)
        self.showers = TrainingShowers(dataset, manifest, self.batch, seed=run.train.seed, mirror=run.data.mirror)
        self.calendar = Calendar(run.train.epochs, self.showers.steps_per_epoch)
        self._schedule = Schedule(run.train.warmup_epochs * self.calendar.steps_per_epoch, run.train.decay)
        self._graph = tf.function(self._compute, autograph=False)
        self._apply = {
            role: tf.function(optimizer.apply, autograph=False) for role, optimizer in self.state.optimizers.items()
        }
        self._count = tf.function(partial(count_step, self.state), autograph=False)
        self._arrived: SimpleQueue[_Update | None] = SimpleQueue()
        self._released: list[SimpleQueue[bool]] = [SimpleQueue() for _ in range(parts)]
        self._threads = ThreadPoolExecutor(parts)
        self._batches: Iterator[Batch] = iter(())

    def warm_up(self) -> None:
        """Compile everything by a step with one part, and forget it."""
        before = to_host(self.state.variables())
        self.begin_at(0)
        self.make_step(self.next_batch(), [0], lambda gradients: gradients[0])
        self.take(before)

    def take(self, arrays: dict[str, Any]) -> None:
        """Take over the values of `TrainingState.variables`."""
        from_host(self.state.variables(), arrays)

    def begin_at(self, step: int) -> None:
        """Read showers from this step on."""
        self._batches = iter(self.showers.batches(start=step, stop=self.calendar.steps, slices=self.parts))

    def next_batch(self) -> list[Batch]:
        """The parts of the batch of the next step."""
        return [next(self._batches) for _ in range(self.parts)]

    def make_step(
        self, batch: Sequence[Batch], mine: Sequence[int], exchange: Callable[[list[Floats]], Floats]
    ) -> None:
        """One step. mine: numbers of this worker's parts. exchange: from the packed gradients of its parts to the sum
        over all; called for each update. What it raises leaves the step, with all variables as they were before."""
        before = to_host(self.state.variables())
        self.state.progress.assign(self.calendar.progress(self.state.steps_made, 0.0, None))
        running = [self._threads.submit(self._run, part, batch[part]) for part in mine]
        try:
            while updates := self._updates(running):
                first = updates[0]
                total = exchange([update.gradient for update in updates])
                self._apply[first.role](total, tf.constant(first.rate), tf.constant(first.number))
                self._release(mine, applied=True)
        except BaseException:
            self._release(mine, applied=False)
            wait(running)
            while not self._arrived.empty():
                self._arrived.get()
            self.take(before)
            raise
        self._count()

    def _updates(self, running: Sequence[Future[None]]) -> list[_Update]:
        """What the parts wait with, in their order; empty: all have made the step."""
        found = [self._arrived.get() for _ in running]
        updates = sorted(one for one in found if one is not None)
        if len(updates) < len(found):
            for one in running:
                one.result()
        return updates

    def _release(self, mine: Sequence[int], *, applied: bool) -> None:
        for part in mine:
            self._released[part].put(applied)

    def _run(self, part: int, batch: Batch) -> None:
        try:
            self._graph(batch, tf.constant(part, tf.int64))
        finally:
            self._arrived.put(None)

    def _compute(self, batch: Batch, part: tf.Tensor) -> None:
        """The step of one part but for what changes variables; traced once."""
        state, size = self.state, self.batch // self.parts
        context = StepContext(tf.identity(state.step), tf.identity(state.progress), part * size, self.batch)
        with ExitStack() as after:
            optimizers: Any = {role: _Waiting(partial(self._wait, role), part, after) for role in state.networks}
            state.family.train_step(
                Step(state.family, self.run, state.networks, optimizers, batch, context, self._schedule)
            )

    def _wait(self, role: str, part: Any, gradient: Floats, rate: Any, number: Any) -> bool:
        """Called by the graph of a part, in its thread."""
        self._arrived.put(_Update(int(part), role, gradient, rate, number))
        if not self._released[int(part)].get():
            raise RepeatedStep
        return True


def serve(worker: Worker, connection: Connection, leaving: Callable[[], bool]) -> None:
    """Do what the coordinator says, until it ends or the worker leaves after a step.

    leaving: whether the worker is to leave. Raises EOFError or ConnectionError when the coordinator is gone.
    """
    worker.warm_up()
    connection.send(("ready", worker.calendar.steps))
    batch: list[Batch] = []

    def exchange(gradients: list[Floats]) -> Floats:
        connection.send(("gradients", gradients))
        total: Floats | None = connection.recv()[1]
        if total is None:
            raise RepeatedStep
        return total

    while True:
        said, content = connection.recv()
        if said == "end":
            return
        if said == "give":
            connection.send(("state", encode(to_host(worker.state.variables()), "{}")))
        elif said == "take":
            if content is not None:
                worker.take(decode(content)[0])
            worker.begin_at(worker.state.steps_made)
        else:
            batch = batch or worker.next_batch()
            try:
                worker.make_step(batch, content, exchange)
            except RepeatedStep:
                continue
            batch, leaves = [], leaving()
            connection.send(("made", leaves))
            if leaves:
                return
