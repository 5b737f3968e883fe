"""Forms of the step time: different mechanisms, which fit the measured counts alike and extrapolate differently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Setups:
    """Ways of running a network, one an element of each array."""

    replicas: Numbers
    """Replicas n of the network (GPUs, TPU cores)."""
    workers: Numbers
    """Workers w that they are divided into."""
    nodes: Numbers
    """Nodes m that the workers are on."""
    batch: Numbers
    """Showers in a replica's batch."""

    def __getitem__(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> Setups:
        return Setups(self.replicas[chosen], self.workers[chosen], self.nodes[chosen], self.batch[chosen])

    def __len__(self) -> int:
        return len(self.replicas)


@dataclass(frozen=True)
class Form:
    """What the time to agree is proportional to, beside the arithmetic a + b x batch."""

    name: str
    """Short name."""
    mechanism: str
    """Why it would be so."""
    columns: Callable[[Setups], list[Numbers]]
    """The quantities whose coefficients, s, are fitted and must not be negative."""


def oversubscription(s: Setups) -> Numbers:
    """Workers that share their node with others, w (w/m - 1): 0 when there is one a node."""
    return np.asarray(s.workers * (s.workers / s.nodes - 1))


def lone(s: Setups) -> Numbers:
    """Workers with a single replica each, beyond the first: seen to be the least steady."""
    return np.asarray(np.where(s.replicas == s.workers, s.workers - 1, 0.0))


TWO_LEVEL = Form(
    "two-level ring",
    "a ring over all replicas: every step passes (replicas - workers) hops inside nodes and (workers - 1) between them",
    lambda s: [s.replicas - s.workers, s.workers - 1, oversubscription(s), lone(s)],
)
FLAT = Form(
    "flat ring",
    "a ring over all replicas whose hops are all alike",
    lambda s: [s.replicas - 1, oversubscription(s), lone(s)],
)
TREE = Form(
    "tree",
    "a tree over all replicas: the logarithm of their number",
    lambda s: [np.log2(s.replicas), oversubscription(s), lone(s)],
)
STRAGGLERS = Form(
    "stragglers",
    "no latency, only waiting for the slowest replica: the root of the logarithm of their number",
    lambda s: [np.sqrt(2 * np.log(s.replicas)), oversubscription(s), lone(s)],
)
FORMS = (TWO_LEVEL, FLAT, TREE, STRAGGLERS)
"""TensorFlow's and NCCL's all-reduce of small tensors is a ring, so TWO_LEVEL is used; the others show how much
the choice matters."""
