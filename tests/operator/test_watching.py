"""A run that lives: it shrinks, it grows back, and worker 0 validates when the others are done."""

from typing import Any

import pytest

from tests.cluster import examples as ex
from tests.operator.world import World, settled, world


def shrunk(elastic: dict[str, Any] | None = None) -> World:
    """It runs on two of four nodes."""
    recovery = {"backoff": "5s", "waitForCapacity": "60s", "elastic": {"scaleUpAfter": "20s", **(elastic or {})}}
    w = world({"recovery": recovery}, steps=3000).until(lambda w: w.phase == "Running")
    w.lose_node("n0")
    w.lose_node("n1")
    return w.until(lambda w: len(w.attempts) == 2 and w.phase == "Running")


def test_it_does_not_grow_where_the_document_forbids_or_for_the_last_steps() -> None:
    """For these a restart would take longer than what is left."""
    for w in (shrunk({"scaleUp": False}), shrunk().until(lambda w: w.step >= 2978)):
        w.nodes |= {f"m{i}": ex.spot(f"m{i}") for i in range(2)}
        assert [a["reason"] for a in w.until(settled).attempts] == ["NodeLost", "Completed"]


def test_it_does_not_shrink_where_the_rest_would_end_after_the_deadline() -> None:
    """Half of the nodes take twice as long."""
    changes = {"recovery": {"backoff": "5s", "waitForCapacity": "60s"}, "budget": {"deadline": "3h"}}
    w = world(changes, steps=3000).until(lambda w: w.phase == "Running")
    w.status["placement"]["estimateSeconds"] = 2.5 * 3600
    w.lose_node("n0")
    w.lose_node("n1")
    lost = w.now
    w.until(lambda w: (w.now - lost).total_seconds() > 300)
    assert w.phase == "Recovering" and len(w.attempts) == 1 and not any(e.reason == "Shrunk" for e in w.events)


def validating(changes: dict[str, Any] | None = None, **kwargs: Any) -> World:
    """All workers but worker 0, which validates, have ended well."""
    w = world(changes, **kwargs).until(lambda w: w.phase == "Running" and w.step > 100)
    w.training = False
    for name in list(w.pods):
        if not name.endswith("-0"):
            w.end(name, 0, "")
    w.reconcile()
    return w


def test_machines_that_are_done_may_go_while_worker_0_validates() -> None:
    w = validating()
    w.tick()
    w.lose_node("n3")
    w.vanish("gan-1-worker-1")
    w.reconcile()
    assert w.phase == "Running" and not w.removed
    w.jobs["gan-1"]["status"]["conditions"] = [{"type": "Succeeded", "status": "True", "message": "done"}]
    w.end("gan-1-worker-0", 0, "")
    w.until(settled, most_seconds=60)
    assert [a["reason"] for a in w.attempts] == ["Completed"]
    assert w.attempts[0]["nodeHours"] == pytest.approx(w.node_seconds() / 3600, abs=1e-5)


def test_worker_0_is_reported_when_its_own_machine_goes() -> None:
    w = validating()
    w.lose_node("n0")
    w.reconcile()
    assert w.attempts[0]["reason"] == "NodeLost"


def test_it_does_not_grow_while_worker_0_validates() -> None:
    w = shrunk()
    w.training = False
    w.end("gan-2-worker-1", 0, "")
    w.nodes |= {f"m{i}": ex.spot(f"m{i}") for i in range(2)}
    for _ in range(60):
        w.tick()
        w.reconcile()
    assert w.phase == "Running" and len(w.attempts) == 2


ON_DEMAND = {f"d{i}": ex.node(f"d{i}", "on-demand") for i in range(4)}


def sold_out(capacity_type: str | None, **budget: float) -> World:
    """Spot nodes are gone for good, and an on-demand pool has free nodes."""
    w = world(
        {"hardware": {"capacityType": capacity_type}, "recovery": {"elastic": {"minNodes": 4}}, "budget": budget},
        steps=1000,
    )
    w.until(lambda w: w.phase == "Running" and w.step > 100)
    assert w.status["placement"]["capacityType"] == "spot"
    for name in list(w.nodes):
        w.lose_node(name)
    w.nodes.update(ON_DEMAND)
    lost = w.now
    w.until(lambda w: (w.now - lost).total_seconds() > 300)
    return w


def test_a_pool_that_is_sold_out_is_left_for_on_demand_where_both_are_allowed() -> None:
    w = sold_out(None)
    assert w.phase == "Running" and len(w.attempts) == 2
    first, second = w.attempts
    placement = w.status["placement"]
    assert (placement["pool"], placement["capacityType"], placement["nodes"]) == ("on-demand", "on-demand", 4)
    assert first["nodeTotals"][0]["capacityType"] == "spot" and second["firstStep"] > 0
    w.until(settled)
    assert [a["nodeTotals"][0]["capacityType"] for a in w.attempts] == ["spot", "on-demand"] and w.phase == "Succeeded"
    moved = next(event for event in w.events if event.reason == "Moved")
    assert "4 nodes (on-demand) of pool on-demand" in moved.message


@pytest.mark.parametrize(("capacity_type", "budget"), [("spot", {}), (None, {"maxUsd": 120.0})])
def test_it_waits_where_on_demand_is_not_allowed_or_passes_the_budget(
    capacity_type: str | None, budget: dict[str, float]
) -> None:
    w = sold_out(capacity_type, **budget)
    assert w.phase == "Recovering" and len(w.attempts) == 1 and w.status["placement"]["capacityType"] == "spot"
