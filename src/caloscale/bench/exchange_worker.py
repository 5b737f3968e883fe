"""The ranks of the bench of the exchanges: settings as JSON and a file in the arguments. They hold no TensorFlow.

Rank 0 writes the result into the file.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from caloscale.sagips.exchange import METHODS, make_exchange
from caloscale.sagips.scaling import straggling_times

_TRIPS = 200
Measured = dict[str, Any]


def links(world: MPI.Intracomm, floats: int) -> Measured:
    """Messages and remote memory between ranks 0 and 1, while nobody else works: seconds and bytes per second."""
    vector = np.zeros(floats, np.float32)
    small, large = (_trip_seconds(world, buffer) for buffer in (np.zeros(1, np.float32), vector))
    exchange = make_exchange("grouped-rma", world, [world.size])
    exchange.average(vector[:1], 1)
    world.Barrier()
    looks, copies = [], []
    if world.rank == 0:
        target = np.empty_like(vector)
        for epoch in range(2, 2 + _TRIPS):
            clock = time.perf_counter()
            exchange.average(vector[:1], epoch)
            looks.append(time.perf_counter() - clock)
            clock = time.perf_counter()
            np.copyto(target, vector)
            copies.append(time.perf_counter() - clock)
    world.Barrier()
    exchange.close()
    if world.rank:
        return {}
    return {
        "messageSeconds": small,
        "messageBytesPerSecond": vector.nbytes / max(large - small, 1e-9),
        # The own slot is written under a lock, and a header is read under another.
        "windowSeconds": statistics.median(looks) / 2,
        "windowBytesPerSecond": vector.nbytes / statistics.median(copies),
    }


def _trip_seconds(world: MPI.Intracomm, buffer: np.ndarray[Any, Any]) -> float:
    """One way."""
    trips = []
    for _ in range(_TRIPS):
        clock = time.perf_counter()
        if world.rank == 0:
            world.Send(buffer, 1)
            world.Recv(buffer, 1)
        elif world.rank == 1:
            world.Recv(buffer, 0)
            world.Send(buffer, 0)
        trips.append((time.perf_counter() - clock) / 2)
    return statistics.median(trips)


class Contender:
    """A method that exchanges vectors, each on its own. in_step: ranks wait for each other after each exchange."""

    def __init__(self, world: MPI.Intracomm, settings: Measured, contender: Measured) -> None:
        self.world, self.in_step = world, contender["inStep"]
        self.remote = contender["method"] == "grouped-rma"
        self.exchanges = [
            make_exchange(contender["method"], world, settings["groups"], outer_every=settings["outerEvery"])
            for _ in contender["sizes"]
        ]
        self.gradients = [np.full(size, world.rank, np.float32) for size in contender["sizes"]]
        self.epoch = 0
        self.seconds: list[float] = []

    def run(self, exchanges: int) -> float:
        """Seconds of an exchange of all vectors, on the slowest rank."""
        self.world.Barrier()
        clock = time.perf_counter()
        for _ in range(exchanges):
            self.epoch += 1
            for exchange, gradient in zip(self.exchanges, self.gradients):
                exchange.average(gradient, self.epoch)
            if self.in_step:
                self.world.Barrier()
        return float(self.world.allreduce(time.perf_counter() - clock, MPI.MAX)) / exchanges

    def new_share(self) -> float | None:
        """Share of the slots that held something new, over all ranks; None without remote memory."""
        counts = [exchange.counts for exchange in self.exchanges]
        new = self.world.allreduce(sum(one.contributions for one in counts))
        old = self.world.allreduce(sum(one.repeated + one.missing for one in counts))
        return new / (new + old) if self.remote else None


def times(world: MPI.Intracomm, settings: Measured) -> list[Measured]:
    """Seconds of every contender in interleaved rounds, the order turning with each."""
    contenders = [Contender(world, settings, one) for one in settings["contenders"]]
    for contender in contenders:
        contender.run(2)
    for number in range(settings["rounds"]):
        first = number % len(contenders)
        for contender in (*contenders[first:], *contenders[:first]):
            contender.seconds.append(contender.run(settings["exchanges"]))
    found = [{"seconds": contender.seconds, "newShare": contender.new_share()} for contender in contenders]
    for contender in contenders:
        for exchange in contender.exchanges:
            exchange.close()
    return found


def stragglers(world: MPI.Intracomm, settings: Measured) -> Measured:
    """Epochs whose computing is imitated by sleeping; the seconds that it really took, and what was counted."""
    epochs = settings["epochs"]
    wanted = straggling_times(epochs, world.size, seed=1, **settings["computing"])[:, world.rank]
    gradient = np.full(settings["floats"], world.rank, np.float32)
    found = {}
    for method in METHODS:
        exchange = make_exchange(method, world, settings["groups"], outer_every=settings["outerEvery"])
        exchange.average(gradient, 0)
        computing = []
        world.Barrier()
        start = clock = time.perf_counter()
        for epoch, seconds in enumerate(wanted.tolist(), 1):
            time.sleep(seconds)
            computing.append(time.perf_counter() - clock)
            exchange.average(gradient, epoch)
            clock = time.perf_counter()
        ended, counts = clock - start, exchange.counts
        exchange.close()
        every = world.gather((computing, ended, vars(counts)))
        if every is not None:
            found[method] = {"computing": [one[0] for one in every], "ended": [one[1] for one in every]}
            found[method] |= {name: sum(one[2][name] for one in every) for name in vars(counts)}
    return found


def main(settings: Measured, target: Path) -> None:
    """Measure one part, and write it."""
    world = MPI.COMM_WORLD
    parts: dict[str, Callable[[], Any]] = {
        "links": lambda: links(world, settings["floats"]),
        "times": lambda: times(world, settings),
        "stragglers": lambda: stragglers(world, settings),
    }
    found = parts[settings["part"]]()
    if world.rank == 0:
        target.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
