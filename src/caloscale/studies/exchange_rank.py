"""A process of the measure `exchange`, started by mpiexec: a worker, or the parameter server. It holds no TensorFlow.

Rank 0 writes the result into the file that is given.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from caloscale.sagips.exchange import Counts, make_exchange
from caloscale.studies.exchange import SERVERS, ExchangeInputs

_TRIPS = 200
Floats = NDArray[np.float32]


def links(world: MPI.Intracomm, floats: int) -> dict[str, float] | None:
    """Messages and remote memory between ranks 0 and 1, while no other rank works: s and bytes/s."""
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
        return None
    return {
        "messageSeconds": small,
        "messageBytesPerSecond": vector.nbytes / max(large - small, 1e-9),
        # The own slot is written under a lock, and a header is read under another.
        "windowSeconds": statistics.median(looks) / 2,
        "windowBytesPerSecond": vector.nbytes / statistics.median(copies),
    }


def _trip_seconds(world: MPI.Intracomm, buffer: Floats) -> float:
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


def shares_of(samples_per_second: Sequence[float], total: int) -> list[int]:
    """Shares of the samples in proportion to the speeds, at least one each, rounded by largest remainders."""
    free = total - len(samples_per_second)
    exact = [free * speed / sum(samples_per_second) for speed in samples_per_second]
    shares = [int(one) for one in exact]
    for worker in sorted(range(len(exact)), key=lambda index: shares[index] - exact[index])[: free - sum(shares)]:
        shares[worker] += 1
    return [1 + share for share in shares]


class Worker:
    """Sleeps as long as its samples take, and exchanges."""

    def __init__(self, asked: ExchangeInputs, number: int) -> None:
        self.asked, self.number = asked, number
        self.shares = [asked.samples] * asked.ranks
        self.computing: list[float] = []

    def work(self, exchange: Callable[[int], None]) -> float:
        """All epochs; exchange gets their number, from 1 on. Returns the seconds of all."""
        asked = self.asked
        start = time.perf_counter()
        for epoch, usual in enumerate(asked.computing_seconds()[:, self.number].tolist(), start=1):
            share = self.shares[self.number]
            seconds = usual * share / asked.samples
            if self.number == asked.ranks - 1:
                seconds += (asked.slow_milliseconds + share * asked.slow_sample_milliseconds) / 1000
            clock = time.perf_counter()
            if seconds:
                time.sleep(seconds)
            self.computing.append(time.perf_counter() - clock)
            exchange(epoch)
        return time.perf_counter() - start


def exchange_all(world: MPI.Intracomm, asked: ExchangeInputs, worker: Worker) -> tuple[float, Counts]:
    """By a method of the solver; shares follow the speeds if asked."""
    sizes = [len(group) for group in asked.groups()]
    exchanges = [make_exchange(asked.method, world, sizes, outer_every=asked.outer_every) for _ in asked.tensors]
    gradients = [np.full(floats, world.rank, np.float32) for floats in asked.tensors]
    every = asked.rebalance_every

    def exchange(epoch: int) -> None:
        for method, gradient in zip(exchanges, gradients):
            method.average(gradient, epoch)
        if asked.barrier:
            world.Barrier()
        if every and epoch % every == 0:
            speed = worker.shares[worker.number] / max(statistics.fmean(worker.computing[-every:]), 1e-9)
            worker.shares = shares_of(world.allgather(speed), asked.ranks * asked.samples)

    for method, gradient in zip(exchanges, gradients):
        method.average(gradient, 0)  # windows are made
    world.Barrier()
    seconds = worker.work(exchange)
    counts = [method.counts for method in exchanges]
    for method in exchanges:
        method.close()
    return seconds, Counts(**{name: sum(getattr(one, name) for one in counts) for name in vars(counts[0])})


def push_and_pull(world: MPI.Intracomm, asked: ExchangeInputs, worker: Worker) -> float:
    """With a server, rank 0: a vector is sent and another one is received, in some epochs if lazy."""
    vector = np.zeros(sum(asked.tensors), np.float32)
    every = asked.push_every if asked.method == "lazy" else 1

    def exchange(epoch: int) -> None:
        if epoch % every == 0 or epoch == asked.epochs:
            world.Send(vector, 0)
            world.Recv(vector, 0)

    world.Barrier()
    return worker.work(exchange)


def serve(world: MPI.Intracomm, asked: ExchangeInputs) -> dict[str, Any]:
    """The parameter server: each vector that arrives is an update, and its sender gets the newest sum.

    A worker that is more than `bound` epochs ahead of the slowest waits for its answer (bounded). Result: staleness
    and lead.
    """
    total = np.zeros(sum(asked.tensors), np.float32)
    received = np.empty_like(total)
    every = asked.push_every if asked.method == "lazy" else 1
    pushes = -(-asked.epochs // every)
    clocks, pulled = dict.fromkeys(range(1, world.size), 0), dict.fromkeys(range(1, world.size), 0)
    ages: list[int] = []
    lead = 0
    held: set[int] = set()
    status = MPI.Status()
    world.Barrier()
    for updates in range(1, pushes * asked.ranks + 1):
        world.Recv(received, MPI.ANY_SOURCE, status=status)
        sender = status.Get_source()
        ages.append(updates - 1 - pulled[sender])
        total += received
        clocks[sender] += 1
        held.add(sender)
        slowest = min(clocks.values())
        for each in sorted(held):
            if asked.method != "bounded" or clocks[each] - slowest <= asked.bound:
                held.discard(each)
                lead = max(lead, clocks[each] - slowest)
                pulled[each] = updates
                world.Send(total, each)
    return {"staleness": {"mean": statistics.fmean(ages), "max": max(ages)}, "lead": lead * every}


def main(asked: ExchangeInputs, target: Path) -> None:
    """Measure; rank 0 writes what all have found."""
    world = MPI.COMM_WORLD
    found: dict[str, Any] = {"links": links(world, sum(asked.tensors)) if world.size > 1 else None}
    found |= {"staleness": {"mean": 0.0, "max": 0}, "lead": 0}
    has_server = asked.method in SERVERS
    worker, seconds, counts = None, 0.0, Counts()
    if has_server and world.rank == 0:
        found |= serve(world, asked)
    else:
        worker = Worker(asked, world.rank - has_server)
        if has_server:
            seconds = push_and_pull(world, asked, worker)
        else:
            seconds, counts = exchange_all(world, asked, worker)
    every = world.gather(None if worker is None else (worker.computing, seconds, asdict(counts), worker.shares))
    if every is not None:
        workers = [one for one in every if one is not None]
        found |= {"computing": [one[0] for one in workers], "ended": [one[1] for one in workers]}
        found |= {"shares": workers[0][3], **{name: sum(one[2][name] for one in workers) for name in asdict(counts)}}
        target.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(ExchangeInputs.model_validate_json(sys.argv[1], by_alias=True, by_name=False), Path(sys.argv[2]))
