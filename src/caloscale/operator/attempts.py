"""Attempts: where the next one runs and what it waits for; whether the live one has to end."""

import itertools

from caloscale.cluster import names
from caloscale.cluster.accounting import summed
from caloscale.cluster.capacity.gke_pools import scale_from_zero_pools
from caloscale.cluster.capacity.nodes import Pool, kind_of
from caloscale.cluster.capacity.placement import Need, choose_placement, fits, shortage, verify_placement
from caloscale.cluster.capacity.pods import NO_IMAGE_NAME, PULL_FAILED, PULL_PUT_OFF, Job, Pod
from caloscale.cluster.capacity.pool_plan import SCALE_FROM_ZERO, hardware_of, pool_of
from caloscale.cluster.capacity.resizing import alternatives, move, resize, resize_down, shrink, worker_configuration
from caloscale.cluster.workload.backends import render, render_progress
from caloscale.cluster.workload.launch import Launch
from caloscale.operator.context import Create, Draft
from caloscale.operator.lifecycle import affordable, attempts_in_vain, end, in_time, is_left_over, limit_reached
from caloscale.operator.outcomes import (
    CONDITION,
    PATIENCE_SECONDS,
    REFUSALS,
    Outcome,
    awaited_until,
    blocking,
    judge,
    sentence,
    worst,
)
from caloscale.spec import AnyRun, seconds_of
from caloscale.status import AttemptStatus, Phase, Placed

AUTOSCALER_SECONDS, LONGEST_AUTOSCALER_SECONDS = 600.0, 3600.0
"""First and longest pause before an autoscaler that had no machines is asked again, s; it doubles each time. Nodes that
the autoscaler does add are billed until the attempt is given up."""


def start(draft: Draft, run: AnyRun) -> None:
    """Launch the next attempt, or report what it waits for."""
    if is_left_over(draft, (*draft.seen.pods, *draft.seen.namesakes)) or not draft.may_launch:
        return
    if draft.status.not_before is not None and draft.waits(draft.status.not_before):
        return
    if (queue := draft.queue(run)) is not None and not draft.seen.has_queues:
        message = f"hardware.queue is {queue}, and Kueue is not installed: install Kueue, or remove the field"
        _wait(draft, message, "NoKueue")
    elif (placed := _placement(draft, run)) is not None:
        _launch(draft, run, placed)


def _placement(draft: Draft, run: AnyRun) -> Placed | None:
    """Where the next attempt goes; None: the status has the reason."""
    placed = draft.status.placement
    pools, refused = draft.seen.pools()
    if not draft.status.attempts and draft.problem is not None:
        draft.put(message=draft.problem)
        return None
    if placed is None or not draft.status.attempts:
        extra = scale_from_zero_pools(run, pools) if run.cluster.add_nodes else []
        choice = choose_placement(run, [*pools, *extra], draft.seen.catalogue)
        if choice.over_budget:
            draft.condition("Planned", "False", "OverBudget", choice.message)
            draft.finish("Failed", "Budget", choice.message)
            return None
        draft.awaits = choice.needs
        if choice.placed is None:
            message = "; ".join((choice.message, *refused))
            draft.condition("Planned", "False", "NoPool", message)
            _wait(draft, message)
            return None
        placed = choice.placed
        if draft.status.placement != placed:
            message = f"{placed.nodes} nodes of pool {placed.pool}, {placed.workers} workers"
            if placed.estimate_usd is not None:
                message += f", {'at most' if placed.slots else 'about'} {placed.estimate_usd:.2f} USD"
            draft.put(placement=placed)
            draft.condition("Planned", "True", "Planned", message)
    if draft.queue(run) is not None:
        # on the planned nodes again, once the queue has taken those that a smaller run used
        last = draft.status.attempt
        freed = last is not None and last.reason in ("Preempted", "Suspended")
        smaller = placed.nodes != placed.planned_nodes and draft.problem is None
        return (resize(run, placed, placed.planned_nodes) if freed and smaller else None) or placed
    missing = shortage(placed, pools)
    if missing is None or (run.cluster.add_nodes and not _came_too_few(draft)):
        return placed
    return _wait_for_capacity(draft, run, placed, missing)


def _came_too_few(draft: Draft) -> bool:
    """Whether the last attempt waited in vain for an autoscaler, not long ago."""
    last = draft.status.attempt
    if last is None or last.reason != "Unschedulable" or last.ended is None:
        return False
    pause = AUTOSCALER_SECONDS * 2 ** min(attempts_in_vain(draft.status) - 1, 10)
    return draft.waits(last.ended, min(pause, LONGEST_AUTOSCALER_SECONDS))


def _wait_for_capacity(draft: Draft, run: AnyRun, placed: Placed, missing: str) -> Placed | None:
    """Another placement for which there are nodes now, or None: it waits, at first for its own nodes alone."""
    pools, newest = draft.seen.pools()[0], draft.status.attempt
    if pool_of(placed, pools) is None and (moved := _moved(draft, run, placed, same_price=True)):
        return moved
    if newest is not None:
        since = draft.status.waiting_since or draft.now
        if run.cluster.add_nodes:
            since = min(since, newest.launched)  # the attempt itself has waited
        due = not draft.waits(since, seconds_of(run.recovery.wait_for_capacity))
        if due and (moved := _moved(draft, run, placed)) is not None:
            return moved
        if due and draft.problem is None and (smaller := shrink(run, placed, pools)) and in_time(draft, run, smaller):
            draft.event("Warning", "Shrunk", f"{missing}; resuming on {smaller.nodes} nodes with the same global batch")
            return smaller
        # free nodes of each pool with which the next attempt can start, once it is due on fewer nodes, too
        own, hardware = pool_of(placed, pools), hardware_of(run)
        needs = {pool.key: Need(placed.planned_nodes, True) for pool in pools if fits(hardware, pool)}
        if own is not None:
            needs[own.key] = Need(min(own.free + 1, placed.nodes) if due else placed.nodes, True)
        draft.awaits = needs
    if run.cluster.priority_class_name is not None and not run.cluster.add_nodes:
        missing += "; cluster.priorityClassName preempts others only with cluster.addNodes or hardware.queue"
    _wait(draft, missing)
    return None


def _moved(draft: Draft, run: AnyRun, placed: Placed, *, same_price: bool = False) -> Placed | None:
    """The placement in another pool with free nodes, within the budget; ``same_price``: of equal machines only."""
    if draft.problem is not None or any(attempt.node_usage for attempt in draft.status.attempts):
        return None  # nodes in use are billed as those of the placement
    for moved in move(run, placed, draft.seen.pools()[0], draft.seen.catalogue):
        if (same_price and kind_of(placed) != kind_of(moved)) or not affordable(draft, run, moved):
            continue
        message = f"pool {placed.pool} has too few free nodes; {moved.nodes} nodes "
        message += f"({moved.capacity_type}) of pool {moved.pool}"
        draft.event("Normal", "Moved", message)
        draft.condition("Planned", "True", "Moved", message)
        return moved
    return None


def _wait(draft: Draft, message: str, reason: str = "Unschedulable") -> None:
    phase: Phase = "Recovering" if draft.status.attempts else "Waiting"
    if draft.status.message != message:
        draft.condition("Launched", "False", reason, message)
        if draft.status.waiting_since is None:
            draft.event("Normal", "Waiting", message)
    draft.put(phase=phase, message=message, waiting_since=draft.status.waiting_since or draft.now)


def _launch(draft: Draft, run: AnyRun, placed: Placed) -> None:
    newest, progress = draft.status.attempt, draft.status.progress
    number = newest.number + 1 if newest is not None else 1
    attempt = AttemptStatus(
        number=number,
        job=names.job_name(draft.seen.run.name, number),
        nodes=placed.nodes,
        workers=placed.workers,
        launched=draft.now,
        first_step=progress.checkpoint_step if progress is not None else 0,
    )
    layout = f"{placed.workers}x{placed.accelerators_per_worker}"
    kept = placed.image if attempt.first_step else ""  # a newer operator's may not read the checkpoint
    of_operator = kept if run.cluster.image else kept or _default_image(draft, placed)
    placed = placed.model_copy(update={"image": of_operator})
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
    if number > 1:  # phase and condition state the first
        draft.event("Normal", "Launched", f"attempt {number}: {layout} on {placed.nodes} nodes of pool {placed.pool}")
    draft.awaits = None
    _make_objects(draft, run, attempt)


def _default_image(draft: Draft, placed: Placed) -> str:
    return draft.seen.solver_image if placed.slots else draft.seen.image


def _make_objects(draft: Draft, run: AnyRun, attempt: AttemptStatus) -> None:
    """The objects of an attempt, once more if need be."""
    _make_progress(draft)
    seen, planned = draft.seen, draft.status.placement
    assert planned is not None
    configuration = worker_configuration(seen.spec, planned)
    image = run.cluster.image or planned.image or _default_image(draft, planned)
    placed, *others = _choices(draft, run, planned)
    queue, labels = draft.queue(run), seen.catalogue.labels
    launch = Launch(seen.run, attempt.number, run, configuration, placed, image, queue, labels, tuple(others))
    draft.actions.append(Create(render(launch)))
    draft.later(PATIENCE_SECONDS)  # should no pod be made, nothing announces it


def _choices(draft: Draft, run: AnyRun, placed: Placed) -> list[Placed]:
    """The placement, and those in other pools that its queue may choose instead: of the same layout, in the budget."""
    if draft.queue(run) is None or draft.problem is not None or placed.pool.startswith(SCALE_FROM_ZERO):
        return [placed]
    first, *others = alternatives(run, placed, draft.seen.pools()[0], draft.seen.catalogue)
    return [first, *(one for one in others if affordable(draft, run, one))]


def _take_flavor(draft: Draft, run: AnyRun, live: AttemptStatus, job: Job | None, pods: list[Pod]) -> None:
    """Take the placement in the pool that the queue chose, known by the labels of its flavor or the workers' nodes."""
    placed = draft.status.placement
    if placed is None or draft.queue(run) is None or job is None or job.state == "suspended":
        return
    if live.running is not None or any(a.node_usage for a in draft.status.attempts if a.number != live.number):
        return  # nodes in use are billed as those of the placement
    bound = {pod.node for pod in pods if pod.node and pod.works}
    pools = [pool for pool in draft.seen.pools()[0] if bound & {node.name for node in pool.nodes}]
    chosen = [
        one
        for one in _choices(draft, run, placed)
        if all(one.node_selector.get(label, value) == value for label, value in job.selector)
        and (not pools or pool_of(one, pools) is not None)
    ]
    if len(chosen) == 1 and chosen[0].node_selector != placed.node_selector:
        taken = chosen[0]
        message = f"queue {draft.queue(run)} chose {taken.nodes} nodes ({taken.capacity_type}) of pool {taken.pool}"
        draft.put(placement=taken)
        draft.condition("Planned", "True", "Admitted", message)


def _make_progress(draft: Draft) -> None:
    """The TrainingProgress in which worker 0 reports, where it is missing."""
    if not draft.seen.has_progress:
        draft.actions.append(Create(render_progress(draft.seen.run)))


LEAST_WAIT_SECONDS = 60.0
"""Shortest time in which pods must be made and bound, whatever recovery.waitForCapacity is, s."""
PULL_SECONDS = 120.0
"""Shortest time on a node after which a pull that fails once more ends the attempt, s: some five pulls."""
MOST_PULLED = 3
"""Attempts in a row, after one that has run, that may end because their image cannot be pulled; the last ends the run.
"""


def watch(draft: Draft, run: AnyRun, live: AttemptStatus) -> None:
    """Look after the live attempt."""
    pods, job = draft.pods_of(live), draft.seen.job_of(live)
    _take_flavor(draft, run, live, job, pods)
    if (until := awaited_until(pods, draft.now)) is not None:
        draft.times.append(until)
        return
    outcome = judge(live, pods, job, draft.seen.nodes, draft.seen.gone_pods)
    outcome = outcome or limit_reached(draft, run) or _growth(draft, run, live) or _stuck(draft, run, live, job, pods)
    if outcome is not None:
        end(draft, run, live, outcome)
        return
    if job is None:  # launched, but the operator ended before the job was made, it is on its way, or was refused
        draft.put(phase="Starting", message=f"attempt {live.number} is launched")
        _report_diagnostic(draft, pods)
        if draft.may_launch:
            _make_objects(draft, run, live)
    elif job.state == "suspended" and (smaller := _requeued(draft, run, live)) is not None:
        draft.put(placement=smaller)
        message = f"queue {draft.queue(run)} has not admitted {live.nodes} nodes for {run.recovery.wait_for_capacity}"
        end(draft, run, live, Outcome("Requeued", f"{message}; asking for {smaller.nodes} with the same global batch"))
    elif job.state == "suspended":
        queued = f"queue {draft.queue(run)} has not admitted it yet"
        if draft.seen.warnings:
            queued += f": {draft.seen.warnings[0].message}"
        else:
            draft.waits(live.launched, PATIENCE_SECONDS)
        draft.put(phase="Waiting", message=queued)
        draft.condition("Launched", "False", "Queued", queued, _generation(draft))
    else:
        if _is_queued(draft):
            admitted = f"queue {draft.queue(run)} has admitted it"
            draft.condition("Launched", "True", "Admitted", admitted, _generation(draft))
        _make_progress(draft)
        _follow(draft, live, pods)


def _requeued(draft: Draft, run: AnyRun, live: AttemptStatus) -> Placed | None:
    """The next smaller layout of an attempt that its queue has not admitted in time; None: none, or not yet."""
    placed = draft.status.placement
    if placed is None or draft.problem is not None or run.recovery.elastic.min_nodes is None:
        return None
    smaller = resize_down(run, placed, placed.nodes - 1)
    if smaller is None or not in_time(draft, run, smaller):
        return None
    return None if draft.waits(live.launched, seconds_of(run.recovery.wait_for_capacity)) else smaller


def _follow(draft: Draft, live: AttemptStatus, pods: list[Pod]) -> None:
    """Starting, until all workers run, and the launcher of a solver run; then their placement is compared with the
    plan."""
    placed = draft.status.placement
    running = [pod for pod in pods if pod.ready and pod.works]
    launched = placed is not None and (not placed.slots or any(pod.ready for pod in pods if not pod.works))
    if placed is None or len(running) < placed.workers or not launched:
        if live.running is None:
            alone = ", the launcher not yet" if placed and len(running) == placed.workers else ""
            draft.put(phase="Starting", message=f"{len(running)} of {live.workers} workers run{alone}")
            _report_diagnostic(draft, pods)
        return
    if live.running is None:
        draft.replace(live.model_copy(update={"running": draft.now}))
        draft.put(phase="Running", message=f"{live.workers} workers on {live.nodes} nodes")
        if draft.status.condition(CONDITION) is not None:
            draft.condition(CONDITION, "False", "Running", "all workers run")
        _verify(draft, placed, running, draft.seen.pools()[0])


def _report_diagnostic(draft: Draft, pods: list[Pod]) -> None:
    """Report why workers do not start, and look again later."""
    draft.later(PATIENCE_SECONDS)
    diagnostic = worst(pods, draft.seen.warnings)
    if diagnostic is None:
        return
    message = sentence(diagnostic)
    known = draft.status.condition(CONDITION)
    if known is None or known.status != "True":
        draft.event("Warning", diagnostic.reason, message)
    draft.condition(CONDITION, "True", diagnostic.reason, message)
    draft.put(message=f"{draft.status.message}; {message}")


def _verify(draft: Draft, placed: Placed, pods: list[Pod], pools: list[Pool]) -> None:
    problems = verify_placement(placed, [(pod.name, pod.node, pod.use.accelerators) for pod in pods if pod.use])
    if (own := pool_of(placed, pools)) is not None:
        other = {node.name: pool.key.name for pool in pools if pool is not own for node in pool.nodes}
        problems += [
            f"{pod.name} runs in pool {other[pod.node]}, {placed.pool} is planned" for pod in pods if pod.node in other
        ]
    if problems:
        draft.condition("PlacementVerified", "False", "Mismatch", "; ".join(problems))
        draft.event("Warning", "PlacementMismatch", "; ".join(problems))
        return
    each = "a node each, with all its accelerators" if placed.workers == placed.nodes else "as planned"
    draft.condition("PlacementVerified", "True", "AsPlanned", f"{placed.workers} workers, {each}")


def _growth(draft: Draft, run: AnyRun, live: AttemptStatus) -> Outcome | None:
    """Whether a run on fewer nodes goes back to the planned ones. Not in a queue: what it would admit is not known."""
    placed = draft.status.placement
    if draft.queue(run) is not None or draft.problem or not run.recovery.elastic.scale_up:
        return None
    if placed is None or placed.nodes >= placed.planned_nodes:
        return None
    if draft.status.phase != "Running" or not _pays(draft, live, placed):
        return None
    full, pools = resize(run, placed, placed.planned_nodes), draft.seen.pools()[0]
    if full is None or shortage(full, pools) is not None:
        draft.put(capacity_since=None)
        if full is not None and (pool := pool_of(full, pools)) is not None:
            draft.awaits = {pool.key: Need(full.nodes - placed.nodes, True)}
        return None
    since = draft.status.capacity_since or draft.now
    draft.put(capacity_since=since)
    if draft.waits(since, seconds_of(run.recovery.elastic.scale_up_after)):
        return None
    draft.put(placement=full)
    return Outcome("ScaledUp", f"{full.nodes} nodes can be had again")


def _is_queued(draft: Draft) -> bool:
    """Whether a queue had not admitted the job when it was seen last."""
    launched = draft.status.condition("Launched")
    return launched is not None and launched.status == "False"


def _generation(draft: Draft) -> int | None:
    """Generation of the spec from which the job was made; None: an older operator did not note it."""
    launched = draft.status.condition("Launched")
    return launched.observed_generation if launched is not None else None


def _pays(draft: Draft, live: AttemptStatus, placed: Placed) -> bool:
    """Whether all planned nodes would save more time than a restart costs; not while results are validated."""
    if any(usage.done for usage in live.node_usage):
        return False
    progress = draft.status.progress
    if progress is None or progress.eta is None:
        return True
    left_s = (progress.eta - draft.now).total_seconds()
    start_s = (live.running - live.launched).total_seconds() if live.running is not None else 0.0
    return left_s * (1 - placed.nodes / placed.planned_nodes) > start_s + (progress.seconds_first_step or 0.0)


def _stuck(draft: Draft, run: AnyRun, live: AttemptStatus, job: Job | None, pods: list[Pod]) -> Outcome | None:
    """Workers that did not start in time: no node after all, no image, no quota. Their nodes are billed."""
    warned = {warning.where for warning in draft.seen.warnings}
    alone = sum(bool(pod.node) and pod.works for pod in pods) >= live.workers
    bound = alone and not any(not pod.node and pod.name in warned for pod in pods)  # the launcher comes later
    blocked = blocking(pods, draft.seen.warnings, draft.now)
    diagnostic = worst(pods, draft.seen.warnings)
    refused = diagnostic is not None and diagnostic.reason in REFUSALS
    if (job is None and not refused) or (bound and blocked is None):
        return None
    if job is not None and (job.state == "suspended" or _is_queued(draft)):
        return None
    launched = draft.status.condition("Launched")
    changed = launched is not None and (launched.observed_generation or 0) < draft.seen.generation
    if live.running is None and blocked is not None and changed:  # the name of an image or a secret, say
        return Outcome("Suspended", "the spec was changed while workers could not start")
    if live.running is None and (unpulled := _without_image(draft, live, pods)) is not None:
        return unpulled
    # the operator may have ended between launching and making the job, and a queue takes its time
    admitted = launched.last_transition_time if launched is not None else live.launched
    begun = max(live.launched, (job.created if job is not None else None) or live.launched, admitted)
    waited_s = max(seconds_of(run.recovery.wait_for_capacity), LEAST_WAIT_SECONDS)
    if live.running is not None or draft.waits(begun, waited_s):
        return None
    if bound and blocked is not None:
        return Outcome("StartupFailed", sentence(blocked))
    if refused and diagnostic is not None:
        return Outcome("JobLost", sentence(diagnostic))
    if not pods:  # a quota, an admission policy, a missing claim or account
        kind = draft.status.placement.backend if draft.status.placement else "job"
        why = sentence(diagnostic) if diagnostic is not None else "kubectl describe shows the reason"
        return Outcome("JobLost", f"{kind} {live.job} made no pods; {why}")
    why = f"; {sentence(diagnostic)}" if diagnostic is not None else ""
    found = "the launcher did not find a node" if alone else f"{live.workers} workers did not find a node each"
    return Outcome("Unschedulable", f"{found} in {waited_s:g} s{why}")


def _without_image(draft: Draft, live: AttemptStatus, pods: list[Pod]) -> Outcome | None:
    """The end of an attempt whose image cannot be pulled: long before its nodes are given up for another reason.

    Where an earlier attempt has run, a registry may fail for a while: the nodes are returned, and it is tried again.
    """
    pod = next((pod for pod in pods if pod.diagnostic is not None), None)
    known, found = draft.status.condition(CONDITION), pod.diagnostic if pod is not None else None
    if pod is None or found is None or pod.bound is None:
        return None
    if found.reason == NO_IMAGE_NAME:
        return Outcome("StartupFailed", sentence(found))
    # While a kubelet pulls again, the pod has the reason of before: a pull has failed when the reason is another one.
    put_off = known is not None and known.reason == PULL_PUT_OFF and known.message.startswith(f"{found.where}: ")
    pulled_s = (draft.now - max(pod.bound, live.launched)).total_seconds()
    if not put_off or found.reason != PULL_FAILED or pulled_s < PULL_SECONDS:
        return None
    attempts = draft.status.attempts
    vain = sum(1 for _ in itertools.takewhile(lambda attempt: attempt.running is None, reversed(attempts)))
    return Outcome("WorkerFailed" if vain < min(len(attempts), MOST_PULLED) else "StartupFailed", sentence(found))
