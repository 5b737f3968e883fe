"""The control plane itself: upstream operators run fake pods to their end on fake machines."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from tools.cluster import ControlPlane, machines
from tools.cluster.errors import ClusterError
from tools.cluster.pools import EXIT, RUN
from tools.cluster.programs import CONTROL_PLANE, KUBERNETES, folder, version

pytestmark = pytest.mark.integration

TOLERATIONS = [
    {"key": key, "operator": "Exists"} for key in ("nvidia.com/gpu", "google.com/tpu", "cloud.google.com/gke-spot")
]


def tfjob(
    name: str, workers: int, gpus: int, *, run: str = "500ms", exit_code: int = 0, policy: str = "Never"
) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": gpus}
    container = {"name": "tensorflow", "image": "none", "resources": {"limits": limits}}
    template = {
        "metadata": {"annotations": {RUN: run, EXIT: str(exit_code)}},
        "spec": {"tolerations": TOLERATIONS, "containers": [container]},
    }
    worker = {"replicas": workers, "restartPolicy": policy, "template": template}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": name},
        "spec": {"runPolicy": {"cleanPodPolicy": "None"}, "tfReplicaSpecs": {"Worker": worker}},
    }


def conditions(plane: ControlPlane, kind: str, name: str, namespace: str) -> set[str]:
    """Types of the conditions that hold."""
    status = plane.get(kind, name, "-n", namespace).get("status", {})
    return {each["type"] for each in status.get("conditions", []) if each["status"] == "True"}


def test_the_server_is_the_pinned_kubernetes(control_plane: ControlPlane, api: client.ApiClient) -> None:
    assert client.VersionApi(api).get_code().git_version == version(KUBERNETES)
    said = json.loads(control_plane.kubectl("version", "--output=json"))
    assert said["clientVersion"]["gitVersion"] == said["serverVersion"]["gitVersion"] == version(KUBERNETES)


def test_a_tfjob_takes_whole_nodes_and_succeeds(
    control_plane: ControlPlane, namespace: str, add_nodes: Callable[..., list[str]]
) -> None:
    nodes = add_nodes("v100", 3, gpus=8, spot=True)
    control_plane.apply([tfjob("whole", 3, 8)], namespace=namespace)
    control_plane.wait_until(
        lambda: "Succeeded" in conditions(control_plane, "tfjob", "whole", namespace), "the TFJob succeeds"
    )
    pods = control_plane.get("pods", "-n", namespace)["items"]
    assert sorted(pod["spec"]["nodeName"] for pod in pods) == nodes  # one worker a node

    for pod in pods:
        (container,) = pod["spec"]["containers"]
        shown = json.loads(next(each["value"] for each in container["env"] if each["name"] == "TF_CONFIG"))
        index = int(pod["metadata"]["labels"]["training.kubeflow.org/replica-index"])
        assert shown["cluster"] == {"worker": [f"whole-worker-{i}.{namespace}.svc:2222" for i in range(3)]}
        assert shown["task"] == {"type": "worker", "index": index}


def test_more_gpus_than_a_node_has_wait(
    control_plane: ControlPlane, namespace: str, api: client.ApiClient, add_nodes: Callable[..., list[str]]
) -> None:
    add_nodes("v100", 1, gpus=4)
    control_plane.apply([tfjob("greedy", 1, 8)], namespace=namespace)

    def refused() -> bool:
        found = client.CoreV1Api(api).list_namespaced_pod(namespace).items
        reasons = [each for pod in found for each in pod.status.conditions or [] if each.type == "PodScheduled"]
        return any("Insufficient nvidia.com/gpu" in (each.message or "") for each in reasons)

    control_plane.wait_until(refused, "the scheduler says that the GPUs are missing")


@pytest.mark.parametrize(("exit_code", "ends"), [(1, "TFJobFailed"), (138, "TFJobRestarting")])
def test_training_operator_tells_user_errors_from_lost_workers(
    exit_code: int,
    ends: str,
    control_plane: ControlPlane,
    namespace: str,
    api: client.ApiClient,
    add_nodes: Callable[..., list[str]],
) -> None:
    add_nodes("v100", 1)
    control_plane.apply([tfjob("ends", 1, 8, exit_code=exit_code, policy="ExitCode")], namespace=namespace)

    def reasons() -> set[str]:
        # Conditions do not do: one that restarts is so for some hundredths of a second.
        return {event.reason for event in client.CoreV1Api(api).list_namespaced_event(namespace).items}

    control_plane.wait_until(lambda: ends in reasons(), ends)
    assert reasons() & {"TFJobFailed", "TFJobRestarting"} == {ends}


def test_upstream_webhook_refuses_a_bad_tfjob(control_plane: ControlPlane, namespace: str) -> None:
    bad = tfjob("bad", 1, 8)
    bad["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["name"] = "trainer"
    with pytest.raises(ClusterError, match=r"validator\.tfjob\.training-operator\.kubeflow\.org"):
        control_plane.apply([bad], namespace=namespace)


def test_a_jobset_runs_on_the_hosts_of_a_tpu_slice(
    control_plane: ControlPlane, namespace: str, add_nodes: Callable[..., list[str]]
) -> None:
    hosts = add_nodes(
        "v4-slice", 2, gpus=4, accelerator="tpu-v4-podslice", topology="2x2x2", machine_type="ct4p-hightpu-4t"
    )
    container = {"name": "tensorflow", "image": "none", "resources": {"limits": {"google.com/tpu": 4}}}
    pod = {
        "restartPolicy": "Never",
        "nodeSelector": {"cloud.google.com/gke-tpu-topology": "2x2x2"},
        "tolerations": TOLERATIONS,
        "containers": [container],
    }
    template = {"metadata": {"annotations": {RUN: "500ms"}}, "spec": pod}
    job = {"parallelism": 2, "completions": 2, "backoffLimit": 0, "completionMode": "Indexed", "template": template}
    jobset = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "slice"},
        "spec": {"replicatedJobs": [{"name": "worker", "replicas": 1, "template": {"spec": job}}]},
    }
    control_plane.apply([jobset], namespace=namespace)
    control_plane.wait_until(
        lambda: "Completed" in conditions(control_plane, "jobset", "slice", namespace), "the JobSet completes"
    )
    pods = control_plane.get("pods", "-n", namespace)["items"]
    assert sorted(each["spec"]["nodeName"] for each in pods) == hosts
    assert {each["spec"]["subdomain"] for each in pods} == {"slice"}  # JobSet's mutating webhook and its service
    assert control_plane.get("service", "slice", "-n", namespace)["spec"]["clusterIP"] == "None"


def test_pods_take_over_how_their_namespace_lets_them_end(
    control_plane: ControlPlane, namespace: str, api: client.ApiClient, add_nodes: Callable[..., list[str]]
) -> None:
    add_nodes("cpu", 1, accelerator="")
    machines.fake_pods(api, namespace, run="300ms", exit_code=3)
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


def test_a_machine_that_breaks_loses_its_pods(
    control_plane: ControlPlane, namespace: str, api: client.ApiClient, add_nodes: Callable[..., list[str]]
) -> None:
    add_nodes("v100", 2)
    control_plane.apply([tfjob("long", 1, 8, run="1h")], namespace=namespace)
    core = client.CoreV1Api(api)

    control_plane.wait_until(lambda: len(running(api, namespace)) == 1, "the worker runs")
    ((worker, node),) = running(api, namespace).items()
    machines.break_nodes(api, [node])
    control_plane.wait_until(
        lambda: any(taint.effect == "NoExecute" for taint in core.read_node(node).spec.taints), "the node is tainted"
    )
    # Whether a TFJob without a restart policy makes it again hangs on what its operator sees first: failed, or gone.
    control_plane.wait_until(lambda: worker not in running(api, namespace), "the worker is evicted")
    machines.mend_nodes(api, [node])
    control_plane.wait_until(
        lambda: not any(taint.effect == "NoExecute" for taint in core.read_node(node).spec.taints), "it is mended"
    )


def test_a_spot_node_that_is_told_to_end_has_its_worker_made_again(
    control_plane: ControlPlane,
    namespace: str,
    api: client.ApiClient,
    add_nodes: Callable[..., list[str]],
    remove_nodes: Callable[..., None],
) -> None:
    nodes = add_nodes("spot", 2, spot=True)
    control_plane.apply([tfjob("long", 2, 8, run="1h", policy="ExitCode")], namespace=namespace)
    control_plane.wait_until(lambda: len(running(api, namespace)) == 2, "both workers run")
    before = running(api, namespace)
    remove_nodes(nodes[:1], notice=True)
    with pytest.raises(ApiException, match="not found"):
        client.CoreV1Api(api).read_node(nodes[0])
    (added,) = add_nodes("spot", 1, spot=True)
    assert added not in nodes
    control_plane.wait_until(
        lambda: sorted(running(api, namespace).values()) == [nodes[1], added], "the lost worker is made again"
    )
    assert len(running(api, namespace).keys() & before.keys()) == 1  # the other one stayed


def running(api: client.ApiClient, namespace: str) -> dict[str, str]:
    """Nodes of the running pods, by the pods' uid."""
    pods = client.CoreV1Api(api).list_namespaced_pod(namespace).items
    return {pod.metadata.uid: pod.spec.node_name for pod in pods if pod.status.phase == "Running"}


def test_logs_of_fake_pods_can_be_read(
    control_plane: ControlPlane, namespace: str, api: client.ApiClient, add_nodes: Callable[..., list[str]]
) -> None:
    add_nodes("cpu", 1, accelerator="")
    core = client.CoreV1Api(api)
    spec = {"containers": [{"name": "only", "image": "none"}]}
    core.create_namespaced_pod(namespace, {"metadata": {"name": "talks"}, "spec": spec})
    control_plane.wait_until(lambda: core.read_namespaced_pod("talks", namespace).status.phase == "Running", "it runs")
    assert core.read_namespaced_pod_log("talks", namespace) == "a fake pod writes no log\n"


def test_a_service_account_has_its_rights_only(control_plane: ControlPlane, namespace: str) -> None:
    kubeconfig = control_plane.kubeconfig_of("default", namespace)
    with pytest.raises(ClusterError, match=f"system:serviceaccount:{namespace}:default.*cannot list resource"):
        control_plane.kubectl("get", "pods", "-n", namespace, kubeconfig=kubeconfig)


def test_requests_of_the_operator_are_written_down(control_plane: ControlPlane, namespace: str) -> None:
    system = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "caloscale-system"}}
    somebody = {"name": "somebody", "namespace": "caloscale-system"}
    control_plane.apply([system, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": somebody}])
    kubeconfig = control_plane.kubeconfig_of("somebody", "caloscale-system")
    before = len(control_plane.requests())
    with pytest.raises(ClusterError):
        control_plane.kubectl("delete", "pod", "missing", "-n", namespace, kubeconfig=kubeconfig)
    control_plane.wait_until(
        lambda: any(request.resource == "pods" for request in control_plane.requests(before)), "the request is written"
    )
    (asked,) = [request for request in control_plane.requests(before) if request.resource == "pods"]
    assert (asked.verb, asked.namespace, asked.name, asked.code) == ("delete", namespace, "missing", 403)
    assert asked.user == "system:serviceaccount:caloscale-system:somebody"
    assert not asked.allowed


def test_state_survives_a_killed_api_server(control_plane: ControlPlane, namespace: str, api: client.ApiClient) -> None:
    core = client.CoreV1Api(api)
    core.create_namespaced_config_map(namespace, {"metadata": {"name": "kept"}, "data": {"a": "b"}})
    control_plane.restart("kube-apiserver", kill=True)
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
        from tools.cluster.servers import Servers, Settings
        servers = Servers(Path(sys.argv[1]) / "plane", Settings())
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
        assert owner.stdout is not None
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
