"""Runs in queues of a real Kueue: quota, gangs, priorities, borrowing."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from caloscale.cluster import names
from tests.control_plane.kueue.conftest import Queues
from tests.control_plane.operator.conftest import Runs

pytestmark = pytest.mark.integration

Add = Callable[..., list[str]]


def in_queue(name: str, nodes: int = 2, **cluster: str) -> dict[str, Any]:
    """Blocks of a run of so many nodes in a queue."""
    return {"hardware": {"queue": name, "count": 8 * nodes}, "cluster": cluster}


def not_admitted(status: dict[str, Any]) -> bool:
    return status.get("phase") == "Waiting" and "has not admitted it yet" in status.get("message", "")


def reasons(status: dict[str, Any]) -> list[str | None]:
    return [attempt.get("reason") for attempt in status["attempts"]]


def test_a_run_waits_for_the_quota_of_its_queue(runs: Runs, queues: Queues, add_nodes: Add) -> None:
    """Four nodes are there; the queue may use two of them."""
    add_nodes("v100", 4)
    queues.add("physics", gpus=16)
    runs.fake_pods(None)
    runs.create("first", **in_queue("physics"))
    runs.phase("first", "Running")
    runs.create("second", **in_queue("physics"))
    reason = "insufficient unused quota for nvidia.com/gpu"
    status = runs.until("second", lambda s: not_admitted(s) and reason in s["message"], "it waits in the queue")
    assert not runs.pods("second") and reasons(status) == [None]
    runs.server.delete(names.KIND, runs.namespace, "first")
    assert runs.phase("second", "Running")["restarts"] == 0
    conditions = {c["type"]: c for c in runs.status("second")["conditions"]}
    assert conditions["Launched"]["reason"] == "Admitted" and conditions["PlacementVerified"]["status"] == "True"


def test_a_gang_is_admitted_as_a_whole(runs: Runs, queues: Queues, add_nodes: Add) -> None:
    """A quota of three nodes starts no run of four; one of two, behind it, is admitted."""
    add_nodes("v100", 4)
    queues.add("physics", gpus=24)
    runs.fake_pods("1s")
    runs.create("four", **in_queue("physics", nodes=4))
    runs.until("four", not_admitted, "it waits in the queue")
    runs.create("two", **in_queue("physics"))
    runs.phase("two", "Succeeded")
    assert not_admitted(runs.status("four")) and not runs.pods("four")
    queues.add("physics", gpus=32)
    assert reasons(runs.phase("four", "Succeeded")) == ["Completed"]


@pytest.mark.usefixtures("priorities")
def test_an_urgent_run_preempts_another_which_resumes_afterwards(runs: Runs, queues: Queues, add_nodes: Add) -> None:
    add_nodes("v100", 2)
    queues.add("physics", gpus=16, withinClusterQueue="LowerPriority")
    runs.fake_pods(None)
    runs.create("long", **in_queue("physics"))
    runs.phase("long", "Running")
    runs.create("urgent", **in_queue("physics", priorityClassName="urgent"))
    runs.phase("urgent", "Running")
    status = runs.until("long", not_admitted, "it waits in the queue again")
    assert reasons(status) == ["Preempted", None] and status["restarts"] == 0
    runs.server.delete(names.KIND, runs.namespace, "urgent")
    status = runs.phase("long", "Running")
    assert reasons(status) == ["Preempted", None] and status["restarts"] == 0
    assert status["attempts"][0]["nodeTotals"][0]["nodes"] == 2  # billed, and no longer in use


def test_borrowed_nodes_are_given_back(runs: Runs, queues: Queues, add_nodes: Add) -> None:
    """A run of two nodes borrows one from another group, which then needs it."""
    add_nodes("v100", 2)
    for name in ("atlas", "cms"):
        queues.add(name, gpus=8, cohort="lhc", reclaimWithinCohort="Any")
    runs.fake_pods(None)
    runs.create("borrower", **in_queue("atlas"))
    runs.phase("borrower", "Running")
    runs.create("owner", **in_queue("cms", nodes=1))
    runs.phase("owner", "Running")
    status = runs.until("borrower", not_admitted, "it waits in the queue again")
    assert reasons(status) == ["Preempted", None] and status["restarts"] == 0
    runs.server.delete(names.KIND, runs.namespace, "owner")
    runs.phase("borrower", "Running")


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("priorities")
def test_a_hundred_preemptions_end_no_run(runs: Runs, queues: Queues, add_nodes: Add) -> None:
    """Six runs share six nodes with urgent ones of one to three nodes; all succeed in the end, with exact bills."""
    patient = [f"patient-{number}" for number in range(6)]
    add_nodes("v100", 6)
    queues.add("physics", gpus=48, withinClusterQueue="LowerPriority")
    runs.fake_pods(None)
    for name in patient:
        runs.create(name, **in_queue("physics", nodes=1))
    rng, preempted, urgent = random.Random(1), 0, 0
    while preempted < 100:
        for name in patient:
            runs.phase(name, "Running")
        urgent += 1
        nodes = rng.randint(1, 3)
        runs.create(f"urgent-{urgent}", **in_queue("physics", nodes=nodes, priorityClassName="urgent"))
        runs.phase(f"urgent-{urgent}", "Running")
        runs.server.delete(names.KIND, runs.namespace, f"urgent-{urgent}")
        preempted += nodes
    for name in patient:
        runs.phase(name, "Running")
    runs.fake_pods("1s")
    runs.create("last", **in_queue("physics", nodes=6, priorityClassName="urgent"))
    ends = [runs.phase(name, "Succeeded") for name in ("last", *patient)][1:]
    counts = [sum(a["count"] for a in status["attempts"] if a["reason"] == "Preempted") for status in ends]
    assert sum(counts) == preempted + 6 and min(counts) > 0
    assert all(status["restarts"] == 0 for status in ends)
    for status in ends:
        hours = sum(each["nodeSeconds"] for a in status["attempts"] for each in a["nodeTotals"]) / 3600
        assert status["cost"]["nodeHours"] == pytest.approx(hours, abs=1e-4)
