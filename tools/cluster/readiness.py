"""When a real node is ready for pods, and the accelerators that it advertises without having any."""

from __future__ import annotations

import datetime as dt

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from tools.cluster.pools import Pool

NOT_FOUND = 404


def is_ready(api: client.ApiClient, name: str, since: dt.datetime) -> bool:
    """Whether the node says so itself, at `since` or later: what it said before it was lost does not count."""
    try:
        node = client.CoreV1Api(api).read_node(name)
    except ApiException as error:
        if error.status == NOT_FOUND:
            return False
        raise
    said = [each for each in node.status.conditions or [] if each.type == "Ready" and each.status == "True"]
    return any(each.last_heartbeat_time >= since.replace(microsecond=0) for each in said)


def advertise(api: client.ApiClient, name: str, pool: Pool) -> None:
    """Let a node offer its pool's accelerators. Kubelets leave alone what no device plugin reports."""
    if pool.accelerator:
        resources = {pool.resource: str(pool.per_node)}
        change = {"status": {"capacity": resources, "allocatable": resources}}
        client.CoreV1Api(api).patch_node_status(name, change)


def offered(api: client.ApiClient, name: str, pool: Pool) -> int:
    """How many of its pool's accelerators a node offers now."""
    status = client.CoreV1Api(api).read_node(name).status
    return int((status.allocatable or {}).get(pool.resource, 0))
