"""The bundle: manifests as files, and every one of them before a real API server."""

import copy
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from caloscale.cluster.capacity.pods import JOB_KINDS
from caloscale.errors import InputError
from caloscale.planning.catalogue.prices import load_prices
from caloscale.spec import build_any_run
from tests.cluster.examples import LAUNCHES, rendered
from tests.control_plane import faults
from tools import deploy
from tools.cluster import ControlPlane, Pool
from tools.cluster.certificates import CONTEXT
from tools.cluster.errors import ClusterError
from tools.cluster.pools import add_pool
from tools.cluster.programs import ADDITIONS, MODULE, UPSTREAM, program, version
from tools.cluster.upstream import ensure
from tools.manifests import write_bundle

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests"
SAMPLES = sorted((MANIFESTS / "samples").glob("*.yaml"))
RENDERED = sorted(name for name in LAUNCHES if not name.startswith("trainjob"))
"""What the operator renders; TrainJobs need Kubeflow Trainer (tests/control_plane/trainer)."""
OVERLAYS = sorted(path.name for path in (MANIFESTS / "overlays").iterdir())
SYSTEM = "caloscale-system"


def read(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def pinned(name: str, base: str, module: str, folder: Path = MODULE) -> dict[str, Any]:
    """A third-party kustomization: its base is the commit of the version that go.mod pins."""
    path, tag = MANIFESTS / "third-party" / name / "kustomization.yaml", version(module, folder)
    found = re.search(rf"/{base}\?ref=([0-9a-f]{{40}}) # (\S+)$", path.read_text(), re.MULTILINE)
    assert found is not None and found[2] == tag
    cache = Path(os.environ.get("GOMODCACHE", Path.home() / "go/pkg/mod"))
    info = cache / "cache/download" / module / "@v" / f"{tag}.info"
    if info.is_file():  # absent where the programs were not built on this machine
        assert json.loads(info.read_text())["Origin"]["Hash"] == found[1]
    (kustomization,) = read(path)
    return dict(kustomization)


@pytest.mark.parametrize("name", UPSTREAM)
def test_third_party_operators_are_those_that_are_tested(name: str) -> None:
    module, base = UPSTREAM[name]
    for image in pinned(name, base, module).get("images", []):
        assert image["newTag"].removeprefix("v") == version(module).removeprefix("v")


def test_kubeflow_trainer_is_the_one_that_is_tested() -> None:
    module, base = ADDITIONS["trainer"].manifest
    (resource,) = pinned("trainer", base, module, MODULE / "trainer")["resources"]
    assert resource.startswith(f"https://{module.removesuffix('/v2')}/")


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_samples_are_documents(path: Path) -> None:
    (sample,) = read(path)
    assert sample["metadata"]["name"] == path.stem
    run = build_any_run(sample["spec"])
    assert run.hardware is not None


def test_own_prices_can_be_read_and_the_example_too(tmp_path: Path) -> None:
    text = (MANIFESTS / "base" / "prices.csv").read_text(encoding="utf-8")
    (example,) = re.findall(r"^# (gcp,.*)$", text, re.MULTILINE)
    changed = tmp_path / "prices.csv"
    changed.write_text(text + example + "\n", encoding="utf-8")
    assert load_prices([MANIFESTS / "base" / "prices.csv"])
    assert load_prices([changed])


def test_images_have_a_version() -> None:
    (kustomization,) = read(MANIFESTS / "base" / "kustomization.yaml")
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", image["newTag"]) for image in kustomization["images"])


@pytest.fixture(scope="module")
def deployed(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """The kind overlay on the control plane, by `make deploy`'s own code, on a machine with a fake kubelet."""
    ensure(control_plane, "mpi-operator")
    api = control_plane.client()
    nodes = add_pool(api, Pool("system", 1, accelerator=""))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
        images = {"image": "registry.example/operator:1.2.3", "trainer": "registry.example/trainer:4.5.6"}
        # Other modules make the namespace, too; then deploy would leave it as it is.
        control_plane.kubectl("delete", "namespace", SYSTEM, "--ignore-not-found")
        control_plane.kubectl("apply", "--server-side", "-k", str(MANIFESTS / "run-namespace"))
        deploy.deploy(context=CONTEXT, overlay="kind", namespace=SYSTEM, **images)
        yield control_plane
        control_plane.kubectl("delete", "-k", str(MANIFESTS / "run-namespace"), "--wait=false")
        deploy.undeploy(context=CONTEXT, overlay="kind", namespace=SYSTEM, force=True)
        assert not control_plane.kubectl("get", "namespace", SYSTEM, "--ignore-not-found")
    faults.remove_nodes(api, nodes)


def test_the_operator_is_deployed_as_restricted_pod(deployed: ControlPlane) -> None:
    pod, standby = deployed.get("pods", "-n", SYSTEM)["items"]
    assert [each["status"]["phase"] for each in (pod, standby)] == ["Running", "Running"]
    assert pod["spec"]["containers"][0]["image"] == "registry.example/operator:1.2.3"
    assert pod["spec"]["containers"][0]["imagePullPolicy"] == "IfNotPresent"
    shown = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
    assert shown["CALOSCALE_IMAGE"] == "registry.example/trainer:4.5.6"
    assert Path(shown["CALOSCALE_PRICES"] or "") == Path(pod["spec"]["containers"][0]["volumeMounts"][0]["mountPath"])


@pytest.mark.parametrize("namespace_name", [SYSTEM, "caloscale-runs"])
def test_nothing_privileged_gets_into_our_namespaces(namespace_name: str, deployed: ControlPlane) -> None:
    core = client.CoreV1Api(deployed.client())
    container = {"name": "root", "image": "none", "securityContext": {"privileged": True}}
    with pytest.raises(ApiException, match="violates PodSecurity"):
        core.create_namespaced_pod(namespace_name, {"metadata": {"name": "root"}, "spec": {"containers": [container]}})


@pytest.mark.parametrize("name", ["claim", "gke"])
def test_every_way_to_storage_is_valid_before_the_server(name: str, deployed: ControlPlane) -> None:
    where = str(MANIFESTS / "storage" / name)
    said = deployed.kubectl("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-k", where)
    assert "serviceaccount/caloscale-worker" in said


def test_the_emulators_pod_is_admitted_into_the_namespace_of_runs(deployed: ControlPlane) -> None:
    deployed.kubectl("apply", "--server-side", "--force-conflicts", "-k", str(MANIFESTS / "storage" / "kind"))
    core = client.CoreV1Api(deployed.client())
    deployed.wait_until(
        lambda: any(
            pod.status.phase == "Running"
            for pod in core.list_namespaced_pod(
                "caloscale-runs", label_selector="app.kubernetes.io/name=caloscale-storage"
            ).items
        ),
        "the emulator's pod runs",
    )


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_is_valid_before_the_server(overlay: str, deployed: ControlPlane) -> None:
    where = str(MANIFESTS / "overlays" / overlay)
    shown = deployed.kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-k", where
    )
    kinds = {line.split("/")[0].split(".")[0] for line in shown.splitlines()}
    assert {"deployment", "clusterrole", "customresourcedefinition", "networkpolicy", "configmap"} <= kinds


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_samples_are_valid_before_the_server(path: Path, deployed: ControlPlane, namespace: str) -> None:
    told = deployed.kubectl("create", "--dry-run=server", "--validate=strict", "-n", namespace, "-f", str(path))
    assert "created (server dry run)" in told


def test_kubectl_explain_teaches(deployed: ControlPlane) -> None:
    assert "Accelerators of a node" in deployed.kubectl("explain", "trainingrun.spec.hardware")


def aligned() -> dict[str, Any]:
    """A TFJob of ours that is what was planned."""
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"caloscale.dev/run": "r"}}}
    container = {"name": "tensorflow", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    pod = {
        "nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-tesla-v100"},
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
        "containers": [container],
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {
            "name": "r-1",
            "labels": {"caloscale.dev/run": "r"},
            "annotations": {
                "caloscale.dev/workers": "4",
                "caloscale.dev/accelerators-per-worker": "8",
                "caloscale.dev/accelerator": "nvidia-tesla-v100",
            },
        },
        "spec": {"tfReplicaSpecs": {"Worker": {"replicas": 4, "template": {"spec": pod}}}},
    }


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Set (or with None remove) a field of a job; path parts are joined by |."""

    def apply(job: dict[str, Any]) -> None:
        *parents, last = path.split("|")
        place: Any = job
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place[part]
        if value is None:
            del place[last]
        else:
            place[last] = value

    return apply


OTHER = {"replicas": 1, "template": {"spec": {"containers": []}}}
WORKER = "spec|tfReplicaSpecs|Worker"
POD = f"{WORKER}|template|spec"
GPUS = f"{POD}|containers|0|resources|limits|nvidia.com/gpu"
PLAN = "metadata|annotations|caloscale.dev/"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (change("metadata|annotations", None), "carries the annotations"),
        (change(f"{PLAN}workers", None), "carries the annotations"),
        (change(f"{PLAN}accelerator", None), "carries the annotations"),
        (change(f"{WORKER}|replicas", 3), "the plan has 4 workers"),
        (change(f"{WORKER}|replicas", 5), "the plan has 4 workers"),
        (change("spec|tfReplicaSpecs|Chief", OTHER), "workers only"),
        (change("spec|tfReplicaSpecs|PS", OTHER), "workers only"),
        (change(GPUS, "4"), "the plan has 8 accelerators a worker"),
        (change(GPUS, None), "the plan has 8 accelerators a worker"),
        (change(f"{POD}|containers|0|resources", None), "the plan has 8 accelerators a worker"),
        (change(f"{POD}|containers|0|name", "trainer"), "the plan has 8 accelerators a worker"),
        (change(f"{POD}|nodeSelector|cloud.google.com/gke-accelerator", "nvidia-l4"), "another accelerator"),
        (change(f"{POD}|affinity", None), "two workers could share a node"),
        (change(f"{POD}|affinity|podAntiAffinity|requiredDuringSchedulingIgnoredDuringExecution|0|topologyKey", "zone"),
         "two workers could share a node"),
    ],
)  # fmt: skip
def test_tfjobs_that_are_not_their_plan_are_refused(
    changed: Callable[[dict[str, Any]], None], message: str, deployed: ControlPlane, namespace: str
) -> None:
    job = aligned()
    changed(job)
    with pytest.raises(ApiException, match=r"(?s)caloscale-aligned-jobs.*" + message + ".*remedy: "):
        create_job(deployed, namespace, job)


SETS = "spec|replicatedJobs"
JOB_POD = f"{SETS}|0|template|spec|template|spec"


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("gpu", change("metadata|annotations", None), "carries the annotations"),
        ("gpu", change(f"{SETS}|0|template|spec|parallelism", 1), "the plan has 2 workers"),
        ("tpu-slice", change(f"{SETS}|0|replicas", 2), "the plan has 4 workers"),
        ("gpu", change(f"{SETS}|0|name", "leader"), "workers only"),
        ("gpu", change(f"{JOB_POD}|containers|0|resources|limits|nvidia.com/gpu", "4"), "the plan has 8 accelerators"),
        ("tpu-host", change(f"{JOB_POD}|containers|0|resources|limits|google.com/tpu", "1"), "google.com/tpu: 4"),
        ("gpu", change(f"{JOB_POD}|affinity", None), "two workers could share a node"),
    ],
)
def test_jobsets_that_are_not_their_plan_are_refused(
    name: str, changed: Callable[[dict[str, Any]], None], message: str, deployed: ControlPlane, namespace: str
) -> None:
    job = next(each for each in rendered(f"jobset-{name}") if each["kind"] == "JobSet")
    job["metadata"]["namespace"] = namespace
    create_job(deployed, namespace, job)
    changed(job)
    with pytest.raises(ApiException, match=r"(?s)caloscale-aligned-jobs.*" + message + ".*remedy: "):
        create_job(deployed, namespace, job)


def create_job(plane: ControlPlane, namespace: str, job: dict[str, Any]) -> None:
    """Ask the server whether it would take a job."""
    custom, (group, _, version_) = client.CustomObjectsApi(plane.client()), job["apiVersion"].partition("/")
    plural = f"{job['kind'].lower()}s"
    custom.create_namespaced_custom_object(group, version_, namespace, plural, job, dry_run="All")


def test_jobs_that_are_their_plan_or_not_ours_are_let_in(deployed: ControlPlane, namespace: str) -> None:
    cpu, free, foreign = (copy.deepcopy(aligned()) for _ in range(3))
    change(f"{PLAN}accelerators-per-worker", "0")(cpu)
    change(f"{PLAN}accelerator", "cpu")(cpu)
    change(f"{POD}|containers|0|resources", None)(cpu)
    change(f"{POD}|nodeSelector", None)(cpu)
    change(f"{POD}|affinity", None)(free)
    change(f"{PLAN}nodes", "2")(free)
    change("metadata|labels", None)(foreign)
    change("metadata|annotations", None)(foreign)
    for job in (aligned(), cpu, free, foreign):
        create_job(deployed, namespace, job)


@pytest.mark.parametrize("name", RENDERED)
def test_what_the_operator_renders_is_valid_before_the_server(
    name: str, deployed: ControlPlane, namespace: str
) -> None:
    """Strictly valid, let in by upstream's webhooks, by our policy, and by restricted pod security."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    client.CoreV1Api(deployed.client()).patch_namespace(namespace, {"metadata": {"labels": labels}})
    items = rendered(name)
    for manifest in items:
        manifest["metadata"]["namespace"] = namespace
    # A job is let in whatever its pods are: they are asked about as pods.
    items += [pod for manifest in items if manifest["kind"] in JOB_KINDS for pod in pods_of(manifest)]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    told = deployed.kubectl(
        "create", "--dry-run=server", "--validate=strict", "-n", namespace, "--filename=-", stdin=text
    )
    assert told.count("created (server dry run)") == len(items)


def pods_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Pods of a job, one of each kind, without the label by which JobSet's webhook looks for its job."""
    spec = manifest["spec"]
    if manifest["kind"] == "JobSet":
        templates = {"worker": spec["replicatedJobs"][0]["template"]["spec"]["template"]}
    else:
        replicas = spec.get("tfReplicaSpecs") or spec["mpiReplicaSpecs"]
        templates = {kind.lower(): replica["template"] for kind, replica in replicas.items()}
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            # The account is made just before in the real life of a run.
            "spec": {**template["spec"], "serviceAccountName": "default"},
        }
        for name, template in templates.items()
    ]


def test_a_job_cannot_be_edited_away_from_its_plan(deployed: ControlPlane, namespace: str) -> None:
    deployed.apply([aligned()], namespace=namespace)
    patch = json.dumps({"spec": {"tfReplicaSpecs": {"Worker": {"replicas": 2}}}})
    with pytest.raises(ClusterError, match="the plan has 4 workers"):
        deployed.kubectl("patch", "tfjob", "r-1", "-n", namespace, "--type=merge", f"--patch={patch}")


def test_the_workers_account_comes_into_a_namespace_of_any_name(deployed: ControlPlane, tmp_path: Path) -> None:
    relative = os.path.relpath(MANIFESTS / "run-namespace", tmp_path)
    (tmp_path / "kustomization.yaml").write_text(f"namespace: mine\nresources: [{relative}]\n", encoding="utf-8")
    objects = list(yaml.safe_load_all(deployed.kubectl("kustomize", str(tmp_path))))
    (binding,) = [
        each for each in objects if each["kind"] == "RoleBinding" and each["metadata"]["name"].endswith("worker")
    ]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "caloscale-worker", "namespace": "mine"}]
    assert binding["metadata"]["namespace"] == "mine"


def test_a_drain_does_not_take_workers(deployed: ControlPlane, add_nodes: Callable[..., list[str]]) -> None:
    add_nodes("cpu", 1, accelerator="")
    core = client.CoreV1Api(deployed.client())
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "tensorflow", "image": "none", "securityContext": security}
    spec = {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    for name, labels in (("worker", {"caloscale.dev/run": "r"}), ("other", {})):
        core.create_namespaced_pod("caloscale-runs", {"metadata": {"name": name, "labels": labels}, "spec": spec})
    policy = client.PolicyV1Api(deployed.client())
    deployed.wait_until(
        lambda: (
            policy.read_namespaced_pod_disruption_budget("caloscale-workers", "caloscale-runs").status.current_healthy
            == 1
        ),
        "the budget counts the worker",
    )
    with pytest.raises(ApiException, match="disruption budget"):
        core.create_namespaced_pod_eviction("worker", "caloscale-runs", {"metadata": {"name": "worker"}})
    core.create_namespaced_pod_eviction("other", "caloscale-runs", {"metadata": {"name": "other"}})
    core.delete_namespaced_pod("worker", "caloscale-runs", grace_period_seconds=0)


def test_users_get_their_rights_from_the_usual_roles(deployed: ControlPlane, namespace: str) -> None:
    def may(role: str, verb: str) -> bool:
        name = f"{role}-{verb}"
        account = f"--serviceaccount={namespace}:{name}"
        deployed.kubectl("create", "rolebinding", name, f"--clusterrole={role}", account, "-n", namespace)
        attributes = {"namespace": namespace, "verb": verb, "group": "caloscale.dev", "resource": "trainingruns"}
        review = {"spec": {"user": f"system:serviceaccount:{namespace}:{name}", "resourceAttributes": attributes}}
        api = client.AuthorizationV1Api(deployed.client())
        return bool(api.create_subject_access_review(review).status.allowed)

    assert may("edit", "create")
    assert may("view", "get")
    assert not may("view", "create")


@pytest.mark.control_plane
def test_the_bundle_passes_the_validation_of_operator_framework(tmp_path: Path) -> None:
    try:
        verify = program("operator-verify")
    except ClusterError as error:
        pytest.skip(str(error))
    command, bundle = [str(verify), "manifests"], tmp_path / "made"
    write_bundle(MANIFESTS, bundle)
    done = subprocess.run([*command, str(bundle)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "error" not in (done.stdout + done.stderr).lower()

    broken = tmp_path / "bundle" / "manifests"
    broken.mkdir(parents=True)
    (tmp_path / "bundle" / "metadata").mkdir()
    for path in bundle.glob("*/*.yaml"):
        text = path.read_text(encoding="utf-8").replace(
            "name: trainingruns.caloscale.dev", "name: others.caloscale.dev", 1
        )
        (tmp_path / "bundle" / path.parent.name / path.name).write_text(text, encoding="utf-8")
    done = subprocess.run([*command, str(tmp_path / "bundle")], capture_output=True, text=True, check=False)
    assert "others.caloscale.dev" in done.stdout + done.stderr


@pytest.mark.parametrize("verb", [deploy.deploy, deploy.undeploy])
@pytest.mark.parametrize("context", ["", "another"])
def test_no_cluster_is_touched_that_was_not_named(
    verb: Callable[..., None], context: str, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the kubeconfig has a current context."""
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    with pytest.raises(InputError, match=f"one of: {CONTEXT}"):
        verb(context=context)
