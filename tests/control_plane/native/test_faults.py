"""Nodes that are drained, lost, cut off, and what becomes of their pods."""

import time
from typing import Any

import pytest

from tests.control_plane.native.pods import SLEEP, SPOT, SYSTEM, Core, is_ready, node_ready, pod
from tools.cluster.errors import ClusterError
from tools.cluster.native import NativeCluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def deployment(replicas: int) -> dict[str, Any]:
    template = pod("keeps", SLEEP, gpus=1)
    template["spec"]["restartPolicy"] = "Always"
    labels = {"app": "keeps"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "keeps"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
        },
    }


def running(core: Core, namespace: str) -> dict[str, str]:
    """Nodes of the pods that run and are not on their way out, by the pods' names."""
    return {
        each.metadata.name: each.spec.node_name
        for each in core.list_namespaced_pod(namespace).items
        if each.metadata.deletion_timestamp is None and is_ready(core, each.metadata.name, namespace)
    }


def test_a_drained_node_gives_its_pods_away(cluster: NativeCluster, core: Core, namespace: str) -> None:
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "keeps"}}}
    guard = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "guard"}, "spec": budget}
    cluster.apply([deployment(1), guard], namespace=namespace)
    cluster.wait_until(lambda: len(running(core, namespace)) == 1, "it runs")
    ((_, node),) = running(core, namespace).items()
    with pytest.raises(ClusterError, match="disruption budget"):
        cluster.drain(node, seconds=3)
    cluster.kubectl("delete", "pdb", "guard", "-n", namespace)
    cluster.drain(node)
    cluster.wait_until(
        lambda: list(running(core, namespace).values()) == [each for each in SPOT if each != node], "it moved"
    )
    cluster.uncordon(node)
    assert not core.read_node(node).spec.unschedulable


def leaving(core: Core, namespace: str) -> list[str]:
    """Nodes of pods that are on their way out."""
    pods = core.list_namespaced_pod(namespace).items
    return [each.spec.node_name for each in pods if each.metadata.deletion_timestamp is not None]


def test_a_lost_node_is_noticed_and_comes_back(cluster: NativeCluster, core: Core, namespace: str) -> None:
    cluster.apply([deployment(2)], namespace=namespace)
    cluster.wait_until(lambda: sorted(running(core, namespace).values()) == SPOT, "both run")
    lost, started = SPOT[1], time.monotonic()
    cluster.lose_node(lost)
    assert cluster.running_nodes() == [SYSTEM, SPOT[0]]
    cluster.wait_until(lambda: node_ready(core, lost) == "Unknown", "the node is missed")
    noticed = time.monotonic() - started
    # Nobody can say that its containers have ended, so its pod stays, on its way out, until the node is back.
    cluster.wait_until(lambda: leaving(core, namespace) == [lost], "its pod is evicted")
    evicted, started = time.monotonic() - started, time.monotonic()
    cluster.return_node(lost)
    returned = time.monotonic() - started
    assert node_ready(core, lost) == "True"
    assert core.read_node(lost).status.allocatable["nvidia.com/gpu"] == "1"
    cluster.wait_until(lambda: sorted(running(core, namespace).values()) == SPOT, "both run again")
    print(f"\nlost: noticed after {noticed:.1f} s, pod evicted after {evicted:.1f} s; back after {returned:.1f} s")
