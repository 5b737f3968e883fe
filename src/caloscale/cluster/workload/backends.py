"""The kinds of objects that hold the workers; for each a pure function from a launch to its specification.

MPIJob is the mpi-operator's (kubeflow.org/v2beta1), for solver runs: a slot an accelerator, nodes as groups.
"""

import json
from collections.abc import Callable, Mapping

from caloscale.cluster import names
from caloscale.cluster.workload.launch import Launch, Manifest
from caloscale.cluster.workload.pod_template import RUNTIME, SHARED, WORKSPACE_VARIABLE, pod_template
from caloscale.errors import ConfigurationError
from caloscale.spec import AnyRun, Run, SolverRun
from caloscale.spec.cluster import GRACE_SECONDS
from caloscale.spec.values import BUCKETS

SSH_FOLDER = "/home/caloscale/.ssh"
"""Where the mpi-operator mounts the job's own key; docker/solver.Dockerfile configures ssh and sshd for it."""
SSHD = ["/usr/sbin/sshd", "-D", "-e", "-f", "/etc/caloscale/sshd_config"]
LAUNCHER_REQUESTS = {"cpu": "250m", "memory": "1Gi"}
"""Requests of the launcher: it starts the ranks, waits for them and draws the report. Workers leave room for it."""


def _mpijob(launch: Launch) -> Manifest:
    """An MPIJob: a launcher, and a worker on each node with a slot for each of its ranks. It has one launcher: when
    that fails, the attempt has failed."""
    placed = launch.placed
    return {
        "slotsPerWorker": placed.slots,
        "mpiImplementation": "OpenMPI",
        "sshAuthMountPath": SSH_FOLDER,
        "launcherCreationPolicy": "WaitForWorkersReady",
        "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0, "suspend": bool(launch.queue)},
        "mpiReplicaSpecs": {
            "Launcher": {"replicas": 1, "restartPolicy": "Never", "template": _launcher(launch)},
            "Worker": {"replicas": placed.workers, "restartPolicy": "Never", "template": _worker(launch)},
        },
    }


def _template(launch: Launch) -> Manifest:
    template = pod_template(launch)
    del template["spec"]["restartPolicy"]  # the replica's decides, and operators warn where there are two
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
    """A pod that starts the ranks and reports; it needs no accelerator and may run on any node. It is rather on the
    node of a worker: an autoscaler keeps the node that it is on, and nobody would count that."""
    template = _template(launch)
    template["metadata"]["labels"][names.COMPONENT] = names.LAUNCHER  # by which the rule that parts workers excepts it
    spec = template["spec"]
    (apart,) = spec["affinity"]["podAntiAffinity"].values()
    together = [{"weight": 100, "podAffinityTerm": term} for term in apart]
    spec["affinity"] = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": together}}
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


def require_lasting_places(run: AnyRun) -> None:
    """Raise ConfigurationError where a run names a path that ends with its pods, or that they do not have."""
    cluster = run.cluster
    places = {"cluster.workspace": cluster.workspace, "cluster.dataset": cluster.dataset}
    if isinstance(run, Run):
        places["checkpoint.uri"] = run.checkpoint.uri
    for field, place in places.items():
        if place is None or place.startswith(BUCKETS):
            continue
        if cluster.volume_claim is None or not place.startswith(f"{SHARED}/") or ".." in place.split("/"):
            problem = f"is neither in a bucket nor below {SHARED} with cluster.volumeClaim: it ends with the pods"
            known = "gs://bucket/prefix (also s3:// and minio://)"
            remedy = f"write {known}, or {SHARED}/NAME (without ..) and cluster.volumeClaim"
            raise ConfigurationError(problem, field=field, value=place, remedy=remedy)


def _tfjob(launch: Launch) -> Manifest:
    """A TFJob of Workers only, so that gang admission sees one set of pods. training-operator gives each its TF_CONFIG.
    Exit codes from 128 on make it start a worker again, which is right while nobody watches; the operator ends the
    attempt as a gang as soon as it sees one end."""
    run_policy: Manifest = {"cleanPodPolicy": "Running", **({"suspend": True} if launch.queue else {})}
    replicas = {"replicas": launch.placed.workers, "restartPolicy": "ExitCode", "template": _template(launch)}
    return {"runPolicy": run_policy, "tfReplicaSpecs": {"Worker": replicas}}


REPLICATED_JOB = "workers"
"""Name of the one set of pods in a JobSet."""


def _jobset(launch: Launch) -> Manifest:
    """A JobSet of one indexed Job: a worker on each host of a TPU slice, or GPU workers with our own TF_CONFIG. On GKE
    the slice's hosts get TPU_WORKER_ID and TPU_WORKER_HOSTNAMES from the platform."""
    workers, name = launch.placed.workers, launch.name
    # TF_CONFIG of a worker: its index comes from the pod, and Kubernetes puts it into the text
    hosts = [f"{name}-{REPLICATED_JOB}-0-{i}.{name}:{names.WORKER_PORT}" for i in range(workers)]
    text = json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": "INDEX"}})
    path = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    own: list[Manifest] = [
        {"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {"fieldPath": path}}},
        {"name": "TF_CONFIG", "value": text.replace('"INDEX"', "$(JOB_COMPLETION_INDEX)")},
    ]
    template = pod_template(launch, own if workers > 1 else ())
    job = {"parallelism": workers, "completions": workers, "completionMode": "Indexed", "backoffLimit": 0}
    return {
        "suspend": bool(launch.queue),
        "failurePolicy": {"maxRestarts": 0},
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "replicatedJobs": [
            {"name": REPLICATED_JOB, "replicas": 1, "template": {"spec": {**job, "template": template}}}
        ],
    }


_PATCHED = (
    *("serviceAccountName", "terminationGracePeriodSeconds", "nodeSelector", "tolerations", "affinity"),
    *("securityContext", "volumes"),
)
"""Fields of a pod that a TrainJob may set; the runtime has the others."""


def _trainjob(launch: Launch) -> Manifest:
    """A TrainJob of Kubeflow Trainer v2, with the runtime of `worker_templates`. Its controller makes a JobSet with the
    labels and the plan of the launch, which the admission policy examines."""
    template = pod_template(launch)
    (container,) = template["spec"]["containers"]
    spec = {field: template["spec"][field] for field in _PATCHED if field in template["spec"]}
    if spec["terminationGracePeriodSeconds"] == GRACE_SECONDS:
        del spec["terminationGracePeriodSeconds"]  # the runtime has it; Kueue 0.19 loses the field
    spec["containers"] = [{"name": names.NODE, "volumeMounts": container["volumeMounts"]}]
    pods = {"name": names.NODE, "template": {"spec": {"template": {"metadata": template["metadata"], "spec": spec}}}}
    # the queue is the TrainJob's
    of_jobset = {"labels": launch.labels, "annotations": launch.metadata()["annotations"]}
    return {
        "runtimeRef": {"name": RUNTIME},
        "suspend": bool(launch.queue),
        "trainer": {
            "image": launch.image,
            "numNodes": launch.placed.workers,
            "env": container["env"],
            "resourcesPerNode": container["resources"],
        },
        "runtimePatches": [
            {
                "manager": "caloscale.dev/operator",
                "trainingRuntimeSpec": {"template": {"metadata": of_jobset, "spec": {"replicatedJobs": [pods]}}},
            }
        ],
    }


def tf_config_of(environment: Mapping[str, str]) -> str | None:
    """TF_CONFIG of a worker of a TrainJob, from the variables of Kubeflow Trainer's policy for PyTorch.

    None: the process has a TF_CONFIG, or it is no worker of several of a TrainJob.
    """
    nodes, rank = environment.get("PET_NNODES", ""), environment.get("PET_NODE_RANK", "")
    first, _, domain = environment.get("PET_MASTER_ADDR", "").partition(".")
    if "TF_CONFIG" in environment or not (nodes.isdecimal() and rank.isdecimal() and int(nodes) > 1):
        return None
    set_of_pods = first.removesuffix("-0")
    hosts = [f"{set_of_pods}-{index}.{domain}:{names.WORKER_PORT}" for index in range(int(nodes))]
    return json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": int(rank)}})


def render_progress(run: names.RunKey) -> Manifest:
    """The TrainingProgress in which worker 0 reports."""
    metadata = {
        "name": names.progress_name(run.name),
        "namespace": run.namespace,
        "labels": run.labels("progress"),
        "ownerReferences": [run.reference],
    }
    return {"apiVersion": names.API_VERSION, "kind": names.PROGRESS_KIND, "metadata": metadata}


_KINDS: dict[str, tuple[str, Callable[[Launch], Manifest]]] = {
    "TFJob": ("kubeflow.org/v1", _tfjob),
    "JobSet": ("jobset.x-k8s.io/v1alpha2", _jobset),
    "TrainJob": ("trainer.kubeflow.org/v1alpha1", _trainjob),
    "MPIJob": ("kubeflow.org/v2beta1", _mpijob),
}


def render(launch: Launch) -> Manifest:
    """The manifest of an attempt's job."""
    kind = launch.placed.backend
    version, specification = _KINDS[kind]
    return {"apiVersion": version, "kind": kind, "metadata": launch.metadata(), "spec": specification(launch)}
