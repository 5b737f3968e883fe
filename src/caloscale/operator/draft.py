"""A decision while it is made: the status as it will be, and what is to be done."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from caloscale.cluster.pods import Pod
from caloscale.errors import ConfigurationError
from caloscale.operator.observation import Action, Delete, Observed, RunEvent
from caloscale.spec import Run, build_run
from caloscale.status import AttemptStatus, Condition, Phase

ACTED_ON = ("hardware", "cluster", "recovery", "budget", "checkpoint")
"""Blocks of the spec that the operator acts on; the workers' image alone has to understand the others."""
PARSED = "SpecParsed"
"""Type of the condition that says whether this version of the operator understands the spec."""


def _read(spec: Mapping[str, Any]) -> tuple[Run | None, str | None]:
    """What the operator understands of a spec (None: not even what it acts on), and what it does not.

    Where only the training part is not understood, that of the run is the preset's: nothing may be planned from it.
    """
    try:
        return build_run(spec), None
    except ConfigurationError as error:
        problem = str(error)
    try:
        return build_run({block: spec[block] for block in ACTED_ON if block in spec}), problem
    except ConfigurationError as error:
        return None, str(error)


class Draft:
    """What was seen, and what follows from it so far."""

    def __init__(self, seen: Observed, now: dt.datetime) -> None:
        self.seen, self.now, self.status = seen, now, seen.status
        self.actions: list[Action] = []
        self.times: list[dt.datetime] = []
        self.run, self.problem = _read(seen.spec)
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

    def condition(self, kind: str, holds: str, reason: str, message: str) -> None:
        """Say whether a condition holds, and why."""
        known = self.status.condition(kind)
        same = known is not None and known.status == holds
        condition = Condition(
            type=kind,
            status=holds,  # type: ignore[arg-type]
            reason=reason,
            message=message,
            last_transition_time=known.last_transition_time if same and known is not None else self.now,
            observed_generation=self.seen.generation,
        )
        if known == condition:
            return
        others = tuple(c for c in self.status.conditions if c.type != kind)
        self.put(conditions=(*others, condition))

    def event(self, kind: str, reason: str, message: str) -> None:
        """An event."""
        self.actions.append(RunEvent(kind, reason, message))

    def later(self, seconds: float) -> None:
        """Look again after so many seconds."""
        self.times.append(self.now + dt.timedelta(seconds=seconds))

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
    def queue(run: Run) -> str | None:
        """Kueue queue that admits the run."""
        return run.hardware.queue if run.hardware is not None else None

    def finish(self, phase: Phase, reason: str, message: str) -> None:
        """The run's last phase."""
        self.put(phase=phase, message=message, finished=self.now, waiting_since=None, not_before=None)
        won = phase == "Succeeded"
        self.condition("Succeeded", "True" if won else "False", reason, message)
        self.condition("Failed", "False" if won else "True", reason, message)
        self.event("Normal" if won else "Warning", phase if won else reason, message)
