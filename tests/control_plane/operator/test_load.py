"""The operator in a small cluster that others use, too: less of the load that `load` makes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client

from tests.control_plane import faults
from tests.control_plane.operator import load
from tests.control_plane.operator.process import OperatorProcess, install_worker_account
from tools.cluster import ControlPlane, Pool
from tools.cluster.pools import add_pool

GIVEN = load.options(
    [
        *("--nodes=6", "--runs=12", "--others=30", "--configurations=4", "--namespaces=2"),
        *("--seconds=16", "--cut-off=1"),
    ]
)
MOST_SECONDS = 180


@pytest.fixture
def cluster(control_plane: ControlPlane, api: client.ApiClient, operator: OperatorProcess) -> Iterator[ControlPlane]:
    """Nodes and namespaces of the load, without the operator of the other tests."""
    operator.stop()
    control_plane.kubectl("delete", "leases", "--all", "-n", "caloscale-system")
    add_pool(api, Pool("load", 1))
    for namespace in load.namespaces(GIVEN):
        client.CoreV1Api(api).create_namespace({"metadata": {"name": namespace}})
        install_worker_account(load.Connection(api), namespace)
    yield control_plane
    for namespace in load.namespaces(GIVEN):
        control_plane.kubectl("delete", "namespace", namespace, "--wait=false")
    faults.remove_nodes(api, [load.node_of(index, GIVEN) for index in range(GIVEN.nodes)])
    operator.start()


def test_a_leader_that_is_killed_among_pods_of_others_loses_no_bill_and_doubles_no_run(
    cluster: ControlPlane, tmp_path: Path
) -> None:
    GIVEN.most_seconds = MOST_SECONDS
    loaded = load.operators_of(cluster, tmp_path)
    loaded[0].start()
    try:
        figures = load.share(cluster, loaded, GIVEN)
    finally:
        logs = [each.log.read_text()[-3000:] for each in loaded if each.stop() is not None]
    assert (figures["errors"], figures["doubled"], figures["billsLost"]) == (0, 0, 0), logs
    assert figures["beforeKill"]["eventToStatusCount"] > 0 and figures["secondsToResume"] < MOST_SECONDS
