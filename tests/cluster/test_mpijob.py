"""A solver run as an MPIJob: slots, hosts, what launcher and workers run, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from kubernetes.utils import parse_quantity
from typer.testing import CliRunner

from caloscale.cli.main import app
from caloscale.cluster import names
from caloscale.cluster.workload.mpijob import SSH_FOLDER, SSHD, render_alone, render_mpijob
from caloscale.cluster.workload.pod_template import USER
from caloscale.errors import ConfigurationError
from caloscale.spec import load_solver_run, parse_any_run
from tests.cluster import examples as ex
from tools.cluster.programs import folder

CLAIM = "cluster.volumeClaim=shared"
GPUS = (
    *("solver.ranks=8", "hardware.accelerator=nvidia-tesla-v100", "hardware.perNode=4"),
    *("hardware.machineType=n1-standard-32", "hardware.cloud=gcp", CLAIM),
)


def rendered(*overrides: str) -> dict[str, Any]:
    return render_alone(load_solver_run(preset="proxy", overrides=overrides), "inverse", "physics", "solver:1")


def launched(*overrides: str) -> dict[str, Any]:
    """As the operator renders it."""
    run = ex.solver_of("solver.ranks=16", "hardware.accelerator=nvidia-tesla-v100", *overrides)
    return render_mpijob(ex.launch_of(run, ex.node("n0"), ex.node("n1")))


def pod_of(job: dict[str, Any], replica: str) -> dict[str, Any]:
    return job["spec"]["mpiReplicaSpecs"][replica]["template"]["spec"]


def variables_of(pod: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in pod["containers"][0]["env"]}


def test_a_slot_for_each_accelerator_and_a_worker_on_each_node() -> None:
    job = rendered(*GPUS)
    assert job["spec"]["slotsPerWorker"] == 4
    assert job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 2
    worker = pod_of(job, "Worker")
    assert worker["containers"][0]["resources"]["limits"] == {names.GPU: "4"}
    assert worker["nodeSelector"] == {
        "node.kubernetes.io/instance-type": "n1-standard-32",
        "cloud.google.com/gke-accelerator": "nvidia-tesla-v100",
    }
    (rule,) = worker["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    labels = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["metadata"]["labels"]
    assert rule["labelSelector"]["matchLabels"].items() <= labels.items()
    launcher = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["metadata"]["labels"]
    assert not rule["labelSelector"]["matchLabels"].items() <= launcher.items()  # it may share a worker's node
    # The operator must not take them for pods of a TrainingRun.
    assert not any(label.startswith("caloscale.dev/") for label in labels)


@pytest.mark.parametrize(("ranks", "count", "slots"), [(4, 2, 2), (5, 2, 3), (4, 1, 4), (3, 3, 1)])
def test_ranks_are_divided_among_nodes_without_accelerators(ranks: int, count: int, slots: int) -> None:
    job = rendered(CLAIM, f"solver.ranks={ranks}", "hardware.accelerator=cpu", f"hardware.count={count}")
    assert (job["spec"]["slotsPerWorker"], job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]) == (slots, count)
    assert "limits" not in pod_of(job, "Worker")["containers"][0]["resources"]


def test_the_launcher_reads_the_whole_configuration_and_needs_no_accelerator() -> None:
    overrides = (*GPUS, "solver.exchange=grouped-ring", "hardware.queue=physics", "cluster.image=solver:2")
    job = rendered(*overrides)
    launcher, worker = pod_of(job, "Launcher"), pod_of(job, "Worker")
    variables = variables_of(launcher)
    assert parse_any_run(variables["CALOSCALE_RUN"]) == load_solver_run(preset="proxy", overrides=overrides)
    assert variables["CALOSCALE_WORKSPACE"] == "/workspace/runs/inverse"
    assert launcher["containers"][0]["args"] == ["caloscale", "worker"]
    assert names.GPU not in json.dumps(launcher["containers"]) and launcher["nodeSelector"] == {}
    for pod in (launcher, worker):
        assert {"name": "workspace", "mountPath": "/workspace"} in pod["containers"][0]["volumeMounts"]
        assert pod["containers"][0]["image"] == "solver:2"
        assert "restartPolicy" not in pod  # the replica has it; the mpi-operator warns where there are two
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "physics"
    assert job["spec"]["runPolicy"]["suspend"] is True  # until the queue admits it


@pytest.mark.parametrize("replica", ["Launcher", "Worker"])
def test_every_pod_is_hardened(replica: str) -> None:
    pod = pod_of(rendered(*GPUS), replica)
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 65532
    assert pod["serviceAccountName"] == "default" and "serviceAccountToken" not in json.dumps(pod)
    # The key's files belong to root: the group may read them, and ssh accepts a key that others own.
    assert pod["securityContext"]["fsGroup"] == 65532
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_operator_launches_it_once_an_attempt_and_its_launcher_reports() -> None:
    job = launched()
    assert job["spec"]["slotsPerWorker"] == 8 and job["spec"]["runPolicy"]["backoffLimit"] == 0
    launcher, worker = pod_of(job, "Launcher"), pod_of(job, "Worker")
    variables = variables_of(launcher)
    assert variables["CALOSCALE_PROGRESS"] == "physics/gan-progress"
    assert variables["CALOSCALE_WORKSPACE"] == "/workspace/runs/gan"  # that of every attempt
    assert "serviceAccountToken" in json.dumps(launcher["volumes"]) and "token" not in json.dumps(worker)
    assert launcher["serviceAccountName"] == "caloscale-worker"
    roles = {
        replica: job["spec"]["mpiReplicaSpecs"][replica]["template"]["metadata"]["labels"][names.COMPONENT]
        for replica in ("Launcher", "Worker")
    }
    assert roles == {"Launcher": "launcher", "Worker": "worker"}
    node = ex.node("n0")["status"]["allocatable"]
    for resource in ("cpu", "memory"):  # whichever node the launcher comes to has room for it beside a worker
        asked = sum(
            parse_quantity(pod["containers"][0]["resources"]["requests"][resource]) for pod in (launcher, worker)
        )
        assert asked < parse_quantity(node[resource])


REFUSED = {
    ("solver.ranks=4",): "ReadWriteMany",
    ("solver.ranks=4", CLAIM, "cluster.workspace=gs://b/run"): "/workspace/runs/NAME",
    (*GPUS, "hardware.count=4"): "leave hardware.count out",
    (*GPUS, "solver.ranks=6"): "change one of the two",
    (*GPUS, "hardware.placement=Free"): "leave out hardware.topology and hardware.placement",
    (*GPUS, "cluster.backend=TFJob"): "leave cluster.backend out",
    (CLAIM, "solver.ranks=2", "hardware.accelerator=cpu", "hardware.count=3"): "2 or fewer",
}


@pytest.mark.parametrize("overrides", REFUSED)
def test_what_an_mpijob_cannot_be_is_refused(overrides: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        rendered(*overrides)
    assert REFUSED[overrides] in str(caught.value.remedy)


@pytest.mark.parametrize("overrides", [GPUS, (CLAIM, "solver.ranks=4", "hardware.queue=physics")])
def test_the_definition_of_the_mpi_operator_allows_it(overrides: tuple[str, ...]) -> None:
    """Its CustomResourceDefinition of the pinned version, closed against unknown fields."""
    manifest = folder() / "manifests" / "mpi-operator.yaml"
    if not manifest.is_file():
        pytest.skip("no manifest of the mpi-operator: `make control-plane-build` renders it")
    objects = yaml.load_all(manifest.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    versions = next(each for each in objects if each["kind"] == "CustomResourceDefinition")["spec"]["versions"]
    (schema,) = (each["schema"]["openAPIV3Schema"] for each in versions if each["name"] == "v2beta1")
    for job in (rendered(*overrides), launched()):
        jsonschema.validate(job, _closed(schema))
    wrong = rendered(*overrides)
    wrong["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["imagePolicy"] = "Never"
    with pytest.raises(jsonschema.ValidationError, match="imagePolicy"):
        jsonschema.validate(wrong, _closed(schema))


def _closed(schema: Any, *, top: bool = True) -> Any:
    """A structural schema as the API server applies it with strict field validation."""
    if isinstance(schema, list):
        return [_closed(each, top=False) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value, top=False) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not top and "additionalProperties" not in schema:
        closed["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        closed["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    return closed


def test_the_image_is_configured_for_it() -> None:
    text = (Path(__file__).parents[2] / "docker" / "solver.Dockerfile").read_text(encoding="utf-8")
    assert f"HostKey {SSH_FOLDER}/id_rsa" in text and f"IdentityFile {SSH_FOLDER}/id_rsa" in text
    assert f"> {SSHD[-1]} " in text and text.count(f"Port {names.WORKER_PORT}'") == 2
    assert f"caloscale:x:{USER}:{USER}:" in text and f"USER {USER}:{USER}" in text


def test_the_command_prints_it() -> None:
    options = [word for override in GPUS for word in ("--set", override)]
    command = ["solve", "--preset", "proxy", *options, "--mpijob", "--name", "inverse", "-n", "physics"]
    result = CliRunner().invoke(app, [*command, "--image", "solver:1"], catch_exceptions=False)
    assert result.exit_code == 0
    assert yaml.safe_load(result.stdout) == rendered(*GPUS)
