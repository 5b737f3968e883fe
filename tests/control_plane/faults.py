"""What becomes of the nodes and pods of kwok: machines break and go, pods end."""

import datetime as dt
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from tools.cluster.pools import BROKEN, EXIT, RUN, THREADS

SECONDS_TO_SETTLE = 0.2
NOT_FOUND, CONFLICT = 404, 409


def remove_nodes(api: client.ApiClient, names: Iterable[str], *, notice: bool = False) -> None:
    """Take machines away, and their pods with them.

    With `notice`, nodes first take no more pods and those that are there fail with exit code 143, as a kubelet does
    that is notified of the shutdown (spot); without, they just vanish. Kubernetes itself removes pods of vanished nodes
    only after 40 s; here it happens at once.
    """
    core, gone = client.CoreV1Api(api), set(names)
    if notice:
        for name in gone:
            core.patch_node(name, {"spec": {"unschedulable": True}})
        time.sleep(SECONDS_TO_SETTLE)  # until the scheduler knows, or it sends there what is made again
        for pod in _pods_on(core, gone):
            if pod.status.phase in ("Pending", "Running"):
                _fail(core, pod)
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda name: _delete_node(core, name), gone))
        # The scheduler learns of it a moment later and may still send a pod there.
        quiet = 0
        while quiet < 2:
            pods = _pods_on(core, gone)
            list(threads.map(lambda pod: _delete_pod(core, pod), pods))
            quiet = 0 if pods else quiet + 1
            time.sleep(SECONDS_TO_SETTLE)


def break_nodes(api: client.ApiClient, names: Iterable[str]) -> None:
    """Machines that answer no more: not ready, until they are removed.

    Their pods are evicted after the toleration, unless no machine of the zone is left: then Kubernetes thinks that
    the fault is its own.
    """
    core = client.CoreV1Api(api)
    now = _now()
    condition = {
        "type": "Ready",
        "status": "False",
        "reason": "KubeletNotReady",
        "message": "fake fault",
        "lastTransitionTime": now,
        "lastHeartbeatTime": now,
    }
    for name in names:
        core.patch_node(name, {"metadata": {"annotations": {BROKEN: "true"}}})
        core.patch_node_status(name, {"status": {"conditions": [condition]}})


def end_pods(
    api: client.ApiClient, namespace: str, *, selector: str = "", exit_code: int = 0, after: str = "0s"
) -> list[str]:
    """Let the running pods of a namespace end with an exit code; returns their names."""
    core, ended = client.CoreV1Api(api), []
    change = {"metadata": {"annotations": {RUN: after, EXIT: str(exit_code)}}}
    for pod in core.list_namespaced_pod(namespace, label_selector=selector).items:
        name = pod.metadata.name
        if pod.metadata.deletion_timestamp is None and pod.status.phase in ("Pending", "Running"):
            with _unless_gone():
                core.patch_namespaced_pod(name, namespace, change)
                ended.append(name)
    return ended


def fake_pods(api: client.ApiClient, namespace: str, *, run: str | None, exit_code: int = 0) -> None:
    """Pods that are made in a namespace from now on run so long and end with the exit code; run None: until deleted."""
    annotations = {RUN: run, EXIT: None if run is None else str(exit_code)}
    client.CoreV1Api(api).patch_namespace(namespace, {"metadata": {"annotations": annotations}})


def shutdown_status(containers: Iterable[str], now: str) -> dict[str, Any]:
    """Status of a pod that a kubelet ended because its machine is about to go (exit 143), as a patch."""
    message = "Pod was terminated in response to imminent node shutdown."
    ended = {"exitCode": 143, "reason": "Error", "finishedAt": now, "startedAt": now}
    state = {"ready": False, "started": False, "restartCount": 0, "state": {"terminated": ended}}
    conditions = [
        {"type": "Ready", "status": "False", "reason": "PodFailed"},
        {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": message},
    ]
    return {
        "phase": "Failed",
        "reason": "Terminated",
        "message": message,
        "conditions": [{**each, "lastTransitionTime": now} for each in conditions],
        "containerStatuses": [{"name": name, "image": "fake", "imageID": "", **state} for name in containers],
    }


def _pods_on(core: client.CoreV1Api, nodes: set[str]) -> list[client.V1Pod]:
    return [pod for pod in core.list_pod_for_all_namespaces().items if pod.spec.node_name in nodes]


def _fail(core: client.CoreV1Api, pod: client.V1Pod) -> None:
    status = shutdown_status([container.name for container in pod.spec.containers], _now())
    with _unless_gone():
        core.patch_namespaced_pod_status(pod.metadata.name, pod.metadata.namespace, {"status": status})


def _delete_node(core: client.CoreV1Api, name: str) -> None:
    with _unless_gone():
        core.delete_node(name)


def _delete_pod(core: client.CoreV1Api, pod: client.V1Pod) -> None:
    # Only this pod: a controller may have made one of the same name in the meantime.
    only = client.V1Preconditions(uid=pod.metadata.uid)
    options = client.V1DeleteOptions(grace_period_seconds=0, preconditions=only)
    with _unless_gone():
        core.delete_namespaced_pod(pod.metadata.name, pod.metadata.namespace, body=options)


@contextmanager
def _unless_gone() -> Iterator[None]:
    """What is done to an object that has gone in the meantime, or is another one now, needs not be done."""
    try:
        yield
    except ApiException as error:
        if error.status not in (NOT_FOUND, CONFLICT):
            raise


def _now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
