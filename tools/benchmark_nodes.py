"""The section of docs/benchmarks.md about images and real nodes."""

from __future__ import annotations

from typing import Any

from caloscale.bench.results import BenchMachine
from caloscale.bench.tables import machine_text
from tools.benchmark_runs import table

NOTED = {
    "imagesIntoNodesSeconds": "images into the nodes that need them",
    "deploySeconds": "operator deployed",
    "applyToFirstStepSeconds": "`kubectl apply` of a run to its first step",
    "lose_a_nodeToNextStepSeconds": "a node killed without notice, back after 30 s, to the next step of the run",
    "drain_a_nodeToNextStepSeconds": "a node drained, then open again, to the next step",
    "run_out_of_memoryToNextStepSeconds": "a worker out of memory, to the next step",
}


def node_times(found: dict[str, Any], command: str) -> str:
    """Builds of the images and starts of the cluster, in Markdown; ``found``: what tools.node_times wrote."""
    images = [
        [name, *(f"{times[way]:.0f} s" for way in ("fromNothing", "changedCode", "unchanged"))]
        for name, times in found["imageSeconds"].items()
    ]
    up = found["clusterUpSeconds"]
    return (
        f"### Images and the cluster itself\n\n`{command}`\n\n"
        f"{table(['image', 'from nothing', 'our code changed', 'unchanged'], images)}\n\n"
        f"Built by {found['engine']} on the base that `make base-image` made; from nothing: with all packages fetched. "
        f"Three nodes with training-operator and JobSet are ready {up['coldFiles']:.0f} s after the start with cold "
        f"caches of files, {up['warmFiles']:.0f} s with warm ones (median of three).\n\n{_machine(found)}"
    )


def smoke_times(found: dict[str, Any], command: str) -> str:
    """What the smoke tests noted, in Markdown."""
    seconds = found["seconds"]
    rows = [[what, f"{seconds[name]:.0f} s"] for name, what in NOTED.items() if name in seconds]
    return (
        f"### Trainings on the cluster\n\n`{command}`\n\n"
        f"{table(['what', 'time'], rows)}\n\n"
        "The compact network on two workers, checkpoints every 3 s. The time to the next step has in it that the loss "
        "is noticed, the run's back-off, new pods when the node is back, TensorFlow's start and the compilation of the "
        f"step.\n\n{_all_reduces(seconds)}{_machine(found)}"
    )


def _all_reduces(seconds: dict[str, Any]) -> str:
    """What the test of the all-reduces noted; empty when it did not run."""
    if "allReduceBytes" not in seconds:
        return ""
    size = seconds["allReduceBytes"] / 2**20
    packed, separate = (1e3 * seconds[f"allReduce{way}Seconds"] for way in ("Packed", "PerVariable"))
    return (
        f"The all-reduces of a variable-angle step ({size:.1f} MiB) between two pods on two nodes take {packed:.0f} ms "
        f"packed and {separate:.0f} ms for each variable (median). The nodes are namespaces of one machine: their "
        "network is a bridge, and they share its processors.\n\n"
    )


def _machine(found: dict[str, Any]) -> str:
    return f"Machine: {machine_text(BenchMachine.model_validate(found['machine']))}.\n"
