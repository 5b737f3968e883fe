"""A run's life without a cluster: phases, recovery, money, and an operator that ends anywhere."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from caloscale.cluster.accounting import use_of
from caloscale.cluster.pods import Trouble
from caloscale.planning.bill import bill
from caloscale.planning.prices import Prices, load_prices
from caloscale.status import RunStatus
from tests.cluster_objects import examples as ex
from tests.operator.world import START, World

SPEC = """
model: {preset: variable-angle}
hardware: {accelerator: nvidia-tesla-v100, count: 32, perNode: 8, purchase: spot, region: europe-west4}
recovery: {backoff: 5s, waitForCapacity: 60s, growAfter: 20s}
"""
USD_PER_NODE_HOUR = 64 * 0.01392 + 240 * 0.001866 + 8 * 1.0443
"""n1-standard-64 with 8 V100, spot, europe-west4, at the prices that were seen in 2026."""


def world(changes: dict[str, Any] | None = None, nodes: int = 4, **kwargs: Any) -> World:
    spec = yaml.safe_load(SPEC)
    for block, fields in (changes or {}).items():
        spec[block] = {**spec.get(block, {}), **fields}
    return World(*(ex.spot(f"n{i}") for i in range(nodes)), spec=spec, **kwargs)


def ended(w: World) -> bool:
    return w.phase in ("Succeeded", "Failed")


def settled(w: World) -> bool:
    return ended(w) and all("holds" not in a or not a["holds"] for a in w.attempts)


def test_a_quiet_life() -> None:
    w = world().until(settled)
    assert w.phase == "Succeeded" and [a["reason"] for a in w.attempts] == ["Completed"]
    assert w.attempts[0]["stepsKept"] == w.steps and w.attempts[0].get("stepsLost", 0) == 0
    reasons = [event.reason for event in w.events]
    assert reasons == ["Launched", "Running", "Succeeded"]
    conditions = {c["type"]: c["status"] for c in w.status["conditions"]}
    assert conditions == {
        "Planned": "True",
        "Launched": "True",
        "PlacementVerified": "True",
        "Priced": "True",
        "Succeeded": "True",
        "Failed": "False",
    }
    assert w.status["layout"] == "4x8" and w.removed == []


def test_nothing_is_written_when_nothing_happens() -> None:
    w = world(nodes=2)
    w.until(lambda w: w.phase == "Waiting")
    writes = w.writes
    for _ in range(50):
        w.now += dt.timedelta(seconds=1)
        w.reconcile()
    assert w.writes == writes
    assert w.status["message"] == "4 nodes with 8 free nvidia-tesla-v100 needed, 2 present: pool v100-8 is at 2/2"


def test_the_bill_is_the_nodes_time_to_the_cent() -> None:
    w = world(steps=1000)
    w.until(lambda w: w.step >= 230)
    w.lose_node("n2")
    w.until(lambda w: w.phase == "Recovering")
    for _ in range(20):
        w.tick()
        w.reconcile()
    w.nodes["n9"] = ex.spot("n9")
    w.until(settled)
    usd = round(w.node_seconds() / 3600 * USD_PER_NODE_HOUR, 2)
    assert w.status["cost"]["usd"] == usd
    assert sum(round(100 * a["usd"]) for a in w.attempts) == round(100 * usd)
    use = use_of("gan", RunStatus.model_validate(w.status), w.now)
    assert use is not None and bill(use, ex.CATALOGUE.prices).usd == usd
    assert bill(use, ex.CATALOGUE.prices).interruptions == 1


def test_a_lost_node_costs_the_steps_since_the_checkpoint() -> None:
    w = world(steps=1000)
    w.until(lambda w: w.step >= 230)
    w.lose_node("n2")
    w.nodes["n9"] = ex.spot("n9")
    w.until(settled)
    first, second = w.attempts
    assert (first["reason"], first["message"]) == ("NodeLost", "node n2 is gone")
    # the others are told to end and save: only what n2 alone knew could be lost, which is nothing
    assert first["stepsKept"] + first.get("stepsLost", 0) >= 230 and second["reason"] == "Completed"
    assert w.status["restarts"] == 1 and w.most_live_jobs == 1


def test_all_nodes_at_once() -> None:
    w = world(steps=1000)
    w.until(lambda w: w.step >= 230)
    for name in list(w.nodes):
        w.lose_node(name)
    w.until(lambda w: w.phase == "Recovering")
    w.now += dt.timedelta(seconds=400)
    w.reconcile()
    assert w.phase == "Recovering" and "0 present" in w.status["message"]
    for i in range(4):
        w.nodes[f"m{i}"] = ex.spot(f"m{i}")
    w.until(settled)
    assert w.attempts[0]["stepsKept"] == 200 and w.attempts[0]["stepsLost"] >= 30
    assert w.attempts[1]["firstStep"] == 200 and w.phase == "Succeeded"


def test_it_shrinks_when_the_capacity_stays_away_and_grows_back() -> None:
    w = world(steps=3000)
    batch = None
    w.until(lambda w: w.phase == "Running")
    batch = w.status["placement"]["globalBatch"]
    w.lose_node("n0")
    w.lose_node("n1")
    w.until(lambda w: len(w.attempts) == 2 and w.phase == "Running")
    placement = w.status["placement"]
    assert (placement["nodes"], placement["plannedNodes"], w.status["layout"]) == (2, 4, "2x8")
    assert placement["globalBatch"] == batch == 2 * 8 * placement["batchPerReplica"] * placement["accumulate"]
    w.until(lambda w: w.step >= 500)
    for i in range(2):
        w.nodes[f"m{i}"] = ex.spot(f"m{i}")
    w.until(lambda w: len(w.attempts) == 3 and w.phase == "Running")
    assert w.status["layout"] == "4x8" and w.attempts[1]["reason"] == "Grown"
    assert w.attempts[1].get("stepsLost", 0) == 0 or w.attempts[1]["stepsLost"] < w.save_every
    w.until(settled)
    assert w.phase == "Succeeded" and w.status["restarts"] == 1 and w.most_live_jobs == 1


def test_it_does_not_grow_where_the_document_forbids() -> None:
    w = world({"recovery": {"backoff": "5s", "waitForCapacity": "60s", "growBack": False}}, steps=1500)
    w.until(lambda w: w.phase == "Running")
    w.lose_node("n0")
    w.lose_node("n1")
    w.until(lambda w: len(w.attempts) == 2 and w.phase == "Running")
    w.nodes.update({f"m{i}": ex.spot(f"m{i}") for i in range(2)})
    w.until(settled)
    assert len(w.attempts) == 2 and w.phase == "Succeeded"


def test_it_does_not_grow_for_the_last_steps() -> None:
    """A restart would take longer than what is left."""
    w = world(steps=3000).until(lambda w: w.phase == "Running")
    w.lose_node("n0")
    w.lose_node("n1")
    w.until(lambda w: len(w.attempts) == 2 and w.phase == "Running" and w.step >= 2978)
    for i in range(2):
        w.nodes[f"m{i}"] = ex.spot(f"m{i}")
    w.until(ended)
    assert [a["reason"] for a in w.attempts] == ["NodeLost", "Completed"]


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


def test_worker_0_is_told_when_its_own_machine_goes() -> None:
    w = validating()
    w.lose_node("n0")
    w.reconcile()
    assert w.attempts[0]["reason"] == "NodeLost"


def test_it_does_not_grow_while_worker_0_validates() -> None:
    w = world(steps=3000).until(lambda w: w.phase == "Running")
    w.lose_node("n0")
    w.lose_node("n1")
    w.until(lambda w: len(w.attempts) == 2 and w.phase == "Running")
    w.training = False
    w.end("gan-2-worker-1", 0, "")
    for i in range(2):
        w.nodes[f"m{i}"] = ex.spot(f"m{i}")
    for _ in range(60):
        w.tick()
        w.reconcile()
    assert w.phase == "Running" and len(w.attempts) == 2


def test_below_min_nodes_it_waits() -> None:
    w = world({"recovery": {"backoff": "5s", "waitForCapacity": "60s", "minNodes": 3}}, steps=1500)
    w.until(lambda w: w.phase == "Running")
    w.lose_node("n0")
    w.lose_node("n1")
    for _ in range(300):
        w.reconcile()
        w.tick()
    assert w.phase == "Recovering" and len(w.attempts) == 1


@pytest.mark.parametrize("code", [1, 2, 5, 127])
def test_a_users_error_fails_at_once_with_the_log(code: int) -> None:
    w = world()
    w.user_error = (code, "error: data.showers: is needed\n  remedy: --set data.showers=1500")
    w.until(ended)
    failed = next(c for c in w.status["conditions"] if c["type"] == "Failed")
    assert failed["status"] == "True" and failed["reason"] == "UserError"
    assert "remedy: --set data.showers=1500" in failed["message"] and len(w.attempts) == 1
    assert w.attempts[0]["exitCode"] == code


@pytest.mark.parametrize("code", [128, 134, 137, 138, 139, 143, 255])
def test_a_machines_error_is_tried_again(code: int) -> None:
    w = world(steps=400)
    w.until(lambda w: w.step >= 100)
    w.end("gan-1-worker-3", code, "peer lost")
    w.until(settled)
    assert w.phase == "Succeeded" and [a["reason"] for a in w.attempts] == ["WorkerFailed", "Completed"]
    assert w.attempts[0]["exitCode"] == code


def test_the_restart_budget_ends_and_the_pauses_grow() -> None:
    w = world({"recovery": {"maxRestarts": 3, "backoff": "10s", "waitForCapacity": "60s"}}, save_every=10_000)
    launched = []
    for _ in range(4):
        number = len(w.attempts) + 1
        w.until(lambda w, number=number: len(w.attempts) == number and w.phase == "Running")
        launched.append(w.now)
        w.end(f"gan-{number}-worker-1", 139, "")
        w.saved = 0
        w.reconcile()
    assert w.phase == "Failed" and w.status["restarts"] == 3
    failed = next(c for c in w.status["conditions"] if c["type"] == "Failed")
    assert failed["reason"] == "RestartBudget" and "recovery.maxRestarts 3" in failed["message"]
    pauses = [(b - a).total_seconds() for a, b in itertools.pairwise(launched)]
    assert pauses[0] < pauses[1] < pauses[2]


def test_suspend_saves_gives_back_and_goes_on() -> None:
    w = world(steps=600)
    w.until(lambda w: w.step >= 130)
    w.spec["cluster"] = {"suspend": True}
    w.generation = 2
    w.until(lambda w: w.phase == "Suspended" and not w.pods)
    saved = w.saved
    assert saved >= 130 and not w.jobs
    for _ in range(100):
        w.reconcile()
        w.tick()
    assert w.phase == "Suspended"
    w.spec["cluster"] = {"suspend": False}
    w.generation = 3
    w.until(settled)
    assert w.phase == "Succeeded" and w.status["restarts"] == 0 and w.status["observedGeneration"] == 3


def test_a_run_whose_pipeline_step_has_gone_stops_and_goes_on_with_another() -> None:
    """Whoever terminates a pipeline does not want to pay for its machines; a step that is tried again does."""
    w = world(steps=600)
    w.until(lambda w: w.step >= 130)
    w.followed, left = False, w.now
    w.until(lambda w: w.phase == "Suspended" and not w.pods)
    assert 60 <= (w.now - left).total_seconds() <= 90 and w.saved >= 130 and not w.jobs
    told = w.status["message"]
    assert "the pipeline step that follows it, pod step, has ended" in told and "caloscale stop gan --resume" in told
    for _ in range(100):
        w.reconcile()
        w.tick()
    assert w.phase == "Suspended"
    w.followed = True
    w.until(settled)
    assert w.phase == "Succeeded" and w.status["restarts"] == 0 and "unfollowedSince" not in w.status


def test_a_step_that_is_tried_again_soon_disturbs_nothing() -> None:
    w = world(steps=600)
    w.until(lambda w: w.step >= 130)
    w.followed, left = False, w.now
    w.until(lambda w: (w.now - left).total_seconds() >= 40)
    w.followed = True
    w.until(settled)
    assert w.phase == "Succeeded" and len(w.attempts) == 1


def test_a_run_beyond_its_budget_is_not_launched_and_goes_on_when_it_is_raised() -> None:
    w = world({"budget": {"maxUsd": 2}})
    w.until(ended)
    assert w.phase == "Failed" and not w.jobs and not w.attempts and "budget.maxUsd is 2" in w.status["message"]
    w.spec["budget"] = {"maxUsd": 500}
    w.generation = 2
    w.until(settled)
    assert w.phase == "Succeeded"


def test_a_run_that_has_spent_its_budget_is_stopped_after_a_checkpoint() -> None:
    w = world({"budget": {"maxUsd": 90}}, steps=100_000)
    w.until(lambda w: w.phase == "Running")
    w.tick(8000)
    w.until(lambda w: w.phase == "Failed")
    w.until(lambda w: not w.pods)
    assert w.saved >= 7990 and w.attempts[0]["reason"] == "Budget"
    # four nodes at 38.77 USD an hour reach 90 USD after 8356 s
    assert 90 <= w.status["cost"]["usd"] < 90 + 38.77248 / 3600 * 30


def test_an_autoscaler_is_given_pods_to_make_nodes_for() -> None:
    w = world({"cluster": {"addNodes": True}, "recovery": {"waitForCapacity": "90s", "backoff": "1s"}}, nodes=0)
    w.until(lambda w: w.phase == "Starting")
    assert w.status["placement"]["nodeSelector"] == {
        "cloud.google.com/gke-accelerator": "nvidia-tesla-v100",
        "node.kubernetes.io/instance-type": "n1-standard-64",
        "cloud.google.com/gke-spot": "true",
    }
    for i in range(4):
        w.nodes[f"a{i}"] = ex.spot(f"a{i}")
    w.until(settled)
    assert w.phase == "Succeeded" and len(w.attempts) == 1


def test_what_an_autoscaler_could_not_make_is_given_back() -> None:
    w = world({"cluster": {"addNodes": True}, "recovery": {"waitForCapacity": "90s", "backoff": "1s"}}, nodes=0)
    w.until(lambda w: w.phase == "Starting")
    for i in range(3):
        w.nodes[f"a{i}"] = ex.spot(f"a{i}")
    w.until(lambda w: w.phase == "Running")
    assert w.attempts[0]["reason"] == "NoRoom" and w.status["layout"] == "2x8" and w.status["restarts"] == 0


def test_an_autoscaler_without_machines_is_asked_less_and_less_often() -> None:
    """Each attempt holds, and pays, what it is given until the rest is given up."""
    w = world({"cluster": {"addNodes": True}, "recovery": {"waitForCapacity": "60s", "minNodes": 4}}, nodes=1)
    for _ in range(8 * 3600):
        if (w.again is not None and w.now >= w.again) or w.again is None:
            w.reconcile()
        w.tick()
    launched = [dt.datetime.fromisoformat(a["launched"]) for a in w.attempts]
    pauses = [round((b - a).total_seconds() / 60) for a, b in itertools.pairwise(launched)]
    assert w.phase in ("Recovering", "Starting") and w.status["restarts"] == 0
    assert pauses[:4] == [11, 21, 41, 61] and all(pause == 61 for pause in pauses[3:])


def test_room_that_only_the_operator_sees_is_not_paid_for_ever() -> None:
    """The scheduler knows what the operator does not, such as a volume's zone: three nodes are held each time."""
    w = world({"recovery": {"maxRestarts": 2, "backoff": "1s", "waitForCapacity": "60s"}})
    w.unschedulable = {"n3"}
    w.warnings = [Trouble("gan-1-worker-3", "FailedScheduling", "0/4 nodes are available: 1 volume node conflict")]
    w.until(ended)
    assert w.phase == "Failed" and [a["reason"] for a in w.attempts] == ["NoRoom"] * 3
    assert "recovery.maxRestarts 2 are used up" in w.status["message"]
    assert "1 volume node conflict" in w.status["message"]


def test_what_cannot_be_mounted_is_told_and_not_paid_for_ever() -> None:
    """Such a pod says nothing of itself but that its container is being made."""
    w = world({"recovery": {"waitForCapacity": "60s"}})
    w.can_mount = False
    message = 'MountVolume.SetUp failed for volume "credentials" : secret "nokey" not found'
    w.warnings = [Trouble("gan-1-worker-0", "FailedMount", message)]
    w.until(lambda w: w.phase == "Starting" and bool(blocked(w)))
    assert "cluster.credentialsSecret" in blocked(w)["message"]
    w.until(ended)
    assert w.phase == "Failed" and w.attempts[0]["reason"] == "CannotStart" and "nokey" in w.status["message"]


def test_what_could_be_mounted_at_last_is_not_held_against_a_run() -> None:
    w = world({"recovery": {"waitForCapacity": "60s"}})
    w.can_mount = False
    w.warnings = [Trouble("gan-1-worker-0", "FailedMount", "timed out", w.now)]
    w.until(lambda w: w.phase == "Starting" and bool(blocked(w)))
    w.can_mount = True
    w.until(settled)
    assert w.phase == "Succeeded" and len(w.attempts) == 1


def test_an_operator_that_ended_between_launch_and_job_makes_it_much_later() -> None:
    w = world()
    effects = iter([False])  # the status is written, and then it ends
    w.reconcile(lambda: next(effects, True))
    assert w.phase == "Starting" and not w.jobs
    w.now += dt.timedelta(hours=1)
    w.until(settled)
    assert w.phase == "Succeeded" and len(w.attempts) == 1


def test_pods_that_the_cluster_refuses_are_told_and_not_tried_for_ever() -> None:
    w = world({"recovery": {"maxRestarts": 2, "backoff": "1s", "waitForCapacity": "60s"}})
    w.refuses_pods = True
    w.until(ended)
    assert w.phase == "Failed" and len(w.attempts) == 3
    assert "made no pods; kubectl describe says why" in w.status["message"]


def blocked(w: World) -> dict[str, Any]:
    return next((c for c in w.status.get("conditions", []) if c["type"] == "Blocked"), {})


def test_an_image_that_does_not_come_is_told_at_once_and_not_paid_for_ever() -> None:
    w = world()
    w.has_image = False
    w.until(blocked)
    assert (w.now - START).total_seconds() < 5 and w.phase == "Starting"
    assert blocked(w)["reason"] == "ImagePullBackOff" and 'pulling image "nowhere:1"' in blocked(w)["message"]
    assert "remedy: see that the image exists under this name" in w.status["message"]
    w.until(settled)
    assert w.phase == "Failed" and [a["reason"] for a in w.attempts] == ["CannotStart"]
    assert 55 <= w.attempts[0]["nodeHours"] * 3600 / 4 < 70, "recovery.waitForCapacity is 60 s"
    w.has_image, w.generation = True, 2  # the document names another image
    w.until(settled)
    assert w.phase == "Succeeded" and blocked(w)["status"] == "False"


def test_warnings_of_the_cluster_are_told_while_workers_do_not_start() -> None:
    w = world()
    w.refuses_pods = True
    quota = 'pods "gan-1-worker-0" is forbidden: exceeded quota: small'
    w.warnings = [Trouble("gan-1", "FailedCreatePod", quota)]
    w.until(blocked)
    remedy = "raise the quota of the namespace (kubectl describe quota), or ask for less in hardware"
    assert blocked(w)["message"] == f"gan-1: {quota}; remedy: {remedy}"
    assert [event.reason for event in w.events].count("FailedCreatePod") == 1
    w.refuses_pods = False
    w.warnings = []
    w.until(lambda w: w.phase == "Running")
    assert blocked(w)["status"] == "False"


def test_a_deadline_ends_a_run() -> None:
    w = world({"budget": {"deadline": "6h"}}, steps=100_000)
    w.until(lambda w: w.phase == "Running")
    w.tick(6 * 3600)
    w.until(lambda w: w.phase == "Failed")
    assert w.attempts[0]["reason"] == "Deadline" and "budget.deadline of 6h" in w.status["message"]


def test_a_deadline_passes_also_while_nothing_can_be_had() -> None:
    """Nobody waits for a run whose time is over, and nothing is launched for it when the nodes come back."""
    w = world({"budget": {"deadline": "6h"}, "recovery": {"minNodes": 4, "backoff": "5s"}}, steps=100_000)
    w.until(lambda w: w.phase == "Running")
    w.lose_node("n0")
    w.until(lambda w: w.phase == "Recovering" and not w.pods)
    w.reconcile()
    assert w.again is not None and w.again <= START + dt.timedelta(hours=6, minutes=1)
    w.now = START + dt.timedelta(hours=6, minutes=1)
    w.nodes["m0"] = ex.spot("m0")
    w.reconcile()
    assert w.phase == "Failed" and len(w.attempts) == 1 and "budget.deadline of 6h" in w.status["message"]


def queued(changes: dict[str, Any] | None = None) -> World:
    """A run that Kueue has not admitted yet."""
    w = world({"hardware": {"queue": "q"}, **(changes or {})})
    w.reconcile()
    w.jobs["gan-1"]["status"]["conditions"] = [{"type": "Suspended", "status": "True"}]
    w.reconcile()
    assert w.phase == "Waiting" and "queue q has not admitted it yet" in w.status["message"]
    return w


def admit(w: World) -> None:
    w.jobs["gan-1"]["status"]["conditions"] = [{"type": "Suspended", "status": "False"}]
    w._make_pods(w.jobs["gan-1"])
    w.reconcile()


def test_the_time_in_a_queue_is_not_the_runs() -> None:
    w = queued({"budget": {"deadline": "6h"}})
    w.now += dt.timedelta(hours=7)
    w.reconcile()
    assert w.phase == "Waiting"
    admit(w)
    w.until(settled)
    assert w.phase == "Succeeded" and len(w.attempts) == 1


def test_what_a_queue_admitted_and_never_starts_is_not_paid_for_ever() -> None:
    w = queued({"recovery": {"waitForCapacity": "5m"}})
    w.has_image = False
    w.now += dt.timedelta(hours=7)
    admit(w)
    admitted = w.now
    w.until(ended)
    assert w.attempts[0]["reason"] == "CannotStart"
    assert 300 <= (w.now - admitted).total_seconds() < 330


def unpriced(**changes: Any) -> World:
    """On machines of a region that has no prices."""
    spec = {"model": {"preset": "variable-angle"}, "hardware": {"accelerator": "nvidia-tesla-v100", "count": 32}}
    raw = [ex.node(f"n{i}", labels={"topology.kubernetes.io/region": "mars-1"}) for i in range(4)]
    return World(*raw, spec={**spec, **changes}, steps=10**7).until(lambda w: w.phase == "Running")


def priced(w: World) -> dict[str, Any]:
    return next(c for c in w.status["conditions"] if c["type"] == "Priced")


def test_a_budget_without_a_price_is_said_not_to_be_kept() -> None:
    w = unpriced()
    assert priced(w)["status"] == "False" and "budget.maxUsd" not in priced(w)["message"]
    w.spec["budget"] = {"maxUsd": 5}
    w.generation = 2
    w.reconcile()
    assert "budget.maxUsd is not kept until there is one" in priced(w)["message"]


def test_a_budget_is_kept_from_when_there_is_a_price(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    w = unpriced(budget={})
    kinds = (("gpu", "nvidia-tesla-v100", "gpu", 2.5), ("vcpu", "n1", "vcpu", 0.03), ("mem_gib", "n1", "gib", 0.004))
    header = (
        "provider,region,sku_kind,sku,unit,purchase,usd_per_unit_hour,includes_host,effective_from,effective_to,"
        "observed_on,source,confidence,retired,waiver,note"
    )
    rows = [
        f"gcp,mars-1,{kind},{sku},{unit},on-demand,{usd},no,2026-11-01,,2026-11-01,our laboratory,list,no,,"
        for kind, sku, unit, usd in kinds
    ]
    (tmp_path / "prices.csv").write_text("\n".join([header, *rows]) + "\n")
    prices = load_prices([tmp_path / "prices.csv"])
    monkeypatch.setattr(ex, "CATALOGUE", dataclasses.replace(ex.CATALOGUE, prices=prices, known={}))
    w.spec["budget"] = {"maxUsd": 5}
    w.generation = 2
    w.until(lambda w: w.phase == "Failed", most_seconds=3600)
    assert w.attempts[0]["reason"] == "Budget" and priced(w)["status"] == "True"
    per_second = 4 * (8 * 2.5 + 64 * 0.03 + 240 * 0.004) / 3600
    assert 5 <= w.status["cost"]["usd"] < 5 + 61 * per_second


def test_a_budget_is_kept_when_the_price_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the price of the launch: somebody took the row out of the ConfigMap."""
    w = world({"budget": {"maxUsd": 90}}, steps=100_000).until(lambda w: w.phase == "Running")
    none = Prices(())
    monkeypatch.setattr(ex, "CATALOGUE", dataclasses.replace(ex.CATALOGUE, prices=none, known={}))
    w.tick(8300)
    w.until(lambda w: w.phase == "Failed", most_seconds=200)
    assert w.attempts[0]["reason"] == "Budget"


def test_an_invalid_document_fails_with_the_remedy_and_may_be_mended() -> None:
    w = world({"data": {"preprocessing": {"rebin": [2, 1, 1]}}})
    w.until(ended)
    assert "does not divide" in w.status["message"] and "remedy" in w.status["message"]
    w.spec["data"] = {}
    w.generation = 2
    w.until(settled)
    assert w.phase == "Succeeded"


def test_a_deleted_job_is_made_again_as_another_attempt() -> None:
    w = world(steps=400)
    w.until(lambda w: w.step >= 100)
    del w.jobs["gan-1"]
    for name in list(w.pods):
        w.vanish(name)
    w.until(settled)
    assert w.phase == "Succeeded" and len(w.attempts) == 2 and w.attempts[0]["reason"] in ("WorkerLost", "JobLost")


def test_a_mismatch_with_the_plan_is_a_condition() -> None:
    w = world()
    w.reconcile()
    w.tick()
    pod = w.pods["gan-1-worker-1"]
    pod["spec"]["nodeName"] = w.pods["gan-1-worker-0"]["spec"]["nodeName"]
    w.until(lambda w: w.phase == "Running")
    verified = next(c for c in w.status["conditions"] if c["type"] == "PlacementVerified")
    assert verified["status"] == "False" and "gan-1-worker-0 and gan-1-worker-1 share node" in verified["message"]


@pytest.mark.parametrize("ends_between", [False, True])
def test_a_document_that_is_spoilt_while_it_runs_leaves_no_machine_and_no_open_bill(ends_between: bool) -> None:
    w = world(steps=100_000).until(lambda w: w.phase == "Running" and w.step > 100)
    w.spec["checkpoint"] = {"uri": "s3://bucket/checkpoints"}
    w.generation = 2
    effects = iter([False])
    w.reconcile(lambda: ends_between and next(effects, True))  # the status is written, and then the operator ends
    assert w.phase == "Failed" and "gs://bucket/prefix" in w.status["message"]
    w.until(settled, most_seconds=120)
    assert not w.jobs and not w.pods and w.attempts[0]["reason"] == "UserError"
    spent = w.status["cost"]["usd"]
    use = use_of("gan", RunStatus.model_validate(w.status), w.now + dt.timedelta(days=7))
    assert use is not None
    assert use.attempts[0].nodes[0].seconds * 4 == pytest.approx(w.node_seconds())
    assert spent == pytest.approx(w.node_seconds() / 3600 * USD_PER_NODE_HOUR, abs=0.006)


def test_to_stop_a_run_that_has_failed_is_no_wish_to_go_on() -> None:
    w = world({"budget": {"maxUsd": 2}}).until(ended)
    w.spec["cluster"] = {"suspend": True}
    w.generation = 2
    w.reconcile()
    assert w.phase == "Failed"


def test_a_finished_run_is_removed_when_it_has_been_kept() -> None:
    w = world({"cluster": {"keepFinished": "1h"}})
    w.until(settled)
    assert "TrainingRun/gan" not in w.removed
    w.now += dt.timedelta(hours=1)
    w.reconcile()
    assert "TrainingRun/gan" in w.removed


def test_a_finished_run_is_removed_although_nothing_happens_any_more() -> None:
    """No event comes after the last status: the operator must have set itself a time."""
    w = world({"cluster": {"keepFinished": "1h"}}).until(ended)
    for _ in range(200):
        if "TrainingRun/gan" in w.removed:
            break
        assert w.again is not None, "nobody will look again"
        w.now = max(w.now, w.again)
        w.reconcile()
    assert "TrainingRun/gan" in w.removed
    assert w.now <= START + dt.timedelta(hours=2)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**9))
def test_the_operator_may_end_anywhere(seed: int) -> None:
    """Random faults, and a crash of the operator before any write or action: the run ends as it would have."""
    chance = random.Random(seed)
    w = world(steps=200, save_every=20)

    def dies() -> bool:
        return chance.random() < 0.25

    for second in range(4000):
        if chance.random() < 0.3:  # the operator is often away for a while
            w.reconcile(dies)
        if settled(w) and w.phase == "Succeeded":
            break
        if second < 600 and chance.random() < 0.01 and len(w.nodes) > 2:
            w.lose_node(chance.choice(sorted(w.nodes)))
        if len(w.nodes) < 4 and chance.random() < 0.02:
            w.nodes[f"r{second}"] = ex.spot(f"r{second}")
        w.tick()
    w.until(settled)
    assert w.phase == "Succeeded" and w.most_live_jobs == 1
    assert [a["number"] for a in w.attempts] == list(range(1, len(w.attempts) + 1))
    assert all(a.get("ended") for a in w.attempts) and w.attempts[-1]["reason"] == "Completed"
    assert w.status["restarts"] <= 10
    kept = sum(a["stepsKept"] for a in w.attempts)
    assert kept <= 200 and w.step == 200
