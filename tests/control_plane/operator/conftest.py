"""An operator for the tests of this folder, and runs for it."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kubernetes import client

from caloscale.cluster import names
from caloscale.connection import Connection
from tests.control_plane import faults
from tests.control_plane.operator.process import OperatorProcess, install_rights, install_worker_account
from tools.cluster import ControlPlane
from tools.cluster.upstream import ensure

SPEC: dict[str, Any] = {
    "model": {"preset": "variable-angle"},
    "hardware": {"accelerator": "nvidia-tesla-v100", "count": 16, "perNode": 8, "region": "europe-west4"},
    "recovery": {"backoff": "1s", "waitForCapacity": "5s", "elastic": {"scaleUpAfter": "2s"}},
}


TRAINJOBS: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "trainjobs.trainer.kubeflow.org"},
    "spec": {
        "group": "trainer.kubeflow.org",
        "scope": "Namespaced",
        "names": {"kind": "TrainJob", "plural": "trainjobs", "singular": "trainjob"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
"""The kind alone, where Kubeflow Trainer is not installed: the operator's rights to TrainJobs can be used."""


@pytest.fixture(scope="package")
def operator(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """The operator, with the rights of the bundle; beside it the mpi-operator."""
    install_rights(control_plane)
    ensure(control_plane, "mpi-operator")
    if not control_plane.get("crd", "-A", "--field-selector=metadata.name=trainjobs.trainer.kubeflow.org")["items"]:
        control_plane.apply_with_kinds([TRAINJOBS])
    process = OperatorProcess(control_plane, tmp_path_factory.mktemp("operator"), CALOSCALE_DEBOUNCE_SECONDS="0.05")
    process.start()
    yield process
    process.stop()
    control_plane.kubectl("delete", "trainingruns", "--all", "-A", "--wait=true", "--timeout=20s")


def claim_with_volume(name: str, namespace: str, *, volume: str, path: str) -> list[dict[str, Any]]:
    """A claim that many nodes may write, and its volume, a folder of the nodes: nothing provisions volumes in tests."""
    shared = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    metadata = {"name": name, "namespace": namespace}
    folder = {**shared, "claimRef": metadata, "hostPath": {"path": path}, "capacity": {"storage": "1Gi"}}
    wanted = {**shared, "resources": {"requests": {"storage": "1Gi"}}}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume}, "spec": folder},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": wanted},
    ]


Holds = Callable[[dict[str, Any]], object]


class Runs:
    """Runs in a test's namespace."""

    def __init__(self, plane: ControlPlane, api: client.ApiClient, namespace: str) -> None:
        self.plane, self.api, self.namespace = plane, api, namespace
        self.server = Connection(api)  # kubectl costs half a second of processor time a call

    def fake_pods(self, run: str | None, exit_code: int = 0) -> None:
        """How long pods of this namespace run, and how they end."""
        faults.fake_pods(self.api, self.namespace, run=run, exit_code=exit_code)

    def create(self, name: str, **blocks: dict[str, Any]) -> None:
        """Create a TrainingRun: SPEC with changes by block; a solver run has no model."""
        spec = {block: {**SPEC.get(block, {}), **blocks.get(block, {})} for block in {*SPEC, *blocks}}
        if "solver" in spec:
            del spec["model"], spec["hardware"]["count"]
        if "topology" in spec["hardware"]:
            del spec["hardware"]["count"], spec["hardware"]["perNode"]
        self.server.apply(self.manifest(name, spec), manager="test")

    def manifest(self, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        """A TrainingRun."""
        metadata = {"name": name, "namespace": self.namespace}
        return {"apiVersion": "caloscale.dev/v1alpha1", "kind": "TrainingRun", "metadata": metadata, "spec": spec}

    def status(self, name: str) -> dict[str, Any]:
        """Its status."""
        return dict((self.server.get(names.KIND, self.namespace, name) or {}).get("status", {}))

    def until(self, name: str, holds: Holds, what: str, seconds: float = 600) -> dict[str, Any]:
        """Wait until something holds of a run's status; returns the status."""
        end = time.monotonic() + seconds
        while not holds(status := self.status(name)):
            if time.monotonic() > end:
                raise AssertionError(f"{name}: {what} never came to pass; the status is {status}")
            time.sleep(0.2)
        return status

    def phase(self, name: str, *phases: str, seconds: float = 600) -> dict[str, Any]:
        """Wait for a phase."""
        return self.until(name, lambda s: s.get("phase") in phases, f"phase {phases}", seconds)

    def quota(self, gpus: int) -> None:
        """How many GPUs all pods of this namespace may ask for together."""
        hard = {"requests.nvidia.com/gpu": str(gpus)}
        metadata = {"name": "gpus", "namespace": self.namespace}
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}
        self.plane.apply([quota])

    def claim(self, name: str) -> None:
        """A claim with a volume, of which no pod really mounts anything."""
        self.plane.apply(claim_with_volume(name, self.namespace, volume=self.namespace, path="/nowhere"))

    def pods(self, name: str) -> list[dict[str, Any]]:
        """Its pods."""
        return list(self.server.each("Pod", self.namespace, selector=f"{names.RUN_LABEL}={name}"))


@pytest.fixture
def runs(operator: OperatorProcess, control_plane: ControlPlane, api: client.ApiClient, namespace: str) -> Runs:
    """Runs in the test's own namespace, which has the workers' account."""
    install_worker_account(Connection(api), namespace)
    return Runs(control_plane, api, namespace)
