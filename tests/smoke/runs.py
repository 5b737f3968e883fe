"""TrainingRuns on real nodes, as a test sees them."""

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from caloscale import __version__
from caloscale.cluster import names
from caloscale.storage.objects import download
from tests.smoke.named import NamedCluster
from tools.cluster.native import NativeCluster

RealCluster = NativeCluster | NamedCluster

NAMESPACE = "caloscale-runs"
BUCKET = "gs://caloscale"
COUNT = "cloud.google.com/gke-accelerator-count"
EVERY_SECONDS = 3.0
"""Between two checkpoints."""


def image_of(name: str) -> str:
    """Name of an image: from the registry that make was given (REGISTRY), else as the nodes have it."""
    return f"{os.environ.get('REGISTRY') or 'caloscale'}/{name}:{__version__}"


def hardware_of(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """Two whole nodes of the first accelerator of which there are two; without one, processors."""
    labels = [node["metadata"]["labels"] for node in nodes]
    marks = [
        (each[names.GKE_ACCELERATOR], each.get(names.GKE_SPOT[0], ""), each["topology.kubernetes.io/region"])
        for each in labels
        if names.GKE_ACCELERATOR in each
    ]
    for index, (accelerator, spot, region) in enumerate(marks):
        if marks.count(marks[index]) > 1:
            per_node = next(int(each[COUNT]) for each in labels if each.get(names.GKE_ACCELERATOR) == accelerator)
            return {
                "accelerator": accelerator,
                "count": 2 * per_node,
                "perNode": per_node,
                "capacityType": "spot" if spot == "true" else "on-demand",
                "region": region,
                "advertised": True,
            }
    return {"accelerator": "cpu", "count": 2}


def holds(status: dict[str, Any]) -> bool:
    """Whether machines are still held."""
    return any(attempt.get("nodeUsage") for attempt in status["attempts"])


class Runs:
    """Runs of the compact network on two workers, each alone on its node with all its (advertised) accelerators."""

    def __init__(self, cluster: RealCluster, bucket: str, showers: str) -> None:
        self.cluster, self.bucket, self.showers = cluster, bucket, showers
        self.hardware = hardware_of(cluster.get("nodes")["items"])

    def create(self, name: str, *, epochs: int = 40, **blocks: dict[str, Any]) -> None:
        """Apply a TrainingRun: the usual document with changes by block."""
        usual: dict[str, dict[str, Any]] = {
            "model": {"preset": "compact"},
            "data": {"source": self.showers, "showers": 72, "energyGev": [5, 20], "validationFraction": 0.25},
            # Far from maxMinutes: where time steers the learning rate, no two trainings are the same.
            "train": {
                "epochs": epochs,
                "globalBatchSize": math.lcm(12, self.hardware["count"]),
                "deterministic": True,
                "maxMinutes": 1e6,
            },
            "checkpoint": {"everySeconds": EVERY_SECONDS, "keep": 3},
            "hardware": self.hardware,
            "cluster": {"workspace": f"{self.bucket}/runs/{name}"},
            "recovery": {"backoff": "1s", "waitForCapacity": "10m"},
            "validation": {"showers": 64, "energyBins": 1, "bootstraps": 20},
        }
        spec = {block: {**usual.get(block, {}), **blocks.get(block, {})} for block in {*usual, *blocks}}
        metadata = {"name": name, "namespace": NAMESPACE}
        run = {"apiVersion": "caloscale.dev/v1alpha1", "kind": "TrainingRun", "metadata": metadata, "spec": spec}
        self.cluster.apply([run])

    def status(self, name: str) -> dict[str, Any]:
        """Its status."""
        return dict(self.cluster.get("trainingrun", name, "-n", NAMESPACE).get("status", {}))

    def until(
        self, name: str, condition: Callable[[dict[str, Any]], object], what: str, seconds: float = 300
    ) -> dict[str, Any]:
        """Wait until something holds of a run's status; returns the status."""
        end = time.monotonic() + seconds
        while not condition(status := self.status(name)):
            if time.monotonic() > end or (status.get("phase") == "Failed" and "Failed" not in what):
                pods = self.cluster.kubectl("get", "pods", "-n", NAMESPACE, "--output=wide")
                raise AssertionError(f"{name}: {what} never came to pass; the status is {status}\n{pods}")
            time.sleep(0.5)
        return status

    def trains(self, name: str, steps: int = 1) -> dict[str, Any]:
        """Wait until a checkpoint of so many steps is saved."""
        return self.until(
            name, lambda s: s.get("progress", {}).get("checkpointStep", 0) >= steps, f"{steps} steps are saved", 600
        )

    def ends(self, name: str) -> dict[str, Any]:
        """Wait for its success, and until all that it held is given back."""
        return self.until(name, lambda s: s.get("phase") == "Succeeded" and not holds(s), "success", 900)

    def pods(self, name: str) -> list[dict[str, Any]]:
        """Its pods, the first worker first."""
        found = self.cluster.get("pods", "-n", NAMESPACE, "-l", f"caloscale.dev/run={name}")["items"]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def weights(self, name: str, folder: Path) -> dict[str, np.ndarray]:
        """Weights, statistics and optimisers of the last checkpoint in the bucket."""
        download(f"{self.bucket}/runs/{name}/training/checkpoints", folder / name)
        newest = max((folder / name).glob("step-*.safetensors"))
        return dict(load_file(newest))

    def delete_all(self) -> None:
        """Delete all runs and wait until their pods are gone."""
        self.cluster.kubectl("delete", "trainingruns", "--all", "-n", NAMESPACE, "--timeout=120s")
        self.cluster.wait_until(
            lambda: not self.cluster.get("pods", "-n", NAMESPACE, "-l", "caloscale.dev/run")["items"],
            "no worker is left",
            120,
        )
