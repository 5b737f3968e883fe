"""Manifests: golden files, and what must hold of every one of them."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from difflib import unified_diff
from pathlib import Path
from typing import Any

import pytest
import yaml

from caloscale.cluster.capacity.pods import job_of
from caloscale.cluster.capacity.resizing import alternatives
from caloscale.cluster.workload.backends import render, require_lasting_places, tf_config_of
from caloscale.cluster.workload.launch import Launch
from caloscale.cluster.workload.pod_template import worker_templates, workspace_of
from caloscale.errors import ConfigurationError
from caloscale.spec import build_run, parse_run
from tests.cluster import examples as ex

GOLDEN = Path(__file__).parent.parent / "golden" / "cluster"
TRAININGS = [name for name in ex.LAUNCHES if not name.startswith("mpijob")]
"""Those whose workers read the run from their environment; MPIJobs have tests of their own."""


def template_of(manifest: dict[str, Any]) -> dict[str, Any]:
    if manifest["kind"] in ("TFJob", "MPIJob"):
        replicas = manifest["spec"].get("tfReplicaSpecs") or manifest["spec"]["mpiReplicaSpecs"]
        return replicas["Worker"]["template"]
    if manifest["kind"] == "TrainJob":
        return merged(manifest)
    return manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]


def merged(trainjob: dict[str, Any]) -> dict[str, Any]:
    """The pods of a TrainJob by the rules of Kubeflow Trainer: its runtime, its patch, and the fields of its trainer.

    Trainer itself is asked in tests/control_plane/trainer.
    """
    runtime = worker_templates("other")["runtime"]
    assert trainjob["spec"]["runtimeRef"] == {"name": runtime["metadata"]["name"]}
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    ((patch,),) = (
        each["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"] for each in trainjob["spec"]["runtimePatches"]
    )
    changed = patch["template"]["spec"]["template"]
    spec = {**job["template"]["spec"]["template"]["spec"]}
    (container,), (changes,) = spec["containers"], changed["spec"]["containers"]
    assert patch["name"] == job["name"] == container["name"] == changes["name"] == "node"
    trainer = trainjob["spec"]["trainer"]
    variables = {each["name"]: each for each in (*container["env"], *trainer["env"])}
    container = {**container, **changes, "image": trainer["image"], "resources": trainer["resourcesPerNode"]}
    container["env"] = list(variables.values())
    return {**changed, "spec": {**spec, **changed["spec"], "containers": [container]}}


def test_the_pods_of_a_train_job_are_those_of_a_job_set() -> None:
    """But for the names that Trainer demands, and for TF_CONFIG."""
    of_trainer, of_jobset = (template_of(render(ex.LAUNCHES[name]())) for name in ("trainjob-gpu", "jobset-gpu"))
    for template in (of_trainer, of_jobset):
        (container,) = template["spec"]["containers"]
        del container["name"]
        container["env"] = {
            each["name"]: each["value"]
            for each in container["env"]
            if each["name"] not in ("TF_CONFIG", "JOB_COMPLETION_INDEX", "CALOSCALE_RUN")
        }
    assert of_trainer == of_jobset


def test_a_train_job_has_the_workers_of_its_plan() -> None:
    launch = ex.LAUNCHES["trainjob-gpu"]()
    manifest = render(launch)
    assert manifest["spec"]["trainer"]["numNodes"] == launch.placed.workers == 2
    (patch,) = manifest["spec"]["runtimePatches"]
    described = patch["trainingRuntimeSpec"]["template"]["metadata"]
    assert (
        described["annotations"]["caloscale.dev/workers"] == "2" and described["labels"]["caloscale.dev/run"] == "gan"
    )


def test_tf_config_of_a_train_job() -> None:
    """Variables as Trainer 2.3 gives them (tests/control_plane/trainer compares with the real ones)."""
    given = {"PET_NNODES": "3", "PET_NODE_RANK": "2", "PET_MASTER_ADDR": "gan-1-node-0-0.gan-1", "PET_MASTER_PORT": "1"}
    hosts = [f"gan-1-node-0-{index}.gan-1:2222" for index in range(3)]
    made = tf_config_of(given)
    assert json.loads(made) == {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": 2}}
    assert tf_config_of({**given, "TF_CONFIG": "{}"}) is None
    assert tf_config_of({**given, "PET_NNODES": "1"}) is None
    assert tf_config_of({**given, "PET_NNODES": "1:4"}) is None  # elastic PyTorch
    assert tf_config_of({}) is None


def test_the_worker_takes_it() -> None:
    """A process of its own: TF_CONFIG is made before anything reads it."""
    given = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "gan-1-node-0-0.gan-1"}
    program = (
        "import os, sys; from caloscale.cli import main; main.app = lambda: print(os.environ['TF_CONFIG']); main.main()"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**environment, **given}, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["task"]["index"] == 1


@pytest.mark.parametrize("backend", ["TFJob", "JobSet"])
def test_workers_have_the_priority_class_of_the_run(backend: str) -> None:
    run = ex.run_of(*ex.ON_V100, "hardware.count=8", f"cluster.backend={backend}", "cluster.priorityClassName=physics")
    assert template_of(render(ex.launch_of(run, ex.node("n0"))))["spec"]["priorityClassName"] == "physics"


WHOLE = {"tfjob": "tfjob-gpu-spot", "jobset": "jobset-tpu-slice", "mpijob": "mpijob-gpu", "trainjob": "trainjob-gpu"}
"""Of each kind of job, the manifest that is kept as a whole; of the others what differs from it."""


def golden_text(name: str) -> str:
    """Progress and job as YAML."""
    progress, manifest = ex.rendered(name)
    templates = [each["template"] for each in manifest["spec"].get("mpiReplicaSpecs", {}).values()]
    for variable in (v for t in templates or [template_of(manifest)] for v in t["spec"]["containers"][0]["env"]):
        if variable["name"] == "CALOSCALE_RUN":
            variable["value"] = "<the document>"  # its fields have tests of their own
    return yaml.safe_dump_all([progress, manifest], sort_keys=False, width=110)


@pytest.mark.parametrize("name", ex.LAUNCHES)
def test_golden(name: str) -> None:
    """CALOSCALE_WRITE_GOLDEN=1 writes the files anew; read the difference before committing it."""
    whole, text = WHOLE[name.partition("-")[0]], golden_text(name)
    file = GOLDEN / f"{name}.yaml"
    if name != whole:
        lines = (each.splitlines(keepends=True) for each in (golden_text(whole), text))
        file, text = file.with_suffix(".diff"), "".join(unified_diff(*lines, whole, name, n=1))
    if os.environ.get("CALOSCALE_WRITE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", TRAININGS)
def test_every_pod_is_hardened(name: str) -> None:
    launch = ex.LAUNCHES[name]()
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


@pytest.mark.parametrize("name", ex.LAUNCHES)
def test_one_worker_a_node_with_all_its_accelerators(name: str) -> None:
    launch = ex.LAUNCHES[name]()
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
    environment = template_of(render(ex.LAUNCHES["jobset-gpu"]()))["spec"]["containers"][0]["env"]
    order = [variable["name"] for variable in environment]
    assert order.index("JOB_COMPLETION_INDEX") < order.index("TF_CONFIG")
    text = re.sub(r"\$\(JOB_COMPLETION_INDEX\)", "1", environment[order.index("TF_CONFIG")]["value"])
    assert json.loads(text) == {
        "cluster": {"worker": ["gan-1-workers-0-0.gan-1:2222", "gan-1-workers-0-1.gan-1:2222"]},
        "task": {"type": "worker", "index": 1},
    }


def test_hosts_times_chips_are_the_slice() -> None:
    job = render(ex.LAUNCHES["jobset-tpu-slice"]())["spec"]["replicatedJobs"][0]["template"]["spec"]
    chips = int(job["template"]["spec"]["containers"][0]["resources"]["limits"]["google.com/tpu"])
    assert (job["parallelism"], job["completions"], chips * job["parallelism"]) == (4, 4, 16)


@pytest.mark.parametrize("name", TRAININGS)
def test_the_workers_read_the_run_with_its_global_batch(name: str) -> None:
    launch = ex.LAUNCHES[name]()
    environment = template_of(render(launch))["spec"]["containers"][0]["env"]
    document = parse_run(next(e["value"] for e in environment if e["name"] == "CALOSCALE_RUN"))
    assert document == build_run(launch.configuration)
    assert document.train.global_batch_size == launch.placed.global_batch
    assert (document.data, document.model) == (launch.run.data, launch.run.model)


def test_names_of_another_attempt_are_others() -> None:
    first: Launch = ex.LAUNCHES["tfjob-one"]()
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


@pytest.mark.parametrize("field", ["cluster.workspace", "cluster.dataset", "checkpoint.uri"])
def test_a_path_that_ends_with_the_pods_is_refused(field: str) -> None:
    claim = "cluster.volumeClaim=runs"
    out = ("/scratch/x", "x", "/workspace/../x", "/workspace/a/..")
    for settings in ((f"{field}=/workspace/x",), *((f"{field}={place}", claim) for place in out)):
        with pytest.raises(ConfigurationError, match="ends with the pods") as caught:
            require_lasting_places(ex.run_of(*settings))
        assert caught.value.field == field and "cluster.volumeClaim" in str(caught.value.remedy)
    require_lasting_places(ex.run_of(f"{field}=/workspace/x..y/...", claim))
    require_lasting_places(ex.run_of(f"{field}=minio://bucket/x"))


@pytest.mark.parametrize(
    ("settings", "entry"),
    [
        (("cluster.workspace=s3://b/run",), "credentials"),
        (("cluster.workspace=gs://b/run", "data.source=s3://b/showers"), "key.json"),
        (("cluster.workspace=/workspace/run", "cluster.dataset=s3://b/dataset"), "credentials"),
        (("cluster.workspace=/workspace/run", "checkpoint.uri=minio://b/run"), "credentials"),
        (("cluster.workspace=/workspace/run", "data.source=s3://b/showers"), "credentials"),
        (("cluster.workspace=/workspace/run", "data.source=gs://b/showers"), "key.json"),
    ],
)
def test_the_key_is_that_of_the_bucket_of_the_run(settings: tuple[str, ...], entry: str) -> None:
    """Also where a volume claim has the workspace."""
    secret = ("cluster.credentialsSecret=bucket-key", "cluster.volumeClaim=showers")
    run = ex.run_of(*ex.ON_V100, "hardware.count=8", *secret, *settings)
    spec = template_of(render(ex.launch_of(run, ex.node("n0"))))["spec"]
    (volume,) = (each["secret"] for each in spec["volumes"] if each["name"] == "credentials")
    assert volume["items"] == [{"key": entry, "path": entry}]


def test_workers_take_the_environment_of_their_namespace() -> None:
    """The operator's own variables go before it: Kubernetes takes env after envFrom."""
    (container,) = template_of(render(ex.LAUNCHES["tfjob-cpu"]()))["spec"]["containers"]
    assert container["envFrom"] == [{"configMapRef": {"name": "caloscale-workers", "optional": True}}]


@pytest.mark.parametrize("backend", ["TFJob", "JobSet", "TrainJob", "MPIJob"])
def test_a_job_for_two_pools_asks_for_either_and_has_the_labels_of_the_flavor_once_admitted(backend: str) -> None:
    """What Kueue 0.19 changes when it admits: of a TrainJob a patch of its own, of the others the pods' selector."""
    asked_for = (*ex.ON_V100, "hardware.count=16", "hardware.queue=q", f"cluster.backend={backend}")
    run = ex.solver_of(*asked_for, "solver.ranks=16") if backend == "MPIJob" else ex.run_of(*asked_for)
    nodes = [ex.spot("s0", "spot"), ex.spot("s1", "spot"), ex.node("n0", "owned"), ex.node("n1", "owned")]
    launch = ex.launch_of(run, *nodes)
    first, *others = alternatives(run, launch.placed, ex.pools(*nodes), ex.CATALOGUE)
    manifest = render(replace(launch, placed=first, alternatives=tuple(others)))
    pod = template_of(manifest)["spec"]
    pool, v100 = "cloud.google.com/gke-nodepool", "cloud.google.com/gke-accelerator"
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = pod["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"]
    asked = [{each["key"]: each["values"] for each in term["matchExpressions"]} for term in terms]
    common = {v100: "nvidia-tesla-v100", "node.kubernetes.io/instance-type": "n1-standard-64"}
    assert asked == [{pool: [name], **{key: [value] for key, value in common.items()}} for name in ("spot", "owned")]
    assert [each["topologyKey"] for each in pod["affinity"]["podAffinity"][required]] == [pool]
    assert any(each["key"] == "cloud.google.com/gke-spot" for each in pod["tolerations"])
    assert dict(job_of(manifest).selector) == common
    if backend == "TrainJob":
        patch = {"name": "node", "template": {"spec": {"template": {"spec": {"nodeSelector": {pool: "owned"}}}}}}
        kueue = {"trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [patch]}}}}
        manifest["spec"]["runtimePatches"].append({"manager": "kueue.x-k8s.io/manager", **kueue})
    else:
        pod["nodeSelector"][pool] = "owned"
    assert dict(job_of(manifest).selector)[pool] == "owned"
