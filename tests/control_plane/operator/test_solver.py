"""Solver runs as MPIJobs of the real mpi-operator; the fake nodes run no process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from caloscale.cluster import names
from caloscale.cluster.workload.backends import SSH_FOLDER
from caloscale.connection import Connection
from tests.control_plane import faults
from tests.control_plane.operator.conftest import Runs
from tools.cluster.errors import ClusterError

SAMPLE = Path(__file__).parents[3] / "manifests" / "samples" / "solver.yaml"
SOLVER: dict[str, dict[str, Any]] = yaml.safe_load(SAMPLE.read_text(encoding="utf-8"))["spec"]
ROLE = "training.kubeflow.org/job-role"


@pytest.fixture
def solver(runs: Runs, add_nodes: Callable[..., list[str]]) -> Runs:
    """Two nodes with two GPUs each, and a claim."""
    add_nodes("v100", 2, gpus=2)
    runs.claim("shared")
    return runs


def of_role(runs: Runs, role: str, attempt: int = 1) -> list[dict[str, Any]]:
    selector = f"{ROLE}={role},{names.ATTEMPT_LABEL}={attempt}"
    return list(runs.server.each("Pod", runs.namespace, selector=selector))


def end_launcher(runs: Runs, attempt: int, exit_code: int) -> None:
    """Wait for the launcher of an attempt and let it end."""
    runs.plane.wait_until(
        lambda: any(p["status"]["phase"] == "Running" for p in of_role(runs, "launcher", attempt)), "a launcher"
    )
    selector = f"{ROLE}=launcher,{names.ATTEMPT_LABEL}={attempt}"
    faults.end_pods(runs.api, runs.namespace, selector=selector, exit_code=exit_code)


def test_a_solver_run_has_a_worker_on_each_node_and_ends_with_its_launcher(solver: Runs) -> None:
    solver.server.apply(solver.manifest("inverse", SOLVER), manager="test")
    status = solver.phase("inverse", "Running")
    assert status["layout"] == "2x2" and status["placement"]["backend"] == "MPIJob"
    assert "estimateUsd" not in status["placement"] and "not measured" in status["placement"]["reasons"][0]
    workers = of_role(solver, "worker")
    assert len({pod["spec"]["nodeName"] for pod in workers}) == len(workers) == 2
    core = client.CoreV1Api(solver.api)
    hosts = core.read_namespaced_config_map("inverse-1-config", solver.namespace).data["hostfile"].split("\n")
    domain = f"inverse-1.{solver.namespace}.svc"
    assert hosts[:2] == [f"inverse-1-worker-{index}.{domain} slots=2" for index in range(2)]
    solver.plane.wait_until(lambda: bool(of_role(solver, "launcher")), "the launcher is made")
    (launcher,) = of_role(solver, "launcher")
    (container,) = launcher["spec"]["containers"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables["OMPI_MCA_orte_default_hostfile"] == "/etc/mpi/hostfile"  # what caloscale.sagips.launch reads
    assert variables["CALOSCALE_WORKSPACE"] == "/workspace/runs/inverse"
    assert container["image"].startswith("caloscale/solver:")
    assert SSH_FOLDER in [mount["mountPath"] for mount in container["volumeMounts"]]
    kubeconfig = solver.plane.kubeconfig_of(names.WORKER_ACCOUNT, solver.namespace, launcher)
    change = {"progress": {"step": 1, "steps": 2}}
    Connection(solver.plane.client(kubeconfig)).merge("TrainingProgress", solver.namespace, "inverse-progress", change)
    end_launcher(solver, 1, 0)
    status = solver.until("inverse", lambda s: s.get("phase") == "Succeeded" and "nodes" in s["cost"], "success")
    (attempt,) = status["attempts"]
    assert attempt["reason"] == "Completed" and status["restarts"] == 0
    solver.until("inverse", lambda s: not s["attempts"][0].get("nodeUsage"), "the workers have gone")
    (kind,) = solver.status("inverse")["cost"]["nodes"]
    assert kind["nodes"] == 2 and kind["perNode"] == 2  # the launcher, which has no node of the plan, is not counted


def test_another_attempt_follows_a_lost_launcher_or_worker_and_none_a_users_error(solver: Runs) -> None:
    solver.create("again", **SOLVER, recovery={"backoff": "1s"})
    end_launcher(solver, 1, 138)
    status = solver.until("again", lambda s: len(s.get("attempts", ())) == 2, "another attempt")
    assert status["attempts"][0]["reason"] == "WorkerFailed" and status["attempts"][0]["exitCode"] == 138
    solver.until("again", lambda s: s["phase"] == "Running", "it runs again")
    lost = of_role(solver, "worker", 2)[0]["metadata"]["name"]
    client.CoreV1Api(solver.api).delete_namespaced_pod(lost, solver.namespace)
    status = solver.until("again", lambda s: len(s["attempts"]) == 3, "a third attempt")
    assert status["attempts"][1]["reason"] == "WorkerLost" and status["restarts"] == 2
    end_launcher(solver, 3, 2)
    status = solver.phase("again", "Failed")
    assert status["attempts"][2]["reason"] == "UserError" and status["attempts"][2]["exitCode"] == 2


def test_it_is_suspended_resumed_and_deleted_with_all_that_it_has(solver: Runs) -> None:
    solver.create("paused", **SOLVER)
    solver.phase("paused", "Running")

    def suspend(on: bool) -> None:
        change = {"spec": {"cluster": {"suspend": on}}}
        solver.server.merge(names.KIND, solver.namespace, "paused", change)

    suspend(True)
    solver.phase("paused", "Suspended")
    assert not solver.pods("paused") and not list(solver.server.each("MPIJob", solver.namespace))
    suspend(False)
    status = solver.phase("paused", "Running")
    assert [each["reason"] for each in status["attempts"][:-1]] == ["Suspended"] and status["restarts"] == 0
    solver.server.delete(names.KIND, solver.namespace, "paused")
    solver.plane.wait_until(
        lambda: not solver.pods("paused") and not list(solver.server.each("MPIJob", solver.namespace)), "nothing stays"
    )


def test_a_job_that_was_changed_is_refused(solver: Runs) -> None:
    solver.create("edited", **SOLVER)
    solver.phase("edited", "Running")
    path = ["mpijob", "edited-1", "-n", solver.namespace, "--type=merge", "--patch"]
    for change, message in (
        ('{"spec": {"slotsPerWorker": 3}}', "each accelerator of a worker has a rank"),
        ('{"spec": {"mpiReplicaSpecs": {"Worker": {"replicas": 3}}}}', "the plan has 2 workers"),
    ):
        with pytest.raises(ClusterError, match=message):
            solver.plane.kubectl("patch", *path, change)
