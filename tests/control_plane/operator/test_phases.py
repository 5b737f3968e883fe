"""Phases of runs through the upstream operators."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from kubernetes import client, watch
from kubernetes.client.exceptions import ApiException

from caloscale.cluster import names
from caloscale.connection import Connection
from tests.control_plane import faults
from tests.control_plane.operator.conftest import Runs
from tools.cluster import ControlPlane

Add = Callable[..., list[str]]


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    return next((each for each in status.get("conditions", []) if each["type"] == kind), {})


BACKENDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tfjob": ({"pool": "v100", "count": 2}, {}),
    "jobset": ({"pool": "v100-js", "count": 2}, {"cluster": {"backend": "JobSet"}}),
    "one": ({"pool": "v100-one", "count": 1}, {"hardware": {"count": 8}}),
    "tpu": (
        {
            "pool": "v3-16",
            "count": 4,
            "gpus": 4,
            "accelerator": "tpu-v3-slice",
            "topology": "4x4",
            "machine_type": "ct3p-hightpu-4t",
        },
        {"hardware": {"accelerator": "tpu-v3", "topology": "4x4"}},
    ),
    "cpu": (
        {"pool": "cpu", "count": 2, "gpus": 0, "accelerator": "", "machine_type": "n1-standard-4", "cpu": "4"},
        {"hardware": {"accelerator": "cpu", "perNode": 1, "count": 2}},
    ),
}


def test_every_backend_runs_to_success_on_whole_nodes(runs: Runs, add_nodes: Add) -> None:
    """All at once; then who was where, and what TF_CONFIG the upstream operator gave."""
    runs.fake_pods("3s")
    for name, (pool, blocks) in BACKENDS.items():
        add_nodes(**pool)
        runs.create(name, **blocks)
    seen: dict[str, list[dict[str, Any]]] = {}
    for name in BACKENDS:
        runs.phase(name, "Running", "Succeeded")
        seen[name] = runs.pods(name)
    for name, (pool, _) in BACKENDS.items():
        status = runs.phase(name, "Succeeded")
        conditions = {c["type"]: c["status"] for c in status["conditions"]}
        assert conditions["Succeeded"] == "True" and conditions["PlacementVerified"] == "True", name
        workers = status["placement"]["workers"]
        assert workers == pool["count"] and len({pod["spec"]["nodeName"] for pod in seen[name]}) == len(seen[name])
        for pod in seen[name]:
            limits = pod["spec"]["containers"][0]["resources"].get("limits", {})
            asked = int(limits.get("nvidia.com/gpu", limits.get("google.com/tpu", 0)))
            assert asked == pool.get("gpus", 8), name
    (first, *_) = [pod for pod in seen["tfjob"] if pod["metadata"]["name"] == "tfjob-1-worker-0"]
    given = {e["name"]: e.get("value") for e in first["spec"]["containers"][0]["env"]}
    config = json.loads(str(given["TF_CONFIG"]))
    assert config["task"] == {"type": "worker", "index": 0}
    domain = f"{runs.namespace}.svc:2222"
    assert config["cluster"] == {"worker": [f"tfjob-1-worker-0.{domain}", f"tfjob-1-worker-1.{domain}"]}
    runs.plane.kubectl(
        "wait", "--for=condition=Succeeded", "trainingruns", "--all", "-n", runs.namespace, "--timeout=5s"
    )
    table = runs.plane.kubectl("get", "trun", "-n", runs.namespace)
    assert table.split()[:6] == ["NAME", "PHASE", "LAYOUT", "STEP", "ETA", "COST"] and "4x4" in table


def test_the_shortage_is_reported_and_ends_with_the_nodes(runs: Runs, add_nodes: Add) -> None:
    add_nodes(pool="late", count=1)
    runs.fake_pods("1s")
    runs.create("gan")
    message = "2 nodes with 8 free nvidia-tesla-v100 needed, 1 present: pool late is at 1/1"
    runs.until("gan", lambda s: s.get("phase") == "Waiting" and s["message"] == message, message)
    assert not runs.pods("gan")
    add_nodes(pool="late", count=1)
    runs.phase("gan", "Succeeded")


def test_runs_take_turns_on_the_same_nodes(runs: Runs, add_nodes: Add, api: client.ApiClient) -> None:
    core = client.CoreV1Api(api)
    before = core.list_namespaced_pod(runs.namespace).metadata.resource_version
    add_nodes(pool="scarce", count=2)
    runs.fake_pods("1500ms")
    for name in ("a", "b", "c"):
        runs.create(name)
    for name in ("a", "b", "c"):
        assert len(runs.phase(name, "Succeeded")["attempts"]) == 1
    busy: dict[str, str] = {}
    turns: list[str] = []
    # A pod that is never scheduled is the last event.
    last = {"containers": [{"name": "none", "image": "none"}], "schedulingGates": [{"name": "example.dev/never"}]}
    core.create_namespaced_pod(runs.namespace, {"metadata": {"name": "last"}, "spec": last})
    for event in watch.Watch().stream(core.list_namespaced_pod, runs.namespace, resource_version=before):
        pod = event["object"]
        if pod.metadata.name == "last":
            break
        run = pod.metadata.labels[names.RUN_LABEL]
        if event["type"] == "DELETED" or pod.status.phase in ("Succeeded", "Failed"):
            busy.pop(pod.metadata.uid, None)
        elif pod.spec.node_name:
            busy[pod.metadata.uid] = run
            turns += [] if run in turns else [run]
            assert set(busy.values()) == {run}
    assert sorted(turns) == ["a", "b", "c"] and set(busy.values()) <= {turns[-1]}  # worker 0 may end before the others


def test_a_users_error_fails_at_once(runs: Runs, add_nodes: Add) -> None:
    add_nodes(pool="v100", count=2)
    runs.fake_pods("1s", exit_code=2)
    runs.create("gan")
    status = runs.phase("gan", "Failed")
    assert status["attempts"][0]["exitCode"] == 2 and len(status["attempts"]) == 1
    failed = next(c for c in status["conditions"] if c["type"] == "Failed")
    assert failed["reason"] == "UserError" and "exit code 2" in failed["message"]
    uid = runs.plane.get("trainingrun", "gan", "-n", runs.namespace)["metadata"]["uid"]
    of_run: list[dict[str, Any]] = []

    def has_events() -> bool:
        events = runs.plane.get("events.v1.events.k8s.io", "-n", runs.namespace)["items"]
        of_run[:] = [e for e in events if e["regarding"].get("uid") == uid]
        return bool({e["reason"] for e in of_run} - {"Waiting"})  # it waits where a node is seen later

    runs.plane.wait_until(has_events, "the event, which is written after the status")
    assert {e["reason"] for e in of_run} - {"Waiting"} == {"UserError"}
    assert {e["apiVersion"] for e in of_run} == {"events.k8s.io/v1"} and all(e["eventTime"] for e in of_run)
    assert not [c for c in status["conditions"] if c["type"] == "Succeeded"]  # it is not the complement of Failed


@pytest.mark.integration
def test_a_quota_that_is_too_small_is_reported_with_the_remedy(runs: Runs, add_nodes: Add) -> None:
    """The job's controller may not make the pods: its warning reaches the run, and a raised quota ends it."""
    add_nodes("v100", 2)
    runs.fake_pods(None)
    runs.quota(gpus=8)
    runs.create("gan")
    blocked = runs.until("gan", lambda s: condition(s, "Blocked"), "the diagnostic is reported", seconds=60)
    message = condition(blocked, "Blocked")["message"]
    assert "exceeded quota: gpus" in message and "remedy: raise the quota of the namespace" in message
    runs.quota(gpus=16)
    running = runs.phase("gan", "Running", seconds=120)
    assert condition(running, "Blocked")["status"] == "False" and len(running["attempts"]) == 1


@pytest.mark.integration
def test_a_quota_of_limits_is_reported_with_the_remedy(runs: Runs, add_nodes: Add) -> None:
    """Workers have no limits of processors and memory; those of a LimitRange are taken."""
    add_nodes(pool="v100", count=2)
    runs.fake_pods("1s")
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "lim", "namespace": runs.namespace}}
    runs.plane.apply([{**quota, "spec": {"hard": {"limits.cpu": "1k", "limits.memory": "10Ti"}}}])
    runs.create("r1")
    message = runs.until("r1", lambda s: "failed quota" in s.get("message", ""), "the quota is reported")["message"]
    assert "remedy: add a LimitRange with default limits" in message
    limits = {"type": "Container", "default": {"cpu": "400", "memory": "4Ti"}}
    metadata = {"name": "defaults", "namespace": runs.namespace}
    runs.plane.apply([{"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": [limits]}}])
    runs.phase("r1", "Succeeded")


def own_account(runs: Runs) -> str:
    """A service account of the users, to which they have bound the Role of workers."""
    identity = {"name": "own", "namespace": runs.namespace}
    runs.server.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": identity})
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": identity}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "caloscale-worker"}
    subject = {"kind": "ServiceAccount", **identity}
    runs.server.create({**binding, "roleRef": role, "subjects": [subject]})
    return "own"


def test_worker_0_reports_progress_and_may_do_nothing_else(
    runs: Runs, add_nodes: Add, api: client.ApiClient, control_plane: ControlPlane
) -> None:
    add_nodes(pool="v100", count=2)
    runs.fake_pods(None)
    runs.create("gan")
    runs.phase("gan", "Running")
    (pod, *_) = [pod for pod in runs.pods("gan") if pod["metadata"]["name"] == "gan-1-worker-0"]
    kubeconfig = control_plane.kubeconfig_of("caloscale-worker", runs.namespace, pod)
    worker = Connection(control_plane.client(kubeconfig))
    report = {
        "epoch": 1.5,
        "epochs": 60,
        "step": 90,
        "steps": 3600,
        "checkpointStep": 60,
        "losses": {"generator": 3.25},
        "eta": "2030-01-01T00:00:00Z",
        "updated": "2030-01-01T00:00:00Z",
    }
    worker.merge("TrainingProgress", runs.namespace, "gan-progress", {"progress": report})
    status = runs.until("gan", lambda s: s.get("progress", {}).get("step") == 90, "progress", seconds=15)
    assert status["progress"]["losses"] == {"generator": 3.25} and status["progress"]["checkpointStep"] == 60
    for kind, name in (("TrainingProgress", "gan-progress"), ("Pod", "gan-1-worker-0"), (names.KIND, "gan")):
        with pytest.raises(ApiException, match="forbidden"):
            worker.get(kind, runs.namespace, name)
    labels = {names.RUN_LABEL: "other", "app.kubernetes.io/component": "progress"}
    other = {"name": "other-progress", "namespace": runs.namespace, "labels": labels}
    runs.server.create({"apiVersion": names.API_VERSION, "kind": "TrainingProgress", "metadata": other})
    step = {"progress": {"step": 91}}
    with pytest.raises(ApiException, match="only a pod of a run, by a token that is bound to it"):
        worker.merge("TrainingProgress", runs.namespace, "other-progress", step)
    with pytest.raises(ApiException, match="may not change to which run its progress belongs"):
        worker.merge("TrainingProgress", runs.namespace, "gan-progress", {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(ApiException, match="forbidden"):
        worker.create({"apiVersion": names.API_VERSION, "kind": "TrainingProgress", "metadata": {**other, "name": "m"}})
    unbound = Connection(control_plane.client(control_plane.kubeconfig_of("caloscale-worker", runs.namespace)))
    with pytest.raises(ApiException, match="only a pod of a run, by a token that is bound to it"):
        unbound.merge("TrainingProgress", runs.namespace, "gan-progress", step)
    own = own_account(runs)
    with pytest.raises(ApiException, match="only a pod of a run, by a token that is bound to it"):
        Connection(control_plane.client(control_plane.kubeconfig_of(own, runs.namespace))).merge(
            "TrainingProgress", runs.namespace, "gan-progress", step
        )
    runs.server.delete("TrainingProgress", runs.namespace, "gan-progress")
    runs.plane.wait_until(
        lambda: runs.server.get("TrainingProgress", runs.namespace, "gan-progress") is not None, "it is made again"
    )
    assert runs.status("gan")["progress"]["step"] == 90
    faults.end_pods(api, runs.namespace, exit_code=0)
    runs.phase("gan", "Succeeded")


def test_nothing_is_left_after_deletion(runs: Runs, add_nodes: Add, control_plane: ControlPlane) -> None:
    """Objects of every kind that can be listed, before and after."""
    add_nodes(pool="v100", count=2)
    runs.fake_pods(None)
    before = everything(control_plane, runs.namespace)
    runs.create("gan")
    runs.phase("gan", "Running")
    assert len(everything(control_plane, runs.namespace)) > len(before) + 8
    control_plane.kubectl("delete", "trun", "gan", "-n", runs.namespace, "--wait=true", "--timeout=10s")
    control_plane.wait_until(
        lambda: everything(control_plane, runs.namespace) == before, f"nothing but {before} is left"
    )


def everything(plane: ControlPlane, namespace: str) -> set[str]:
    """Names of all objects of a namespace; events are a log, not objects of the run."""
    kinds = {*plane.kubectl("api-resources", "--namespaced", "--verbs=list", "-o", "name").split()}
    kinds -= {"events", "events.events.k8s.io"}
    return {*plane.kubectl("get", ",".join(kinds), "-n", namespace, "-o", "name", "--ignore-not-found").split()}
