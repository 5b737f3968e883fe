"""The control plane itself; what upstream operators do on its fake machines, the tests of the operator see."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from kubernetes import client

from tests.control_plane import faults
from tools.cluster import ControlPlane
from tools.cluster.errors import ClusterError
from tools.cluster.pools import EXIT, RUN
from tools.cluster.programs import CONTROL_PLANE, KUBERNETES, folder, version

pytestmark = pytest.mark.integration


def test_the_server_is_the_pinned_kubernetes(control_plane: ControlPlane, api: client.ApiClient) -> None:
    assert client.VersionApi(api).get_code().git_version == version(KUBERNETES)
    said = json.loads(control_plane.kubectl("version", "--output=json"))
    assert said["clientVersion"]["gitVersion"] == said["serverVersion"]["gitVersion"] == version(KUBERNETES)


def test_upstream_webhook_refuses_a_bad_tfjob(control_plane: ControlPlane, namespace: str) -> None:
    template = {"spec": {"containers": [{"name": "trainer", "image": "none"}]}}  # not tensorflow
    spec = {"tfReplicaSpecs": {"Worker": {"replicas": 1, "template": template}}}
    bad = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": "bad"}, "spec": spec}
    with pytest.raises(ClusterError, match=r"validator\.tfjob\.training-operator\.kubeflow\.org"):
        control_plane.apply([bad], namespace=namespace)


def test_pods_take_over_how_their_namespace_lets_them_end(
    control_plane: ControlPlane, namespace: str, api: client.ApiClient, add_nodes: Callable[..., list[str]]
) -> None:
    add_nodes("cpu", 1, accelerator="")
    faults.fake_pods(api, namespace, run="300ms", exit_code=3)
    core = client.CoreV1Api(api)
    pods = {"inherits": {}, "says-itself": {RUN: "200ms", EXIT: "0"}}
    for name, own in pods.items():
        spec = {"containers": [{"name": "only", "image": "none"}]}
        core.create_namespaced_pod(namespace, {"metadata": {"name": name, "annotations": own}, "spec": spec})

    def ended() -> dict[str, int]:
        found = core.list_namespaced_pod(namespace).items
        ends = {pod.metadata.name: (pod.status.container_statuses or [None])[0] for pod in found}
        return {name: end.state.terminated.exit_code for name, end in ends.items() if end and end.state.terminated}

    control_plane.wait_until(lambda: len(ended()) == 2, "both pods end")
    assert ended() == {"inherits": 3, "says-itself": 0}


def test_state_survives_a_killed_api_server(control_plane: ControlPlane, namespace: str, api: client.ApiClient) -> None:
    core = client.CoreV1Api(api)
    core.create_namespaced_config_map(namespace, {"metadata": {"name": "kept"}, "data": {"a": "b"}})
    control_plane.restart("kube-apiserver")
    assert core.read_namespaced_config_map("kept", namespace).data == {"a": "b"}


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux ends the programs")
@pytest.mark.control_plane
def test_a_killed_owner_leaves_no_process(tmp_path: Path) -> None:
    """kill -9 of the program that started a control plane ends everything that it started."""
    if not all((folder() / "bin" / name).is_file() for name in CONTROL_PLANE):
        pytest.skip("not built")
    script = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        from tools.cluster.servers import Servers
        servers = Servers(Path(sys.argv[1]) / "plane")
        for daemon in (servers.etcd(), servers.api()):
            daemon.start()
            print(daemon.process.pid, flush=True)
        time.sleep(600)
        """
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=root
    ) as owner:
        pids = [int(owner.stdout.readline()) for _ in range(2)]
        assert all(psutil.pid_exists(pid) for pid in pids)
        os.kill(owner.pid, signal.SIGKILL)
    end = time.monotonic() + 300
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_program_that_fails_is_named_with_its_log(control_plane: ControlPlane) -> None:
    daemon = control_plane.servers.daemon("kube-scheduler", ["--no-such-option"], lambda: False)
    daemon.log = control_plane.folder / "logs" / "failing.log"
    daemon.start()
    with pytest.raises(ClusterError, match=r"kube-scheduler ended with 1(?s:.*)unknown flag: --no-such-option"):
        daemon.wait()
