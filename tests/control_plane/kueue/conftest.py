"""A control plane with Kueue beside the operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.control_plane.operator.conftest import Runs, operator, runs
from tools.cluster import ControlPlane
from tools.cluster.programs import is_built

__all__ = ["Queues", "operator", "runs"]


@pytest.fixture(scope="package")
def control_plane() -> Iterator[ControlPlane]:
    """As for the other tests of the operator, with Kueue."""
    if not is_built(kueue=True):
        pytest.skip("no Kueue: `python -m tools.cluster build --kueue` builds it once (up to half an hour)")
    with ControlPlane(operators=("training-operator", "jobset", "kueue")) as plane:
        yield plane


class Queues:
    """Queues of a test's namespace, over pools of fake nodes. Names of the cluster's objects begin with it."""

    def __init__(self, runs: Runs) -> None:
        self.plane, self.namespace = runs.plane, runs.namespace

    def add(self, name: str, *, gpus: int, pool: str = "v100", cohort: str | None = None, **preemption: str) -> None:
        """A LocalQueue of its own ClusterQueue with a quota of GPUs in a pool."""
        full = f"{self.namespace}-{name}"
        flavor = f"{self.namespace}-{pool}"
        # Workers also ask for processors and memory; what a queue has no quota of, it admits nobody with.
        quotas = {"cpu": "1000", "memory": "10Ti", "nvidia.com/gpu": str(gpus)}
        resources = [{"name": resource, "nominalQuota": quota} for resource, quota in quotas.items()]
        spec: dict[str, Any] = {
            "namespaceSelector": {},
            "queueingStrategy": "BestEffortFIFO",
            "preemption": preemption,
            "resourceGroups": [
                {"coveredResources": list(quotas), "flavors": [{"name": flavor, "resources": resources}]}
            ],
        }
        if cohort is not None:
            spec["cohortName"] = f"{self.namespace}-{cohort}"
        self.plane.apply(
            [
                _object("ResourceFlavor", flavor, {"nodeLabels": {"cloud.google.com/gke-nodepool": pool}}),
                _object("ClusterQueue", full, spec),
                _object("LocalQueue", name, {"clusterQueue": full}, self.namespace),
            ]
        )


def _object(kind: str, name: str, spec: dict[str, Any], namespace: str | None = None) -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": metadata, "spec": spec}


@pytest.fixture
def queues(runs: Runs) -> Queues:
    """Queues in the namespace of the runs."""
    return Queues(runs)


@pytest.fixture
def priorities(control_plane: ControlPlane) -> None:
    """The priority class `urgent`."""
    metadata = {"name": "urgent"}
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": metadata}
    control_plane.apply([{**kind, "value": 1000, "preemptionPolicy": "Never"}])
