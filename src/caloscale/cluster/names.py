"""Names, labels and annotations that our objects carry, and those of the clouds that we read."""

from typing import Any, NamedTuple

GROUP = "caloscale.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "TrainingRun"
PLURAL = "trainingruns"
SHORT_NAME = "trun"

NAMESPACE = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
"""Pattern of the name of a namespace."""

FIELD_MANAGER = "caloscale-operator"
"""Owner of the fields that the operator sets by server-side apply."""

RUN_LABEL = "caloscale.dev/run"
"""On everything of a run: its name."""
UID_LABEL = "caloscale.dev/run-uid"
"""On everything of a run: its uid, as another run may get its name."""
ATTEMPT_LABEL = "caloscale.dev/attempt"
"""On jobs and pods: the number of the attempt."""
WORKERS = "caloscale.dev/workers"
NODES = "caloscale.dev/nodes"
ACCELERATORS_PER_WORKER = "caloscale.dev/accelerators-per-worker"
ACCELERATOR = "caloscale.dev/accelerator"
"""Annotations of a job, its plan, which the admission policy checks."""

COMPONENT = "app.kubernetes.io/component"
"""On everything of a run: what it is."""
WORKER, LAUNCHER = "worker", "launcher"
"""Its values on jobs and pods; the launcher of an MPIJob starts ranks in the workers and has no node of the plan."""

CLIENT_HEARTBEAT = "caloscale.dev/client-heartbeat"
"""Annotation of a run: the pod of its client, such as the step of a pipeline; a minute after its end the run stops."""

CPU = "cpu"
"""Accelerator of nodes that have none."""
GPU = "nvidia.com/gpu"
TPU = "google.com/tpu"
HOSTNAME = "kubernetes.io/hostname"
GKE_ACCELERATOR = "cloud.google.com/gke-accelerator"
GKE_SPOT = ("cloud.google.com/gke-spot", "cloud.google.com/gke-preemptible")
GKE_TPU_ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"
GKE_TPU_TOPOLOGY = "cloud.google.com/gke-tpu-topology"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
QUEUE_GROUP = "kueue.x-k8s.io"
QUEUE_LABEL = f"{QUEUE_GROUP}/queue-name"
JOB_UID_LABEL = f"{QUEUE_GROUP}/job-uid"
"""On Kueue's Workload: the uid of its job."""
PRIORITY_BOOST = f"{QUEUE_GROUP}/priority-boost"
"""Annotation of Kueue's Workload that is added to its priority (feature gate PriorityBoost)."""

WORKER_CONTAINER = "tensorflow"
"""Name of a worker's container; training-operator demands it."""
NODE = "node"
"""Name of a TrainJob's set of pods, and of the container in it that Kubeflow Trainer gives the TrainJob's fields."""
WORKER_CONTAINERS = (WORKER_CONTAINER, NODE)
WORKER_PORT = 2222


def job_name(run: str, attempt: int) -> str:
    """Name of the object that holds the workers of an attempt: another one each time, so no two can be mixed up."""
    return f"{run}-{attempt}"


WORKER_ACCOUNT = "caloscale-worker"
"""Service account of workers whose run names none (manifests/run-namespace)."""
PROGRESS_KIND = "TrainingProgress"
PROGRESS_PLURAL = "trainingprogresses"


def progress_name(run: str) -> str:
    """Name of the TrainingProgress in which worker 0 reports."""
    return f"{run}-progress"


class RunKey(NamedTuple):
    """A TrainingRun. Another run that gets its name is another key."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def labels(self, component: str, attempt: int | None = None) -> dict[str, str]:
        """Labels of an object of the run; those of an attempt name it."""
        return {
            RUN_LABEL: self.name,
            UID_LABEL: self.uid,
            **({} if attempt is None else {ATTEMPT_LABEL: str(attempt)}),
            "app.kubernetes.io/name": "caloscale",
            COMPONENT: component,
            "app.kubernetes.io/instance": self.name,
            "app.kubernetes.io/managed-by": "caloscale-operator",
        }

    @property
    def identity(self) -> dict[str, str]:
        """As references to it begin."""
        return {"apiVersion": API_VERSION, "kind": KIND, "name": self.name, "uid": self.uid}

    @property
    def reference(self) -> dict[str, Any]:
        """As the metadata.ownerReferences of its objects have it: they are deleted with it."""
        return {**self.identity, "controller": True, "blockOwnerDeletion": True}
