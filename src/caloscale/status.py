"""What a run on a cluster reports of itself: the custom resource's status."""

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PlainSerializer

from caloscale.spec.block import Block
from caloscale.spec.budget import Usd
from caloscale.spec.cluster import Backend

Phase = Literal[
    "Pending", "Waiting", "Starting", "Running", "Recovering", "Suspending", "Suspended", "Succeeded", "Failed"
]
"""Pending: not yet planned. Waiting: planned, the machines are not there. Starting: launched, not all workers run.
Recovering: interrupted, resumes soon. Suspending: stopped on request, or because the pipeline step that waited for it
has gone; its workers save and end. Suspended: they have ended."""
FINISHED: tuple[Phase, ...] = ("Succeeded", "Failed")
"""Phases that a run does not leave by itself."""
MENDABLE = ("Budget", "Deadline", "RestartBudget", "StartupFailed")
"""Reasons of a failure that a change of the configuration (budget, recovery, cluster) removes: the run then resumes."""
WRITTEN = "StatusWritten"
"""Type of the condition, False or absent, on whether the API server takes the status."""
WITH_WORKERS: tuple[Phase, ...] = ("Starting", "Running")
"""Phases in which a run has workers."""

ATTEMPT_VARIABLE = "CALOSCALE_ATTEMPT"
"""Environment of a worker: uid of its run and number of its attempt, ``uid/number``."""


def attempt_of(environment: Mapping[str, str]) -> int | None:
    """Number of the attempt whose worker this process is; None: it is none."""
    number = environment.get(ATTEMPT_VARIABLE, "").rpartition("/")[2]
    return int(number) if number.isdecimal() else None


PROGRESS_FILE_VARIABLE = "CALOSCALE_PROGRESS_FILE"
"""Environment variable with the file into which a training writes its progress; absent: none."""


def _as_text(moment: dt.datetime) -> str:
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


Time = Annotated[dt.datetime, PlainSerializer(_as_text, return_type=str, when_used="json")]
"""A moment, to the second, as Kubernetes writes it."""


class StatusBlock(Block):
    """A frozen block of the status; fields of a newer version are ignored."""

    model_config = ConfigDict(extra="ignore")

    def model_post_init(self, _: object) -> None:
        """Forget which fields were given: nobody asks, and the sets are half of what a status takes of memory."""
        object.__setattr__(self, "__pydantic_fields_set__", _NONE_GIVEN)


_NONE_GIVEN: set[str] = set()


class Condition(StatusBlock):
    """A condition in the form of the Kubernetes API conventions."""

    type: str
    """Name of the condition, such as Succeeded."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: str
    """Why, in one word for programs."""
    message: str = ""
    """Why, for people; with the remedy where there is one."""
    last_transition_time: Time
    """When status changed last."""
    observed_generation: int | None = None
    """Generation of the run configuration that it refers to."""


class NodeTotals(StatusBlock):
    """Equal nodes of an attempt, and for how long they were used."""

    machine_type: str
    """Machine type."""
    accelerator: str = ""
    """GPU model or TPU generation; empty: none."""
    per_node: int = 0
    """Accelerators of a node."""
    topology: str | None = None
    """Topology, when the nodes are hosts of a TPU slice."""
    region: str = ""
    """Region; empty: the nodes do not say."""
    capacity_type: Literal["spot", "on-demand"] = "on-demand"
    """spot or on-demand."""
    nodes: int = 0
    """How many different nodes."""
    node_seconds: float = 0.0
    """Seconds of all of them together."""
    disk_gib: float = 0.0
    """Boot disk of a node, GiB, that is billed beside it."""
    control_plane_seconds: float = 0.0
    """Seconds in which at least one of them was used, for which the control plane is billed; 0: it is not."""


class Placed(StatusBlock):
    """Where the workers are to run, or run."""

    backend: Backend
    """Kind of object that holds the workers."""
    pool: str
    """Node pool."""
    accelerator: str
    """GPU model or TPU generation; cpu: none."""
    machine_type: str
    """Machine type of the nodes."""
    topology: str | None = None
    """Topology of a TPU slice."""
    region: str = ""
    """Region; empty: the nodes do not say."""
    capacity_type: Literal["spot", "on-demand"]
    """spot or on-demand."""
    nodes: int
    """Nodes."""
    workers: int
    """Workers."""
    per_node: int
    """Accelerators of a node; 0 on processors."""
    accelerators_per_worker: int
    """Accelerators of a worker."""
    planned_nodes: int
    """Nodes of the plan, when it runs on fewer for the time being."""
    global_batch: int
    """Showers in a batch of all replicas together, or events in one of all ranks; the same in every attempt."""
    batch_per_replica: int
    """Showers that a replica has in memory at a time, or events of a rank."""
    accumulate: int = 1
    """Micro-batches of a replica in a step, to keep the global batch on fewer nodes."""
    slots: int = 0
    """Ranks that a worker of a solver run has room for; 0: a training."""
    image: str = ""
    """Image of the workers where the run names none: the operator's at the first launch, which the next ones keep when
    there is a checkpoint; empty: each had an image that the run named, or an older operator."""
    node_selector: dict[str, str] = {}
    """Labels of the nodes."""
    worker_cpus: float = 1.0
    """Processors that a worker asks for."""
    worker_memory_gib: float = 1.0
    """Memory that a worker asks for, GiB."""
    disk_gib: float = 0.0
    """Boot disk of a node that is billed, GiB."""
    control_plane: bool = False
    """Whether the cluster's control plane is billed."""
    control_plane_usd_per_hour: Usd = 0.0
    """Its part of usdPerHour."""
    usd_per_hour: Usd | None = None
    """All nodes, with what is billed beside them, US dollars per hour; null: no price is known."""
    estimate_usd: Usd | None = None
    """Estimate of the whole run, US dollars, or the upper limit that solver.maxMinutes sets; null: none could be
    made."""
    estimate_seconds: float | None = None
    """Estimate of its time, or that limit, s."""
    reasons: tuple[str, ...] = ()
    """Why these, and on what the figures rest."""


class RunProgress(StatusBlock):
    """How far the training is, as worker 0 says."""

    epoch: float = 0.0
    """Epochs that are done, with the fraction of the running one."""
    epochs: int = 0
    """Epochs in all."""
    step: int = 0
    """Steps that are done."""
    steps: int = 0
    """Steps in all."""
    checkpoint_step: int = 0
    """Step of the newest checkpoint: what an interruption cannot take away."""
    showers_per_second: float | None = None
    """Speed since the last report."""
    losses: dict[str, float] = {}
    """Newest losses."""
    seconds_first_step: float | None = None
    """From the start of the process to the end of the first step, s."""
    step_seconds: float | None = None
    """Mean step, s."""
    eta: Time | None = None
    """When the training ends at this speed."""
    updated: Time | None = None
    """When worker 0 said so, by its own clock."""
    attempt: int | None = None
    """Number of the attempt whose worker 0 reported it."""


class NodeUsage(StatusBlock):
    """A worker on a node, from binding to its end: what is billed."""

    pod: str
    """Name of the pod."""
    uid: str
    """Its uid: a pod made again under the same name is another one."""
    node: str
    """Node."""
    since: Time
    """When the pod was bound to it."""
    until: Time | None = None
    """When the pod ended, or was seen to be gone; null: it still runs there."""
    done: bool = False
    """Its worker ended well: pod and node may go, while worker 0 still validates."""


Reason = Literal[
    "Completed", "WorkerLost", "WorkerFailed", "NodeLost", "Preempted", "Requeued", "UserError", "Suspended",
    "Budget", "Deadline", "ScaledUp", "JobLost", "Unschedulable", "StartupFailed",
]  # fmt: skip


class AttemptStatus(StatusBlock):
    """A start of the workers, to their end or the next interruption."""

    number: int
    """1 for the first."""
    job: str
    """Name of the object that holds the workers."""
    nodes: int
    """Nodes that it was given."""
    workers: int
    """Workers."""
    launched: Time
    """When it was launched."""
    running: Time | None = None
    """When all workers ran."""
    ended: Time | None = None
    """When it ended; null: it has not."""
    reason: Reason | None = None
    """Why it ended."""
    message: str = ""
    """Why, for people: the lost node, the last lines of the log."""
    exit_code: int | None = None
    """Exit code of the worker that ended first, where there is one."""
    first_step: int = 0
    """Step from which it went on."""
    steps_kept: int = 0
    """Steps that are in a checkpoint."""
    steps_lost: int = 0
    """Steps that were lost in an interruption."""
    waiting_seconds: float = 0.0
    """From the first node to the last worker, s: paid and idle."""
    start_up_seconds: float = 0.0
    """From there to the end of the first step, s."""
    training_seconds: float = 0.0
    """Steps that are kept, s."""
    lost_seconds: float = 0.0
    """Steps that are lost, s."""
    node_usage: tuple[NodeUsage, ...] = ()
    """Workers on nodes while it lasts; summed up in `nodeTotals` when it has ended."""
    node_totals: tuple[NodeTotals, ...] = ()
    """Nodes by kind, once it has ended."""
    node_hours: float = 0.0
    """Hours of all nodes together."""
    usd: Usd | None = None
    """US dollars; null: no price is known."""
    count: int = 1
    """Attempts that it sums up: of many, only the newest are kept one by one. Its seconds are then those of as many
    nodes as the largest one had, so that seconds times nodes are kept."""
    first_used: Time | None = None
    """When the first of those that it sums up used its first node."""
    interruptions: int = 0
    """Losses of machines among those that it sums up."""


class RunCost(StatusBlock):
    """Money since launch."""

    usd: Usd | None = None
    """US dollars so far, the bill when it has ended; null: no price is known, and the condition Priced says which."""
    estimate_usd: Usd | None = None
    """US dollars to the end, at the speed so far or as planned."""
    eviction_usd: Usd | None = None
    """US dollars that an eviction would cost now, at most: the steps since the last checkpoint and another start;
    null: no node is in use, or no price is known."""
    node_hours: float = 0.0
    """Hours of all nodes together."""
    accelerator_hours: float = 0.0
    """Hours of all their GPUs or TPU chips together."""
    nodes: tuple[NodeTotals, ...] = ()
    """Node seconds by machine type and capacity type."""
    as_of: dt.date | None = None
    """Day for which prices are taken: that of the first launch."""
    updated: Time | None = None
    """When it was added up."""


class RunStatus(StatusBlock):
    """Status of a TrainingRun."""

    phase: Phase = "Pending"
    """Phase of the run."""
    message: str = ""
    """What it waits for or why it ended, in one sentence."""
    layout: str = ""
    """Workers x accelerators per worker."""
    observed_generation: int = 0
    """Generation of the run configuration that this status refers to."""
    conditions: Annotated[
        tuple[Condition, ...],
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
    ] = ()
    """SpecParsed, Planned, Launched, PlacementVerified, Priced, Blocked, Suspended, StatusWritten; Succeeded or Failed
    at the end."""
    placement: Placed | None = None
    """Where the workers are to run, or run."""
    progress: RunProgress | None = None
    """How far the training is."""
    cost: RunCost | None = None
    """Money."""
    attempts: tuple[AttemptStatus, ...] = ()
    """First start and restarts; the oldest of many are summed up."""
    restarts: int = 0
    """Restarts that count against recovery.maxRestarts."""
    waiting_since: Time | None = None
    """Since when the planned machines have been missing."""
    not_before: Time | None = None
    """The next start is not before this (back-off)."""
    capacity_since: Time | None = None
    """Since when the planned nodes could be had again, while it runs on fewer."""
    client_gone_since: Time | None = None
    """Since when the pod of the run's client (a pipeline's step) has been gone."""
    finished: Time | None = None
    """When it ended."""
    failed_spec: str | None = None
    """Digest of the run configuration with which it failed, without cluster.ttlSecondsAfterFinished: only another one
    may resume it."""

    @property
    def attempt(self) -> AttemptStatus | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def live(self) -> AttemptStatus | None:
        """The attempt that has not ended."""
        newest = self.attempt
        return newest if newest is not None and newest.ended is None else None

    def condition(self, kind: str) -> Condition | None:
        """The condition of a type."""
        return next((c for c in self.conditions if c.type == kind), None)


def unknown_to(served: Mapping[str, Any], block: type[StatusBlock], path: str) -> list[str]:
    """Fields and values that may be written and that the schema of a custom resource, of an older version, lacks.

    served: what the schema has at the dotted path of the block.
    """
    schema = block.model_json_schema(by_alias=True)
    return list(_unknown(served, schema, schema.get("$defs", {}), path))


def _unknown(served: Mapping[str, Any], own: Mapping[str, Any], named: Mapping[str, Any], path: str) -> Iterator[str]:
    while "$ref" in own or "anyOf" in own:
        options = [option for option in own.get("anyOf", ()) if option != {"type": "null"}]
        own = named[own["$ref"].rpartition("/")[2]] if "$ref" in own else options[0]
    if "enum" in served:
        yield from (f"{path}: {value}" for value in own.get("enum", ()) if value not in served["enum"])
    for name, inner in own.get("properties", {}).items():
        if name in served.get("properties", {}):
            yield from _unknown(served["properties"][name], inner, named, f"{path}.{name}")
        else:
            yield f"{path}.{name}"
    for part in ("items", "additionalProperties"):
        if isinstance(own.get(part), Mapping) and isinstance(served.get(part), Mapping):
            yield from _unknown(served[part], own[part], named, f"{path}[]")
