"""Settings of a run on a Kubernetes cluster, and what happens when machines are preempted or lost."""

from typing import Literal, Self

from pydantic import Field, model_validator

from caloscale.errors import InvalidValueError
from caloscale.spec.block import Block
from caloscale.spec.values import MOST_DAYS, Duration, Place

Backend = Literal["auto", "TFJob", "JobSet", "TrainJob", "MPIJob"]
GRACE_SECONDS = 60
"""Time from SIGTERM until a worker is killed, s, where nothing else is set."""


class Cluster(Block):
    """What a cluster needs to know of a run in addition to its machines; unused without a cluster."""

    backend: Backend = "auto"
    """Kind of object that has the workers. auto: MPIJob for a solver run, JobSet for TPU slices, else TFJob.
    TrainJob: of Kubeflow Trainer, with the runtime of manifests/trainer."""
    add_nodes: bool = False
    """Launch although nodes are missing: for pools that an autoscaler fills, which it does only for pods that wait.
    What has not come within recovery.waitForCapacity is given back, and the run continues with what came. Without it a
    run waits until the whole gang fits. Needs hardware.accelerator or hardware.machineType."""
    image: str | None = Field(default=None, max_length=512)
    """Container image of the workers; absent: the operator's, which a run keeps from its first checkpoint on."""
    suspend: bool = False
    """Stop after a checkpoint and give the nodes back; false resumes from there."""
    workspace: Place | None = None
    """Folder of the run that all workers see: gs://bucket/prefix (also s3:// and minio://), or a path below
    /workspace with volumeClaim.
    Absent: run/ below checkpoint.uri, when that is in a bucket; else the pod's own disk, which ends with it."""
    dataset: Place | None = None
    """Shards that were prepared before: gs://bucket/prefix, of which each worker fetches what it reads, or a path below
    /workspace with volumeClaim. Absent: worker 0 prepares data.source, once, in the workspace; without one each worker
    for itself."""
    volume_claim: str | None = Field(default=None, max_length=253)
    """PersistentVolumeClaim (ReadWriteMany when there are several workers) that is mounted at /workspace."""
    service_account: str | None = Field(default=None, max_length=253)
    """Service account of the workers, such as one that may use the bucket. Absent: caloscale-worker, which comes
    with manifests/run-namespace and may report progress and nothing else."""
    credentials_secret: str | None = Field(default=None, max_length=253)
    """Secret of the run's namespace with a key of Google Cloud as key.json, for workers elsewhere, or for a workspace
    with the API of S3 a shared credentials file of AWS as credentials. Google's own clusters need none (Workload
    Identity)."""
    termination_grace_period_seconds: int = Field(default=GRACE_SECONDS, ge=30, le=3600)
    """Time from SIGTERM until a worker is killed, s: a step may take 2 s less, the checkpoint included. A spot node
    gives 15 to 120 s, whatever is set here."""
    ttl_seconds_after_finished: int | None = Field(default=None, ge=0, le=MOST_DAYS * 86_400)
    """The run is deleted from the cluster this long after it has finished, s (its bucket stays); absent: never."""
    priority_class_name: str | None = Field(default=None, max_length=253)
    """PriorityClass of the workers: the scheduler preempts pods of lower priority for them where they are
    launched without waiting for free nodes: with addNodes or in a queue. Absent: the default."""

    @model_validator(mode="after")
    def _has_no_priority_in_a_train_job(self) -> Self:
        if self.backend == "TrainJob" and self.priority_class_name is not None:
            remedy = "leave it out, or set backend: TFJob or JobSet"
            raise InvalidValueError("priorityClassName is set, which a TrainJob cannot carry", remedy=remedy)
        return self


class Checkpoint(Block):
    """What is saved during training, for resuming."""

    every_seconds: float = Field(60.0, gt=0, le=MOST_DAYS * 86_400)
    """Seconds between two checkpoints; the end of the training is saved always."""
    keep: int = Field(3, ge=1)
    """Newest checkpoints that are kept, in addition to the selected one."""
    uri: Place | None = None
    """Where checkpoints are kept: a folder (on a cluster below /workspace with cluster.volumeClaim), or
    gs://bucket/prefix, with a copy of those on the machine's disk, so that another machine can resume. Absent: in the
    workspace, and in its bucket when it is in one."""


class Elastic(Block):
    """Running on fewer nodes than planned, at the same global batch."""

    min_nodes: int | None = Field(default=None, ge=1)
    """Fewest nodes with which the run continues; absent: 1. In a queue: fewest nodes with which it may also start;
    absent: it waits for those of the plan."""
    scale_up: bool = True
    """Return to the planned nodes when they can be had again."""
    scale_up_after: Duration = "1m"
    """How long the planned nodes must have been there before the run returns to them: it costs a restart."""


class Recovery(Block):
    """Restarts after interruptions, and how long to wait for machines."""

    max_restarts: int = Field(default=10, ge=0)
    """Restarts after which the run fails."""
    wait_for_capacity: Duration = "10m"
    """How long to wait for the machines of the plan before planning with fewer."""
    backoff: Duration = "10s"
    """Pause before the first restart; it doubles with each restart that kept no step, up to five minutes."""
    elastic: Elastic = Elastic()
    """Fewer nodes for the time being."""
    save_seconds: float = Field(default=5.0, ge=0.001, le=MOST_DAYS * 86_400)
    """Seconds that a checkpoint stops the training: an assumption for about 20 MB (weights and optimiser of the
    variable-angle network) into a bucket, until a run has measured it."""
