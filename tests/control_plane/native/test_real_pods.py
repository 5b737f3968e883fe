"""Real pods on real nodes: logs, programs, services, grace. Root and some Debian packages are needed."""

import json
import time

import pytest

from tests.control_plane.native.pods import (
    ACCELERATOR,
    SLEEP,
    SPOT,
    SYSTEM,
    Core,
    is_ready,
    log,
    node_ready,
    phase,
    pod,
)
from tests.control_plane.native.python_image import PYTHON
from tools.cluster.native import NativeCluster
from tools.cluster.native.configuration import DEFAULT_POOLS, SHARED
from tools.cluster.pools import node_objects

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def taints(core: Core, node: str) -> list[dict[str, str]]:
    """Taints of a node now."""
    found = core.read_node(node).spec.taints or []
    return [{"key": each.key, "value": each.value, "effect": each.effect} for each in found]


def test_nodes_look_like_those_of_the_pools(cluster: NativeCluster, core: Core) -> None:
    fake = {node["metadata"]["name"]: node for pool in DEFAULT_POOLS for node in node_objects(pool)}
    real = {node.metadata.name: node for node in core.list_node().items}
    assert set(real) == set(fake) == set(cluster.nodes)
    for name, node in fake.items():
        assert node["metadata"]["labels"].items() <= real[name].metadata.labels.items()
        wanted_taints = node["spec"]["taints"]
        # A node that was lost in another test keeps a taint for some seconds after it is back.
        cluster.wait_until(
            lambda n=name, t=wanted_taints: taints(core, n) == t, f"the taints of {name} are {wanted_taints}", 60
        )
        wanted = node["status"]["capacity"].get(ACCELERATOR)
        assert (real[name].status.capacity.get(ACCELERATOR), real[name].status.allocatable.get(ACCELERATOR)) == (
            wanted,
            wanted,
        )
        assert node_ready(core, name) == "True"


def test_a_pod_runs_and_echoes(cluster: NativeCluster, core: Core, namespace: str) -> None:
    started = time.monotonic()
    cluster.apply([pod("echoes", SLEEP)], namespace=namespace)
    cluster.wait_until(lambda: is_ready(core, "echoes", namespace), "the pod is ready")
    print(f"\npod ready after {time.monotonic() - started:.1f} s")
    assert core.read_namespaced_pod("echoes", namespace).spec.node_name == SYSTEM
    assert log(core, "echoes", namespace) == "hello from echoes\n"
    script = "import os; print(os.getuid(), os.getpid() > 1, os.path.exists('/etc/passwd'))"
    shown = cluster.kubectl("exec", "echoes", "-n", namespace, "--", PYTHON, "-c", script)
    assert shown.split() == ["65532", "True", "False"]


def test_a_pod_reaches_the_server_and_a_service(cluster: NativeCluster, core: Core, namespace: str) -> None:
    script = """
import ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount/"
context = ssl.create_default_context(cafile=folder + "ca.crt")
request = urllib.request.Request("https://kubernetes.default.svc/version")
request.add_header("Authorization", "Bearer " + open(folder + "token").read())
print(urllib.request.urlopen(request, context=context).read().decode())
"""
    cluster.apply([pod("asks", script, node=SPOT[0])], namespace=namespace)
    cluster.wait_until(lambda: phase(core, "asks", namespace) == "Succeeded", "the pod ends")
    assert json.loads(log(core, "asks", namespace)) == json.loads(cluster.kubectl("get", "--raw=/version"))


def test_a_pod_is_told_before_it_must_go(cluster: NativeCluster, core: Core, namespace: str) -> None:
    """SIGTERM, then time to save; what it saves on the shared disk is seen by this machine and by other nodes."""
    script = f"""
import pathlib, signal, sys, time
def leave(*_):
    time.sleep(1)
    pathlib.Path("{SHARED}/saved").write_text("in time")
    sys.exit(143)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
while True: time.sleep(1)
"""
    made = pod(
        "saves",
        script,
        node=SPOT[0],
        terminationGracePeriodSeconds=20,
        volumes=[{"name": "shared", "hostPath": {"path": SHARED}}],
        container={"volumeMounts": [{"name": "shared", "mountPath": SHARED}]},
    )
    cluster.apply([made], namespace=namespace)
    cluster.wait_until(lambda: phase(core, "saves", namespace) == "Running", "the pod runs")
    cluster.wait_until(lambda: log(core, "saves", namespace) == "ready\n", "it listens")
    core.delete_namespaced_pod("saves", namespace)
    cluster.wait_until(lambda: not core.list_namespaced_pod(namespace).items, "it is gone")
    assert (cluster.shared_folder / "saved").read_text(encoding="utf-8") == "in time"
    assert cluster.inside(SPOT[1], "cat", f"{SHARED}/saved") == "in time"
