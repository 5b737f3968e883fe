"""A control plane with Kueue beside the operator."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from tests.control_plane.operator.conftest import Runs, operator, runs
from tools.cluster import ControlPlane
from tools.cluster.programs import is_built

__all__ = ["Queues", "operator", "runs"]

RIGHTS = Path(__file__).parents[3] / "manifests" / "kueue" / "rights.yaml"
"""Of the operator to Workloads."""


@pytest.fixture(scope="package")
def control_plane() -> Iterator[ControlPlane]:
    """As for the other tests of the operator, with Kueue."""
    if not is_built(additions=["kueue"]):
        pytest.skip("no Kueue: `python -m tools.cluster build --kueue` builds it once (up to half an hour)")
    with ControlPlane(operators=("training-operator", "jobset", "kueue")) as plane:
        plane.apply(RIGHTS.read_text(encoding="utf-8"))
        yield plane


@pytest.fixture(scope="package")
def api(control_plane: ControlPlane) -> client.ApiClient:
    """The administrator's client; pytest would keep that of another control plane."""
    return control_plane.client()


class Queues:
    """Queues of a test's namespace, over pools of fake nodes. Names of the cluster's objects begin with it."""

    def __init__(self, runs: Runs) -> None:
        self.plane, self.namespace = runs.plane, runs.namespace

    def add(
        self, name: str, gpus: int, *, pool: str = "v100", further: Mapping[str, int] | None = None, **options: str
    ) -> None:
        """A LocalQueue of its own ClusterQueue with a quota of GPUs in a pool, then in the further ones."""
        quotas = {pool: gpus, **(further or {})}
        self.plane.apply(queue_objects(name, self.namespace, quotas, prefix=f"{self.namespace}-", **options))


def queue_objects(
    name: str, namespace: str, gpus: Mapping[str, int], *, prefix: str = "", cohort: str = "", **preemption: str
) -> list[dict[str, Any]]:
    """A LocalQueue of its own ClusterQueue with quotas of GPUs by pool.

    prefix: of the names of the cluster's objects.
    """
    # Workers also ask for processors and memory; what a queue has no quota of, it admits nobody with.
    others = {"cpu": "1000", "memory": "10Ti"}
    quotas = {pool: {**others, "nvidia.com/gpu": str(quota)} for pool, quota in gpus.items()}
    flavors = [
        {"name": f"{prefix}{pool}", "resources": [{"name": each, "nominalQuota": most} for each, most in quota.items()]}
        for pool, quota in quotas.items()
    ]
    spec: dict[str, Any] = {
        "namespaceSelector": {},
        "queueingStrategy": "BestEffortFIFO",
        "preemption": preemption,
        "resourceGroups": [{"coveredResources": [*others, "nvidia.com/gpu"], "flavors": flavors}],
    }
    if cohort:
        spec["cohortName"] = f"{prefix}{cohort}"
    labels = {pool: {"nodeLabels": {"cloud.google.com/gke-nodepool": pool}} for pool in gpus}
    return [
        *(_object("ResourceFlavor", f"{prefix}{pool}", label) for pool, label in labels.items()),
        _object("ClusterQueue", f"{prefix}{name}", spec),
        _object("LocalQueue", name, {"clusterQueue": f"{prefix}{name}"}, namespace),
    ]


def _object(kind: str, name: str, spec: dict[str, Any], namespace: str | None = None) -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": metadata, "spec": spec}


@pytest.fixture
def queues(runs: Runs) -> Queues:
    """Queues in the namespace of the runs."""
    return Queues(runs)


URGENT = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "urgent"},
    "value": 1000,
    "preemptionPolicy": "Never",
}


@pytest.fixture
def priorities(control_plane: ControlPlane) -> None:
    """The priority class `urgent`."""
    control_plane.apply([URGENT])
