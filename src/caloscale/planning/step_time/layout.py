"""Workers, accelerators and nodes: a division of them, and what is refused for its memory."""

from caloscale.planning.catalogue.hardware import Accelerator, Network
from caloscale.spec.block import Block
from caloscale.spec.train import TrainingPrecision

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


def describe_division(per_node: int, part: int) -> str:
    """How workers with ``part`` accelerators each have nodes of ``per_node``."""
    if part == per_node:
        return f"aligned: one worker a node with all its {per_node} accelerators"
    return f"{per_node // part} workers a node share its network and processors"
