"""Runs as TrainJobs of a real Kubeflow Trainer v2."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from caloscale.cluster import names
from caloscale.cluster.workload.backends import tf_config_of
from tests.cluster.examples import rendered
from tests.control_plane import faults
from tests.control_plane.kueue.conftest import Queues
from tests.control_plane.operator.conftest import Runs
from tests.control_plane.trainer.conftest import RUNTIME
from tools.cluster.errors import ClusterError
from tools.cluster.programs import is_built

pytestmark = pytest.mark.integration

Add = Callable[..., list[str]]
TRAINJOB: dict[str, Any] = {"cluster": {"backend": "TrainJob"}}


def environment_of(pod: dict[str, Any]) -> dict[str, str]:
    """The variables of the worker as its kubelet gives them; those from fields of the pod by hand."""
    (container,) = pod["spec"]["containers"]
    index = pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
    return {each["name"]: each.get("value", index) for each in container["env"]}


def comparable(pod: dict[str, Any], job: str) -> dict[str, Any]:
    """The specification of a pod without what differs from pod to pod, or by the names that Trainer demands."""
    spec = {name: value for name, value in pod["spec"].items() if name not in ("nodeName", "subdomain", "hostname")}
    (container,) = spec["containers"]
    varying = ("CALOSCALE_RUN", "CALOSCALE_PROGRESS", "JOB_COMPLETION_INDEX", "TF_CONFIG")
    env = {
        each["name"]: each.get("value")
        for each in container["env"]
        if each["name"] not in varying and not each["name"].startswith("PET_")
    }
    ports = [port for port in container["ports"] if port["containerPort"] == names.WORKER_PORT]
    spec["containers"] = [{**container, "name": "", "env": env, "ports": ports}]
    spec.pop("affinity"), spec.pop("nodeSelector")
    return json.loads(json.dumps(spec).replace(job, "JOB"))


def test_two_workers_run_to_success_with_the_pods_of_a_job_set(runs: Runs, add_nodes: Add) -> None:
    add_nodes("v100", 4)
    runs.fake_pods("5s")
    runs.plane.kubectl("label", "namespace", runs.namespace, "pod-security.kubernetes.io/enforce=restricted")
    runs.create("gan", **TRAINJOB)
    runs.create("other", cluster={"backend": "JobSet"})
    seen = {}
    for name in ("gan", "other"):
        runs.phase(name, "Running")
        seen[name] = sorted(runs.pods(name), key=lambda pod: pod["metadata"]["name"])
    status = runs.phase("gan", "Succeeded")
    conditions = {c["type"]: c["status"] for c in status["conditions"]}
    assert conditions["Succeeded"] == conditions["PlacementVerified"] == "True" and len(status["attempts"]) == 1
    assert status["attempts"][0]["nodeTotals"][0]["nodes"] == 2
    assert len({pod["spec"]["nodeName"] for pod in seen["gan"]}) == 2
    for mine, its in zip(seen["gan"], seen["other"], strict=True):
        assert comparable(mine, "gan") == comparable(its, "other")
        for key in ("cloud.google.com/gke-nodepool", "cloud.google.com/gke-accelerator"):
            assert mine["spec"]["nodeSelector"][key] == its["spec"]["nodeSelector"][key]
    # each finds the others where their service resolves them
    hosts = [f"{pod['spec']['hostname']}.{pod['spec']['subdomain']}:2222" for pod in seen["gan"]]
    for index, pod in enumerate(seen["gan"]):
        made = tf_config_of(environment_of(pod))
        assert json.loads(made) == {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}}


def test_what_the_operator_renders_is_strictly_valid(runs: Runs) -> None:
    items = rendered("trainjob-gpu")
    for manifest in items:
        manifest["metadata"]["namespace"] = runs.namespace
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*items, yaml.safe_load(RUNTIME.read_text())]})
    runs.plane.kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f-", stdin=text
    )


def test_one_worker_is_no_worker_of_several(runs: Runs, add_nodes: Add) -> None:
    add_nodes("v100", 1)
    runs.fake_pods("2s")
    runs.create("gan", **TRAINJOB, hardware={"count": 8})
    runs.phase("gan", "Running", "Succeeded")
    (pod,) = runs.pods("gan")
    assert tf_config_of(environment_of(pod)) is None
    runs.phase("gan", "Succeeded")


def test_a_lost_node_is_a_restart_and_a_users_error_the_end(runs: Runs, add_nodes: Add) -> None:
    nodes = add_nodes("v100", 3)
    runs.fake_pods(None)
    runs.create("gan", **TRAINJOB)
    runs.phase("gan", "Running")
    used = {pod["spec"]["nodeName"] for pod in runs.pods("gan")}
    faults.remove_nodes(runs.api, sorted(used)[:1])
    assert used < set(nodes)
    status = runs.until("gan", lambda s: s.get("restarts") == 1 and s["phase"] == "Running", "a second attempt runs")
    assert status["attempts"][0]["reason"] in ("NodeLost", "WorkerLost")
    runs.server.delete(names.KIND, runs.namespace, "gan")

    runs.fake_pods("1s", exit_code=2)
    runs.create("wrong", **TRAINJOB)
    status = runs.phase("wrong", "Failed")
    assert len(status["attempts"]) == 1 and status["attempts"][0]["exitCode"] == 2
    assert next(c for c in status["conditions"] if c["type"] == "Failed")["reason"] == "UserError"


def test_a_suspended_run_gives_its_nodes_back_and_resumes(runs: Runs, add_nodes: Add) -> None:
    add_nodes("v100", 2)
    runs.fake_pods(None)
    runs.create("gan", **TRAINJOB)
    runs.phase("gan", "Running")
    runs.create("gan", cluster={**TRAINJOB["cluster"], "suspend": True})
    runs.phase("gan", "Suspended")
    assert not runs.pods("gan")
    runs.fake_pods("1s")
    runs.create("gan", cluster={**TRAINJOB["cluster"], "suspend": False})
    assert runs.phase("gan", "Succeeded")["restarts"] == 0


def test_a_changed_train_job_makes_no_pods(runs: Runs, add_nodes: Add) -> None:
    """Somebody makes a TrainJob of a run with three workers where two are planned: its JobSet is refused."""
    add_nodes("v100", 3)
    runs.fake_pods(None)
    runs.create("gan", **TRAINJOB)
    runs.phase("gan", "Running")
    (job,) = runs.plane.get("trainjobs", "-n", runs.namespace)["items"]
    job["metadata"] = {"name": "larger", "namespace": runs.namespace}
    job["spec"]["trainer"]["numNodes"] = 3
    job["spec"]["runtimePatches"] = [p for p in job["spec"]["runtimePatches"] if p["manager"].startswith("caloscale")]
    del job["status"]
    runs.plane.apply([job])

    def refused() -> bool:
        events = runs.plane.get("events", "-n", runs.namespace)["items"]
        about = [e["message"] for e in events if e["involvedObject"]["name"] == "larger"]
        return any("the plan has 2 workers" in message for message in about)

    runs.plane.wait_until(refused, "the JobSet is refused")
    assert not [pod for pod in runs.pods("gan") if pod["metadata"]["name"].startswith("larger")]


@pytest.mark.skipif(not is_built(additions=["kueue"]), reason="no Kueue: python -m tools.cluster build --kueue")
def test_a_run_waits_for_the_quota_of_its_queue(runs: Runs, queues: Queues, add_nodes: Add) -> None:
    """Four nodes are there; the queue may use two of them. Kueue suspends and admits the TrainJob, not its JobSet."""
    add_nodes("v100", 4)
    queues.add("physics", gpus=16)
    runs.fake_pods(None)
    runs.create("first", **TRAINJOB, hardware={"queue": "physics"})
    runs.phase("first", "Running")
    runs.create("second", **TRAINJOB, hardware={"queue": "physics"})
    reason = "insufficient unused quota for nvidia.com/gpu"
    runs.until("second", lambda s: s.get("phase") == "Waiting" and reason in s["message"], "it waits in the queue")
    assert not runs.pods("second")
    workloads = runs.plane.get("workloads.kueue.x-k8s.io", "-n", runs.namespace)["items"]
    assert {each["metadata"]["ownerReferences"][0]["kind"] for each in workloads} == {"TrainJob"}
    runs.server.delete(names.KIND, runs.namespace, "first")
    assert runs.phase("second", "Running")["restarts"] == 0


def test_a_priority_class_is_refused(runs: Runs) -> None:
    cluster = {**TRAINJOB["cluster"], "priorityClassName": "urgent"}
    with pytest.raises(ClusterError, match="priorityClassName is set, which a TrainJob cannot carry"):
        runs.plane.apply([runs.manifest("gan", {"hardware": {}, "cluster": cluster})])


def test_another_grace_period_is_refused_in_a_queue(runs: Runs) -> None:
    """Kueue 0.19 knows the TrainJob of Trainer 2.2 and loses the field when it admits one: no JobSet could follow."""
    cluster = {**TRAINJOB["cluster"], "terminationGracePeriodSeconds": 90}
    with pytest.raises(ClusterError, match=r"a queue loses .*PeriodSeconds of a TrainJob"):
        runs.plane.apply([runs.manifest("gan", {"hardware": {"queue": "physics"}, "cluster": cluster})])
    runs.plane.apply([runs.manifest("gan", {"hardware": {}, "cluster": cluster})])


def test_without_its_runtime_the_run_says_so(runs: Runs, add_nodes: Add) -> None:
    """The runtime is an administrator's object; a run waits with Trainer's reason until it is there."""
    add_nodes("v100", 2)
    runs.fake_pods("1s")
    runtime = runs.plane.get("clustertrainingruntime", "caloscale-tensorflow")
    runs.plane.kubectl("delete", "clustertrainingruntime", "caloscale-tensorflow")
    try:
        runs.create("gan", **TRAINJOB)
        status = runs.until(
            "gan", lambda s: any(c["type"] == "Blocked" for c in s.get("conditions", [])), "the reason is reported"
        )
        assert "caloscale-tensorflow" in status["message"], status["message"]
        assert status["message"].endswith("kubectl apply --server-side -k manifests/trainer")
    finally:
        metadata = {name: runtime["metadata"][name] for name in ("name", "labels")}
        runs.plane.apply([{**runtime, "metadata": metadata}])
    runs.phase("gan", "Succeeded")
