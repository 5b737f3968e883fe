"""A control plane with Kubeflow Trainer and, if it is built, Kueue beside the operator, without training-operator."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client

from tests.control_plane.kueue.conftest import queues
from tests.control_plane.operator.conftest import operator, runs
from tools.cluster import ControlPlane
from tools.cluster.programs import is_built

__all__ = ["operator", "queues", "runs"]

RUNTIME = Path(__file__).parents[3] / "manifests" / "trainer" / "runtime.yaml"


@pytest.fixture(scope="package")
def control_plane() -> Iterator[ControlPlane]:
    """As for the other tests of the operator, with Trainer and the runtime of manifests/trainer."""
    if not is_built(additions=["trainer"]):
        pytest.skip("no Kubeflow Trainer: `python -m tools.cluster build --trainer` builds it once")
    kueue = ("kueue",) if is_built(additions=["kueue"]) else ()
    with ControlPlane(operators=("jobset", "trainer", *kueue)) as plane:
        plane.apply(RUNTIME.read_text(encoding="utf-8"))
        yield plane


@pytest.fixture(scope="package")
def api(control_plane: ControlPlane) -> client.ApiClient:
    """The administrator's client; pytest would keep that of another control plane."""
    return control_plane.client()
