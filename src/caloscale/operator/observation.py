"""What a decision is made from, and what it consists of."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from caloscale.cluster.launch import Manifest, Owner
from caloscale.cluster.nodes import Pool
from caloscale.cluster.pods import Job, Pod, Trouble
from caloscale.cluster.pool_plan import Catalogue
from caloscale.status import RunProgress, RunStatus


@dataclass(frozen=True)
class Observed:
    """A run and what the cluster says of it."""

    owner: Owner
    """The run."""
    generation: int
    """Generation of its spec."""
    spec: Mapping[str, Any]
    """The spec, as the API server has it."""
    status: RunStatus
    """The status, as it was written last."""
    pods: Sequence[Pod]
    """Pods of the run, those of all attempts."""
    jobs: Sequence[Job]
    """Jobs of the run, those of all attempts."""
    progress: RunProgress | None
    """What worker 0 reported last; None: nothing, or there is no ConfigMap."""
    has_progress: bool
    """Whether the ConfigMap for the progress is there."""
    nodes: Mapping[str, bool]
    """All nodes of the cluster, and whether they are ready."""
    pools: Callable[[], tuple[list[Pool], list[str]]]
    """The pools as they are without this run's pods, and why others were refused."""
    catalogue: Catalogue
    """Prices and measurements."""
    image: str
    """Image of the workers where the run names none."""
    gone_pods: Mapping[str, Pod] = field(default_factory=dict)
    """By uid: pods that are gone, as they were last; they ended when they were seen to go, if not before."""
    namesakes: Sequence[Pod] = ()
    """Pods of an earlier run of this name."""
    follower: str | None = None
    """Pod without which the run is to stop; None: it needs none."""
    followed: bool = True
    """Whether that pod is there and has not ended."""
    warnings: Sequence[Trouble] = ()
    """What the cluster says against workers that take long to start, newest first."""


@dataclass(frozen=True)
class Create:
    """Create an object; nothing happens where the run has it already."""

    manifest: Manifest
    """The object."""


@dataclass(frozen=True)
class Delete:
    """Delete an object, and no other that has got its name; its pods have their grace."""

    kind: str
    """TFJob, JobSet or TrainingRun."""
    name: str
    """Name."""
    uid: str
    """uid."""


@dataclass(frozen=True)
class RunEvent:
    """An event on the run that a person reads."""

    kind: str
    """Normal or Warning."""
    reason: str
    """One word."""
    message: str
    """A sentence."""


Action = Create | Delete | RunEvent


@dataclass(frozen=True)
class Decision:
    """What is to be done: the status is written first, so that nothing is done twice after a crash in between."""

    status: RunStatus
    """The new status; equal to the old one when there is nothing to say."""
    actions: tuple[Action, ...] = ()
    """What to do once it is written."""
    again: dt.datetime | None = None
    """When to look again even if nothing happens."""
