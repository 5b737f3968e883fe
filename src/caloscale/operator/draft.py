"""A decision while it is made: the status as it will be, and what is to be done."""

from __future__ import annotations

import datetime as dt
from typing import Any

from caloscale.cluster.pods import Pod
from caloscale.operator.observation import Action, Observed, Remove, Tell
from caloscale.spec import Run
from caloscale.status import AttemptStatus, Condition, Phase


class Draft:
    """What was seen, and what follows from it so far."""

    def __init__(self, seen: Observed, now: dt.datetime) -> None:
        self.seen, self.now, self.status = seen, now, seen.status
        self.actions: list[Action] = []
        self.times: list[dt.datetime] = []

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
        if known is not None and (known.status, known.reason, known.message) == (holds, reason, message):
            return
        others = tuple(c for c in self.status.conditions if c.type != kind)
        self.put(conditions=(*others, condition))

    def tell(self, kind: str, reason: str, message: str) -> None:
        """An event."""
        self.actions.append(Tell(kind, reason, message))

    def later(self, seconds: float) -> None:
        """Look again after so many seconds."""
        self.times.append(self.now + dt.timedelta(seconds=seconds))

    def remove_jobs(self) -> None:
        """Delete all jobs of the run that are not on their way out."""
        for job in self.seen.jobs:
            removal = Remove(job.kind, job.name)
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
        self.tell("Normal" if won else "Warning", phase if won else reason, message)
