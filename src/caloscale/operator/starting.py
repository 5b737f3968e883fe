"""The next attempt: where it goes, what it waits for, and its objects."""

from __future__ import annotations

import datetime as dt

from caloscale.cluster import names
from caloscale.cluster.accounting import summed
from caloscale.cluster.backends import render, render_progress
from caloscale.cluster.launch import Launch
from caloscale.cluster.placement import choose_placement, shortage
from caloscale.cluster.pods import Pod
from caloscale.cluster.pool_plan import pool_of
from caloscale.cluster.pools_to_come import pools_to_come
from caloscale.cluster.resizing import move, shrink, worker_configuration
from caloscale.operator.draft import Draft
from caloscale.operator.ending import attempts_in_vain
from caloscale.operator.limits import affordable
from caloscale.operator.observation import Create
from caloscale.operator.troubles import PATIENCE_SECONDS
from caloscale.spec import Run, seconds_of
from caloscale.status import AttemptStatus, Phase, Placed

LOOK_AGAIN_SECONDS = 30.0
"""While something goes away, look again after so long even if nobody says that it has gone, s."""
AUTOSCALER_SECONDS, LONGEST_AUTOSCALER_SECONDS = 600.0, 3600.0
"""An autoscaler that had no machines is asked again after so long, doubled each time up to an hour, s: the nodes that
it does make are held, and paid, until the others are given up."""


def start(draft: Draft, run: Run) -> None:
    """Launch the next attempt, or say what it waits for."""
    if _left_over(draft):
        draft.later(LOOK_AGAIN_SECONDS)
        return
    if draft.status.not_before is not None and draft.now < draft.status.not_before:
        draft.times.append(draft.status.not_before)
        return
    placed = _placement(draft, run)
    if placed is not None:
        _launch(draft, run, placed)


def _left_over(draft: Draft) -> bool:
    """Whether something of an earlier attempt, or of an earlier run of this name, is still there.

    Two attempts must not write one checkpoint.
    """
    draft.remove_jobs()
    pods = (*draft.seen.pods, *draft.seen.namesakes)
    return bool(draft.seen.jobs) or any(pod.alive and not _is_dead(draft, pod) for pod in pods)


def _is_dead(draft: Draft, pod: Pod) -> bool:
    """A pod whose node is gone, or has not been well beyond the pod's grace, runs no more."""
    ready = draft.seen.nodes.get(pod.node) if pod.node else True
    return ready is None or (not ready and pod.deleting is not None and pod.deleting <= draft.now)


def _placement(draft: Draft, run: Run) -> Placed | None:
    """Where the next attempt goes; None: the status says what is missing."""
    placed = draft.status.placement
    pools, refused = draft.seen.pools()
    if not draft.status.attempts and draft.problem is not None:
        draft.put(message=draft.problem)
        return None
    if placed is None or not draft.status.attempts:
        to_come = pools_to_come(run, pools) if run.cluster.add_nodes else []
        choice = choose_placement(run, [*pools, *to_come], draft.seen.catalogue)
        if choice.over_budget:
            draft.condition("Planned", "False", "OverBudget", choice.message)
            draft.finish("Failed", "Budget", choice.message)
            return None
        if choice.placed is None:
            told = "; ".join((choice.message, *refused))
            draft.condition("Planned", "False", "NoPool", told)
            _wait(draft, told)
            return None
        placed = choice.placed
        _plan(draft, placed)
    if draft.queue(run) is not None:
        return placed
    missing = shortage(placed, pools)
    if missing is None or (run.cluster.add_nodes and not _came_too_few(draft)):
        return placed
    return _wait_for_room(draft, run, placed, missing)


def _came_too_few(draft: Draft) -> bool:
    """Whether the last attempt waited in vain for an autoscaler, not long ago."""
    last = draft.status.attempt
    if last is None or last.reason != "Unschedulable" or last.ended is None:
        return False
    pause = AUTOSCALER_SECONDS * 2 ** min(attempts_in_vain(draft.status) - 1, 10)
    again = last.ended + dt.timedelta(seconds=min(pause, LONGEST_AUTOSCALER_SECONDS))
    if draft.now < again:
        draft.times.append(again)
    return draft.now < again


def _plan(draft: Draft, placed: Placed) -> None:
    if draft.status.placement != placed:
        estimate = "" if placed.estimate_usd is None else f", about {placed.estimate_usd:.2f} USD"
        told = f"{placed.nodes} nodes of pool {placed.pool}, {placed.workers} workers{estimate}"
        draft.put(placement=placed)
        draft.condition("Planned", "True", "Planned", told)


def _wait_for_room(draft: Draft, run: Run, placed: Placed, missing: str) -> Placed | None:
    if pool_of(placed, draft.seen.pools()[0]) is None and (moved := _moved(draft, run, placed, same_price=True)):
        return moved
    since = draft.status.waiting_since or draft.now
    if run.cluster.add_nodes and draft.status.attempt is not None:
        since = min(since, draft.status.attempt.launched)  # the attempt itself has waited
    due = since + dt.timedelta(seconds=seconds_of(run.recovery.wait_for_capacity))
    if draft.status.attempts and draft.now >= due:
        if (moved := _moved(draft, run, placed)) is not None:
            return moved
        smaller = shrink(run, placed, draft.seen.pools()[0]) if draft.problem is None else None
        if smaller is not None:
            draft.event("Warning", "Shrunk", f"{missing}; going on with {smaller.nodes} nodes, same global batch")
            return smaller
    elif draft.status.attempts:
        draft.times.append(due)
    _wait(draft, missing)
    return None


def _moved(draft: Draft, run: Run, placed: Placed, *, same_price: bool = False) -> Placed | None:
    """The placement in another pool that has room, within the budget; ``same_price``: in one of equal machines only."""
    if draft.problem is not None or any(attempt.holds for attempt in draft.status.attempts):
        return None  # what is held is billed as that of the placement
    for moved in move(run, placed, draft.seen.pools()[0], draft.seen.catalogue):
        kinds = [(one.machine_type, one.region, one.purchase) for one in (placed, moved)]
        if (same_price and kinds[0] != kinds[1]) or not affordable(draft, run, moved):
            continue
        told = f"pool {placed.pool} has no room; {moved.nodes} nodes ({moved.purchase}) of pool {moved.pool}"
        draft.event("Normal", "Moved", told)
        draft.condition("Planned", "True", "Moved", told)
        return moved
    return None


def _wait(draft: Draft, message: str) -> None:
    phase: Phase = "Recovering" if draft.status.attempts else "Waiting"
    if draft.status.message != message:
        draft.condition("Launched", "False", "Unschedulable", message)
        if draft.status.waiting_since is None:
            draft.event("Normal", "Waiting", message)
    draft.put(phase=phase, message=message, waiting_since=draft.status.waiting_since or draft.now)


def _launch(draft: Draft, run: Run, placed: Placed) -> None:
    number = newest.number + 1 if (newest := draft.status.attempt) is not None else 1
    progress = draft.status.progress
    attempt = AttemptStatus(
        number=number,
        job=names.job_name(draft.seen.owner.name, number),
        nodes=placed.nodes,
        workers=placed.workers,
        launched=draft.now,
        first_step=progress.checkpoint_step if progress is not None else 0,
    )
    layout = f"{placed.workers}x{placed.accelerators_per_worker}"
    draft.put(
        phase="Starting",
        message=f"attempt {number} is launched",
        placement=placed,
        layout=layout,
        attempts=summed((*draft.status.attempts, attempt)),
        waiting_since=None,
        not_before=None,
    )
    draft.condition("Launched", "True", "Launched", f"attempt {number}: {layout} in pool {placed.pool}")
    for kind in ("Succeeded", "Failed"):
        draft.condition(kind, "False", "Running", f"attempt {number} is on its way")
    draft.event("Normal", "Launched", f"attempt {number}: {layout} on {placed.nodes} nodes of pool {placed.pool}")
    make_objects(draft, run, attempt)


def make_objects(draft: Draft, run: Run, attempt: AttemptStatus) -> None:
    """The objects of an attempt, once more if need be."""
    make_progress(draft, run, attempt)
    draft.actions.append(Create(render(_launch_of(draft, run, attempt))))
    draft.later(PATIENCE_SECONDS)  # should no pod be made, nothing announces it


def make_progress(draft: Draft, run: Run, attempt: AttemptStatus) -> None:
    """The ConfigMap in which worker 0 reports, where it is missing."""
    if not draft.seen.has_progress:
        draft.actions.append(Create(render_progress(_launch_of(draft, run, attempt))))


def _launch_of(draft: Draft, run: Run, attempt: AttemptStatus) -> Launch:
    placed = draft.status.placement
    assert placed is not None
    return Launch(
        draft.seen.owner,
        attempt.number,
        run,
        worker_configuration(draft.seen.spec, placed),
        placed,
        run.cluster.image or draft.seen.image,
        draft.queue(run),
    )
