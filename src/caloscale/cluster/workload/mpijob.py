"""A solver run as an MPIJob of the mpi-operator (kubeflow.org/v2beta1): a slot an accelerator, nodes as groups."""

from caloscale.cluster import names
from caloscale.cluster.workload.launch import Launch, Manifest
from caloscale.cluster.workload.pod_template import SHARED, WORKSPACE_VARIABLE, pod_template
from caloscale.errors import ConfigurationError
from caloscale.spec import SolverRun

SSH_FOLDER = "/home/caloscale/.ssh"
"""Where the mpi-operator mounts the job's own key; docker/solver.Dockerfile configures ssh and sshd for it."""
SSHD = ["/usr/sbin/sshd", "-D", "-e", "-f", "/etc/caloscale/sshd_config"]
LAUNCHER_REQUESTS = {"cpu": "250m", "memory": "1Gi"}
"""What the launcher asks for: it starts the ranks, waits for them and draws the report. Workers leave so much."""


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
    template = _template(launch)
    (container,) = template["spec"]["containers"]
    for holder, field in ((template["spec"], "volumes"), (container, "volumeMounts")):  # it asks the server for nothing
        holder[field] = [each for each in holder[field] if each["name"] != "token"]
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


def require_shared_folder(run: SolverRun) -> None:
    """Raise ConfigurationError where ranks on several nodes, and another launcher, have no folder to save in."""
    cluster = run.cluster
    if cluster.volume_claim is None:
        problem = "is absent: launcher and ranks save in one folder"
        remedy = "name a PersistentVolumeClaim with the access mode ReadWriteMany"
        raise ConfigurationError(problem, field="cluster.volumeClaim", remedy=remedy)
    if cluster.workspace is not None and not cluster.workspace.startswith(f"{SHARED}/"):
        problem = f"is not below {SHARED}, where cluster.volumeClaim is mounted"
        remedy = f"write {SHARED}/runs/NAME, or leave it out"
        raise ConfigurationError(problem, field="cluster.workspace", value=cluster.workspace, remedy=remedy)
