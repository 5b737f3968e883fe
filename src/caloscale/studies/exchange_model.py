"""The alpha-beta model of exchanges of gradients: latency and bandwidth of links, and the number of workers.

Ring: Patarasuk and Yuan, J. Parallel Distrib. Comput. 69 (2009) 117. Hierarchical: reduce-scatter inside each node, a
ring of nodes for each share, all-gather inside each node (Jia et al., arXiv:1807.11205). Parameter servers: Li et al.,
OSDI 2014. Waiting for the slowest of n workers: sigma sqrt(2 ln n), the leading term of the largest of n normal
numbers.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from caloscale import __version__
from caloscale.spec.block import Block
from caloscale.storage.atomic import write_text
from caloscale.studies.points import configured_run, own_inputs, validated


class _Links(Block):
    """How gradients are averaged, and what links do."""

    method: Literal["ring", "hierarchical", "parameter-server"] = "ring"
    """Parameter servers are synchronous."""
    latency_seconds: float = Field(ge=0)
    """Time of an empty message between nodes, s."""
    bytes_per_second: float = Field(gt=0)
    """Bandwidth of a node's link, bytes/s; its workers share it."""
    inside_latency_seconds: float = Field(0.0, ge=0)
    """Time of an empty message inside a node, s."""
    inside_bytes_per_second: float = Field(math.inf, gt=0, allow_inf_nan=True)
    """Bandwidth between two workers of a node, bytes/s; absent: without limit."""


class ExchangeInputs(_Links):
    """A step of data-parallel training on a cluster."""

    workers: int = Field(ge=1)
    """Workers n, one accelerator each."""
    per_node: int = Field(1, ge=1)
    """Workers g of a node; the last node may have fewer."""
    gradient_bytes: tuple[float, ...] = Field(min_length=1)
    """Bytes of each exchange of a step; they follow one another."""
    compute_seconds: float = Field(gt=0)
    """Mean time of a step without exchange, s."""
    spread_seconds: float = Field(0.0, ge=0)
    """Standard deviation of that time between workers, s."""
    batch_per_worker: int = Field(1, ge=1)
    """Samples of a worker's step."""
    servers: int = Field(1, ge=1)
    """Parameter servers, one a node; each holds an equal part."""


class NodesInputs(_Links):
    """An epoch on several nodes like this machine."""

    nodes: int = Field(ge=1)
    showers: int = Field(ge=1)
    """Of an epoch."""


def ring(size: float, members: int, latency: float, bandwidth: float) -> tuple[float, float]:
    """Latency and transfer, s, of an all-reduce of ``size`` bytes: 2(n-1) alpha and 2((n-1)/n) S/beta."""
    hops = 2 * (members - 1)
    return hops * latency, hops / members * size / bandwidth


def _exchange(asked: ExchangeInputs, size: float) -> tuple[float, float]:
    """Latency and transfer of an exchange, s."""
    nodes = math.ceil(asked.workers / asked.per_node)
    inside = asked.inside_latency_seconds, asked.inside_bytes_per_second
    between = asked.latency_seconds, asked.bytes_per_second
    members = min(asked.workers, asked.per_node)
    if asked.method == "parameter-server":
        if asked.workers == 1:
            return 0.0, 0.0
        # A server receives the gradients of all workers and sends weights to all, over its one link; a node's link
        # carries the gradients of its own workers.
        through = max(asked.workers / asked.servers, members)
        return 2 * asked.latency_seconds, 2 * through * size / asked.bytes_per_second
    if nodes == 1:
        return ring(size, asked.workers, *inside)
    if asked.method == "ring":
        # Every step of the ring waits for its slowest hop, which is one between nodes.
        slowest = between if members == 1 else (max(inside[0], between[0]), min(inside[1], between[1]))
        return ring(size, asked.workers, *slowest)
    # A reduce-scatter and an all-gather are the two halves of a ring. The rings of all shares cross a link together.
    here, there = ring(size, members, *inside), ring(size, nodes, *between)
    return here[0] + there[0], here[1] + there[1]


def model_step(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A step with its parts, s, and what it processes.

    Result: ``exchangeLatencySeconds`` and ``exchangeTransferSeconds``, together ``exchangeSeconds``; ``waitSeconds``
    for the slowest worker; ``stepSeconds``; ``samplesPerSecond`` of all workers; ``efficiency``, compute time over
    step. Nothing is computed during an exchange. Raises ConfigurationError.
    """
    return _modelled(validated(ExchangeInputs, inputs))


def _modelled(asked: ExchangeInputs) -> dict[str, float]:
    latency, transfer = map(sum, zip(*(_exchange(asked, size) for size in asked.gradient_bytes)))
    wait = asked.spread_seconds * math.sqrt(2 * math.log(asked.workers))
    step = asked.compute_seconds + latency + transfer + wait
    return {
        "exchangeLatencySeconds": latency,
        "exchangeTransferSeconds": transfer,
        "exchangeSeconds": latency + transfer,
        "waitSeconds": wait,
        "stepSeconds": step,
        "samplesPerSecond": asked.workers * asked.batch_per_worker / step,
        "efficiency": asked.compute_seconds / step,
    }


def model_nodes(inputs: Mapping[str, Any], points: Path) -> dict[str, Any]:
    """An epoch on several nodes like this machine, from a step that is measured here.

    inputs: `NodesInputs`, and inputs of `step`, which is measured once for all points of the folder; ``processes``: of
    a node. The gradients of each update are exchanged; workers differ by the measured variation of a step.
    Result: as of `model_step`, with ``workers``, ``stepsPerEpoch``, ``epochMinutes``, ``showersPerSecond`` and
    ``measuredStepSeconds``. Raises ConfigurationError, BenchError.
    """
    from caloscale.models import build, count_parameters, family_of  # TensorFlow
    from caloscale.studies.contenders import StepInputs, time_steps

    asked, of_step = own_inputs(NodesInputs, inputs)
    key = hashlib.sha256(json.dumps([__version__, of_step], sort_keys=True).encode()).hexdigest()[:16]
    file = points / f"step-{key}.json"
    if not file.is_file():
        write_text(file, json.dumps(time_steps(of_step)))
    measured = json.loads(file.read_text(encoding="utf-8"))
    node, fields = own_inputs(StepInputs, of_step)
    run, workers = configured_run(fields), asked.nodes * node.processes
    batch = run.train.replica_batch(1)
    networks, roles = build(run.model, run.data), family_of(run.model).reduced_roles(run)
    step = _modelled(
        ExchangeInputs(
            **asked.values_of(*_Links.model_fields),
            workers=workers,
            per_node=node.processes,
            gradient_bytes=tuple(4.0 * count_parameters(networks[role]) for role in roles),
            compute_seconds=measured["meanStepSeconds"],
            spread_seconds=measured["cv"] * measured["meanStepSeconds"],
            batch_per_worker=batch,
        )
    )
    steps = math.ceil(asked.showers / (workers * batch))
    return {
        **step,
        "workers": workers,
        "stepsPerEpoch": steps,
        "epochMinutes": steps * step["stepSeconds"] / 60,
        "showersPerSecond": step["samplesPerSecond"],
        "measuredStepSeconds": measured["meanStepSeconds"],
    }
