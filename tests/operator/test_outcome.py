"""Of several workers that ended, the one whose exit explains the failure."""

import dataclasses
import datetime as dt
from typing import Any

import pytest

from caloscale.cluster.capacity.pods import Job, Pod, pod_of
from caloscale.operator.outcomes import awaited_until, job_in_doubt, judge
from caloscale.status import AttemptStatus, NodeUsage
from tests.operator.world import world

ATTEMPT = AttemptStatus(
    number=1, job="gan-1", nodes=2, workers=2, launched=dt.datetime(2026, 11, 21, 10, tzinfo=dt.UTC)
)


def failed(index: int, code: int, second: int, **ended: Any) -> Pod:
    terminated = {"exitCode": code, "finishedAt": f"2026-11-21T10:00:{second:02d}Z", **ended}
    states = [{"name": "tensorflow", "state": {"terminated": terminated}}]
    metadata = {"name": f"gan-1-worker-{index}", "uid": str(index)}
    status = {"phase": "Failed", "containerStatuses": states}
    return pod_of({"metadata": metadata, "spec": {"nodeName": f"n{index}"}, "status": status})


@pytest.mark.parametrize("second", [3, 9])
def test_a_worker_without_memory_is_named_also_when_another_ended_before(second: int) -> None:
    """The log says nothing of it, as the kernel asks nobody."""
    greedy = failed(1, 137, second, reason="OOMKilled", message="epoch 3")
    outcome = judge(ATTEMPT, [failed(0, 138, 5, message="worker 1 is gone"), greedy], None, {})
    assert outcome is not None and outcome.reason == "WorkerFailed" and outcome.exit_code == 137
    assert outcome.message == (
        "gan-1-worker-1 on n1 was out of memory (OOMKilled; a smaller train.maxBatchPerReplica takes less) and ended "
        "with exit code 137: epoch 3"
    )


def test_who_is_gone_before_its_end_was_seen_is_asked_too() -> None:
    """training-operator deletes a pod that it makes anew as soon as it has ended."""
    since = ATTEMPT.launched
    holds = tuple(NodeUsage(pod=f"gan-1-worker-{i}", uid=str(i), node=f"n{i}", since=since) for i in range(2))
    attempt, nodes = ATTEMPT.model_copy(update={"node_usage": holds}), {"n0": True, "n1": True}
    greedy, mistaken = failed(1, 137, 3, reason="OOMKilled"), failed(1, 2, 3, message="no such bucket")
    outcome = judge(attempt, [alive(0)], None, nodes, {"1": greedy})
    assert outcome is not None and outcome.exit_code == 137 and "OOMKilled" in outcome.message
    outcome = judge(attempt, [alive(0)], None, nodes, {"1": mistaken})
    assert outcome is not None and outcome.reason == "UserError" and "no such bucket" in outcome.message
    outcome = judge(attempt, [alive(0)], None, nodes, {"1": alive(1), "7": greedy})
    assert outcome is not None and (outcome.reason, outcome.message) == ("WorkerLost", "gan-1-worker-1 on n1 is gone")


@pytest.mark.parametrize(("second", "disrupted"), [(3, False), (12, True)])
def test_what_ends_behind_its_deletion_was_disrupted(second: int, disrupted: bool) -> None:
    """Deleted at 10:00:05 with thirty seconds to go."""
    terminated = {"exitCode": 1, "finishedAt": f"2026-11-21T10:00:{second:02d}Z"}
    pod = pod_of(
        {
            "metadata": {"name": "a", "deletionTimestamp": "2026-11-21T10:00:35Z", "deletionGracePeriodSeconds": 30},
            "status": {"phase": "Failed", "containerStatuses": [{"name": "w", "state": {"terminated": terminated}}]},
        }
    )
    assert pod.disrupted is disrupted


def alive(index: int) -> Pod:
    metadata = {"name": f"gan-1-worker-{index}", "uid": str(index)}
    return pod_of({"metadata": metadata, "spec": {"nodeName": f"n{index}"}, "status": {"phase": "Running"}})


def test_who_left_for_another_is_not_the_one_to_ask() -> None:
    """Five seconds for the other kubelet; then what is known must do."""
    left, start = failed(0, 138, 10), ATTEMPT.launched
    assert awaited_until([left, alive(1)], start + dt.timedelta(seconds=11)) == start + dt.timedelta(seconds=15)
    assert awaited_until([left, alive(1)], start + dt.timedelta(seconds=15)) is None
    assert awaited_until([left, failed(1, 137, 9)], start + dt.timedelta(seconds=11)) is None
    assert awaited_until([failed(0, 143, 10), alive(1)], start + dt.timedelta(seconds=11)) is None
    assert awaited_until([alive(0), alive(1)], start) is None


def test_a_kubelet_whose_clock_is_ahead_is_not_waited_for_until_then() -> None:
    """All nodes of the gang are billed meanwhile."""
    now = ATTEMPT.launched + dt.timedelta(seconds=11)
    ahead = changed(failed(0, 138, 10), ended=now + dt.timedelta(hours=1))
    assert awaited_until([ahead, alive(1)], now) is None
    slightly = changed(ahead, ended=now + dt.timedelta(seconds=2))
    assert awaited_until([slightly, alive(1)], now) == now + dt.timedelta(seconds=7)


def job(state: str = "active", **changes: Any) -> Job:
    known = {"kind": "TFJob", "name": "gan-1", "uid": "j", "run": None, "attempt": 1, "message": "", "deleting": False}
    return Job(**{**known, "created": None, "selector": (), "state": state, **changes})


def held(*uids: str, done: bool = False) -> AttemptStatus:
    """The attempt with workers on nodes."""
    usage = (
        NodeUsage(pod=f"gan-1-worker-{uid}", uid=uid, node=f"n{uid}", since=ATTEMPT.launched, done=done) for uid in uids
    )
    return ATTEMPT.model_copy(update={"node_usage": tuple(usage)})


def changed(one: Pod, **changes: Any) -> Pod:
    return dataclasses.replace(one, **changes)


NODES = {"n0": True, "n1": False}
LATER = ATTEMPT.launched + dt.timedelta(seconds=60)


@pytest.mark.parametrize(
    ("attempt", "pods", "of", "reason", "message"),
    [
        (held("0"), [failed(0, 2, 3)], job("succeeded"), "Completed", "all steps are done"),
        (ATTEMPT, [failed(0, 1, 3)], job(), "UserError", "gan-1-worker-0 ended with exit code 1"),
        (ATTEMPT, [failed(0, 127, 3, message="m")], job(), "UserError", "gan-1-worker-0 ended with exit code 127: m"),
        # a user's mistake goes before what followed from it; else the first end counts
        (ATTEMPT, [failed(0, 138, 3), failed(1, 2, 5)], job(), "UserError", "gan-1-worker-1 ended with exit code 2"),
        (
            ATTEMPT,
            [failed(0, 140, 5), failed(1, 143, 3)],
            job(),
            "WorkerFailed",
            "gan-1-worker-1 on n1 ended with exit code 143",
        ),
        (ATTEMPT, [failed(0, 128, 3)], job(), "WorkerFailed", "gan-1-worker-0 on n0 ended with exit code 128"),
        (ATTEMPT, [failed(0, 0, 3)], job(), "WorkerFailed", "gan-1-worker-0 on n0 ended with exit code 0"),
        (
            ATTEMPT,
            [changed(failed(0, 2, 3), disrupted=True, node="")],
            job(),
            "WorkerLost",
            "gan-1-worker-0 on no node ended with exit code 2",
        ),
        (ATTEMPT, [changed(failed(0, 2, 3), exit_code=None)], job(), "WorkerFailed", "gan-1-worker-0 on n0 ended"),
        (
            ATTEMPT,
            [changed(failed(0, 137, 3), ended=None), failed(1, 138, 9)],
            job(),
            "WorkerFailed",
            "gan-1-worker-1 on n1 ended with exit code 138",
        ),
        (held("7", "0", "5"), [failed(7, 138, 3), alive(0), alive(5)], job(), "NodeLost", "node n5, n7 is gone"),
        (held("7"), [failed(7, 2, 3)], job(), "UserError", "gan-1-worker-7 ended with exit code 2"),
        (held("7", done=True), [], job(), None, None),
        (
            held("0"),
            [alive(0)],
            job("suspended"),
            "Preempted",
            "TFJob gan-1 was suspended by its queue, or by somebody",
        ),
        (ATTEMPT, [], job("suspended"), None, None),
        (held("0"), [alive(0)], job(deleting=True), "JobLost", "TFJob gan-1 was deleted by somebody"),
        (
            ATTEMPT,
            [changed(alive(0), deleting=LATER, message="why")],
            job(),
            "WorkerLost",
            "gan-1-worker-0 on n0 is being ended: why",
        ),
        (
            ATTEMPT,
            [changed(alive(0), deleting=LATER, node="")],
            job(),
            "WorkerLost",
            "gan-1-worker-0 on no node is being ended",
        ),
        (ATTEMPT, [changed(alive(0), deleting=LATER, phase="Succeeded")], job(), None, None),
        (held("0", "1"), [alive(0)], job(), "WorkerLost", "gan-1-worker-1 on n1 is gone"),
        (held("1", done=True), [], job(), None, None),
        (held("0"), [alive(0)], job("failed", message="too slow"), "WorkerFailed", "TFJob gan-1 failed: too slow"),
        (ATTEMPT, [], job("failed"), "WorkerFailed", "TFJob gan-1 failed: no message"),
        (held("0"), [alive(0)], None, "JobLost", "gan-1 was deleted by somebody"),
        (ATTEMPT, [alive(0)], None, None, None),
        (held("0", "1"), [alive(0), alive(1)], job(), None, None),
    ],
)
def test_why_an_attempt_has_ended(
    attempt: AttemptStatus, pods: list[Pod], of: Job | None, reason: str | None, message: str | None
) -> None:
    outcome = judge(attempt, pods, of, NODES)
    assert (outcome and outcome.reason, outcome and outcome.message) == (reason, message)


def test_of_a_long_log_the_end_is_shown() -> None:
    outcome = judge(ATTEMPT, [failed(0, 2, 3, message="x" * 500 + "y" * 600)], None, {})
    assert outcome is not None and outcome.message == "gan-1-worker-0 ended with exit code 2: " + "y" * 600


@pytest.mark.parametrize("reason", ["WorkerLost", "NodeLost", "JobLost", "WorkerFailed", "Requeued", "ScaledUp", None])
def test_a_job_is_read_again_before_its_attempt_is_lost_or_queued_anew(reason: Any) -> None:
    """As `reconcile` decided; the job may have succeeded, or been admitted, by now."""
    w = world().until(lambda w: w.phase == "Running")
    seen = w.observe()
    live = seen.status.live
    decided = seen.status.model_copy(update={"attempts": (live.model_copy(update={"reason": reason}),)})
    in_doubt = job_in_doubt(seen, decided)
    assert (in_doubt and in_doubt.name) == (None if reason in ("ScaledUp", None) else "gan-1")
    assert job_in_doubt(dataclasses.replace(seen, jobs=[]), decided) is None
    ended = live.model_copy(update={"ended": w.now})
    assert (
        job_in_doubt(dataclasses.replace(seen, status=seen.status.model_copy(update={"attempts": (ended,)})), decided)
        is None
    )


def test_nobody_is_waited_for_who_was_disrupted_or_has_no_time() -> None:
    left, now = failed(0, 138, 10), ATTEMPT.launched + dt.timedelta(seconds=11)
    until = ATTEMPT.launched + dt.timedelta(seconds=12)
    assert awaited_until([left, failed(2, 138, 7), alive(1)], now) == until
    for other in (changed(left, disrupted=True), changed(left, ended=None), changed(left, exit_code=None)):
        assert awaited_until([other, alive(1)], now) is None
        assert awaited_until([left, other, alive(1)], now) is None
    assert awaited_until([left, changed(alive(1), phase="Succeeded")], now) is None
    assert awaited_until([], now) is None
