"""Manifests: golden files, and what must hold of every one of them."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from caloscale.cluster.workload.backends import render, render_progress
from caloscale.cluster.workload.launch import Launch
from caloscale.cluster.workload.pod_template import workspace_of
from caloscale.spec import build_run, parse_run
from tests.cluster import examples as ex

GOLDEN = Path(__file__).parent.parent / "golden" / "cluster"
V100 = ("hardware.accelerator=nvidia-tesla-v100", "hardware.perNode=8")
EIGHT_NODES = [ex.spot(f"s{i}") for i in range(8)]
TPU_V3 = [ex.tpu_node(f"t{i}", "v3", "4x4", "tpu-v3-slice", "ct3p-hightpu-4t") for i in range(4)]
LAUNCHES = {
    "tfjob-gpu-spot": lambda: ex.launch_of(
        ex.run_of(*V100, "hardware.count=32", "hardware.capacityType=spot"), *EIGHT_NODES
    ),
    "tfjob-cpu": lambda: ex.launch_of(
        ex.run_of("hardware.accelerator=cpu", "hardware.count=2", preset="compact"),
        *(ex.cpu_node(f"c{i}") for i in range(3)),
    ),
    "tfjob-free": lambda: ex.launch_of(
        ex.run_of(*V100, "hardware.count=16", "hardware.placement=Free", "hardware.acceleratorsPerWorker=4"),
        *(ex.node(f"n{i}") for i in range(2)),
    ),
    "tfjob-kueue": lambda: ex.launch_of(
        ex.run_of(*V100, "hardware.count=16", "hardware.queue=physics"),
        *(ex.node(f"n{i}") for i in range(2)),
        queue="physics",
    ),
    "jobset-gpu": lambda: ex.launch_of(
        ex.run_of(*V100, "hardware.count=16", "cluster.backend=JobSet"), *(ex.node(f"n{i}") for i in range(2))
    ),
    "jobset-tpu-slice": lambda: ex.launch_of(
        ex.run_of("hardware.accelerator=tpu-v3", "hardware.topology=4x4", "train.batchPerReplica=128"), *TPU_V3
    ),
    "jobset-tpu-host": lambda: ex.launch_of(
        ex.run_of("hardware.accelerator=tpu-v3", "hardware.topology=2x2"),
        ex.tpu_node("t0", "v3-8", "2x2", "tpu-v3-device", "ct3-hightpu-4t"),
    ),
    "tfjob-one": lambda: ex.launch_of(
        ex.run_of(*V100, "hardware.count=8", "cluster.workspace=gs://physics/gan", "cluster.serviceAccount=trainer"),
        ex.node("n0"),
    ),
    "tfjob-claim": lambda: ex.launch_of(
        ex.run_of(
            *(*V100, "hardware.count=8", "cluster.volumeClaim=showers", "cluster.dataset=/workspace/dataset"),
            "cluster.credentialsSecret=bucket-key",
        ),
        ex.node("n0"),
    ),
}


def template_of(manifest: dict[str, Any]) -> dict[str, Any]:
    if manifest["kind"] == "TFJob":
        return manifest["spec"]["tfReplicaSpecs"]["Worker"]["template"]
    return manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]


@pytest.mark.parametrize("backend", ["TFJob", "JobSet"])
def test_workers_have_the_priority_class_of_the_run(backend: str) -> None:
    run = ex.run_of(*V100, "hardware.count=8", f"cluster.backend={backend}", "cluster.priorityClassName=physics")
    assert template_of(render(ex.launch_of(run, ex.node("n0"))))["spec"]["priorityClassName"] == "physics"


@pytest.mark.parametrize("name", LAUNCHES)
def test_golden(name: str) -> None:
    """CALOSCALE_WRITE_GOLDEN=1 writes the files anew; read the difference before committing it."""
    launch = LAUNCHES[name]()
    manifest = render(launch)
    for variable in template_of(manifest)["spec"]["containers"][0]["env"]:
        if variable["name"] == "CALOSCALE_RUN":
            variable["value"] = "<the document>"  # its fields have tests of their own
    text = yaml.safe_dump_all([render_progress(launch.owner), manifest], sort_keys=False, width=110)
    file = GOLDEN / f"{name}.yaml"
    if os.environ.get("CALOSCALE_WRITE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", LAUNCHES)
def test_every_pod_is_hardened(name: str) -> None:
    launch = LAUNCHES[name]()
    spec = template_of(render(launch))["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    security = container["securityContext"]
    assert security["allowPrivilegeEscalation"] is False and security["capabilities"] == {"drop": ["ALL"]}
    assert security["readOnlyRootFilesystem"] is True
    writable = {m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")}
    for variable in ("HOME", "TMPDIR", "CALOSCALE_CACHE", "CALOSCALE_WORKSPACE"):
        values = [e["value"] for e in container["env"] if e["name"] == variable]
        assert all(value.startswith(("gs://", *writable)) for value in values)
        assert values or variable == "CALOSCALE_WORKSPACE"  # nowhere that outlives the pod
    assert spec["terminationGracePeriodSeconds"] >= 30 and spec["automountServiceAccountToken"] is False
    assert {"cpu", "memory"} <= set(container["resources"]["requests"])
    assert "hostNetwork" not in spec and "hostPath" not in json.dumps(spec)


@pytest.mark.parametrize("name", LAUNCHES)
def test_one_worker_a_node_with_all_its_accelerators(name: str) -> None:
    launch = LAUNCHES[name]()
    manifest, placed = render(launch), launch.placed
    spec = template_of(manifest)["spec"]
    requests = spec["containers"][0]["resources"]["requests"]
    asked = int(requests.get("nvidia.com/gpu", requests.get("google.com/tpu", 0)))
    assert asked == placed.accelerators_per_worker
    if name == "tfjob-free":
        assert asked == 4 and placed.workers == 2 * placed.nodes and "affinity" not in spec
        return
    assert placed.workers == placed.nodes and asked == placed.per_node
    (rule,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    labels = template_of(manifest)["metadata"]["labels"]
    assert rule["labelSelector"]["matchLabels"].items() <= labels.items()
    assert spec["nodeSelector"]["cloud.google.com/gke-nodepool"] == placed.pool
    assert manifest["metadata"]["annotations"]["caloscale.dev/workers"] == str(placed.workers)


def test_own_tf_config_is_what_tensorflow_reads() -> None:
    """Kubernetes puts $(NAME) of earlier variables into a value; here it is done by hand for worker 1."""
    environment = template_of(render(LAUNCHES["jobset-gpu"]()))["spec"]["containers"][0]["env"]
    order = [variable["name"] for variable in environment]
    assert order.index("JOB_COMPLETION_INDEX") < order.index("TF_CONFIG")
    text = re.sub(r"\$\(JOB_COMPLETION_INDEX\)", "1", environment[order.index("TF_CONFIG")]["value"])
    assert json.loads(text) == {
        "cluster": {"worker": ["gan-1-workers-0-0.gan-1:2222", "gan-1-workers-0-1.gan-1:2222"]},
        "task": {"type": "worker", "index": 1},
    }


def test_hosts_times_chips_are_the_slice() -> None:
    job = render(LAUNCHES["jobset-tpu-slice"]())["spec"]["replicatedJobs"][0]["template"]["spec"]
    chips = int(job["template"]["spec"]["containers"][0]["resources"]["limits"]["google.com/tpu"])
    assert (job["parallelism"], job["completions"], chips * job["parallelism"]) == (4, 4, 16)


@pytest.mark.parametrize("name", LAUNCHES)
def test_the_workers_read_the_run_with_its_global_batch(name: str) -> None:
    launch = LAUNCHES[name]()
    environment = template_of(render(launch))["spec"]["containers"][0]["env"]
    document = parse_run(next(e["value"] for e in environment if e["name"] == "CALOSCALE_RUN"))
    assert document == build_run(launch.configuration)
    assert document.train.global_batch_size == launch.placed.global_batch
    assert (document.data, document.model) == (launch.run.data, launch.run.model)


def test_names_of_another_attempt_are_others() -> None:
    first: Launch = LAUNCHES["tfjob-one"]()
    second = replace(first, attempt=2)
    assert {render(first)["metadata"]["name"], render(second)["metadata"]["name"]} == {"gan-1", "gan-2"}
    assert render(first)["metadata"]["ownerReferences"][0]["uid"] == ex.OWNER.uid


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ((), None),
        (("checkpoint.uri=/workspace/c",), None),
        (("checkpoint.uri=gs://physics/gan/",), "gs://physics/gan/run"),
        (("checkpoint.uri=gs://physics/gan", "cluster.workspace=gs://other/run"), "gs://other/run"),
    ],
)
def test_a_run_is_not_lost_with_its_pods_where_a_bucket_is_named(settings: tuple[str, ...], place: str | None) -> None:
    assert workspace_of(ex.run_of(*settings)) == place


def test_workers_take_the_environment_of_their_namespace() -> None:
    """The operator's own variables go before it: Kubernetes takes env after envFrom."""
    (container,) = template_of(render(LAUNCHES["tfjob-cpu"]()))["spec"]["containers"]
    assert container["envFrom"] == [{"configMapRef": {"name": "caloscale-workers", "optional": True}}]
