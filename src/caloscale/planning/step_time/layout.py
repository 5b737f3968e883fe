"""Workers, accelerators and nodes: which divisions there are, what they cost in time, and what is refused."""

from collections.abc import Sequence

import numpy as np

from caloscale.planning.catalogue.hardware import Accelerator, Network
from caloscale.planning.catalogue.measurements import Measurement
from caloscale.planning.step_time.throughput import Setups
from caloscale.planning.step_time.timing import Timing
from caloscale.spec.block import Block
from caloscale.spec.train import TrainingPrecision, divisors

MEMORY_SHARE = 0.9
"""Part of an accelerator's memory that a batch may fill."""


class Layout(Block):
    """A way of dividing accelerators into workers on nodes, with its predicted time."""

    workers: int
    accelerators_per_worker: int
    nodes: int
    per_node: int
    """Accelerators of each."""
    aligned: bool
    """One worker a node with all its accelerators."""
    epoch_seconds: float
    """Predicted epoch, s."""
    epoch_seconds_interval: tuple[float, float]
    """Its 90% interval, s."""
    slower_than_best: float
    """Epoch over that of the best layout, minus 1."""
    step_scatter: float | None
    """Scatter of the steps that was measured in this layout, relative; null: not measured."""
    reasons: tuple[str, ...]
    """How the workers divide the nodes, and in what respect the prediction extrapolates."""


def rank_layouts(
    timing: Timing,
    accelerator: Accelerator,
    measurements: Sequence[Measurement],
    *,
    count: int,
    node_sizes: Sequence[int],
    batch: int,
    showers: int,
) -> list[Layout]:
    """All layouts of ``count`` accelerators on nodes of the given sizes, fastest first, steadier first where equal."""
    sizes = sorted({size for size in node_sizes if count % size == 0}, reverse=True)
    divided = [(count // size, size, part) for size in sizes for part in divisors(size)[::-1]]
    replicas = count * accelerator.replicas
    rows = [(replicas, count // part, nodes, batch) for nodes, _, part in divided]
    setups = Setups(*np.array(rows, float).T)
    times = timing.predict(setups, showers)
    scatter = [_scatter(measurements, accelerator, count, count // part, nodes) for nodes, _, part in divided]
    order = sorted(range(len(divided)), key=lambda i: (times.epoch_seconds[i], scatter[i] or np.inf))
    best = times.epoch_seconds[order[0]]
    ranked = []
    for index in order:
        nodes, size, part = divided[index]
        reasons = [describe_division(size, part)]
        if nodes > 1 and size == 1:
            reasons.append("single accelerators: every hop of the ring crosses the network, and steps were unsteady")
        reasons += [f"extrapolates: {reason}" for reason in timing.extrapolations(setups[index : index + 1])]
        ranked.append(
            Layout(
                workers=count // part,
                accelerators_per_worker=part,
                nodes=nodes,
                per_node=size,
                aligned=part == size,
                epoch_seconds=float(times.epoch_seconds[index]),
                epoch_seconds_interval=(float(times.epoch_low[index]), float(times.epoch_high[index])),
                slower_than_best=float(times.epoch_seconds[index] / best - 1),
                step_scatter=scatter[index],
                reasons=tuple(reasons),
            )
        )
    return ranked


def memory_problem(
    accelerator: Accelerator, network: Network, batch: int, precision: TrainingPrecision = "float32"
) -> str | None:
    """Why a batch cannot fit into the memory of a replica; None where it can.

    Counted is a lower bound, the layers' outputs stored once: what passes may still turn out too large.
    """
    needed_gib = batch * network.activation_mib / 1024 / (2 if precision == "bfloat16" else 1)
    memory_gib = accelerator.memory_gib / accelerator.replicas
    if needed_gib <= MEMORY_SHARE * memory_gib:
        return None
    return (
        f"a batch of {batch} needs at least {needed_gib:.1f} GiB, a replica on {accelerator.accelerator} has "
        f"{memory_gib:g} GiB"
    )


def memory_doubt(
    accelerator: Accelerator, network: Network, batch: int, measurements: Sequence[Measurement]
) -> str | None:
    """The remark that no batch as large for the memory has been run; None where one has."""
    alike = (m for m in measurements if (m.network, m.accelerator) == (network.network, accelerator.accelerator))
    known = max((m.batch_per_replica for m in alike), default=0)
    return None if batch <= known else f"no batch of {batch} has been run on {accelerator.accelerator}: memory unproven"


def _scatter(
    measurements: Sequence[Measurement], accelerator: Accelerator, count: int, workers: int, nodes: int
) -> float | None:
    scatters = [
        m.step_cv
        for m in measurements
        if (m.accelerator, m.count, m.workers, m.nodes) == (accelerator.accelerator, count, workers, nodes)
        if m.step_cv is not None
    ]
    return float(np.mean(scatters)) if scatters else None


def describe_division(per_node: int, part: int) -> str:
    """How workers with ``part`` accelerators each have nodes of ``per_node``."""
    if part == per_node:
        return f"aligned: one worker a node with all its {per_node} accelerators"
    return f"{per_node // part} workers a node share its network and processors"
