"""The measures `exchange` and `exchangeEvents`: exchanges of gradients between processes of this machine, whose
computing is imitated by sleeping, and a model of them, which also has many ranks.

The methods central (synchronous), asynchronous and bounded are parameter servers (Li et al., OSDI 2014); the solver has
all methods but the last two. No network is trained: the measures `solve` and `run` compare accuracies.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from pydantic import Field, model_validator

from caloscale.errors import InvalidValueError
from caloscale.sagips.exchange import Exchange, Groups, equal_groups, group_of, make_exchange
from caloscale.sagips.remote_memory import Counts, Floats
from caloscale.spec.block import Block
from caloscale.spec.solver import Exchange as ExchangeMethod
from caloscale.studies.exchange_events import ExchangePlan, Link, Network, Outcome, simulate
from caloscale.studies.points import validated
from caloscale.studies.ranks import run_ranks

if TYPE_CHECKING:
    from mpi4py import MPI

Server = Literal["asynchronous", "bounded"]
"""Parameter servers that do not wait for all workers; the synchronous one is the solver's `central`."""
SERVERS = get_args(Server)
Modelled = Literal["none", "all-reduce", "ring", "grouped-ring", "grouped-rma"]
"""Methods of the paper, and the synchronous baseline."""
FLOAT_BYTES = 4
PUBLISHED_FLOATS = 50_688
"""Weights of the published generator of the solver, without biases."""
_TRIPS = 200


class Exchanging(Block):
    """Workers, their groups, and how they exchange."""

    method: Literal[ExchangeMethod, Server] = "ring"
    ranks: int = Field(4, ge=1)
    group: int = Field(4, ge=1)
    """Workers of a group; the last group has the rest."""
    outer_every: int = Field(5, ge=1)
    """Epochs between two exchanges of the group leaders."""

    def groups(self) -> Groups:
        """The ranks of each group."""
        ranks = range(self.ranks)
        return tuple(tuple(ranks[first : first + self.group]) for first in ranks[:: self.group])

    def exchange(self, world: MPI.Intracomm) -> Exchange:
        """An exchange by a method of the solver. All ranks make it together."""
        return make_exchange(self.method, world, self.groups(), outer_every=self.outer_every)

    def slot_shares(self, counts: Sequence[Counts]) -> dict[str, float | None]:
        """``staleShare`` and ``newShare`` of the slots of remote memory that the ranks read, and ``age``, the mean of
        what was new there, in exchanges. Null where there are no such slots: messages of leaders are none."""
        groups = self.groups()
        slots = sum(own.exchanges * (len(group_of(rank, groups)) - 1) for rank, own in enumerate(counts))
        if self.method != "grouped-rma" or slots == 0:
            return dict.fromkeys(("staleShare", "newShare", "age"))
        total = Counts.total(counts)
        new = slots - total.repeated - total.missing
        return {"staleShare": total.stale / slots, "newShare": new / slots, "age": total.age / new if new else None}


class Ranks(Exchanging):
    """Workers that exchange, and how long they compute."""

    epochs: int = Field(100, ge=1)
    """Exchanges."""
    compute_milliseconds: float = Field(0.0, ge=0)
    """Mean time of a worker's epoch without exchange that does not straggle."""
    width: float = Field(0.0, ge=0)
    """Relative width of the log-normal distribution of that time."""
    stragglers: float = Field(0.0, ge=0, le=1)
    """Share of the epochs that take `stragglerFactor` times as long."""
    straggler_factor: float = Field(4.0, ge=1)

    def computing_seconds(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Times of all epochs and workers, (epochs, ranks), s."""
        random, shape = np.random.default_rng(1), (self.epochs, self.ranks)
        sigma = np.sqrt(np.log1p(self.width**2))
        mean = self.compute_milliseconds / 1000
        times = mean * np.exp(sigma * random.standard_normal(shape) - sigma**2 / 2)
        return np.where(random.random(shape) < self.stragglers, self.straggler_factor * times, times)


class ExchangeInputs(Ranks):
    """Exchanges of processes of this machine."""

    tensors: tuple[int, ...] = Field((PUBLISHED_FLOATS,), min_length=1)
    """Floats of each vector; they are exchanged one after the other."""
    samples: int = Field(16, ge=1)
    """Samples of a worker's epoch."""
    slow_milliseconds: float = Field(0.0, ge=0)
    """Time that the last worker needs more in each epoch."""
    slow_sample_milliseconds: float = Field(0.0, ge=0)
    """Time that the last worker needs more for each of its samples."""
    rebalance_every: int = Field(0, ge=0)
    """Epochs after which the samples are shared anew, by what each worker computed in a second; 0: equal shares."""
    bound: int = Field(2, ge=0)
    """Most epochs that a worker may be ahead of the slowest (bounded)."""

    @model_validator(mode="after")
    def _fits(self) -> ExchangeInputs:
        if self.rebalance_every and self.method in SERVERS:
            problem = f"rebalanceEvery: {self.rebalance_every} needs an exchange without a server"
            raise InvalidValueError(problem, remedy="write another method, or rebalanceEvery: 0")
        return self


def time_exchange(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Exchanges of real processes.

    Result: ``epochMilliseconds`` of the slowest worker, ``computingMilliseconds`` and ``exchangeMilliseconds``
    (communication and waiting), means over workers and epochs; ``samplesPerSecond`` of all; of remote memory
    `Exchanging.slot_shares`; of servers ``staleness``, ``mean`` and ``max`` number of updates
    between a pull and its push, and ``lead``, the most epochs that a worker was ahead; ``shares`` of the samples in the
    end; ``links``, what messages take; ``modelled``, epoch and stale share by `simulate` for the times that passed,
    null for methods that it does not know and for several vectors. Raises ConfigurationError, TrainingError.
    """
    asked = validated(ExchangeInputs, inputs)
    processes = asked.ranks + (asked.method in SERVERS)
    measured = run_ranks("exchange", processes, asked.as_values())
    workers = measured.pop("workers")
    computing, ended = np.array([own["computing"] for own in workers]).T, [own["seconds"] for own in workers]
    return {
        "epochMilliseconds": 1000 * max(ended) / asked.epochs,
        "computingMilliseconds": 1000 * float(computing.mean()),
        "exchangeMilliseconds": 1000 * (float(np.mean(ended)) / asked.epochs - float(computing.mean())),
        "samplesPerSecond": asked.epochs * asked.ranks * asked.samples / max(ended),
        **asked.slot_shares([Counts(**own["counts"]) for own in workers]),
        **measured,
        "shares": workers[0]["shares"],
        "modelled": _modelled(asked, computing, measured["links"]),
    }


def _modelled(asked: ExchangeInputs, computing: Any, links: Mapping[str, Any] | None) -> dict[str, Any] | None:
    method = "all-reduce" if asked.method == "chunked-ring" else asked.method  # modelled as that ring
    if method not in get_args(Modelled) or links is None or len(asked.tensors) > 1:
        return None
    message = Link(links["messageSeconds"], links["messageBytesPerSecond"] or math.inf)
    window = Link(links["windowSeconds"], links["windowBytesPerSecond"])
    plan = ExchangePlan(method, asked.groups(), FLOAT_BYTES * asked.tensors[0], outer_every=asked.outer_every)
    return _described(simulate(plan, computing, Network(message, message, window)))


def _described(outcome: Outcome) -> dict[str, Any]:
    return {
        "epochMilliseconds": 1000 * outcome.seconds_per_epoch,
        # The mean rank: without exchange the slowest one would count as waiting.
        "computingShare": float(outcome.computing.sum(0).mean() / outcome.ended[-1].mean()),
        "staleShare": outcome.counts.stale / outcome.slots if outcome.slots else None,
    }


class EventInputs(Ranks):
    """Exchanges of many ranks, one group on each node; links as given."""

    method: Modelled = "ring"
    epochs: int = Field(30, ge=1)
    floats: int = Field(PUBLISHED_FLOATS, ge=1)
    latency_seconds: float = Field(10e-6, ge=0)
    """Of a message between nodes."""
    bytes_per_second: float = Field(10e9, gt=0)
    inside_latency_seconds: float = Field(1e-6, ge=0)
    inside_bytes_per_second: float = Field(6e9, gt=0)
    window_latency_seconds: float = Field(5e-6, ge=0)
    """Of a look into remote memory within a node."""
    window_bytes_per_second: float = Field(44e9, gt=0)


def model_events(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``epochMilliseconds``, ``computingShare`` and ``staleShare`` of exchanges by `simulate`; nothing is measured.

    Raises ConfigurationError.
    """
    asked = validated(EventInputs, inputs)
    network = Network(
        Link(asked.inside_latency_seconds, asked.inside_bytes_per_second),
        Link(asked.latency_seconds, asked.bytes_per_second),
        Link(asked.window_latency_seconds, asked.window_bytes_per_second),
    )
    plan = ExchangePlan(asked.method, asked.groups(), FLOAT_BYTES * asked.floats, outer_every=asked.outer_every)
    return _described(simulate(plan, asked.computing_seconds(), network))


def links(world: MPI.Intracomm, floats: int) -> dict[str, Any] | None:
    """Messages and remote memory between ranks 0 and 1, while no other rank works: s and bytes/s."""
    vector = np.zeros(floats, np.float32)
    small, large = (_trip_seconds(world, buffer) for buffer in (np.zeros(1, np.float32), vector))
    pairs = equal_groups(-(-world.size // 2), world.size)  # each rank reads one slot
    # The leaders exchange after more epochs than are timed.
    exchange = make_exchange("grouped-rma", world, pairs, outer_every=10 * _TRIPS)
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
        "messageBytesPerSecond": bandwidth(vector.nbytes, small, large),
        # The own slot is written under a lock, and a header is read under another.
        "windowSeconds": statistics.median(looks) / 2,
        "windowBytesPerSecond": vector.nbytes / statistics.median(copies),
    }


def bandwidth(sent: int, empty_seconds: float, seconds: float) -> float | None:
    """Bytes/s of a link whose messages of ``sent`` bytes take ``seconds``; None: no longer than an empty message."""
    return sent / (seconds - empty_seconds) if seconds > empty_seconds else None


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


class Pushes:
    """A worker's end of a parameter server, used as an exchange: a vector is sent and the newest sum is received."""

    def __init__(self, world: MPI.Intracomm) -> None:
        self.world, self.counts = world, Counts()

    def average(self, vector: Floats, _: int) -> None:
        """Wait for the server."""
        self.world.Send(vector, 0)
        self.world.Recv(vector, 0)

    def close(self) -> None:
        """There is nothing to free."""


def train(world: MPI.Intracomm, asked: ExchangeInputs, number: int) -> dict[str, Any]:
    """What a worker does: it sleeps as long as its samples take, and exchanges; shares follow the speeds if asked.

    Result: ``computing``, seconds of each epoch; ``seconds`` of all; ``counts``; ``shares`` of the samples in the end.
    """
    with_server = asked.method in SERVERS
    sizes = (sum(asked.tensors),) if with_server else asked.tensors
    exchanges = [Pushes(world) if with_server else asked.exchange(world) for _ in sizes]
    # A server's sum comes back, and would double with each update.
    gradients = [np.full(floats, 0 if with_server else world.rank, np.float32) for floats in sizes]
    before, rebalance_every = 2 * asked.outer_every, asked.rebalance_every
    shares, computing = [asked.samples] * asked.ranks, []

    def average(exchange_number: int) -> None:
        for method, gradient in zip(exchanges, gradients):
            method.average(gradient, exchange_number)

    for exchange_number in (before - 1, before):  # makes connections and remote memory, also of the leaders
        average(exchange_number)
    for method in exchanges:
        vars(method.counts).update(vars(Counts()))
    world.Barrier()
    start = time.perf_counter()
    for epoch, usual in enumerate(asked.computing_seconds()[:, number].tolist(), start=1):
        seconds = usual * shares[number] / asked.samples
        if number == asked.ranks - 1:
            seconds += (asked.slow_milliseconds + shares[number] * asked.slow_sample_milliseconds) / 1000
        clock = time.perf_counter()
        if seconds:
            time.sleep(seconds)
        computing.append(time.perf_counter() - clock)
        average(before + epoch)
        if rebalance_every and epoch % rebalance_every == 0:
            speed = shares[number] / max(statistics.fmean(computing[-rebalance_every:]), 1e-9)
            shares = shares_of(world.allgather(speed), asked.ranks * asked.samples)
    ended = time.perf_counter() - start
    for method in exchanges:
        method.close()
    counts = asdict(Counts.total([method.counts for method in exchanges]))
    return {"computing": computing, "seconds": ended, "counts": counts, "shares": shares}


def serve(world: MPI.Intracomm, asked: ExchangeInputs) -> dict[str, Any]:
    """The parameter server: each vector that arrives is an update, and its sender gets the newest sum.

    A worker that is more than `bound` epochs ahead of the slowest waits for its answer (bounded). Result: staleness
    and lead.
    """
    from mpi4py import MPI

    total = np.zeros(sum(asked.tensors), np.float32)
    received = np.empty_like(total)
    clocks, pulled = dict.fromkeys(range(1, world.size), 0), dict.fromkeys(range(1, world.size), 0)
    ages: list[int] = []
    lead = 0
    held: set[int] = set()
    status = MPI.Status()
    for worker in 2 * [*clocks]:  # what `train` sends before its epochs
        world.Recv(received, worker)
        world.Send(total, worker)
    world.Barrier()
    for updates in range(1, asked.epochs * asked.ranks + 1):
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
    return {"staleness": {"mean": statistics.fmean(ages), "max": max(ages)}, "lead": lead}


def work(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """What each process of `time_exchange` does; rank 0 has what all have found. No TensorFlow is loaded."""
    from mpi4py import MPI  # it joins the job, which only the processes of mpiexec may

    asked, world = validated(ExchangeInputs, settings), MPI.COMM_WORLD
    measured: dict[str, Any] = {"links": links(world, sum(asked.tensors)) if world.size > 1 else None}
    measured |= {"staleness": None, "lead": None}
    with_server, own = asked.method in SERVERS, None
    if with_server and world.rank == 0:
        measured |= serve(world, asked)
    else:
        own = train(world, asked, world.rank - with_server)
    every = world.gather(own)
    return None if every is None else measured | {"workers": [each for each in every if each is not None]}
