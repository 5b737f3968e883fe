"""A training that loses a worker and gets another one, with the classifier of digits.

The coordinator hands each worker the weights and its share of a step's images, and sums the gradients. A worker is a
process without state of the training, which is ended by SIGKILL in the middle of a step. Either the others take over
the images of the lost one (as Elastic Horovod and PyTorch's torchrun keep the survivors' processes), or all are started
anew from the newest save (as a TFJob is).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from caloscale.errors import InvalidValueError, TrainingError
from caloscale.spec.block import Block
from caloscale.studies.digits import DIGITS_FILE, Descent, DigitsInputs, Floats, Network, batches, tested, write_digits
from caloscale.studies.inputs import validated

START_SECONDS = 60.0
"""Time in which a worker must have connected."""


class ElasticInputs(Block):
    """A training, and when it loses a worker."""

    workers: int = Field(3, ge=2, le=16)
    """Workers at the start."""
    recovery: Literal["continue", "restart"] = "continue"
    """continue: the other workers take the images of the lost one. restart: all start anew from the newest save."""
    lost_at: float | None = Field(1 / 3, gt=0, lt=1)
    """Part of the steps after which a worker is lost; null: never."""
    returns_at: float | None = Field(2 / 3, gt=0, lt=1)
    """Part of the steps after which another one is started; null: never."""
    save_every: int = Field(50, ge=1)
    """Steps between two saves (restart)."""
    hidden: int = Field(512, ge=1)
    """Units of the hidden layer."""
    epochs: int = Field(30, ge=1)
    """Passes over the training images."""
    batch: int = Field(96, ge=1)
    """Images of a step of all workers."""
    learning_rate: float = Field(0.1, gt=0)
    """Learning rate."""
    momentum: float = Field(0.5, ge=0, lt=1)
    """Momentum of the updates."""
    seed: int = Field(1, ge=0)
    """Seed of weights and order."""

    @model_validator(mode="after")
    def _fits(self) -> ElasticInputs:
        if self.batch < self.workers:
            raise InvalidValueError(
                f"{self.workers} workers have less than an image each of {self.batch}", remedy="write a larger batch"
            )
        if self.lost_at is None and self.returns_at is not None:
            raise InvalidValueError("no worker is lost that returns", remedy="write returnsAt: null")
        if self.lost_at is not None and self.returns_at is not None and self.returns_at <= self.lost_at:
            raise InvalidValueError(
                f"returnsAt: {self.returns_at} is not after lostAt: {self.lost_at}", remedy="write a larger returnsAt"
            )
        return self


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection


class _Workers:
    """Processes that compute gradients; those that start are accepted in a thread, so that nobody waits for them."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._key = folder, os.urandom(16)
        self._listener = Listener(str(folder / "coordinator"), "AF_UNIX", authkey=self._key)
        self._starting: dict[int, subprocess.Popen[bytes]] = {}
        self._arrived: SimpleQueue[tuple[int, Connection]] = SimpleQueue()
        self.active: list[_Worker] = []
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
                self._arrived.put((connection.recv(), connection))
            except (EOFError, ConnectionError):  # that worker ended before it was there
                continue
            except OSError:  # closed
                return

    def start(self, count: int) -> None:
        """Start processes; they are active when `admit` finds them."""
        variables = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "CALOSCALE_WORKER_KEY": self._key.hex()}
        command = [sys.executable, "-m", "caloscale.studies.elastic_worker", str(self._folder)]
        for _ in range(count):
            process = subprocess.Popen(command, env={**os.environ, **variables}, stdin=subprocess.DEVNULL)
            self._starting[process.pid] = process

    def restart(self, count: int) -> None:
        """End all processes, start so many, and wait until they are active."""
        self.end()
        self.start(count)
        self.admit(wait_for_all=True)

    def admit(self, wait_for_all: bool = False) -> int:
        """Make workers active that have connected; their number. Raises TrainingError when one does not come."""
        admitted, until = 0, time.monotonic() + START_SECONDS
        while self._starting:
            try:
                pid, connection = self._arrived.get(block=wait_for_all, timeout=0.1)
            except Empty:
                if not wait_for_all:
                    return admitted
                ended = [process.returncode for process in self._starting.values() if process.poll() is not None]
                if ended or time.monotonic() > until:
                    raise TrainingError(
                        f"{len(self._starting)} workers did not start", remedy="use fewer workers"
                    ) from None
                continue
            self.active.append(_Worker(self._starting.pop(pid), connection))
            admitted += 1
        return admitted

    def gradient(self, weights: Floats, images: NDArray[np.intp], kill: bool = False) -> tuple[Floats, int]:
        """The sum of the gradients of all images, and how many workers were lost while it was computed.

        kill: end the last worker by SIGKILL when the others have their shares.
        """
        parts: list[tuple[int, Floats]] = []
        before, left = len(self.active), [images]
        while left:
            if not self.active:
                raise TrainingError("no worker is left", remedy="start with more workers")
            shares = np.array_split(np.concatenate(left), len(self.active))
            left, busy = [], {}
            for worker, share in zip(list(self.active), shares):
                if kill and worker is self.active[-1]:
                    os.kill(worker.process.pid, signal.SIGKILL)
                    kill = False
                try:
                    worker.connection.send((weights, share))
                    busy[worker.connection] = worker, share
                except OSError:
                    self._drop(worker)
                    left.append(share)
            while busy:
                for connection in wait(list(busy)):
                    worker, share = busy.pop(connection)  # type: ignore[call-overload]
                    try:
                        parts.append((int(share[0]), worker.connection.recv()))
                    except (EOFError, OSError):
                        self._drop(worker)
                        left.append(share)
        in_order = [part for _, part in sorted(parts, key=lambda part: part[0])]
        return np.sum(in_order, axis=0), before - len(self.active)

    def _drop(self, worker: _Worker) -> None:
        """The worker has ended."""
        self.active.remove(worker)
        self._end(worker)

    def _end(self, worker: _Worker) -> None:
        worker.connection.close()
        worker.process.kill()
        worker.process.wait()

    def end(self) -> None:
        """End all processes."""
        for worker in self.active:
            self._end(worker)
        for process in self._starting.values():
            process.kill()
            process.wait()
        self.active, self._starting = [], {}

    def close(self) -> None:
        """End all processes and accept no others."""
        self.end()
        self._listener.close()


def train_elastic(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Train with real processes, one of which is killed.

    Result: ``accuracy`` on the test images and ``loss`` on those for training; ``seconds``; ``workers`` at the end;
    ``lostAtStep``, ``joinedAtStep`` (when the other worker had its first images); ``pauseSeconds`` from the kill to the
    end of that step, with a restart the same step again; ``repeatedSteps``; ``imagesPerSecond`` of new steps: ``all``
    (before), ``fewer``, ``again`` (null where there are none). Raises ConfigurationError, TrainingError.
    """
    asked = validated(ElasticInputs, inputs)
    with TemporaryDirectory(prefix="caloscale-study-") as temporary, closing(_Workers(Path(temporary))) as workers:
        write_digits(Path(temporary) / DIGITS_FILE)
        return _train(asked, workers, Path(temporary))


def _train(asked: ElasticInputs, workers: _Workers, folder: Path) -> dict[str, Any]:
    with np.load(folder / DIGITS_FILE) as file:
        data = dict(file)
    alone = DigitsInputs(batch=asked.batch, epochs=asked.epochs, seed=asked.seed)
    order = list(batches(alone, len(data["labels"])))
    lost_at, returns_at = (
        None if part is None else round(part * len(order)) for part in (asked.lost_at, asked.returns_at)
    )
    network, descent = Network(asked.hidden, asked.seed), Descent(asked.momentum)
    saved, saved_step = folder / "save.npz", 0
    ends: dict[int, float] = {}  # of each step, the first time
    killed = joined = None
    pause, repeated = 0.0, 0

    def save(step: int) -> None:
        nonlocal saved_step
        velocity = np.zeros_like(network.weights) if descent.velocity is None else descent.velocity
        np.savez(saved, weights=network.weights, velocity=velocity)
        saved_step = step

    workers.restart(asked.workers)
    begin = time.perf_counter()
    step = 0
    while step < len(order):
        if asked.recovery == "restart" and step % asked.save_every == 0:
            save(step)
        if killed is not None and joined is None and step == returns_at:
            if asked.recovery == "restart":
                save(step)
                workers.restart(asked.workers)
                joined = step
            else:
                workers.start(asked.workers - len(workers.active))
        if workers.admit():
            joined = step
        chosen, clock = order[step], time.perf_counter()
        kill = killed is None and step == lost_at
        gradient, lost = workers.gradient(network.weights, chosen, kill)
        if kill:
            killed, killed_clock = step, clock
        if lost and asked.recovery == "restart":
            workers.restart(asked.workers - lost)
            with np.load(saved) as file:
                network.weights[:] = file["weights"]
                descent = Descent(asked.momentum, file["velocity"])
            repeated += step - saved_step
            step = saved_step
            continue
        descent.update(network.weights, gradient / len(chosen), asked.learning_rate)
        if step not in ends:
            ends[step] = time.perf_counter()
            if step == killed:
                pause = ends[step] - killed_clock
        step += 1
    return {
        **tested(network, data),
        "seconds": time.perf_counter() - begin,
        "steps": len(order),
        "workers": len(workers.active),
        "lostAtStep": killed,
        "joinedAtStep": joined,
        "pauseSeconds": pause,
        "repeatedSteps": repeated,
        "imagesPerSecond": _speeds(asked, begin, ends, killed, joined),
    }


def _speeds(
    asked: ElasticInputs, begin: float, ends: Mapping[int, float], killed: int | None, joined: int | None
) -> dict[str, float | None]:
    """Images per second of all workers, of fewer, and of all again, without the step in which a worker was lost."""
    last = max(ends)
    lost = last + 1 if killed is None else killed
    back = last + 1 if joined is None else joined

    def speed(first: int, end: int, since: float) -> float | None:
        return (end - first) * asked.batch / (ends[end - 1] - since) if end > first else None

    return {
        "all": speed(0, lost, begin),
        "fewer": None if killed is None else speed(lost + 1, back, ends[lost]),
        "again": None if joined is None else speed(back + 1, last + 1, ends[back]),
    }
