"""The same run on fake nodes with the labels and taints of each vendor, through a real scheduler."""

from collections.abc import Iterator

import pytest
from kubernetes import client

from caloscale.cluster import names
from tests.cluster import examples as ex
from tests.control_plane import faults
from tests.control_plane.operator.conftest import Runs
from tools.cluster.pools import MARK

SPEC = {"model": {"preset": "variable-angle"}, "hardware": {"accelerator": "nvidia-tesla-v100", "count": 16}}


@pytest.fixture
def vendor_nodes(request: pytest.FixtureRequest, api: client.ApiClient) -> Iterator[list[str]]:
    """Nodes of a vendor with 16 GPUs together."""
    made = []
    for index in range(4 if request.param == "aks" else 2):
        node = ex.VENDORS[request.param](f"{request.param}-{index}")
        node["metadata"]["annotations"] = dict(MARK)
        node["status"] = {
            each: {**node["status"]["allocatable"], "pods": "110"} for each in ("capacity", "allocatable")
        }
        client.CoreV1Api(api).create_node(node)
        made.append(node["metadata"]["name"])
    yield made
    faults.remove_nodes(api, made)


LONG = [pytest.param(vendor, marks=pytest.mark.long) for vendor in ex.VENDORS if vendor not in ("gke", "bare-metal")]


@pytest.mark.integration
@pytest.mark.parametrize("vendor_nodes", ["bare-metal", *LONG], indirect=True)
def test_the_same_run_succeeds_on_nodes_of_every_vendor(vendor_nodes: list[str], runs: Runs) -> None:
    runs.fake_pods("3s")
    runs.server.apply(runs.manifest("gan", SPEC), manager="test")
    runs.phase("gan", "Running", "Succeeded")
    pods = runs.pods("gan")
    status = runs.phase("gan", "Succeeded")
    conditions = {c["type"]: c["status"] for c in status["conditions"]}
    assert conditions["Succeeded"] == conditions["PlacementVerified"] == "True"
    assert sorted(pod["spec"]["nodeName"] for pod in pods) == sorted(vendor_nodes)
    limits = [int(pod["spec"]["containers"][0]["resources"]["limits"][names.GPU]) for pod in pods]
    assert sum(limits) == 16 and len(set(limits)) == 1
    assert status["cost"]["acceleratorHours"] == pytest.approx(limits[0] * status["cost"]["nodeHours"], abs=1e-5)
