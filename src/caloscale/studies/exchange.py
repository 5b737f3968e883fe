"""The measures `exchange` and `exchangeEvents`: exchanges of gradients between processes of this machine, whose
computing is imitated by sleeping, beside a model of them, which knows many ranks as well.

Synchronous, asynchronous, bounded and lazy are parameter servers (Li et al., OSDI 2014); the other methods are those of
the solver. No network is trained: the measures `solve` and `run` compare accuracies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from caloscale.errors import InvalidValueError
from caloscale.sagips.exchange import COMPARED, METHODS
from caloscale.sagips.groups import Groups, groups_of_sizes
from caloscale.spec.block import Block
from caloscale.studies.exchange_events import ExchangePlan, Link, Network, Outcome, simulate, straggling_times
from caloscale.studies.points import validated
from caloscale.studies.ranks import run_ranks

SERVERS = ("asynchronous", "bounded", "lazy")
"""Parameter servers that do not wait for all workers; the synchronous one is the solver's `central`."""
FLOAT_BYTES = 4
PUBLISHED_FLOATS = 50_688
"""Weights of the published generator of the solver, without biases."""


class Ranks(Block):
    """Workers, their groups, and how long they compute."""

    method: str = "ring"
    """Exchange."""
    ranks: int = Field(4, ge=1)
    """Workers."""
    group: int = Field(4, ge=1)
    """Workers of a group; the last group has the rest."""
    outer_every: int = Field(5, ge=1)
    """Epochs between two exchanges of the group leaders."""
    epochs: int = Field(100, ge=1)
    """Exchanges."""
    compute_milliseconds: float = Field(0.0, ge=0)
    """Mean time of a worker's epoch without exchange."""
    width: float = Field(0.0, ge=0)
    """Relative width of the log-normal distribution of that time."""
    stragglers: float = Field(0.0, ge=0, le=1)
    """Share of the epochs that take `stragglerFactor` times as long."""
    straggler_factor: float = Field(4.0, ge=1)
    """How many times."""

    def groups(self) -> Groups:
        """The ranks of each group."""
        sizes = [min(self.group, self.ranks - first) for first in range(0, self.ranks, self.group)]
        return groups_of_sizes(sizes, self.ranks)

    def computing_seconds(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Times of all epochs and workers, (epochs, ranks), s."""
        return straggling_times(
            self.epochs,
            self.ranks,
            self.compute_milliseconds / 1000,
            width=self.width,
            share=self.stragglers,
            factor=self.straggler_factor,
            seed=1,
        )


class ExchangeInputs(Ranks):
    """Exchanges of processes of this machine."""

    tensors: tuple[int, ...] = Field((PUBLISHED_FLOATS,), min_length=1)
    """Floats of each vector; they are exchanged one after the other."""
    barrier: bool = False
    """Whether all workers wait for each other after each exchange."""
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
    push_every: int = Field(4, ge=1)
    """Epochs between two messages to the server (lazy)."""

    @model_validator(mode="after")
    def _fits(self) -> ExchangeInputs:
        methods = (*METHODS, *COMPARED, *SERVERS)
        if self.method not in methods:
            raise InvalidValueError(f"method: {self.method} is unknown", remedy=f"write one of {', '.join(methods)}")
        if self.rebalance_every and self.method in SERVERS:
            raise InvalidValueError(
                f"rebalanceEvery: {self.rebalance_every} needs an exchange without a server",
                remedy="write another method, or rebalanceEvery: 0",
            )
        return self


def time_exchange(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Exchanges of real processes.

    Result: ``epochMilliseconds`` of the slowest worker, ``computingMilliseconds`` and ``exchangeMilliseconds``
    (communication and waiting), means over workers and epochs; ``samplesPerSecond`` of all; of remote memory
    ``staleShare`` and ``newShare`` of the slots; of servers ``staleness``, ``mean`` and ``max`` number of updates
    between a pull and its push, and ``lead``, the most epochs that a worker was ahead; ``shares`` of the samples in the
    end; ``links``, what messages take; ``modelled``, epoch and stale share by `simulate` for the times that passed,
    null for methods that it does not know. Raises ConfigurationError, TrainingError.
    """
    asked = validated(ExchangeInputs, inputs)
    with TemporaryDirectory(prefix="caloscale-study-") as temporary:
        target = Path(temporary) / "result.json"
        processes = asked.ranks + (asked.method in SERVERS)
        run_ranks("exchange_rank", processes, [asked.model_dump_json(by_alias=True), str(target)])
        found: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    computing, ended = np.array(found.pop("computing")).T, found.pop("ended")
    slots = found["contributions"] + found["repeated"] + found["missing"]
    remote = asked.method == "grouped-rma"
    return {
        "epochMilliseconds": 1000 * max(ended) / asked.epochs,
        "computingMilliseconds": 1000 * float(computing.mean()),
        "exchangeMilliseconds": 1000 * (float(np.mean(ended)) / asked.epochs - float(computing.mean())),
        "samplesPerSecond": asked.epochs * asked.ranks * asked.samples / max(ended),
        "staleShare": found["stale"] / slots if remote and slots else None,
        "newShare": found["contributions"] / slots if remote and slots else None,
        **{name: found[name] for name in ("staleness", "lead", "shares", "links")},
        "modelled": _modelled(asked, computing, found["links"]),
    }


def _modelled(asked: ExchangeInputs, computing: Any, links: Mapping[str, float] | None) -> dict[str, Any] | None:
    if asked.method not in METHODS or links is None:
        return None
    message = Link(links["messageSeconds"], links["messageBytesPerSecond"])
    window = Link(links["windowSeconds"], links["windowBytesPerSecond"])
    plan = ExchangePlan(asked.method, asked.groups(), FLOAT_BYTES * sum(asked.tensors), outer_every=asked.outer_every)
    return _described(simulate(plan, computing, Network(message, message, window)))


def _described(made: Outcome) -> dict[str, Any]:
    return {
        "epochMilliseconds": 1000 * made.seconds_per_epoch,
        # The mean rank: without exchange the slowest one would count as waiting.
        "computingShare": float(made.computing.sum(0).mean() / made.ended[-1].mean()),
        "staleShare": made.stale / made.slots if made.slots else None,
    }


class EventInputs(Ranks):
    """Exchanges of many ranks on nodes of their own, one group a node; links as given."""

    epochs: int = Field(30, ge=1)
    """Exchanges."""
    floats: int = Field(PUBLISHED_FLOATS, ge=1)
    """Floats of the vector."""
    latency_seconds: float = Field(10e-6, ge=0)
    """Of a message between nodes."""
    bytes_per_second: float = Field(10e9, gt=0)
    """Between nodes."""
    inside_latency_seconds: float = Field(1e-6, ge=0)
    """Of a message within a node."""
    inside_bytes_per_second: float = Field(6e9, gt=0)
    """Within a node."""
    window_latency_seconds: float = Field(5e-6, ge=0)
    """Of a look into remote memory within a node."""
    window_bytes_per_second: float = Field(44e9, gt=0)
    """Of a copy from there."""

    @model_validator(mode="after")
    def _is_modelled(self) -> EventInputs:
        if self.method not in METHODS:
            raise InvalidValueError(f"method: {self.method} has no model", remedy=f"write one of {', '.join(METHODS)}")
        return self


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
