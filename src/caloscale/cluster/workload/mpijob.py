"""A solver run as an MPIJob of the mpi-operator (kubeflow.org/v2beta1): a slot an accelerator, nodes as groups."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from caloscale.cluster import names
from caloscale.cluster.workload.launch import Launch, Manifest
from caloscale.cluster.workload.pod_template import PROGRESS_VARIABLE, SHARED, WORKSPACE_VARIABLE, pod_template
from caloscale.errors import ConfigurationError
from caloscale.spec import Hardware, SolverRun
from caloscale.status import ATTEMPT_VARIABLE, Placed

SSH_FOLDER = "/home/caloscale/.ssh"
"""Where the mpi-operator mounts the job's own key; docker/solver.Dockerfile configures ssh and sshd for it."""
SSHD = ["/usr/sbin/sshd", "-D", "-e", "-f", "/etc/caloscale/sshd_config"]
LAUNCHER_REQUESTS = {"cpu": "250m", "memory": "1Gi"}
"""What the launcher asks for: it starts the ranks, waits for them and draws the report. Workers leave so much."""
RESTARTS = 3
"""Starts of another launcher after a failure, where our operator does not make another attempt; the ranks resume from
the newest epoch that all have saved."""
RANK_MEMORY_GIB = 2.0
"""Memory that a pod asks for each rank, GiB, where no node is known. A rank with a batch of 102,400 events fits, as it
computes in parts."""


def render_mpijob(launch: Launch) -> Manifest:
    """An MPIJob: a launcher, and a worker on each node with a slot for each of its ranks.

    It has one launcher: when that fails, the attempt has failed.
    """
    placed = launch.placed
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": launch.metadata(),
        "spec": {
            "slotsPerWorker": placed.slots,
            "mpiImplementation": "OpenMPI",
            "sshAuthMountPath": SSH_FOLDER,
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0, "suspend": bool(launch.queue)},
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "restartPolicy": "Never", "template": _launcher(launch)},
                "Worker": {"replicas": placed.workers, "restartPolicy": "Never", "template": _worker(launch)},
            },
        },
    }


def _template(launch: Launch) -> Manifest:
    template = pod_template(launch)
    del template["spec"]["restartPolicy"]  # that of the replica, and the mpi-operator warns where there are two
    return template


def _worker(launch: Launch) -> Manifest:
    """A pod that waits for the launcher's ssh; what runs in its session has none of the container's environment."""
    template = _without_token(_template(launch))
    (container,) = template["spec"]["containers"]
    ports = [{"name": "ssh", "containerPort": names.WORKER_PORT}]
    container.update(args=SSHD, env=[], envFrom=[], ports=ports)
    return template


def _launcher(launch: Launch) -> Manifest:
    """A pod that starts the ranks and reports; it needs no accelerator and may run on any node."""
    template = _template(launch)
    template["metadata"]["labels"][names.COMPONENT] = names.LAUNCHER  # by which the rule that parts workers excepts it
    spec = template["spec"]
    spec.pop("affinity", None)
    spec["nodeSelector"] = {}
    (container,) = spec["containers"]
    folder = {"name": WORKSPACE_VARIABLE, "value": f"{SHARED}/runs/{launch.owner.name}"}
    if launch.run.cluster.workspace is None:
        container["env"].append(folder)
    container.update(resources={"requests": LAUNCHER_REQUESTS}, ports=[])
    return template


def _without_token(template: Manifest) -> Manifest:
    """A pod that asks the API server for nothing."""
    (container,) = template["spec"]["containers"]
    for holder, field in ((template["spec"], "volumes"), (container, "volumeMounts")):
        holder[field] = [each for each in holder[field] if each["name"] != "token"]
    return template


@dataclass(frozen=True)
class _LaunchAlone(Launch):
    """A launch without a TrainingRun: its objects have no owner, and no label by which the operator knows its own."""

    @property
    def name(self) -> str:
        return self.owner.name

    @property
    def labels(self) -> dict[str, str]:
        return {"app.kubernetes.io/name": "caloscale", **self.own_labels}

    @property
    def own_labels(self) -> dict[str, str]:
        return {names.COMPONENT: names.WORKER, "app.kubernetes.io/instance": self.name}

    def metadata(self) -> Manifest:
        queue = {names.QUEUE_LABEL: self.queue} if self.queue else {}
        return {"name": self.name, "namespace": self.owner.namespace, "labels": {**self.labels, **queue}}


def render_alone(run: SolverRun, name: str, namespace: str, image: str) -> Manifest:
    """The MPIJob of a solver run on a cluster without our operator.

    name: of the job and of the run's folder below cluster.workspace. image: of docker/solver.Dockerfile, where
    cluster.image is absent. On nodes without accelerators (hardware.accelerator absent or cpu) hardware.count is the
    number of nodes. Raises ConfigurationError where no folder is shared.
    """
    hardware, cluster = run.hardware or Hardware(), run.cluster
    require_shared_folder(run)
    launch = _LaunchAlone(
        names.RunKey(namespace, name, ""),
        1,
        run.model_copy(
            update={"cluster": cluster.model_copy(update={"service_account": cluster.service_account or "default"})}
        ),
        run.model_dump(mode="json", by_alias=True),
        _placement(run, hardware),
        cluster.image or image,
        hardware.queue,
    )
    job = render_mpijob(launch)
    policy: dict[str, Any] = job["spec"]["runPolicy"]
    policy.update(backoffLimit=RESTARTS, suspend=cluster.suspend or policy["suspend"])
    if cluster.ttl_seconds_after_finished is not None:
        policy["ttlSecondsAfterFinished"] = cluster.ttl_seconds_after_finished
    launcher = _without_token(job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"])
    (container,) = launcher["spec"]["containers"]
    container["env"] = [each for each in container["env"] if each["name"] not in (PROGRESS_VARIABLE, ATTEMPT_VARIABLE)]
    return job


def _placement(run: SolverRun, hardware: Hardware) -> Placed:
    """Nodes and slots, as far as the run configuration fixes them; the scheduler chooses the nodes."""
    ranks = run.solver.ranks
    on_cpu = hardware.accelerator in (None, names.CPU)
    per_node = 0 if on_cpu else (hardware.per_node or 1)
    nodes = (hardware.count or hardware.nodes or 1) if on_cpu else ranks // per_node
    slots = per_node or math.ceil(ranks / nodes)
    labels = {names.INSTANCE_TYPE: hardware.machine_type, names.REGION: hardware.region}
    if hardware.cloud == "gcp" and not on_cpu:
        labels[names.GKE_ACCELERATOR] = hardware.accelerator
    return Placed(
        backend="MPIJob",
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
        slots=slots,
        node_selector={label: value for label, value in labels.items() if value is not None},
        worker_cpus=slots * (run.solver.threads or 1),
        worker_memory_gib=slots * RANK_MEMORY_GIB,
    )


def require_shared_folder(run: SolverRun) -> None:
    """Raise ConfigurationError where ranks on several nodes, and another launcher, have no folder to save in."""
    cluster = run.cluster
    if cluster.volume_claim is None:
        raise ConfigurationError(
            "is absent: launcher and ranks save in one folder",
            field="cluster.volumeClaim",
            remedy="name a PersistentVolumeClaim with the access mode ReadWriteMany",
        )
    if cluster.workspace is not None and not cluster.workspace.startswith(f"{SHARED}/"):
        raise ConfigurationError(
            f"is not below {SHARED}, where cluster.volumeClaim is mounted",
            field="cluster.workspace",
            value=cluster.workspace,
            remedy=f"write {SHARED}/runs/NAME, or leave it out",
        )
