"""The operator in a small cluster that others use, too: the load of tools.operator_load --shared, less of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client

from caloscale.ports import free_ports
from tests.control_plane.operator.process import OperatorProcess, install_worker_account
from tools import operator_load
from tools.cluster import ControlPlane, Pool, machines

GIVEN = operator_load.options(
    [
        *("--shared", "--nodes=6", "--runs=12", "--others=30", "--configurations=4", "--namespaces=2"),
        *("--seconds=16", "--cut-off=1"),
    ]
)
MOST_SECONDS = 180


@pytest.fixture
def cluster(control_plane: ControlPlane, api: client.ApiClient, operator: OperatorProcess) -> Iterator[ControlPlane]:
    """Nodes and namespaces of the load, without the operator of the other tests."""
    operator.stop()
    control_plane.kubectl("delete", "leases", "--all", "-n", "caloscale-system")
    machines.add_pool(api, Pool("load", 1))
    for namespace in operator_load.namespaces(GIVEN):
        client.CoreV1Api(api).create_namespace({"metadata": {"name": namespace}})
        install_worker_account(operator_load.Connection(api), namespace)
    yield control_plane
    for namespace in operator_load.namespaces(GIVEN):
        control_plane.kubectl("delete", "namespace", namespace, "--wait=false")
    machines.remove_nodes(api, [operator_load.node_of(index, GIVEN) for index in range(GIVEN.nodes)])
    operator.start()


def test_a_leader_that_is_killed_among_pods_of_others_loses_no_bill_and_doubles_no_run(
    cluster: ControlPlane, tmp_path: Path
) -> None:
    GIVEN.most_seconds = MOST_SECONDS
    (port,) = free_ports(1)
    loaded = OperatorProcess(cluster, tmp_path, CALOSCALE_METRICS_PORT=str(port))
    loaded.start()
    try:
        figures = operator_load.share(cluster, loaded, port, GIVEN)
    finally:
        loaded.stop()
    assert (figures["errors"], figures["doubled"], figures["billsLost"]) == (0, 0, 0), loaded.log.read_text()[-3000:]
    assert figures["beforeKill"]["eventToStatusCount"] > 0 and figures["secondsToResume"] < MOST_SECONDS
