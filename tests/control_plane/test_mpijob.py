"""The MPIJob of a solver run on a real control plane with the real mpi-operator and fake nodes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kubernetes import client, dynamic

from caloscale.cluster.workload.mpijob import SSH_FOLDER, render_mpijob
from caloscale.spec import load_solver_run
from tools.cluster import ControlPlane
from tools.cluster.fake_nodes import RUN
from tools.cluster.upstream import install

OPERATOR = "mpi-operator"


@pytest.fixture(scope="module")
def mpi_operator(control_plane: ControlPlane) -> None:
    """The mpi-operator, beside the operators of all tests."""
    if OPERATOR not in control_plane.daemons:
        install(control_plane, OPERATOR)
    control_plane.daemons[OPERATOR].wait()


def claim(name: str, namespace: str) -> list[dict[str, object]]:
    """A volume and a claim that belong together: nothing provisions volumes here."""
    shared = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    reference = {"claimRef": {"name": name, "namespace": namespace}, "hostPath": {"path": "/nowhere"}}
    volume = {**shared, **reference, "capacity": {"storage": "1Gi"}}
    wanted = {**shared, "resources": {"requests": {"storage": "1Gi"}}}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": namespace}, "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": wanted},
    ]


@pytest.mark.integration
def test_the_mpi_operator_starts_a_launcher_that_knows_all_hosts(
    control_plane: ControlPlane,
    mpi_operator: None,
    api: client.ApiClient,
    namespace: str,
    add_nodes: Callable[..., list[str]],
) -> None:
    nodes = add_nodes("v100", 2, gpus=2)
    control_plane.apply(claim("shared", namespace), namespace=namespace)
    overrides = ["solver.ranks=4", "hardware.accelerator=nvidia-tesla-v100", "hardware.perNode=2"]
    run = load_solver_run(preset="proxy", overrides=[*overrides, "cluster.volumeClaim=shared"])
    job = render_mpijob(run, "inverse", namespace, "none")
    for replica, seconds in (("Launcher", "500ms"), ("Worker", "1h")):
        job["spec"]["mpiReplicaSpecs"][replica]["template"]["metadata"]["annotations"][RUN] = seconds
    jobs = dynamic.DynamicClient(api).resources.get(api_version="kubeflow.org/v2beta1", kind="MPIJob")
    jobs.create(job, namespace=namespace, field_validation="Strict")

    def conditions() -> set[str]:
        found = jobs.get(name="inverse", namespace=namespace).to_dict().get("status", {}).get("conditions", [])
        return {each["type"] for each in found if each["status"] == "True"}

    core = client.CoreV1Api(api)

    def workers() -> list[client.V1Pod]:
        selector = "training.kubeflow.org/job-role=worker"
        return list(core.list_namespaced_pod(namespace, label_selector=selector).items)

    control_plane.wait_until(
        lambda: all(pod.spec.node_name for pod in workers()) and len(workers()) == 2, "two workers"
    )
    assert sorted(pod.spec.node_name for pod in workers()) == nodes  # one a node
    hosts = core.read_namespaced_config_map("inverse-config", namespace).data["hostfile"].split("\n")
    assert hosts[:2] == [f"inverse-worker-{index}.inverse.{namespace}.svc slots=2" for index in range(2)]
    control_plane.wait_until(lambda: "Succeeded" in conditions(), "the MPIJob succeeds")
    (launcher,) = core.list_namespaced_pod(namespace, label_selector="training.kubeflow.org/job-role=launcher").items
    (container,) = launcher.spec.containers
    variables = {each.name: each.value for each in container.env}
    assert variables["OMPI_MCA_orte_default_hostfile"] == "/etc/mpi/hostfile"  # what caloscale.sagips.mpi reads
    assert SSH_FOLDER in [mount.mount_path for mount in container.volume_mounts]
    core.delete_persistent_volume(namespace)
