"""A control plane with Kueue beside the operator."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml
from kubernetes import client

from tests.control_plane.operator.conftest import Runs, operator, runs
from tools.cluster import ControlPlane
from tools.cluster.programs import is_built

__all__ = ["Queues", "operator", "runs"]

RIGHTS = Path(__file__).parents[3] / "manifests" / "kueue" / "rights.yaml"


def read_rights() -> list[dict[str, Any]]:
    """The operator's rights to Workloads."""
    return list(yaml.safe_load_all(RIGHTS.read_text(encoding="utf-8")))


@pytest.fixture(scope="package")
def control_plane() -> Iterator[ControlPlane]:
    """As for the other tests of the operator, with Kueue."""
    if not is_built(additions=["kueue"]):
        pytest.skip("no Kueue: `python -m tools.cluster build --kueue` builds it once (up to half an hour)")
    with ControlPlane(operators=("training-operator", "jobset", "kueue")) as plane:
        plane.apply(read_rights())
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
        self,
        name: str,
        *,
        gpus: int,
        pool: str = "v100",
        cohort: str | None = None,
        further: Mapping[str, int] = MappingProxyType({}),
        **preemption: str,
    ) -> None:
        """A LocalQueue of its own ClusterQueue with a quota of GPUs in a pool, then in the further ones."""
        full = f"{self.namespace}-{name}"
        # Workers also ask for processors and memory; what a queue has no quota of, it admits nobody with.
        quotas = {
            each: {"cpu": "1000", "memory": "10Ti", "nvidia.com/gpu": str(quota)}
            for each, quota in {pool: gpus, **further}.items()
        }
        flavors = [
            {
                "name": f"{self.namespace}-{each}",
                "resources": [{"name": resource, "nominalQuota": quota} for resource, quota in quota_of.items()],
            }
            for each, quota_of in quotas.items()
        ]
        spec: dict[str, Any] = {
            "namespaceSelector": {},
            "queueingStrategy": "BestEffortFIFO",
            "preemption": preemption,
            "resourceGroups": [{"coveredResources": list(quotas[pool]), "flavors": flavors}],
        }
        if cohort is not None:
            spec["cohortName"] = f"{self.namespace}-{cohort}"
        self.plane.apply(
            [
                *(
                    _object(
                        "ResourceFlavor",
                        f"{self.namespace}-{each}",
                        {"nodeLabels": {"cloud.google.com/gke-nodepool": each}},
                    )
                    for each in quotas
                ),
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
