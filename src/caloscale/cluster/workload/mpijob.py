"""A solver run as an MPIJob of the mpi-operator (kubeflow.org/v2beta1): a slot an accelerator, nodes as groups."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import dataclass
from typing import Any

from caloscale.cluster import names
from caloscale.cluster.workload.launch import Launch, Manifest
from caloscale.cluster.workload.pod_template import RUN_VARIABLE, SHARED, WORKSPACE_VARIABLE, pod_template
from caloscale.errors import ConfigurationError
from caloscale.spec import Hardware, SolverRun
from caloscale.status import Placed

SSH_FOLDER = "/home/caloscale/.ssh"
"""Where the mpi-operator mounts the job's own key; docker/solver.Dockerfile configures ssh and sshd for it."""
SSHD = ["/usr/sbin/sshd", "-D", "-e", "-f", "/etc/caloscale/sshd_config"]
RESTARTS = 3
"""Starts of another launcher after a failure; the ranks resume from the newest epoch that all have saved."""
RANK_MEMORY_GIB = 2.0
"""Memory that a pod asks for each rank, GiB. A rank with a batch of 102,400 events fits, as it computes in parts."""


@dataclass(frozen=True)
class _SolverLaunch(Launch):
    """A launch without a TrainingRun: its objects have no owner, and no label by which the operator knows its own."""

    @property
    def name(self) -> str:
        return self.owner.name

    @property
    def labels(self) -> dict[str, str]:
        return {"app.kubernetes.io/name": "caloscale", **self.own_labels}

    @property
    def own_labels(self) -> dict[str, str]:
        return {"app.kubernetes.io/component": "solver", "app.kubernetes.io/instance": self.name}

    def metadata(self) -> Manifest:
        queue = {names.QUEUE_LABEL: self.queue} if self.queue else {}
        return {"name": self.name, "namespace": self.owner.namespace, "labels": {**self.labels, **queue}}


def render_mpijob(run: SolverRun, name: str, namespace: str, image: str) -> Manifest:
    """The MPIJob of a solver run: a launcher, and a worker on each node whose slots are its accelerators.

    name: of the job and of the run's folder below cluster.workspace. image: of docker/solver.Dockerfile, where
    cluster.image is absent. On nodes without accelerators (hardware.accelerator absent or cpu) hardware.count is the
    number of nodes, and the ranks are divided among them. Raises ConfigurationError for what an MPIJob cannot be.
    """
    hardware, cluster = run.hardware or Hardware(), run.cluster
    placed = _placement(run, hardware)
    _require_shared_folder(run, placed.nodes)
    launch = _SolverLaunch(
        names.RunKey(namespace, name, ""),
        1,
        run,
        run.model_dump(mode="json", by_alias=True),
        placed,
        cluster.image or image,
        hardware.queue,
    )
    run_policy: Manifest = {
        "cleanPodPolicy": "Running",
        "backoffLimit": RESTARTS,
        "suspend": cluster.suspend or hardware.queue is not None,
    }
    if cluster.ttl_seconds_after_finished is not None:
        run_policy["ttlSecondsAfterFinished"] = cluster.ttl_seconds_after_finished
    worker = _worker(launch)
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": launch.metadata(),
        "spec": {
            "slotsPerWorker": placed.accelerators_per_worker or math.ceil(run.solver.ranks / placed.nodes),
            "mpiImplementation": "OpenMPI",
            "sshAuthMountPath": SSH_FOLDER,
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": run_policy,
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "restartPolicy": "Never", "template": _launcher(launch, worker)},
                "Worker": {"replicas": placed.nodes, "restartPolicy": "Never", "template": worker},
            },
        },
    }


def _placement(run: SolverRun, hardware: Hardware) -> Placed:
    """Nodes and slots, as far as the run configuration fixes them; the scheduler chooses the nodes."""
    ranks = run.solver.ranks
    on_cpu = hardware.accelerator in (None, names.CPU)
    per_node = 0 if on_cpu else (hardware.per_node or 1)
    count = hardware.count or (1 if on_cpu else ranks)
    if not on_cpu and count != ranks:
        raise ConfigurationError(
            f"an MPIJob has one rank for each accelerator, and solver.ranks is {ranks}",
            field="hardware.count",
            value=count,
            remedy=f"write hardware.count: {ranks}, or solver.ranks: {count}",
        )
    if on_cpu and count > ranks:
        raise ConfigurationError(
            f"is more nodes than solver.ranks {ranks}", field="hardware.count", value=count, remedy=f"{ranks} or fewer"
        )
    if not on_cpu and count % per_node:
        raise ConfigurationError(
            f"is not a multiple of hardware.perNode {per_node}",
            field="solver.ranks",
            value=ranks,
            remedy="change one of the two",
        )
    nodes = count if on_cpu else count // per_node
    slots = per_node or math.ceil(ranks / nodes)
    labels = {names.INSTANCE_TYPE: hardware.machine_type, names.REGION: hardware.region}
    if hardware.cloud == "gcp" and not on_cpu:
        labels[names.GKE_ACCELERATOR] = hardware.accelerator
    return Placed(
        backend="auto",
        pool="",
        accelerator=hardware.accelerator or names.CPU,
        machine_type=hardware.machine_type or "",
        capacity_type=hardware.capacity_type or "on-demand",
        nodes=nodes,
        workers=nodes,
        per_node=per_node,
        accelerators_per_worker=per_node,
        planned_nodes=nodes,
        global_batch=ranks * run.solver.events_per_rank,
        batch_per_replica=run.solver.events_per_rank,
        node_selector={label: value for label, value in labels.items() if value is not None},
        worker_cpus=slots * (run.solver.threads or 1),
        worker_memory_gib=slots * RANK_MEMORY_GIB,
    )


def _require_shared_folder(run: SolverRun, nodes: int) -> None:
    """Ranks on several nodes save in one folder, and another launcher resumes from it."""
    cluster = run.cluster
    if cluster.volume_claim is None:
        raise ConfigurationError(
            "is absent: launcher and ranks save in one folder",
            field="cluster.volumeClaim",
            remedy="name a PersistentVolumeClaim with the access mode ReadWriteMany"
            + ("" if nodes > 1 else " (or ReadWriteOnce on a cluster of one node)"),
        )
    if cluster.workspace is not None and not cluster.workspace.startswith(f"{SHARED}/"):
        raise ConfigurationError(
            f"is not below {SHARED}, where cluster.volumeClaim is mounted",
            field="cluster.workspace",
            value=cluster.workspace,
            remedy=f"write {SHARED}/runs/NAME, or leave it out",
        )


def _worker(launch: Launch) -> Manifest:
    """A pod that waits for the launcher's ssh; what runs in its session has none of the container's environment."""
    template = pod_template(launch)
    spec = template["spec"]
    del spec["restartPolicy"]  # that of the replica, and the mpi-operator warns where there are two
    spec["serviceAccountName"] = launch.run.cluster.service_account or "default"  # nothing here asks the API server
    spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] != "token"]
    (container,) = spec["containers"]
    mounts = [mount for mount in container["volumeMounts"] if mount["name"] != "token"]
    ports = [{"name": "ssh", "containerPort": names.WORKER_PORT}]
    container.update(args=SSHD, env=[], envFrom=[], ports=ports, volumeMounts=mounts)
    return template


def _launcher(launch: Launch, worker: Manifest) -> Manifest:
    """A pod that starts the ranks and shows their progress; it needs no accelerator and may run on any node."""
    template = copy.deepcopy(worker)
    # The rule that keeps workers apart holds for all pods with their labels.
    template["metadata"]["labels"]["app.kubernetes.io/component"] = "solver-launcher"
    spec = template["spec"]
    spec.pop("affinity", None)
    spec["nodeSelector"] = {}
    (container,) = spec["containers"]
    values: dict[str, Any] = {
        RUN_VARIABLE: json.dumps(launch.configuration, separators=(",", ":")),
        WORKSPACE_VARIABLE: launch.run.cluster.workspace or f"{SHARED}/runs/{launch.name}",
        "TMPDIR": "/tmp",  # noqa: S108 (an emptyDir of the pod)
    }
    container.update(
        args=["caloscale", "worker"],
        env=[{"name": variable, "value": value} for variable, value in values.items()],
        resources={"requests": {"cpu": "1", "memory": "2Gi"}},
        ports=[],
    )
    return template
