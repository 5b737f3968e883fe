"""Runs in queues of a real Kueue: quota, gangs, priorities, borrowing."""

import datetime as dt
import random
from collections.abc import Callable
from typing import Any

import pytest

from caloscale.cluster import names
from caloscale.status import RunProgress
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


def test_fewer_nodes_are_asked_for_when_the_queue_has_no_quota_for_the_planned_ones(
    runs: Runs, queues: Queues, add_nodes: Add
) -> None:
    """A quota of three nodes for a run of four, whose global batch three do not divide: it runs on two."""
    add_nodes("v100", 4)
    queues.add("physics", gpus=24)
    runs.fake_pods(None)
    elastic = {"minNodes": 1, "scaleUpAfter": "1s"}
    runs.create("four", **in_queue("physics", nodes=4), recovery={"elastic": elastic})
    status = runs.phase("four", "Running")
    assert reasons(status) == ["Requeued", None] and status["restarts"] == 0
    placement = status["placement"]
    assert (placement["nodes"], placement["plannedNodes"], len(runs.pods("four"))) == (2, 4, 2)
    assert placement["globalBatch"] == 2 * 8 * placement["batchPerReplica"] * placement["accumulate"]
    (verified,) = [c for c in status["conditions"] if c["type"] == "PlacementVerified"]
    assert verified["status"] == "True"
    assert [len(attempt.get("nodeUsage", ())) for attempt in status["attempts"]] == [0, 2]
    runs.create("one", **in_queue("physics", nodes=1))
    runs.phase("one", "Running")


def test_the_ranks_of_a_solver_are_admitted_and_preempted_as_a_gang(
    runs: Runs, queues: Queues, add_nodes: Add, priorities: None
) -> None:
    """An MPIJob, of which Kueue also counts the launcher."""
    runs.claim("shared")
    add_nodes("v100", 2)
    queues.add("physics", gpus=16, withinClusterQueue="LowerPriority")
    runs.fake_pods(None)
    claimed = {"solver": {"ranks": 16}, "cluster": {"volumeClaim": "shared"}, "hardware": {"queue": "physics"}}
    runs.create("solver", **claimed)
    status = runs.phase("solver", "Running")
    assert {c["type"]: c["status"] for c in status["conditions"]}["PlacementVerified"] == "True"
    (workload,) = runs.server.each("Workload", runs.namespace)
    assert workload["metadata"]["ownerReferences"][0]["kind"] == "MPIJob"
    assert {each["name"]: each["count"] for each in workload["spec"]["podSets"]} == {"launcher": 1, "worker": 2}
    runs.create("urgent", **in_queue("physics", priorityClassName="urgent"))
    runs.phase("urgent", "Running")
    status = runs.until("solver", lambda s: not_admitted(s) and not runs.pods("solver"), "it waits in the queue again")
    assert reasons(status) == ["Preempted", None] and status["restarts"] == 0
    runs.server.delete(names.KIND, runs.namespace, "urgent")
    runs.phase("solver", "Running")


@pytest.mark.parametrize("backend", ["TFJob", "JobSet"])
def test_the_admitted_flavor_decides_pool_price_and_bill(
    runs: Runs, queues: Queues, add_nodes: Add, backend: str
) -> None:
    """Spot nodes are full for the second run, so Kueue admits it with the flavor of the nodes on demand.

    A third pool has other machines of the same accelerator, four on a node: its flavor has quota, and no run may go.
    """
    add_nodes("spot", 2, spot=True)
    add_nodes("owned", 2)
    add_nodes("small", 4, gpus=4)
    queues.add("physics", gpus=16, pool="small", further={"spot": 16, "owned": 16})
    runs.fake_pods(None)
    placements = []
    for name in ("first", "second"):
        runs.create(name, **in_queue("physics", backend=backend))
        status = runs.phase(name, "Running")
        placed = status["placement"]
        placements.append((placed["pool"], placed["capacityType"], round(float(placed["usdPerHour"]), 4)))
        conditions = {c["type"]: c for c in status["conditions"]}
        assert conditions["PlacementVerified"]["status"] == "True"
        nodes = {pod["spec"]["nodeName"].rsplit("-", 1)[0] for pod in runs.pods(name)}
        assert nodes == {placed["pool"]}
    assert placements == [("spot", "spot", 19.3862), ("owned", "on-demand", 48.3574)]
    runs.create("third", **in_queue("physics", backend=backend))
    runs.until("third", not_admitted, "it waits in the queue")
    runs.server.delete(names.KIND, runs.namespace, "second")
    third = runs.phase("third", "Running")
    assert third["placement"]["pool"] == "owned"
    assert {kind["capacityType"] for kind in third["cost"]["nodes"]} == {"on-demand"}


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


def report(runs: Runs, name: str, step: int, checkpoint: int, step_seconds: float) -> None:
    """Report as worker 0 of a run."""
    progress = RunProgress(
        step=step, steps=10**6, checkpoint_step=checkpoint, step_seconds=step_seconds, updated=dt.datetime.now(dt.UTC)
    )
    data = progress.model_dump(mode="json", by_alias=True)
    runs.server.merge("TrainingProgress", runs.namespace, names.progress_name(name), {"progress": data})


def boosts(runs: Runs) -> dict[str, int]:
    """The priority boosts that the Workloads have, by job."""
    workloads = [each["metadata"] for each in runs.server.each("Workload", runs.namespace)]
    return {
        metadata["ownerReferences"][0]["name"]: int(metadata["annotations"][names.PRIORITY_BOOST])
        for metadata in workloads
        if names.PRIORITY_BOOST in metadata.get("annotations", {})
    }


@pytest.mark.usefixtures("priorities")
def test_the_run_is_preempted_whose_eviction_costs_least(runs: Runs, queues: Queues, add_nodes: Add) -> None:
    """Of equal priority; without the published cost Kueue would preempt the one that was admitted last."""
    add_nodes("v100", 2)
    queues.add("physics", gpus=16, withinClusterQueue="LowerPriority")
    runs.fake_pods(None)
    for name in ("saved", "unsaved"):
        runs.create(name, **in_queue("physics", nodes=1))
        runs.phase(name, "Running")
    report(runs, "saved", step=20_000, checkpoint=20_000, step_seconds=3600)
    report(runs, "unsaved", step=20_000, checkpoint=0, step_seconds=3600)
    for name in ("saved", "unsaved"):
        runs.until(name, lambda s: s.get("progress", {}).get("step") == 20_000, "the report is in the status")

    def is_published() -> bool:
        known = boosts(runs)
        return known.get("unsaved-1", 0) > known.get("saved-1", 100)

    runs.plane.wait_until(is_published, "the costs are published")
    runs.create("urgent", **in_queue("physics", nodes=1, priorityClassName="urgent"))
    runs.phase("urgent", "Running")
    assert reasons(runs.until("saved", not_admitted, "it waits in the queue again")) == ["Preempted", None]
    assert reasons(runs.status("unsaved")) == [None]


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
    counts = [sum(attempt.get("count", 1) for attempt in preempted_attempts(status)) for status in ends]
    assert sum(counts) == preempted + 6 and min(counts) > 0
    assert all(status["restarts"] == 0 for status in ends)
    for status in ends:
        hours = sum(each["nodeSeconds"] for a in status["attempts"] for each in a["nodeTotals"]) / 3600
        assert status["cost"]["nodeHours"] == pytest.approx(hours, abs=1e-4)


def preempted_attempts(status: dict[str, Any]) -> list[dict[str, Any]]:
    """The attempts that a preemption ended; one may sum up several."""
    return [attempt for attempt in status["attempts"] if attempt.get("reason") == "Preempted"]
