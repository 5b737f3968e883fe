"""What a user reads in the course of a run, and at which moment the operator acts when nothing happens."""

import datetime as dt
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from caloscale.cluster.capacity.pods import Diagnostic
from tests.cluster import examples as ex
from tests.operator.test_limits import admit, in_two_pools, queued, waiting_for
from tests.operator.test_watching import sold_out
from tests.operator.world import START, World, ended, settled, world

MISSING = "4 nodes with 8 free nvidia-tesla-v100 needed, 2 present: pool v100-8 is at 2/2"
GOLDEN = Path(__file__).parents[1] / "golden" / "stories"


def running(w: World) -> bool:
    return w.phase == "Running"


def second(w: World) -> bool:
    return len(w.attempts) == 2 and running(w)


def nodes_that_come(w: World) -> World:
    w.until(lambda w: w.phase == "Waiting")
    w.nodes |= {f"m{i}": ex.spot(f"m{i}") for i in range(2)}
    return w.until(running)


def two_lost_and_back(w: World) -> World:
    w.until(running)
    w.lose_node("n0")
    w.lose_node("n1")
    w.until(second)
    w.until(lambda w: w.step >= 500)
    w.nodes |= {f"m{i}": ex.spot(f"m{i}") for i in range(2)}
    return w.until(lambda w: len(w.attempts) == 3 and running(w))


def in_a_queue(w: World) -> World:
    w.warnings = [Diagnostic("gan-1", "Pending", "no quota")]
    w.reconcile()
    w.warnings = []
    admit(w)
    w.until(lambda w: running(w) and w.step >= 20)
    w.preempt()
    w.until(lambda w: w.phase == "Waiting" and "has not admitted" in w.status["message"])
    admit(w)
    return w.until(settled)


def asked_for_less(w: World) -> World:
    admit(w.until(waiting_for(2)))
    return w.until(running)


def another_flavor(w: World) -> World:
    w.flavor = {"cloud.google.com/gke-nodepool": "owned"}
    admit(w)
    return w.until(running)


def too_few_machines(w: World) -> World:
    w.until(lambda w: w.phase == "Starting")
    w.nodes |= {f"a{i}": ex.spot(f"a{i}") for i in range(3)}
    return w.until(running)


def stopped(w: World) -> World:
    w.until(lambda w: w.step >= 130)
    w.spec["cluster"], w.generation = {"suspend": True}, 2
    w.until(lambda w: w.phase == "Suspended")
    w.spec["cluster"], w.generation = {}, 3
    return w.until(running)


def left_alone(w: World) -> World:
    w.until(lambda w: w.step >= 130)
    w.client_runs = False
    w.until(lambda w: w.phase == "Suspended")
    w.client_runs = True
    return w.until(running)


def without_an_image(w: World) -> World:
    w.has_image = False
    w.until(settled)
    w.spec["cluster"] = {**w.spec.get("cluster", {}), "image": "mine:2"}
    w.has_image, w.generation = True, 2
    return w.until(running)


def refused_pods(w: World) -> World:
    w.refuses_pods = True
    return w.until(ended)


def raised_budget(w: World) -> World:
    w.until(ended)
    w.spec["budget"], w.generation = {}, 2
    return w.until(running)


def late(w: World) -> World:
    w.until(running).tick(6 * 3600)
    return w.until(ended)


def not_understood(w: World) -> World:
    w.until(lambda w: running(w) and w.step > 100)
    w.spec["checkpoint"], w.generation = {"uri": "hdfs://bucket/c"}, 2
    return w.until(settled)


def mistaken(w: World) -> World:
    w.user_error = (2, "error: no such bucket")
    return w.until(settled)


def deleted_by_somebody(w: World) -> World:
    w.until(lambda w: w.step >= 100)
    del w.jobs["gan-1"]
    for name in list(w.pods):
        w.vanish(name)
    return w.until(second)


def renamed(w: World) -> World:
    w.until(lambda w: running(w) and w.step > 100)
    for name in list(w.nodes):
        w.lose_node(name)
    w.until(lambda w: w.phase == "Recovering")
    w.nodes |= {f"r{i}": ex.spot(f"r{i}", "renamed") for i in range(4)}
    return w.until(second)


STORIES: dict[str, Callable[[], World]] = {
    "quiet": lambda: world().until(settled),
    "nodes-that-come-later": lambda: nodes_that_come(world(nodes=2)),
    "two-of-four-nodes-are-lost-and-come-back": lambda: two_lost_and_back(world(steps=3000)),
    "spot-nodes-are-sold-out": lambda: sold_out(None),
    "a-queue-that-preempts": lambda: in_a_queue(queued()),
    "a-queue-that-has-fewer-nodes": lambda: asked_for_less(
        queued({"recovery": {"waitForCapacity": "60s", "elastic": {"minNodes": 2}}})
    ),
    "a-queue-that-chooses-another-pool": lambda: another_flavor(in_two_pools()),
    "an-autoscaler-with-too-few-machines": lambda: too_few_machines(
        world({"cluster": {"addNodes": True}, "recovery": {"waitForCapacity": "90s", "backoff": "1s"}}, nodes=0)
    ),
    "suspended-and-resumed": lambda: stopped(world()),
    "a-pipelines-step-that-ends": lambda: left_alone(world()),
    "an-image-that-does-not-come": lambda: without_an_image(world()),
    "pods-that-are-refused": lambda: refused_pods(
        world({"recovery": {"maxRestarts": 1, "backoff": "1s", "waitForCapacity": "60s"}})
    ),
    "over-the-budget-which-is-taken-away": lambda: raised_budget(world({"budget": {"maxUsd": 2}})),
    "a-deadline": lambda: late(world({"budget": {"deadline": "6h"}}, steps=100_000)),
    "a-spec-that-is-not-understood": lambda: not_understood(world(steps=400)),
    "a-users-error": lambda: mistaken(world()),
    "a-job-that-somebody-deletes": lambda: deleted_by_somebody(world()),
    "a-pool-that-got-another-name": lambda: renamed(world(steps=1000)),
}


@pytest.mark.parametrize("story", STORIES)
def test_what_a_user_reads(story: str) -> None:
    """Phases with their messages, conditions with their reasons, and events, in this order.

    CALOSCALE_WRITE_GOLDEN=1 writes the file anew; read the difference before committing it.
    """
    file, shown = GOLDEN / f"{story}.txt", "\n".join(STORIES[story]().shown) + "\n"
    if os.environ.get("CALOSCALE_WRITE_GOLDEN"):
        file.write_text(shown, encoding="utf-8")
    assert shown == file.read_text(encoding="utf-8")


def test_what_the_conditions_and_events_say() -> None:
    w = two_lost_and_back(world(steps=3000))
    shrunk = f"{MISSING}; resuming on 2 nodes with the same global batch"
    assert [(event.kind, event.message) for event in w.events] == [
        ("Warning", "attempt 1 ended: node n0, n1 is gone, 1 steps lost"),
        ("Normal", MISSING),
        ("Warning", shrunk),
        ("Normal", "attempt 2: 2x8 on 2 nodes of pool v100-8"),
        ("Normal", "attempt 2 ended: 4 nodes can be had again, 20 steps lost"),
        ("Normal", "attempt 3: 4x8 on 4 nodes of pool v100-8"),
    ]
    assert {each["type"]: each["message"] for each in w.status["conditions"]} == {
        "Planned": "4 nodes of pool v100-8, 4 workers, about 85.83 USD",
        "Launched": "attempt 3: 4x8 in pool v100-8",
        "PlacementVerified": "4 workers, a node each, with all its accelerators",
        "Priced": "all machines have a price",
    }
    moved = sold_out(None)
    chosen = another_flavor(in_two_pools())
    (said,) = (event.message for event in moved.events if event.reason == "Moved")
    planned = [one.condition("Planned")["message"] for one in (moved, chosen)]
    assert planned == [said, "queue q chose 2 nodes (on-demand) of pool owned"]


def moment(w: World, *, to: Callable[[World], Any]) -> float:
    """When it acts if nothing happens, s after START: at a time that it has set itself, and not a second before."""
    for _ in range(50):
        assert w.again is not None, "nobody will look again"
        before, due = to(w), w.again
        w.now = due - dt.timedelta(seconds=1)
        w.reconcile()
        assert to(w) == before, "too early"
        w.now = due
        w.reconcile()
        if to(w) != before:
            return (due - START).total_seconds()
    raise AssertionError("it never acts")


def seconds(w: World, moment: str) -> float:
    return (dt.datetime.fromisoformat(moment) - START).total_seconds()


def after(w: World) -> float:
    return (w.now - START).total_seconds()


def lost(changes: dict[str, Any], nodes: int = 4, **kwargs: Any) -> World:
    """Two of its nodes were lost just now."""
    w = world(changes, **kwargs).until(lambda w: running(w) and w.step > 60)
    w.lose_node("n0")
    w.lose_node("n1")
    return w.until(lambda w: w.phase == "Recovering" and not w.pods)


def test_a_pause_after_a_failure_ends_on_the_second() -> None:
    w = world({"recovery": {"backoff": "40s"}}).until(lambda w: running(w) and w.step > 60)
    w.end("gan-1-worker-1", 139, "")
    w.until(lambda w: w.phase == "Recovering" and not w.pods)
    due = seconds(w, w.attempts[0]["ended"]) + 40
    assert moment(w, to=lambda w: len(w.attempts)) == due


def test_fewer_nodes_are_taken_when_the_time_to_wait_is_over() -> None:
    w = lost({"recovery": {"backoff": "1s", "waitForCapacity": "100s"}})
    w.until(lambda w: "waitingSince" in w.status)
    since = seconds(w, w.status["waitingSince"])
    assert moment(w, to=lambda w: len(w.attempts)) == since + 100
    assert w.attempts[-1]["nodes"] == 2 and "waitingSince" not in w.status and "notBefore" not in w.status


def test_planned_nodes_are_taken_again_when_they_were_free_for_the_time_that_is_set() -> None:
    changes = {"recovery": {"backoff": "1s", "waitForCapacity": "60s", "elastic": {"scaleUpAfter": "45s"}}}
    w = lost(changes, steps=10_000).until(second)
    w.nodes |= {f"m{i}": ex.spot(f"m{i}") for i in range(2)}
    w.reconcile()
    since = after(w)
    assert seconds(w, w.status["capacitySince"]) == since and w.status["placement"]["nodes"] == 2
    assert moment(w, to=lambda w: w.status["placement"]["nodes"]) == since + 45
    assert "capacitySince" not in w.status and w.attempts[1]["reason"] == "ScaledUp"


def test_planned_nodes_that_were_taken_by_others_are_waited_for_anew() -> None:
    changes = {"recovery": {"backoff": "1s", "waitForCapacity": "60s", "elastic": {"scaleUpAfter": "45s"}}}
    w = lost(changes, steps=10_000).until(second)
    w.nodes |= {f"m{i}": ex.spot(f"m{i}") for i in range(2)}
    w.reconcile()
    del w.nodes["m1"]
    w.reconcile()
    assert "capacitySince" not in w.status
    w.now += dt.timedelta(seconds=100)
    w.nodes["m2"] = ex.spot("m2")
    w.reconcile()
    assert seconds(w, w.status["capacitySince"]) == after(w) and len(w.attempts) == 2


def test_a_queue_is_asked_for_less_on_the_second() -> None:
    w = queued({"recovery": {"waitForCapacity": "60s", "elastic": {"minNodes": 2}}})
    assert moment(w, to=lambda w: w.attempts[0].get("reason")) == 60
    w = queued({"recovery": {"waitForCapacity": "60s"}})  # it is not allowed
    for _ in range(100):
        w.tick(10)
        w.reconcile()
    assert len(w.attempts) == 1


def test_workers_without_nodes_are_given_up_on_the_second() -> None:
    w = world({"recovery": {"waitForCapacity": "200s"}})
    w.unschedulable = {"n3"}
    w.until(lambda w: w.phase == "Starting" and len(w.pods) == 4)
    assert moment(w, to=lambda w: w.attempts[0].get("reason")) == seconds(w, w.attempts[0]["launched"]) + 200
    assert w.attempts[0]["reason"] == "Unschedulable"


def test_workers_have_a_minute_whatever_the_time_to_wait_is() -> None:
    w = world({"recovery": {"waitForCapacity": "5s"}})
    w.unschedulable = {"n3"}
    w.until(lambda w: w.phase == "Starting" and len(w.pods) == 4)
    assert moment(w, to=lambda w: w.attempts[0].get("reason")) == 60


def test_an_autoscaler_is_asked_again_ten_minutes_after_the_end_of_the_attempt() -> None:
    changes = {"waitForCapacity": "60s", "elastic": {"minNodes": 4}}
    w = world({"cluster": {"addNodes": True}, "recovery": changes}, nodes=1)
    w.until(lambda w: w.phase == "Recovering" and not w.pods and not w.jobs)
    w.reconcile()
    due = seconds(w, w.attempts[0]["ended"]) + 600
    assert moment(w, to=lambda w: len(w.attempts)) == due


def test_a_deadline_is_kept_on_the_second() -> None:
    w = world({"budget": {"deadline": "6h"}}, steps=100_000).until(running)
    begun = min(seconds(w, usage["since"]) for usage in w.attempts[0]["nodeUsage"])
    w.training, w.now = False, w.now + dt.timedelta(hours=5.9)
    w.reconcile()
    assert moment(w, to=lambda w: w.phase == "Failed") == begun + 6 * 3600


def test_a_step_has_a_minute_to_come_back() -> None:
    w = world(steps=100_000).until(lambda w: w.step >= 130)
    w.client_runs, left, w.training = False, after(w), False
    w.reconcile()
    assert moment(w, to=lambda w: w.phase) == left + 60


def test_a_finished_run_is_removed_on_the_second_and_its_workers_have_half_a_minute() -> None:
    w = world({"cluster": {"ttlSecondsAfterFinished": 100}})
    w.user_error = (2, "")
    w.until(ended)
    end = after(w)
    for job in w.jobs.values():
        job["status"]["conditions"] = []  # it does not say that it has ended
    w.user_error, w.training = None, False
    assert moment(w, to=lambda w: list(w.removed)) == end + 30 and w.removed == ["TFJob/gan-1"]
    assert moment(w, to=lambda w: list(w.removed)) == end + 100 and w.removed[-1] == "TrainingRun/gan"


def test_a_worker_in_another_pool_than_planned_is_a_mismatch() -> None:
    w = world()
    w.nodes["d0"] = ex.node("d0", "other")
    w.reconcile()
    w.tick()
    w.pods["gan-1-worker-1"]["spec"]["nodeName"] = "d0"
    w.until(running)
    verified = w.condition("PlacementVerified")
    assert (verified["status"], verified["reason"]) == ("False", "Mismatch")
    assert verified["message"] == "gan-1-worker-1 runs in pool other, v100-8 is planned"
    (event,) = w.events
    assert (event.kind, event.reason, event.message) == ("Warning", "PlacementMismatch", verified["message"])


def test_who_waits_says_what_is_missing_now_and_since_when() -> None:
    w = world(nodes=2)
    w.reconcile()
    w.now += dt.timedelta(seconds=30)
    del w.nodes["n1"]
    w.reconcile()
    assert (w.phase, w.status["waitingSince"]) == ("Waiting", START.strftime("%Y-%m-%dT%H:%M:%SZ"))
    assert w.status["message"] == "4 nodes with 8 free nvidia-tesla-v100 needed, 1 present: pool v100-8 is at 1/1"
    assert [event.reason for event in w.events] == ["Waiting"]
    launched = w.condition("Launched")
    assert launched["message"] == w.status["message"]


@pytest.mark.parametrize(("more", "grows"), [(0.0, False), (1.0, True), (None, True)])
def test_it_grows_where_that_saves_more_time_than_a_restart_takes(more: float | None, grows: bool) -> None:
    """Twice as many nodes halve what is left; a restart takes as long as the start of this attempt and a first step."""
    w = lost({"recovery": {"backoff": "1s", "waitForCapacity": "60s"}}, steps=10_000).until(second)
    w.nodes |= {f"m{i}": ex.spot(f"m{i}") for i in range(2)}
    live = w.attempts[1]
    restart_s = seconds(w, live["running"]) - seconds(w, live["launched"]) + 20.0
    assert w.report is not None and restart_s > 20
    eta = None if more is None else w.now + dt.timedelta(seconds=2 * restart_s + more)
    w.report = w.report.model_copy(update={"eta": eta, "seconds_first_step": 20.0, "updated": w.now})
    w.training = False
    w.reconcile()
    assert ("capacitySince" in w.status) is grows


def test_a_reason_why_workers_do_not_start_is_an_event_once_and_again_after_it_was_mended() -> None:
    w = world()
    w.refuses_pods = True
    w.warnings = [Diagnostic("gan-1", "FailedCreate", "no quota")]
    for _ in range(3):
        w.reconcile()
        w.now += dt.timedelta(seconds=10)
    assert [event.reason for event in w.events] == ["FailedCreate"]
    assert w.again == w.now  # ten seconds after the last look
    w.refuses_pods, w.warnings = False, []
    w.until(running)
    blocked = w.condition("Blocked")
    assert (blocked["status"], blocked["reason"], blocked["message"]) == ("False", "Running", "all workers run")


def test_the_estimate_of_a_solver_run_is_its_limit() -> None:
    spec = {"solver": {"ranks": 8, "maxMinutes": 60}, "hardware": {"accelerator": "nvidia-tesla-v100"}}
    w = World(ex.node("n0"), ex.cpu_node("c0"), spec={**spec, "cluster": {"volumeClaim": "shared"}})
    w.reconcile()
    planned = w.condition("Planned")
    usd = w.status["placement"]["estimateUsd"]
    assert planned["message"] == f"1 nodes of pool v100-8, 1 workers, at most {float(usd):.2f} USD"


def test_a_job_that_vanished_before_its_pods_came_is_made_again() -> None:
    w = world()
    w.reconcile()
    made = w.jobs.pop("gan-1")
    w.reconcile()
    assert w.jobs["gan-1"]["spec"] == made["spec"] and len(w.attempts) == 1
    assert (w.phase, w.status["message"]) == ("Starting", "attempt 1 is launched")
