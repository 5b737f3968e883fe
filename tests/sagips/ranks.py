"""The program of the ranks in the tests of the exchanges: known vectors in, averages out. No TensorFlow.

    mpiexec -n RANKS python -m mpi4py ranks.py SCENARIO FILE

Rank 0 writes what all ranks found into FILE, pickled; a rank that fails writes why into rank-RANK.txt beside it.
"""

import os
import pickle
import signal
import sys
import traceback
from pathlib import Path

import numpy as np
from mpi4py import MPI

from caloscale.sagips.exchange import GroupedRma, make_exchange, node_groups, wait
from caloscale.spec.solver import SYNCHRONOUS
from tests.sagips.vectors import EPOCHS, PLANS, PlannedExchange, gradient, uneven, whole

FREE_EPOCHS, SEGMENT = 40, 3000
SLOW_EPOCHS = 30


def rest(communicator):
    """A barrier that leaves the cores to others: there are more ranks than cores."""
    wait([communicator.Ibarrier()])


def in_step(exchange):
    """A remote-memory exchange whose members wait for each other after each put and get: then it is the exact mean."""
    inner = exchange._inner
    put, get = inner._put, inner._get

    def waiting(function):
        def call(*arguments):
            result = function(*arguments)
            rest(inner._communicator)
            return result

        return call

    inner._put, inner._get = waiting(put), waiting(get)
    return exchange


def exchange_of(plan: PlannedExchange, communicator):
    groups = node_groups(communicator) if plan.groups is whole else plan.groups(communicator.size)
    exchange = make_exchange(
        plan.method, communicator, groups, outer_every=plan.outer_every, leader=plan.leader, seed=plan.seed
    )
    return in_step(exchange) if isinstance(exchange, GroupedRma) else exchange


def sums(world):
    """Every plan on every number of ranks: in round k, n - k ranks and the k others form communicators."""
    found = []
    for others in range(world.size // 2 + 1):
        part = world.Split(world.rank < others, world.rank)
        for name, plan in PLANS.items():
            exchange = exchange_of(plan, part)
            averages = [exchange.average(gradient(part.rank, epoch, plan.size), epoch) for epoch in range(EPOCHS)]
            counts = exchange.counts
            rest(part)
            exchange.close()
            every = part.gather((averages, counts.dropped))
            if part.rank == 0:
                found.append([name, part.size, every])
        part.Free()
        rest(world)
    return [one for several in world.gather(found) or () for one in several]


def equal(world):
    """Whether all ranks have the same bits after each synchronous exchange of random vectors, by method and ranks."""
    found = {}
    for others in range(world.size // 2 + 1):
        part = world.Split(world.rank < others, world.rank)
        for method in sorted(SYNCHRONOUS):
            exchange = make_exchange(method, part, uneven(part.size))
            random = np.random.default_rng(part.rank)
            sent = [random.standard_normal(1001, np.float32) for _ in range(2)]
            every = part.gather([exchange.average(vector, epoch) for epoch, vector in enumerate(sent)])
            rest(part)
            exchange.close()
            if part.rank == 0:
                found[method, part.size] = all(np.array_equal(one, every[0]) for one in every)
        part.Free()
        rest(world)
    return {key: value for several in world.gather(found) or () for key, value in several.items()}


def segments(rank, ranks, epoch):
    """The epoch in the rank's segment, zero elsewhere: an average says which gradients are in it."""
    vector = np.zeros((ranks, SEGMENT), np.float32)
    vector[rank] = epoch
    return vector.ravel()


def contents(average, ranks):
    """Smallest and largest value of each segment: they are the same unless a vector was read while it was written."""
    rows = average.reshape(ranks, SEGMENT).astype(float)
    return [rows.min(1).tolist(), rows.max(1).tolist()]


def free(world):
    """Remote memory without any waiting, on communicators of several sizes."""
    found = []
    for others in (0, 4):
        part = world.Split(world.rank < others, world.rank)
        exchange = make_exchange("grouped-rma", part, whole(part.size))
        averages = [
            contents(exchange.average(segments(part.rank, part.size, epoch), epoch), part.size)
            for epoch in range(1, FREE_EPOCHS + 1)
        ]
        counts = vars(exchange.counts)
        exchange.close()
        every = part.gather((averages, counts))
        if part.rank == 0:
            found.append(every)
        part.Free()
    return [one for several in world.gather(found) or () for one in several]


def slow(world):
    """Rank 0 makes its second exchange after the last one of the others. If one waited for it, none would end."""
    exchange = make_exchange("grouped-rma", world, whole(world.size))
    others = [rank for rank in range(world.size) if rank]
    averages = [contents(exchange.average(segments(world.rank, world.size, 1), 1), world.size)]
    world.Barrier()
    done = [world.recv(source=rank) for rank in others] if world.rank == 0 else None
    for epoch in range(2, SLOW_EPOCHS + 1):
        averages.append(contents(exchange.average(segments(world.rank, world.size, epoch), epoch), world.size))
    if world.rank:
        world.send(epoch, 0)
    counts = vars(exchange.counts)
    exchange.close()
    return {"done": world.bcast(done), "ranks": world.gather((averages, counts))}


def endless(world, method, fault):
    """Exchanges without end; in epoch 3 rank 1 is killed, or raises an error."""
    exchange = make_exchange(method, world, whole(world.size))
    epoch = 0
    while True:
        if epoch == 3 and world.rank == 1:
            if fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("no data file on this rank")
        exchange.average(np.ones(10, np.float32), epoch)
        epoch += 1


SCENARIOS = {"sums": sums, "equal": equal, "free": free, "slow": slow}

if __name__ == "__main__":
    names, target = sys.argv[1].split(","), sys.argv[2]
    world = MPI.COMM_WORLD
    if names[0] == "endless":
        endless(world, *names[1:])
    results = {}
    try:
        for name in names:
            ranks = world.Split(0 if name != "slow" or world.rank < 4 else MPI.UNDEFINED, world.rank)
            if ranks != MPI.COMM_NULL:
                results[name] = SCENARIOS[name](ranks)
                ranks.Free()
            rest(world)
    except BaseException:
        Path(target).with_name(f"rank-{world.rank}.txt").write_text(traceback.format_exc(), encoding="utf-8")
        raise
    if world.rank == 0:
        Path(target).write_bytes(pickle.dumps(results))
