"""What is known of a run, and the decision that is made from it: a status and actions."""

import datetime as dt
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from caloscale.cluster.capacity.nodes import Pool, PoolKey
from caloscale.cluster.capacity.placement import Need
from caloscale.cluster.capacity.pods import Diagnostic, Job, Pod
from caloscale.cluster.capacity.pool_plan import Catalogue
from caloscale.cluster.names import RunKey
from caloscale.cluster.workload.launch import Manifest
from caloscale.errors import ConfigurationError
from caloscale.spec import AnyRun, build_any_run
from caloscale.status import AttemptStatus, Condition, Phase, RunProgress, RunStatus


@dataclass(frozen=True)
class Snapshot:
    """A run with its objects, and the state of the cluster."""

    run: RunKey
    generation: int
    spec: Mapping[str, Any]
    """As the API server has it."""
    status: RunStatus
    """As it was written last."""
    pods: Sequence[Pod]
    """Of all attempts."""
    jobs: Sequence[Job]
    """Of all attempts."""
    progress: RunProgress | None
    """What worker 0 reported last; None: nothing, or there is no TrainingProgress."""
    has_progress: bool
    """Whether the TrainingProgress is there."""
    nodes: Mapping[str, bool]
    """All nodes of the cluster, and whether they are ready."""
    pools: Callable[[], tuple[list[Pool], list[str]]]
    """The pools as they are without this run's pods, and why others were refused."""
    catalogue: Catalogue
    image: str
    """Image of the workers where the run names none."""
    solver_image: str
    """The same of a solver run."""
    gone_pods: Mapping[str, Pod] = field(default_factory=dict)
    """By uid: pods of the run that are gone, as they were last; they ended when they were seen to go, if not before."""
    namesakes: Sequence[Pod] = ()
    """Pods of an earlier run of this name."""
    has_queues: bool = True
    """Whether Kueue is installed in the cluster."""
    lost_client: str | None = None
    """Pod of the run's client (a pipeline's step), without which it is to stop, if it has ended or is gone."""
    refresh_seconds: float = 60.0
    """Shortest time between two writes of a status in which only money and steps are new, s."""
    warnings: Sequence[Diagnostic] = ()
    """Warnings about workers that take long to start, newest first."""

    def job_of(self, attempt: AttemptStatus) -> Job | None:
        """The job of an attempt, where it is there."""
        return next((job for job in self.jobs if job.attempt == attempt.number), None)


@dataclass(frozen=True)
class Create:
    """Create an object; nothing happens where the run has it already."""

    manifest: Manifest


@dataclass(frozen=True)
class Delete:
    """Delete an object, and no other that has got its name; its pods have their grace."""

    kind: str
    """A kind of job, or TrainingRun."""
    name: str
    uid: str


@dataclass(frozen=True)
class Boost:
    """Write the priority boost of a job's Workload, by which Kueue orders runs of equal priority for preemption."""

    job_uid: str
    value: int
    """0 to 99."""


@dataclass(frozen=True)
class RunEvent:
    """An event on the run: a departure from its normal course, which phase and conditions state.

    Its reasons are in events.csv, but for warnings about pods, which have those that Kubernetes gives them.
    """

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str


Action = Create | Delete | Boost | RunEvent


@dataclass(frozen=True)
class Decision:
    """What is to be done: the status is written first, so that nothing is done twice after a crash in between."""

    status: RunStatus
    """Equal to the old one when there is nothing to say."""
    actions: tuple[Action, ...] = ()
    again: dt.datetime | None = None
    """When to look again even if nothing happens."""
    awaits: Mapping[PoolKey, Need] | None = None
    """Changes of the pools that call for another decision; None: the run does not wait for capacity."""
    is_routine: bool = False
    """Whether nothing but money and steps is new in the status, and time alone makes it due: it may be put off."""


ACTED_ON = ("hardware", "cluster", "recovery", "budget", "checkpoint")
"""Blocks of the spec that the operator acts on; the workers' image alone has to understand the others."""
MOST_READ = 2048
"""Different specs that are kept as they were understood: most of a decision's time went into reading them."""
PARSED = "SpecParsed"
"""Type of the condition on whether this version of the operator understands the spec."""


@functools.lru_cache(maxsize=MOST_READ)
def _read(text: str) -> tuple[AnyRun, str | None, bool]:
    """What the operator understands of a spec, what it does not understand, and whether it understands all that it acts
    on."""
    spec = json.loads(text)
    try:
        return build_any_run(spec), None, True
    except ConfigurationError as error:
        problem = str(error)
    kept = {block: spec[block] for block in ACTED_ON if block in spec}
    if isinstance(solver := spec.get("solver"), Mapping) and "model" not in spec:
        kept["solver"] = {name: solver[name] for name in ("preset", "ranks") if name in solver}  # its nodes fit them
    try:
        return build_any_run(kept), problem, True
    except ConfigurationError as error:
        problem = str(error)
    # those fields that are understood together, the first ones before later ones
    run, understood = build_any_run({}), dict[str, dict[str, Any]]()
    for block, fields in kept.items():
        for name, value in fields.items() if isinstance(fields, Mapping) else ():
            more = {**understood, block: {**understood.get(block, {}), name: value}}
            with suppress(ConfigurationError):
                run, understood = build_any_run(more), more
    return run, problem, False


class Draft:
    """What was seen, and what follows from it so far."""

    def __init__(self, seen: Snapshot, now: dt.datetime) -> None:
        self.seen, self.now, self.status = seen, now, seen.status
        self.actions: list[Action] = []
        self.times: list[dt.datetime] = []
        self.awaits: Mapping[PoolKey, Need] | None = None
        self.run, self.problem, self.may_launch = _read(json.dumps(seen.spec, sort_keys=True))
        if self.problem is not None:
            self.condition(PARSED, "False", "NotUnderstood", self.problem)
        elif self.status.condition(PARSED) is not None:
            self.condition(PARSED, "True", "Parsed", "the whole spec is understood")

    def put(self, **changes: Any) -> None:
        """Change fields of the status."""
        self.status = self.status.model_copy(update=changes)

    def replace(self, attempt: AttemptStatus) -> None:
        """Put an attempt in the place of the one with its number."""
        self.put(attempts=tuple(attempt if a.number == attempt.number else a for a in self.status.attempts))

    def condition(
        self, kind: str, holds: Literal["True", "False"], reason: str, message: str, generation: int | None = None
    ) -> None:
        """Say whether a condition holds, and why. generation: of the spec that it is about; absent: the newest."""
        known = self.status.condition(kind)
        condition = Condition(
            type=kind,
            status=holds,
            reason=reason,
            message=message,
            last_transition_time=known.last_transition_time if known and known.status == holds else self.now,
            observed_generation=generation or self.seen.generation,
        )
        if known != condition:
            others = tuple(c for c in self.status.conditions if c.type != kind)
            self.put(conditions=(*others, condition))

    def event(self, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """An event."""
        self.actions.append(RunEvent(kind, reason, message))

    def later(self, seconds: float) -> None:
        """Look again after a number of seconds."""
        self.times.append(self.now + dt.timedelta(seconds=seconds))

    def waits(self, since: dt.datetime, seconds: float = 0.0) -> bool:
        """Whether a time, or so many seconds after it, has not come yet; then the run is looked at again."""
        until = since + dt.timedelta(seconds=seconds)
        if self.now < until:
            self.times.append(until)
        return self.now < until

    def remove_jobs(self) -> None:
        """Delete all jobs of the run that are not on their way out."""
        for job in self.seen.jobs:
            removal = Delete(job.kind, job.name, job.uid)
            if not job.deleting and removal not in self.actions:
                self.actions.append(removal)

    def pods_of(self, attempt: AttemptStatus) -> list[Pod]:
        """Pods of an attempt."""
        return [pod for pod in self.seen.pods if pod.attempt == attempt.number]

    @staticmethod
    def queue(run: AnyRun) -> str | None:
        """Kueue queue that admits the run."""
        return run.hardware.queue if run.hardware is not None else None

    def finish(self, phase: Phase, reason: str, message: str) -> None:
        """The run's last phase."""
        self.put(phase=phase, message=message, finished=self.now, waiting_since=None, not_before=None)
        self.condition(phase, "True", reason, message)
        if phase == "Failed":
            self.event("Warning", reason, message)
