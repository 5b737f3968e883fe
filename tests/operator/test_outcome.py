"""Of several workers that ended, the one whose exit explains the failure."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from caloscale.cluster.capacity.pods import Pod, pod_of
from caloscale.operator.outcomes import awaited_until, judge
from caloscale.status import AttemptStatus, NodeUsage

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


def test_a_mistake_in_the_document_goes_before_what_followed() -> None:
    pods = [failed(0, 138, 3, message="worker 1 is gone"), failed(1, 2, 5, message="no such bucket")]
    outcome = judge(ATTEMPT, pods, None, {})
    assert outcome is not None and outcome.reason == "UserError" and "no such bucket" in outcome.message


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


def test_else_the_first_that_ended_is_named() -> None:
    outcome = judge(ATTEMPT, [failed(0, 140, 5), failed(1, 143, 3)], None, {})
    assert outcome is not None and outcome.exit_code == 143 and "gan-1-worker-1" in outcome.message


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
