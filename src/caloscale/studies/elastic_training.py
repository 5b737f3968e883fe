"""The measure `elasticTraining`: workers leave and come within a training that is not begun anew.

The global batch is divided into parts, whose number stays, and the parts among the workers that are there. The random
numbers of a shower are those of its position in the batch (`random.EventDraws`), and the coordinator adds up the
gradients of the parts in their order: the weights are the same, bit for bit, whoever computed which part. A step in
which a worker is lost is made again by the others, from copies of its beginning in their memory. A newcomer begins and
compiles while the others train, and gets weights, optimisers and step from one of them.
"""

import hashlib
import multiprocessing
import os
import signal
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from caloscale.errors import CaloscaleError, ConfigurationError, InvalidValueError, TrainingError
from caloscale.spec import Run
from caloscale.spec.block import Block
from caloscale.spec.workspace_layout import DATASET
from caloscale.studies.exchanged_training import prepare_anew
from caloscale.studies.points import configured_run, own_inputs
from caloscale.tensorflow_import import load_tensorflow_quietly
from caloscale.training.processor import set_processor

What = Literal["kill", "leave", "join"]
END_SECONDS = 20
"""How long a process may take to end by itself."""


class Change(Block):
    """What changes among the workers."""

    step: int = Field(ge=1)
    """During this step, counted from 1; processes that join are started before it."""
    what: What
    """kill: by SIGKILL, after the first update of the step; leave: SIGTERM, the worker ends after the step; join."""


class ElasticTraining(Block):
    """Workers, and what changes among them."""

    workers: int = Field(2, ge=1)
    """At the beginning."""
    parts: int = Field(4, ge=1, le=64)
    """Into which the global batch is divided."""
    changes: tuple[Change, ...] = ()
    """In the order of their steps."""
    awaited: bool = False
    """The others wait for newcomers, so that these take part from the step on before which they are started."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        there = most = self.workers
        for change in self.changes:
            there += 1 if change.what == "join" else -1
            most = max(most, there)
            if there < 1:
                raise InvalidValueError(f"changes: no worker is left in step {change.step}", remedy="let others join")
        if most > self.parts:
            raise InvalidValueError(f"parts: {self.parts} are fewer than {most} workers", remedy=f"write parts: {most}")
        return self


def train_elastically(inputs: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A training whose workers change, begun anew.

    inputs: the fields of `ElasticTraining`, and dotted fields of the run configuration; its batch is of all workers.
    Result: ``stateSha256`` of weights, optimisers, average and step at the end, which all workers have; ``steps``, and
    ``repeated`` ones; ``workersAtEnd``; ``stepSeconds``, by number of workers, from 0; ``killSeconds``,
    ``leaveSeconds`` and ``joinSeconds``, from a change (of joining: from the end of the last step without the
    newcomers) to the end of the next step; ``startSeconds``, from the start of a newcomer's process until it joined.
    Medians; null where there was none. Raises ConfigurationError, TrainingError, and what the
    preparation of showers raises.
    """
    asked, fields = own_inputs(ElasticTraining, inputs)
    run = configured_run(fields)
    run = run.model_copy(update={"train": run.train.model_copy(update={"deterministic": True})})
    batch = run.train.replica_batch(1)
    if batch % asked.parts:
        remedy = "write a divisor of the global batch"
        raise ConfigurationError(f"does not divide {batch}", field="parts", value=asked.parts, remedy=remedy)
    prepare_anew(run, folder, ("train.threads.inter", run.train.threads.inter, None))  # each part has its own thread
    coordinator = Coordinator(asked, run, folder / DATASET)
    try:
        state = coordinator.train()
    finally:
        coordinator.close()
    (folder / "state.safetensors").write_bytes(state)
    return {"stateSha256": hashlib.sha256(state).hexdigest(), **coordinator.figures()}


@dataclass(frozen=True)
class Member:
    """A worker's process, the connection to it, and when it was started."""

    process: SpawnProcess
    connection: Connection
    started: float


class Coordinator:
    """Divides the parts of each step among the workers and adds up their gradients."""

    def __init__(self, asked: ElasticTraining, run: Run, dataset: Path) -> None:
        self.asked, self.run, self.dataset = asked, run, dataset
        self.members: list[Member] = []
        self.coming: list[Member] = []
        self.gone: list[Member] = []
        self.step_seconds: defaultdict[int, list[float]] = defaultdict(list)
        """By number of workers, of steps without a change."""
        self.change_seconds: defaultdict[str, list[float]] = defaultdict(list)
        """By kind of change; start: from the start of a newcomer's process until it joined."""
        self.step = self.steps = self.repeated = 0
        """Steps that were made, steps of the whole training, and steps that were begun again."""

    def train(self) -> bytes:
        """All steps; the state at the end (`checkpoint.format`). Raises TrainingError when no worker is left, a
        gradient is not finite, or a newcomer has not joined before the end."""
        self._start(self.asked.workers)
        self._admit(waiting=True)
        if late := [change.step for change in self.asked.changes if change.step > self.steps]:
            problem = f"the training has {self.steps} steps"
            raise ConfigurationError(problem, field="changes.step", value=late[0], remedy="write more train.epochs")
        while self.step < self.steps:
            begin = time.perf_counter()
            changes = [change for change in self.asked.changes if change.step == self.step + 1]
            self._start(sum(change.what == "join" for change in changes))
            changed = dict.fromkeys(["join"] if self._admit(waiting=self.asked.awaited) else [], begin)
            there = len(self.members)
            changed |= self._make_step([change for change in changes if change.what != "join"])
            self.step, end = self.step + 1, time.perf_counter()
            for what, when in changed.items():
                self.change_seconds[what].append(end - when)
            if not changed:
                self.step_seconds[there].append(end - begin)
        if self.coming:
            problem = f"{len(self.coming)} newcomers had not joined before the last of {self.steps} steps"
            raise TrainingError(problem, remedy="write more train.epochs, an earlier step, or awaited: true")
        states = {self._state_of(member) for member in self.members}
        if len(states) > 1:
            raise TrainingError("the workers end with different weights", remedy="report it with the configuration")
        return states.pop()

    def figures(self) -> dict[str, Any]:
        """What was measured, by the names of `train_elastically`."""
        return {
            "steps": self.step,
            "repeated": self.repeated,
            "workersAtEnd": len(self.members),
            "stepSeconds": [_median(self.step_seconds[workers]) for workers in range(self.asked.parts + 1)],
            **{f"{what}Seconds": _median(self.change_seconds[what]) for what in (*get_args(What), "start")},
        }

    def close(self) -> None:
        """End all processes."""
        every = (*self.members, *self.coming, *self.gone)
        for member in every:
            self._send(member, "end", None)
            member.connection.close()
        for member in every:
            member.process.join(END_SECONDS)
            if member.process.is_alive():
                member.process.kill()
                member.process.join()

    def _start(self, workers: int) -> None:
        """Start processes that will join."""
        context = multiprocessing.get_context("spawn")
        for _ in range(workers):
            ours, theirs = context.Pipe()
            arguments = (self.run, self.dataset, self.asked.parts, theirs)
            process = context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            theirs.close()  # so that the end of the process ends the connection
            self.coming.append(Member(process, ours, time.perf_counter()))

    def _admit(self, *, waiting: bool) -> bool:
        """Let those join that can, or all that were started; whether one has."""
        ready = [member for member in self.coming if waiting or member.connection.poll()]
        for member in ready:
            self.steps = self._received(member, "ready")
            if self.step:
                self.change_seconds["start"].append(time.perf_counter() - member.started)
            self._send(member, "take", self._state_of(self.members[0]) if self.members else None)
            self.coming.remove(member)
            self.members.append(member)
        return bool(ready)

    def _state_of(self, member: Member) -> bytes:
        self._send(member, "give", None)
        return self._received(member, "state")

    def _received(self, member: Member, expected: str) -> Any:
        answer = self._next(member)
        if answer is None:
            member.process.join()
            problem = f"a worker ended with exit code {member.process.exitcode} while it should give its {expected}"
            raise TrainingError(problem, remedy="read what it wrote above")
        return answer[1]

    def _make_step(self, changes: Sequence[Change]) -> dict[str, float]:
        """One step, however often it must be begun; when which changes were made."""
        changed: dict[str, float] = {}
        while True:
            parts = np.array_split(range(self.asked.parts), len(self.members))
            for member, mine in zip(self.members, parts):
                self._send(member, "step", mine.tolist())
            while True:
                there = len(self.members)
                answers = self._answers()
                if all(said == "made" for said, _ in answers):
                    self.gone += [member for member, (_, leaves) in zip(self.members, answers) if leaves]
                    self.members = [member for member in self.members if member not in self.gone]
                    return changed
                lost = len(self.members) < there
                total = None if lost else sum_of([one for _, gradients in answers for one in gradients], self.step + 1)
                for member in self.members:
                    self._send(member, "sum", total)
                if lost:
                    self.repeated += 1
                    break
                for change, member in zip(changes, reversed(self.members)):
                    changed[change.what] = self._end(member, change.what)
                changes = ()

    def _answers(self) -> list[tuple[str, Any]]:
        """What each worker says next, in their order, without those that are lost."""
        answers = {member: self._next(member) for member in self.members}
        self.gone += [member for member, answer in answers.items() if answer is None]
        self.members = [member for member in self.members if member not in self.gone]
        if not self.members:
            raise TrainingError(f"no worker is left in step {self.step + 1}", remedy="read what they wrote above")
        return [answer for answer in answers.values() if answer is not None]

    def _next(self, member: Member) -> tuple[str, Any] | None:
        """What a worker says next; None: it is lost. Raises the error that it has met."""
        try:
            said, content = member.connection.recv()
        except (EOFError, OSError):
            return None
        if isinstance(content, CaloscaleError):
            raise content
        return said, content

    def _end(self, member: Member, what: What) -> float:
        """Send a worker its signal; when."""
        began = time.perf_counter()
        if what == "kill":
            member.process.kill()
            member.process.join()  # so that it is lost in this step
        else:
            member.process.terminate()
        return began

    def _send(self, member: Member, said: str, content: Any) -> None:
        with suppress(OSError):  # it is lost, which `_answers` will see
            member.connection.send((said, content))


def sum_of(gradients: Sequence[NDArray[np.float32]], step: int) -> NDArray[np.float32]:
    """The sum of the parts' gradients in their order. Raises TrainingError where it is not finite."""
    total = gradients[0].copy()
    for one in gradients[1:]:
        total += one
    if not np.isfinite(total).all():
        raise TrainingError(f"a gradient is not finite in step {step}", remedy="lower train.learningRate")
    return total


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _work(run: Run, dataset: Path, parts: int, connection: Connection) -> None:
    """The process of a worker."""
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the coordinator, which ends the workers
    set_processor(run, os.environ)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["TF_NUM_INTEROP_THREADS"] = str(parts + 1)  # each part has one that waits for the sum
    load_tensorflow_quietly()
    from caloscale.studies.elastic_worker import Worker, serve

    with suppress(EOFError, ConnectionError):  # the coordinator is gone
        try:
            serve(Worker(run, dataset, parts), connection, lambda: bool(signals))
        except CaloscaleError as error:
            connection.send(("failed", error))
