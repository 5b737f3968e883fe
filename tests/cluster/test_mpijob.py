"""A solver run as an MPIJob: slots, hosts, what launcher and workers run, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from kubernetes.utils import parse_quantity

from caloscale.cluster import names
from caloscale.cluster.workload.backends import SSH_FOLDER, SSHD, render, require_shared_folder
from caloscale.cluster.workload.pod_template import USER
from caloscale.errors import ConfigurationError
from caloscale.spec import load_solver_run, parse_any_run
from tests.cluster import examples as ex

CLAIM = "cluster.volumeClaim=shared"


def launched(*overrides: str) -> dict[str, Any]:
    """As the operator renders it."""
    run = ex.solver_of("solver.ranks=16", "hardware.accelerator=nvidia-tesla-v100", *overrides)
    return render(ex.launch_of(run, ex.node("n0"), ex.node("n1")))


def pod_of(job: dict[str, Any], replica: str) -> dict[str, Any]:
    return job["spec"]["mpiReplicaSpecs"][replica]["template"]["spec"]


def test_the_operator_launches_it_once_an_attempt_and_its_launcher_reports() -> None:
    job = launched()
    assert job["spec"]["slotsPerWorker"] == 8 and job["spec"]["runPolicy"]["backoffLimit"] == 0
    launcher, worker = pod_of(job, "Launcher"), pod_of(job, "Worker")
    variables = {each["name"]: each["value"] for each in launcher["containers"][0]["env"]}
    given = load_solver_run(preset="proxy", overrides=["solver.ranks=16"]).solver
    assert parse_any_run(variables["CALOSCALE_RUN"]).solver == given
    assert variables["CALOSCALE_PROGRESS"] == "physics/gan-progress"
    assert variables["CALOSCALE_WORKSPACE"] == "/workspace/runs/gan"  # that of every attempt
    assert "serviceAccountToken" in json.dumps(launcher["volumes"]) and "token" not in json.dumps(worker)
    assert launcher["serviceAccountName"] == "caloscale-worker"
    labels = {
        replica: job["spec"]["mpiReplicaSpecs"][replica]["template"]["metadata"]["labels"]
        for replica in ("Launcher", "Worker")
    }
    assert labels["Launcher"][names.COMPONENT] == "launcher" and names.GPU not in json.dumps(launcher["containers"])
    (rule,) = worker["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    apart = rule["labelSelector"]["matchLabels"].items()
    assert apart <= labels["Worker"].items()
    assert not apart <= labels["Launcher"].items()  # it may share a worker's node, and no other is kept for it
    ((near,),) = (kind.values() for kind in launcher["affinity"].values())
    assert near == [{"weight": 100, "podAffinityTerm": rule}] and list(launcher["affinity"]) == ["podAffinity"]
    node = ex.node("n0")["status"]["allocatable"]
    for resource in ("cpu", "memory"):  # whichever node the launcher comes to has room for it beside a worker
        asked = sum(
            parse_quantity(pod["containers"][0]["resources"]["requests"][resource]) for pod in (launcher, worker)
        )
        assert asked < parse_quantity(node[resource])


GPUS = ("solver.ranks=8", "hardware.accelerator=nvidia-tesla-v100", "hardware.perNode=4", CLAIM)
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
        require_shared_folder(load_solver_run(preset="proxy", overrides=overrides))
    assert REFUSED[overrides] in str(caught.value.remedy)


def test_the_image_is_configured_for_it() -> None:
    text = (Path(__file__).parents[2] / "docker" / "solver.Dockerfile").read_text(encoding="utf-8")
    assert f"HostKey {SSH_FOLDER}/id_rsa" in text and f"IdentityFile {SSH_FOLDER}/id_rsa" in text
    assert f"> {SSHD[-1]} " in text and text.count(f"Port {names.WORKER_PORT}'") == 2
    assert f"caloscale:x:{USER}:{USER}:" in text and f"USER {USER}:{USER}" in text
