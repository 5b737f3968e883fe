"""A process of the classifier of digits: a worker, or the parameter server; started by mpiexec."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from caloscale.studies.digits import (
    DIGITS_FILE,
    RESULT_FILE,
    Descent,
    DigitsInputs,
    Floats,
    Network,
    batches,
    shares_of,
    tested,
)

Staleness = dict[str, float]


def ring_sum(world: MPI.Intracomm, vector: Floats) -> None:
    """Sum over all ranks in place: a reduce-scatter and an all-gather around a ring, one chunk a message."""
    chunks = np.array_split(vector, world.size)
    following, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    received = np.empty_like(chunks[0])  # the first chunk is the largest
    for step in range(2 * (world.size - 1)):
        sent = chunks[(world.rank - step) % world.size]
        target = chunks[(world.rank - step - 1) % world.size]
        part = received[: len(target)]
        world.Sendrecv(sent, following, recvbuf=part, source=before)
        if step < world.size - 1:
            target += part
        else:
            target[:] = part


def hierarchical_sum(group: MPI.Comm, leaders: MPI.Comm | None, vector: Floats) -> None:
    """Sum within the group, over the leaders of the groups, and back; in place."""
    total = np.empty_like(vector)
    group.Reduce(vector, total, root=0)
    if leaders is not None:
        leaders.Allreduce(MPI.IN_PLACE, total)
    group.Bcast(total, root=0)
    vector[:] = total


class Worker:
    """What every worker does: gradients of its own images, timed apart from the exchange."""

    def __init__(self, asked: DigitsInputs, data: dict[str, Any], number: int) -> None:
        self.asked, self.data, self.number = asked, data, number
        self.network = Network(asked.hidden, asked.seed)
        self.shares = [asked.batch] * asked.workers
        self.exchange_seconds = self.compute_seconds = 0.0
        self.computed = 0

    def train(self, exchange: Callable[[int, Floats], None]) -> None:
        """All steps. exchange: gets step and gradient, and brings the weights up to date."""
        asked, images, labels = self.asked, self.data["images"], self.data["labels"]
        is_slow = self.number == asked.workers - 1
        for step, of_all in enumerate(batches(asked, len(labels))):
            first, share = sum(self.shares[: self.number]), self.shares[self.number]
            chosen = of_all[first : first + share]
            clock = time.perf_counter()
            gradient = self.network.gradient(images[chosen], labels[chosen])
            if is_slow and (slow := asked.slow_milliseconds + share * asked.slow_image_milliseconds):
                time.sleep(slow / 1000)
            self.compute_seconds += time.perf_counter() - clock
            self.computed += share
            clock = time.perf_counter()
            exchange(step, gradient)
            self.exchange_seconds += time.perf_counter() - clock


def all_reduce(world: MPI.Intracomm, worker: Worker) -> Staleness:
    """Ring or hierarchical: each worker has the sum, and makes the same update; shares follow the speeds if asked."""
    asked, descent = worker.asked, Descent(worker.asked.momentum)
    add: Callable[[Floats], None] = partial(ring_sum, world)
    if asked.method == "hierarchical":
        group = world.Split(world.rank // asked.per_group, world.rank)
        leaders = world.Split(0 if group.rank == 0 else MPI.UNDEFINED, world.rank)
        add = partial(hierarchical_sum, group, None if leaders == MPI.COMM_NULL else leaders)

    def exchange(step: int, gradient: Floats) -> None:
        gradient *= worker.shares[worker.number] / asked.batch
        add(gradient)
        descent.update(worker.network.weights, gradient / asked.workers, asked.rate(step))
        if asked.rebalance_every and (step + 1) % asked.rebalance_every == 0:
            speeds = world.allgather(worker.computed / worker.compute_seconds)
            worker.shares = shares_of(speeds, asked.workers * asked.batch)
            worker.compute_seconds, worker.computed = 0.0, 0

    worker.train(exchange)
    return {"mean": 0.0, "max": 0, "lead": 0}


def pull_and_push(world: MPI.Intracomm, worker: Worker) -> None:
    """With a parameter server, rank 0: a gradient, or the sum of several, is sent and weights are received."""
    asked, weights = worker.asked, worker.network.weights
    every = asked.push_every if asked.method == "lazy" else 1
    waiting = np.zeros_like(weights)

    def exchange(step: int, gradient: Floats) -> None:
        waiting[:] += gradient
        if (step + 1) % every and step + 1 < asked.steps:
            # Between pushes a worker follows its own gradients.
            weights[:] -= asked.rate(step) / asked.workers * gradient
            return
        world.Send(waiting, 0)
        world.Recv(weights, 0)
        waiting[:] = 0

    worker.train(exchange)


def serve(world: MPI.Intracomm, asked: DigitsInputs) -> tuple[Network, Staleness]:
    """The parameter server: weights are updated by what arrives until all workers have pushed all that they push.

    A push moves the weights by the rate over the number of workers, so that equal numbers of images count equally.
    """
    network, descent = Network(asked.hidden, asked.seed), Descent(asked.momentum)
    weights, received = network.weights, np.empty_like(network.weights)
    every = asked.push_every if asked.method == "lazy" else 1
    pushes = -(-asked.steps // every)
    clocks, pulled = dict.fromkeys(range(1, world.size), 0), dict.fromkeys(range(1, world.size), 0)
    ages: list[int] = []
    lead = updates = 0
    held: set[int] = set()

    def answer(worker: int) -> None:
        pulled[worker] = updates
        world.Send(weights, worker)

    if asked.method == "synchronous":
        for step in range(asked.steps):
            total = np.zeros_like(weights)
            for worker in clocks:
                world.Recv(received, worker)
                total += received
            descent.update(weights, total / asked.workers, asked.rate(step))
            for worker in clocks:
                world.Send(weights, worker)
        return network, {"mean": 0.0, "max": 0, "lead": 0}
    status = MPI.Status()
    for _ in range(pushes * asked.workers):
        world.Recv(received, MPI.ANY_SOURCE, status=status)
        worker = status.Get_source()
        ages.append(updates - pulled[worker])
        descent.update(weights, received / asked.workers, asked.rate(clocks[worker] * every))
        clocks[worker] += 1
        updates += 1
        held.add(worker)
        slowest = min(clocks.values())
        free = [one for one in sorted(held) if asked.method != "bounded" or clocks[one] - slowest <= asked.bound]
        for one in free:
            held.discard(one)
            lead = max(lead, clocks[one] - slowest)
            answer(one)
    return network, {"mean": float(np.mean(ages)), "max": max(ages), "lead": lead * every}


def main(asked: DigitsInputs, folder: Path) -> None:
    """Train; rank 0 writes the result."""
    world = MPI.COMM_WORLD
    with np.load(folder / DIGITS_FILE) as file:
        data = dict(file)
    serves = asked.method not in ("ring", "hierarchical")
    worker = None if serves and world.rank == 0 else Worker(asked, data, world.rank - serves)
    world.Barrier()
    clock = time.perf_counter()
    if worker is None:
        network, staleness = serve(world, asked)
    elif serves:
        pull_and_push(world, worker)
        network, staleness = worker.network, {}
    else:
        network, staleness = worker.network, all_reduce(world, worker)
    world.Barrier()
    seconds = time.perf_counter() - clock
    exchange = world.allreduce(0.0 if worker is None else worker.exchange_seconds) / asked.workers
    weights = world.gather(network.weights)
    if world.rank == 0:
        assert weights is not None
        lead = staleness.pop("lead")
        agree = serves or all(np.array_equal(weights[0], other) for other in weights)
        found = {"seconds": seconds, "exchangeSeconds": exchange, "staleness": staleness, "lead": lead, "agree": agree}
        found |= tested(network, data)
        if worker is not None:
            found["shares"] = worker.shares
        (folder / RESULT_FILE).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(DigitsInputs.model_validate_json(sys.argv[1]), Path(sys.argv[2]))
