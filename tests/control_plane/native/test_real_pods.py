"""Real pods on real nodes: logs, names, grace, whole nodes, jobs. Root and some Debian packages are needed."""

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


TELL = """
import socket, sys, threading
me, other = sys.argv[1:]
with socket.create_server(("", 2222)) as server:
    def answer():
        connection, _ = server.accept()
        connection.sendall(f"this is {me}".encode())
        connection.close()
    thread = threading.Thread(target=answer)
    thread.start()
    import time
    for _ in range(300):
        try:
            with socket.create_connection((f"{other}.pair", 2222), 2) as connection:
                print(connection.recv(100).decode(), flush=True)
                break
        except OSError:
            time.sleep(0.1)
    thread.join()
"""


def test_pods_on_two_nodes_find_each_other_by_name(cluster: NativeCluster, core: Core, namespace: str) -> None:
    headless = {"clusterIP": "None", "selector": {"app": "pair"}, "publishNotReadyAddresses": True}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "pair"}, "spec": headless}
    pods = []
    for (name, other), node in zip((("a", "b"), ("b", "a")), SPOT, strict=True):
        made = pod(name, "", node=node, labels={"app": "pair"}, hostname=name, subdomain="pair")
        made["spec"]["containers"][0]["command"] = [PYTHON, "-u", "-c", TELL, name, other]
        pods.append(made)
    cluster.apply([service, *pods], namespace=namespace)
    for name, other in (("a", "b"), ("b", "a")):
        cluster.wait_until(lambda name=name: phase(core, name, namespace) == "Succeeded", f"{name} ends")
        assert log(core, name, namespace) == f"this is {other}\n"


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


def test_too_much_memory_ends_a_pod(cluster: NativeCluster, core: Core, namespace: str) -> None:
    script = "a = bytearray(); [a.extend(bytes(1 << 20)) for _ in range(1000)]"
    cluster.apply([pod("greedy", script, node=SPOT[1], limits={"memory": "64Mi"})], namespace=namespace)
    cluster.wait_until(lambda: phase(core, "greedy", namespace) == "Failed", "it is killed")
    (status,) = core.read_namespaced_pod("greedy", namespace).status.container_statuses
    assert (status.state.terminated.reason, status.state.terminated.exit_code) == ("OOMKilled", 137)


def test_a_jobset_runs_on_two_nodes(cluster: NativeCluster, core: Core, namespace: str) -> None:
    script = """
import socket, time
for _ in range(300):
    try:
        print(len({socket.gethostbyname(f"pair-w-0-{i}.pair") for i in range(2)})); break
    except OSError: time.sleep(0.1)
time.sleep(2)
"""
    template = pod("x", script, gpus=1)["spec"]
    job = {"parallelism": 2, "completions": 2, "backoffLimit": 0, "template": {"spec": template}}
    replicated = {"name": "w", "replicas": 1, "template": {"spec": job}}
    metadata = {"name": "pair"}
    spec = {"replicatedJobs": [replicated]}
    cluster.apply(
        [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec}],
        namespace=namespace,
    )

    def completed() -> bool:
        status = cluster.get("jobset", "pair", "-n", namespace).get("status", {})
        return bool(status.get("terminalState") == "Completed")

    cluster.wait_until(completed, "the JobSet completes")
    assert {log(core, each.metadata.name, namespace) for each in core.list_namespaced_pod(namespace).items} == {"2\n"}
