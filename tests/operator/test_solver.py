"""A solver run through the same decisions as a training: an MPIJob with its launcher."""

from typing import Any

from caloscale.cluster.capacity.pods import Diagnostic
from tests.cluster import examples as ex
from tests.operator.world import World, settled

SPEC: dict[str, Any] = {
    "solver": {"ranks": 16},
    "hardware": {"accelerator": "nvidia-tesla-v100"},
    "cluster": {"volumeClaim": "shared"},
    "recovery": {"backoff": "1s"},
}
LAUNCHER = "gan-1-launcher-0"


def world(**changes: dict[str, Any]) -> World:
    """Two nodes with eight V100 for the ranks, and one without accelerators, where the launcher finds room."""
    spec = {block: {**SPEC.get(block, {}), **changes.get(block, {})} for block in {*SPEC, *changes}}
    return World(ex.node("n0"), ex.node("n1"), ex.cpu_node("c0"), spec=spec)


def test_it_succeeds_and_its_launcher_is_neither_counted_nor_paid_for() -> None:
    w = world()
    w.until(lambda w: w.phase == "Running")
    assert w.pods[LAUNCHER]["spec"]["nodeName"] == "c0" and w.pods[LAUNCHER]["status"]["phase"] == "Running"
    image = w.pods[LAUNCHER]["spec"]["containers"][0]["image"]
    assert image == ex.SOLVER_IMAGE and w.status["layout"] == "2x8"
    w.until(settled)
    assert w.phase == "Succeeded" and [a["reason"] for a in w.attempts] == ["Completed"]
    (kind,) = w.status["cost"]["nodes"]
    held = sum((until - since).total_seconds() for node, since, until in w.ledger if node != "c0")
    assert kind["nodes"] == 2 and kind["nodeSeconds"] == held
    assert w.condition("PlacementVerified")["status"] == "True"


def test_workers_whose_launcher_never_starts_are_not_paid_for_ever() -> None:
    w = world(recovery={"backoff": "1s", "waitForCapacity": "60s", "maxRestarts": 1})
    w.unschedulable = {"c0"}
    w.until(lambda w: "2 of 2 workers run, the launcher not yet" in w.status.get("message", ""))
    assert w.phase == "Starting"
    w.warnings = [Diagnostic(f"gan-{n}-launcher-0", "FailedScheduling", "0/3 nodes are available") for n in (1, 2)]
    w.until(settled)
    assert w.phase == "Failed" and [a["reason"] for a in w.attempts] == ["Unschedulable"] * 2
    assert "the launcher did not find a node in 60 s; gan-" in w.status["message"] and w.node_seconds() < 2 * 2 * 70


def test_a_rank_that_is_lost_makes_another_attempt_of_as_many_ranks() -> None:
    w = world()
    w.until(lambda w: w.phase == "Running" and w.step > 100)
    w.end(LAUNCHER, 138, "rank 3 was killed by signal 9")
    w.until(settled)
    first, second = w.attempts
    assert first["reason"] == "WorkerFailed" and first["exitCode"] == 138 and "rank 3" in first["message"]
    assert w.phase == "Succeeded" and second["firstStep"] == 100 and w.status["restarts"] == 1


def test_it_waits_for_all_its_nodes() -> None:
    """The number of ranks stays, and so does that of the nodes."""
    w = world(recovery={"backoff": "1s", "waitForCapacity": "60s"})
    w.until(lambda w: w.phase == "Running")
    w.lose_node("n1")
    w.until(lambda w: w.phase == "Recovering" and "1 present" in w.status["message"])
    w.tick(3600)
    w.reconcile()
    assert w.phase == "Recovering" and len(w.attempts) == 1
    w.nodes["n1"] = ex.node("n1")
    w.until(settled)
    assert w.phase == "Succeeded"


def test_a_solver_that_is_not_understood_keeps_its_nodes() -> None:
    """Of a newer version: its attempts continue, as the operator acts on the other blocks alone."""
    w = world()
    w.until(lambda w: w.phase == "Running" and w.step > 60)
    w.spec = {**w.spec, "solver": {"ranks": 16, "aNewerField": 1}}
    w.generation += 1
    w.end(LAUNCHER, 138, "")
    w.until(settled)
    assert w.phase == "Succeeded" and [a["nodes"] for a in w.attempts] == [2, 2]
