"""What to do next with a run: from what is observed to a status and actions. Pure.

The status is the memory. Every step first goes into it and then happens (`Decision`), and every action may happen
twice without harm, so the operator may end between any two lines.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from caloscale.cluster import names
from caloscale.cluster.access import access_objects
from caloscale.cluster.accounting import COUNTED, settle, track, with_cost, with_steps
from caloscale.cluster.backends import render
from caloscale.cluster.launch import Launch
from caloscale.cluster.placement import choose_placement, shortage, verify_placement
from caloscale.cluster.pods import Pod
from caloscale.cluster.resizing import resize, shrink, worker_document
from caloscale.errors import DocumentError
from caloscale.operator.observation import Action, Apply, Decision, Observed, Remove, Tell
from caloscale.operator.verdict import Verdict, judge
from caloscale.spec import Run, build_run, seconds_of
from caloscale.status import FINISHED, AttemptStatus, Condition, Phase, Placed, Reason

COST_REFRESH_SECONDS = 60.0
"""A running meter alone makes no status more often than this, s."""
LONGEST_BACKOFF_SECONDS = 300.0
"""Longest pause before a restart, s."""
LINGER_SECONDS = 30.0
"""Workers of a run that has failed may end by themselves for so long (logs), s."""
LOOK_AGAIN_SECONDS = 30.0
"""While something is awaited that some event should announce, look anyway after so long, s."""
REOPENED = ("InvalidDocument", "Budget", "Deadline", "RestartBudget")
"""Failures that an edit of the document (budget, recovery) may mend."""


def reconcile(seen: Observed, now: dt.datetime) -> Decision:
    """The decision on a run. Never raises for what a user or a cluster can do."""
    return _Reconciliation(seen, now.replace(microsecond=0)).decide()


class _Reconciliation:
    def __init__(self, seen: Observed, now: dt.datetime) -> None:
        self.seen, self.now, self.status = seen, now, seen.status
        self.actions: list[Action] = []
        self.times: list[dt.datetime] = []

    # --- the whole

    def decide(self) -> Decision:
        try:
            run = build_run(self.seen.spec)
        except DocumentError as error:
            return self._refuse(error)
        self._reopen()
        self._observe()
        if self.status.phase in FINISHED:
            self._tidy(run)
        elif run.cluster.suspend:
            self._suspend()
        else:
            self._go_on(run)
        self._put(observed_generation=self.seen.generation)
        self._account(run)
        return Decision(self.status, tuple(self.actions), min(self.times, default=None))

    def _refuse(self, error: DocumentError) -> Decision:
        if self.status.phase not in FINISHED:
            self._finish("Failed", "InvalidDocument", str(error))
        self._put(observed_generation=self.seen.generation)
        return Decision(self.status, tuple(self.actions))

    def _reopen(self) -> None:
        """A failure that was the document's may be mended by an edit of it."""
        failed = self.status.condition("Failed")
        if (
            self.status.phase == "Failed"
            and failed is not None
            and failed.reason in REOPENED
            and self.seen.generation > self.status.observed_generation
        ):
            phase: Phase = "Recovering" if self.status.attempts else "Pending"
            self._put(phase=phase, message="the document was changed", finished=None)
            for kind in ("Failed", "Succeeded"):
                self._condition(kind, "False", "Reopened", "the document was changed")

    # --- what has happened

    def _observe(self) -> None:
        """Progress, nodes and steps of the attempts, ended ones until nothing is held any more."""
        report, known = self.seen.progress, self.status.progress
        if report is not None and (known is None or known.updated is None or report.updated != known.updated):
            self._put(progress=report)
        gone = frozenset({h.node for a in self.status.attempts for h in a.holds if h.node not in self.seen.nodes})
        attempts = []
        for attempt in self.status.attempts:
            if attempt.ended is None or attempt.holds:
                holds = track(attempt.holds, self._pods_of(attempt), gone, self.now, self.seen.gone_pods)
                attempt = attempt.model_copy(update={"holds": holds})
                if attempt.ended is not None:
                    attempt = settle(self._stepped(attempt), self.status.placement, self.now)
            attempts.append(attempt)
        self._put(attempts=tuple(attempts))

    def _stepped(self, attempt: AttemptStatus) -> AttemptStatus:
        """With its steps; a report that came after the next launch is not its own."""
        newest = self.status.attempt
        if newest is not None and newest.number != attempt.number:
            return attempt
        return with_steps(attempt, self.status.progress, self.now)

    def _pods_of(self, attempt: AttemptStatus) -> list[Pod]:
        return [pod for pod in self.seen.pods if pod.attempt == attempt.number]

    # --- the life

    def _go_on(self, run: Run) -> None:
        if self.status.phase == "Suspended":
            self._put(phase="Recovering" if self.status.attempts else "Pending", message="resumed")
            self._tell("Normal", "Resumed", "goes on from the last checkpoint")
        live = self.status.live
        if live is not None:
            self._watch(run, live)
        # what has just ended for a smaller or larger layout, or is not begun, is (re)started when nothing is left over
        if self.status.live is None and self.status.phase not in FINISHED:
            self._start(run)

    def _watch(self, run: Run, live: AttemptStatus) -> None:
        pods = self._pods_of(live)
        job = next((job for job in self.seen.jobs if job.attempt == live.number), None)
        verdict = judge(live, pods, job, self.seen.nodes)
        verdict = verdict or self._limits(run, live) or self._growth(run) or self._stuck(run, live, pods)
        if verdict is not None:
            self._end(run, live, verdict)
            return
        if job is None:  # launched, but the operator ended before the job was made, or it is on its way
            self._make(run, live)
            self._later(LOOK_AGAIN_SECONDS)
        elif job.state == "suspended":
            self._put(phase="Waiting", message=f"queue {self._queue(run)} has not admitted it yet")
        else:
            self._follow(live, pods)

    def _follow(self, live: AttemptStatus, pods: list[Pod]) -> None:
        """Starting, until all workers run; then their placement is compared with the plan."""
        placed = self.status.placement
        running = [pod for pod in pods if pod.ready]
        if placed is None or len(running) < placed.workers:
            if live.running is None:
                self._put(phase="Starting", message=f"{len(running)} of {live.workers} workers run")
            return
        if live.running is None:
            self._replace(live.model_copy(update={"running": self.now}))
            self._put(phase="Running", message=f"{live.workers} workers on {live.nodes} nodes")
            self._tell("Normal", "Running", f"attempt {live.number}: {live.workers} workers on {live.nodes} nodes")
            self._verify(placed, running)

    def _verify(self, placed: Placed, pods: list[Pod]) -> None:
        problems = verify_placement(placed, [(pod.name, pod.node, pod.accelerators) for pod in pods])
        if problems:
            self._condition("PlacementVerified", "False", "Mismatch", "; ".join(problems))
            self._tell("Warning", "PlacementMismatch", "; ".join(problems))
        else:
            each = "a node each, with all its accelerators" if placed.workers == placed.nodes else "as planned"
            self._condition("PlacementVerified", "True", "AsPlanned", f"{placed.workers} workers, {each}")

    def _limits(self, run: Run, live: AttemptStatus) -> Verdict | None:
        """Whether money or time of the document are spent."""
        budget, placed = run.budget, self.status.placement
        if budget.deadline_seconds is not None:
            end = self.status.attempts[0].launched + dt.timedelta(seconds=budget.deadline_seconds)
            if self.now >= end:
                return Verdict("Deadline", f"budget.deadline of {budget.deadline} has passed")
            self.times.append(end)
        if budget.max_usd is not None and placed is not None and placed.usd_per_hour:
            priced, _ = with_cost(self.status, self.seen.catalogue.prices, self.now)
            usd = priced.cost.usd if priced.cost is not None else None
            if usd is not None and usd >= budget.max_usd:
                return Verdict("Budget", f"{usd:.2f} USD of budget.maxUsd {budget.max_usd:g} are spent")
            if usd is not None and live.holds:
                self._later(max((budget.max_usd - usd) / placed.usd_per_hour * 3600, 1.0))
        return None

    def _growth(self, run: Run) -> Verdict | None:
        """Whether a run on fewer nodes goes back to the planned ones."""
        placed = self.status.placement
        if placed is None or placed.nodes >= placed.planned_nodes or not run.recovery.grow_back:
            return None
        if self.status.phase != "Running":
            return None
        full = resize(run, placed, placed.planned_nodes)
        if full is None or shortage(full, self.seen.pools()[0]) is not None:
            self._put(room_since=None)
            return None
        since = self.status.room_since or self.now
        self._put(room_since=since)
        due = since + dt.timedelta(seconds=seconds_of(run.recovery.grow_after))
        if self.now < due:
            self.times.append(due)
            return None
        self._put(placement=full, room_since=None)
        return Verdict("Grown", f"{full.nodes} nodes can be had again")

    def _stuck(self, run: Run, live: AttemptStatus, pods: list[Pod]) -> Verdict | None:
        """Workers that found no node although there was room: somebody was faster."""
        if self._queue(run) is not None or sum(bool(pod.node) for pod in pods) >= live.workers:
            return None
        due = live.launched + dt.timedelta(seconds=max(seconds_of(run.recovery.wait_for_capacity), 60.0))
        if live.running is not None or self.now < due:
            self.times += [due] if live.running is None else []
            return None
        return Verdict("NoRoom", f"{live.workers} workers did not find a node each in {run.recovery.wait_for_capacity}")

    # --- ends

    def _end(self, run: Run, live: AttemptStatus, verdict: Verdict) -> None:
        """End the attempt, and the run where there is no other attempt to make."""
        reason: Reason = verdict.reason
        ended = live.model_copy(
            update={
                "ended": self.now,
                "reason": reason,
                "message": verdict.message,
                "exit_code": verdict.exit_code,
            }
        )
        ended = settle(with_steps(ended, self.status.progress, self.now), self.status.placement, self.now)
        self._replace(ended)
        if reason == "Completed":
            self._finish("Succeeded", "Completed", verdict.message)
            return
        if reason == "UserError":
            self._finish("Failed", reason, verdict.message)
            self._later(LINGER_SECONDS)
            return
        self._remove_jobs()
        if reason in ("Budget", "Deadline"):
            self._finish("Failed", reason, f"{verdict.message}; remedy: raise it in the document, and the run goes on")
            return
        self._recover(run, ended, verdict)

    def _recover(self, run: Run, ended: AttemptStatus, verdict: Verdict) -> None:
        counts = verdict.reason in COUNTED
        restarts = self.status.restarts + counts
        if counts and restarts > run.recovery.max_restarts:
            self._finish(
                "Failed",
                "RestartBudget",
                f"recovery.maxRestarts {run.recovery.max_restarts} are used up; last: {verdict.message}",
            )
            return
        pause = self._backoff_seconds(run) if counts else 0.0
        self._put(
            phase="Recovering",
            message=verdict.message,
            restarts=restarts,
            waiting_since=None,
            room_since=None,
            not_before=self.now + dt.timedelta(seconds=pause),
        )
        lost = f", {ended.steps_lost} steps lost" if ended.steps_lost else ""
        kind = "Warning" if counts else "Normal"
        self._tell(kind, verdict.reason, f"attempt {ended.number} ended: {verdict.message}{lost}")

    def _backoff_seconds(self, run: Run) -> float:
        """Doubles with each restart in a row that kept no step."""
        in_vain = 0
        for attempt in reversed(self.status.attempts):
            if attempt.reason not in COUNTED or attempt.steps_kept > 0:
                break
            in_vain += 1
        return float(min(seconds_of(run.recovery.backoff) * 2 ** max(in_vain - 1, 0), LONGEST_BACKOFF_SECONDS))

    def _finish(self, phase: Phase, reason: str, message: str) -> None:
        self._put(phase=phase, message=message, finished=self.now, waiting_since=None, not_before=None)
        won = phase == "Succeeded"
        self._condition("Succeeded", "True" if won else "False", reason, message)
        self._condition("Failed", "False" if won else "True", reason, message)
        self._tell("Normal" if won else "Warning", phase if won else reason, message)

    def _suspend(self) -> None:
        live = self.status.live
        if live is not None:
            ended = live.model_copy(update={"ended": self.now, "reason": "Suspended", "message": "on request"})
            self._replace(settle(with_steps(ended, self.status.progress, self.now), self.status.placement, self.now))
        self._remove_jobs()
        if self.status.phase != "Suspended":
            self._put(phase="Suspended", message="cluster.suspend is set", waiting_since=None, not_before=None)
            self._tell("Normal", "Suspended", "stopped on request; cluster.suspend: false goes on")

    def _tidy(self, run: Run) -> None:
        """After the end: nothing that runs on is left behind, and the run itself goes when it has been kept enough."""
        finished = self.status.finished or self.now
        linger = finished + dt.timedelta(seconds=LINGER_SECONDS)
        if any(job.state in ("active", "suspended") for job in self.seen.jobs):
            if self.now >= linger:
                self._remove_jobs()
            else:
                self.times.append(linger)
        if run.cluster.keep_finished is not None:
            end = finished + dt.timedelta(seconds=seconds_of(run.cluster.keep_finished))
            if self.now >= end:
                self.actions.append(Remove(names.KIND, self.seen.owner.name))
            else:
                self.times.append(end)

    # --- starts

    def _start(self, run: Run) -> None:
        if self._left_over():
            self._later(LOOK_AGAIN_SECONDS)
            return
        if self.status.not_before is not None and self.now < self.status.not_before:
            self.times.append(self.status.not_before)
            return
        placed = self._placement(run)
        if placed is not None:
            self._launch(run, placed)

    def _left_over(self) -> bool:
        """Whether something of an earlier attempt is still there: two attempts must not write one checkpoint."""
        self._remove_jobs()
        return bool(self.seen.jobs) or any(pod.alive and not self._is_dead(pod) for pod in self.seen.pods)

    def _is_dead(self, pod: Pod) -> bool:
        """A pod whose node is gone, or has not been well beyond the pod's grace, runs no more."""
        ready = self.seen.nodes.get(pod.node) if pod.node else True
        return ready is None or (not ready and pod.deleting is not None and pod.deleting <= self.now)

    def _placement(self, run: Run) -> Placed | None:
        """Where the next attempt goes; None: the status says what is missing."""
        placed = self.status.placement
        pools, refused = self.seen.pools()
        if placed is None or not self.status.attempts:
            choice = choose_placement(run, pools, self.seen.catalogue)
            if choice.over_budget:
                self._condition("Planned", "False", "OverBudget", choice.message)
                self._finish("Failed", "Budget", choice.message)
                return None
            if choice.placed is None:
                told = "; ".join((choice.message, *refused))
                self._condition("Planned", "False", "NoPool", told)
                self._wait(told)
                return None
            placed = choice.placed
            self._plan(placed)
        if self._queue(run) is not None:
            return placed
        missing = shortage(placed, pools)
        if missing is None:
            return placed
        return self._wait_for_room(run, placed, missing)

    def _plan(self, placed: Placed) -> None:
        if self.status.placement != placed:
            estimate = "" if placed.estimate_usd is None else f", about {placed.estimate_usd:.2f} USD"
            told = f"{placed.nodes} nodes of pool {placed.pool}, {placed.workers} workers{estimate}"
            self._put(placement=placed)
            self._condition("Planned", "True", "Planned", told)

    def _wait_for_room(self, run: Run, placed: Placed, missing: str) -> Placed | None:
        since = self.status.waiting_since or self.now
        due = since + dt.timedelta(seconds=seconds_of(run.recovery.wait_for_capacity))
        if self.status.attempts and self.now >= due:
            smaller = shrink(run, placed, self.seen.pools()[0])
            if smaller is not None:
                self._tell("Warning", "Shrunk", f"{missing}; going on with {smaller.nodes} nodes, same global batch")
                return smaller
        elif self.status.attempts:
            self.times.append(due)
        self._wait(missing)
        return None

    def _wait(self, message: str) -> None:
        phase: Phase = "Recovering" if self.status.attempts else "Waiting"
        if self.status.message != message:
            self._condition("Launched", "False", "NoRoom", message)
            if self.status.waiting_since is None:
                self._tell("Normal", "Waiting", message)
        self._put(phase=phase, message=message, waiting_since=self.status.waiting_since or self.now)

    def _launch(self, run: Run, placed: Placed) -> None:
        number = len(self.status.attempts) + 1
        progress = self.status.progress
        attempt = AttemptStatus(
            number=number,
            job=names.job_name(self.seen.owner.name, number),
            nodes=placed.nodes,
            workers=placed.workers,
            launched=self.now,
            first_step=progress.checkpoint_step if progress is not None else 0,
        )
        layout = f"{placed.workers}x{placed.accelerators_per_worker}"
        self._put(
            phase="Starting",
            message=f"attempt {number} is launched",
            placement=placed,
            layout=layout,
            attempts=(*self.status.attempts, attempt),
            waiting_since=None,
            not_before=None,
        )
        self._condition("Launched", "True", "Launched", f"attempt {number}: {layout} in pool {placed.pool}")
        for kind in ("Succeeded", "Failed"):
            self._condition(kind, "False", "Running", f"attempt {number} is on its way")
        self._tell("Normal", "Launched", f"attempt {number}: {layout} on {placed.nodes} nodes of pool {placed.pool}")
        self._make(run, attempt)

    def _make(self, run: Run, attempt: AttemptStatus) -> None:
        """The objects of an attempt, once more if need be."""
        placed = self.status.placement
        assert placed is not None
        launch = Launch(
            self.seen.owner,
            attempt.number,
            worker_document(run, placed),
            placed,
            run.cluster.image or self.seen.image,
            self._queue(run),
        )
        if not self.seen.has_access:
            self.actions += [Apply(manifest) for manifest in access_objects(launch)]
        self.actions.append(Apply(render(launch)))

    # --- the status

    def _account(self, run: Run) -> None:
        """Money: with every other change, and once a minute while nodes are held."""
        before = self.seen.status
        holding = any(hold.until is None for attempt in self.status.attempts for hold in attempt.holds)
        known = self.status.cost.updated if self.status.cost is not None else None
        stale = known is None or (self.now - known).total_seconds() >= COST_REFRESH_SECONDS
        if self.status.attempts and (self.status != before or (holding and stale)):
            self.status, problem = with_cost(self.status, self.seen.catalogue.prices, self.now)
            if problem is not None:
                self._condition("Priced", "False", "NoPrice", problem)
            else:
                self._condition("Priced", "True", "Priced", "all machines have a price")
        if holding:
            self._later(COST_REFRESH_SECONDS)

    def _put(self, **changes: Any) -> None:
        self.status = self.status.model_copy(update=changes)

    def _replace(self, attempt: AttemptStatus) -> None:
        self._put(attempts=tuple(attempt if a.number == attempt.number else a for a in self.status.attempts))

    def _condition(self, kind: str, holds: str, reason: str, message: str) -> None:
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
        self._put(conditions=(*others, condition))

    def _remove_jobs(self) -> None:
        for job in self.seen.jobs:
            removal = Remove(job.kind, job.name)
            if not job.deleting and removal not in self.actions:
                self.actions.append(removal)

    def _tell(self, kind: str, reason: str, message: str) -> None:
        self.actions.append(Tell(kind, reason, message))

    def _later(self, seconds: float) -> None:
        self.times.append(self.now + dt.timedelta(seconds=seconds))

    @staticmethod
    def _queue(run: Run) -> str | None:
        return run.hardware.queue if run.hardware is not None else None
