"""What a run may cost and how long it may last: budget, deadline, queue."""

import dataclasses
import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caloscale.client.usage import use_of
from caloscale.cluster.capacity.pods import Diagnostic
from caloscale.cluster.capacity.pool_plan import Catalogue
from caloscale.operator.context import Draft
from caloscale.operator.lifecycle import affordable, in_time, limit_reached
from caloscale.operator.outcomes import Outcome
from caloscale.operator.reconcile import boost_of
from caloscale.planning.billing.bill import bill
from caloscale.planning.catalogue.prices import Prices, load_prices
from caloscale.status import AttemptStatus, NodeUsage, Placed, RunStatus
from tests.cluster import examples as ex
from tests.operator.world import START, World, ended, settled, world


def test_a_run_that_has_spent_its_budget_is_stopped_after_a_checkpoint() -> None:
    w = world({"budget": {"maxUsd": 90}}, steps=100_000)
    w.until(lambda w: w.phase == "Running")
    w.tick(8000)
    w.until(lambda w: w.phase == "Failed")
    w.until(lambda w: not w.pods)
    assert w.saved >= 7990 and w.attempts[0]["reason"] == "Budget"
    # four nodes at 38.77 USD an hour reach 90 USD after 8356 s
    assert 90 <= float(w.status["cost"]["usd"]) < 90 + 38.77248 / 3600 * 30


def test_a_deadline_passes_also_while_nothing_can_be_had() -> None:
    """Nobody waits for a run whose time is over, and nothing is launched for it when the nodes come back."""
    w = world({"budget": {"deadline": "6h"}, "recovery": {"elastic": {"minNodes": 4}, "backoff": "5s"}}, steps=100_000)
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
    w.admits = False
    w.reconcile()
    w.tick()
    w.reconcile()
    assert w.phase == "Waiting" and "queue q has not admitted it yet" in w.status["message"]
    return w


def admit(w: World) -> None:
    w.admits = True
    w.tick()
    w.reconcile()


def in_two_pools(**hardware: Any) -> World:
    """Two nodes of a spot pool and two of an on-demand pool; a run of two nodes in a queue, which may use both."""
    nodes = [ex.spot("a0", "spot"), ex.spot("a1", "spot"), ex.node("b0", "owned"), ex.node("b1", "owned")]
    spec = world({"hardware": {"queue": "q", "count": 16, "capacityType": None, **hardware}}).spec
    w = World(*nodes, spec=spec)
    w.admits = False
    w.reconcile()
    w.tick()
    w.reconcile()
    return w


@pytest.mark.parametrize(
    ("flavor", "pool", "capacity"),
    [
        ({"cloud.google.com/gke-nodepool": "spot"}, "spot", "spot"),
        ({"cloud.google.com/gke-nodepool": "owned"}, "owned", "on-demand"),
        ({"example.com/rack": "7"}, "owned", "on-demand"),  # a label that our table does not have: the nodes decide
    ],
)
def test_the_flavor_that_a_queue_admits_decides_pool_price_and_bill(
    flavor: dict[str, str], pool: str, capacity: str
) -> None:
    w = in_two_pools()
    assert w.status["placement"]["pool"] == "spot"  # the cheaper one is planned
    for name in ("b0", "b1"):
        w.nodes[name]["metadata"]["labels"]["example.com/rack"] = "7"
    w.flavor = flavor
    admit(w)
    w.until(lambda w: w.phase == "Running")
    placed = w.status["placement"]
    assert (placed["pool"], placed["capacityType"]) == (pool, capacity)
    assert w.condition("PlacementVerified")["status"] == "True"
    w.until(settled)
    (attempt,) = w.attempts
    assert [totals["capacityType"] for totals in attempt["nodeTotals"]] == [capacity]
    usd_per_hour = {"spot": 9.69312, "on-demand": 24.178688}[capacity]  # of a node with eight V100 in europe-west4
    assert float(placed["usdPerHour"]) == pytest.approx(2 * usd_per_hour)
    assert float(w.status["cost"]["usd"]) == pytest.approx(usd_per_hour * w.node_seconds() / 3600, abs=0.01)


def test_a_node_pool_of_both_capacity_types_is_two_pools_to_a_queue() -> None:
    """A NodePool of Karpenter: its nodes differ in the label of the capacity type, not in that of the pool."""
    nodes = [ex.VENDORS["karpenter"](f"k{i}") for i in range(4)]
    for node in nodes[:2]:
        node["metadata"]["labels"] = {**node["metadata"]["labels"], "karpenter.sh/capacity-type": "on-demand"}
    hardware = {"accelerator": "nvidia-tesla-v100", "count": 16, "perNode": 8, "queue": "q"}
    w = World(*nodes, spec={"model": {"preset": "variable-angle"}, "hardware": hardware})
    w.admits = False
    w.reconcile()
    planned = w.status["placement"]["capacityType"]
    other = {"spot": "on-demand", "on-demand": "spot"}[planned]
    w.flavor = {"karpenter.sh/nodepool": "gpu", "karpenter.sh/capacity-type": other}
    admit(w)
    w.until(lambda w: w.phase == "Running")
    assert (w.status["placement"]["pool"], w.status["placement"]["capacityType"]) == ("gpu", other)
    verified = w.condition("PlacementVerified")
    assert verified["status"] == "True"


def test_a_flavor_of_several_pools_never_spreads_the_workers() -> None:
    """One node of the first pool is in use, and the flavor has no label of one pool only."""
    w = in_two_pools()
    w.flavor = {"cloud.google.com/gke-accelerator": "nvidia-tesla-v100"}
    w.unschedulable = {"a0", "a1"}
    admit(w)
    w.until(lambda w: w.phase == "Running")
    assert w.status["placement"]["pool"] == "owned"
    assert {pod["spec"]["nodeName"] for pod in w.pods.values()} == {"b0", "b1"}


def test_a_queue_may_choose_no_pool_that_the_run_configuration_excludes() -> None:
    """Neither another capacity type, nor other accelerators, nor another number of them on a node, nor the budget."""
    w = in_two_pools(capacityType="spot")
    (job,) = w.jobs.values()
    pod = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    assert pod["nodeSelector"]["cloud.google.com/gke-nodepool"] == "spot" and "nodeAffinity" not in pod["affinity"]
    hardware = {"accelerator": "nvidia-tesla-v100", "count": 16, "queue": "q"}
    others = [ex.node(f"c{i}", "small", gpus=4) for i in range(4)]
    t4 = {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}
    others += [ex.node(f"d{i}", "t4", labels=t4) for i in range(2)]
    others += [ex.spot(f"a{i}", "spot") for i in range(2)] + [ex.node(f"b{i}", "owned") for i in range(2)]
    spec = {"model": {"preset": "variable-angle"}, "hardware": hardware}
    for budget, allowed in (({}, {"spot", "owned"}), ({"maxUsd": 500}, {"spot", "owned"}), ({"maxUsd": 100}, {"spot"})):
        w = World(*others, spec={**spec, "hardware": {**hardware, "perNode": 8}, "budget": budget})
        w.reconcile()
        (job,) = w.jobs.values()
        pod = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
        affinity = pod["affinity"].get("nodeAffinity", {})
        terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
        found = [{e["key"]: e["values"] for e in t["matchExpressions"]} for t in terms] or [
            {key: [value] for key, value in pod["nodeSelector"].items()}
        ]
        assert {each["cloud.google.com/gke-nodepool"][0] for each in found} == allowed


def test_the_time_in_a_queue_is_not_the_runs() -> None:
    w = queued({"budget": {"deadline": "6h"}})
    w.now += dt.timedelta(hours=7)
    w.reconcile()
    assert w.phase == "Waiting"
    admit(w)
    w.until(settled)
    assert w.phase == "Succeeded" and len(w.attempts) == 1


def test_a_queue_without_kueue_is_reported_at_once() -> None:
    """A job with the label of a queue and no Kueue would stay suspended for ever."""
    w = World(*(ex.spot(f"n{i}") for i in range(4)), spec=world({"hardware": {"queue": "q"}}).spec)
    w.has_queues = False
    w.reconcile()
    assert w.phase == "Waiting" and not w.jobs and "Kueue is not installed" in w.status["message"]
    launched = w.condition("Launched")
    assert launched["status"] == "False" and launched["reason"] == "NoKueue"
    w.has_queues = True
    w.until(settled)
    assert w.phase == "Succeeded"


def test_a_run_that_its_queue_preempts_is_admitted_again_and_no_restart_is_counted() -> None:
    """Ten times, with recovery.maxRestarts 1; nothing is lost that was saved, and no pause is made."""
    w = queued({"recovery": {"maxRestarts": 1}})
    for number in range(1, 11):
        admit(w)
        w.until(lambda w, number=number: w.phase == "Running" and w.step >= 20 * number)
        w.preempt()
        w.until(lambda w: w.phase == "Waiting" and "has not admitted it yet" in w.status["message"])
        assert w.attempts[number - 1]["reason"] == "Preempted" and len(w.attempts) == number + 1
        assert w.attempts[number - 1].get("stepsLost", 0) == 0
    admit(w)
    w.until(settled)
    assert w.phase == "Succeeded" and w.status.get("restarts", 0) == 0


def waiting_for(nodes: int) -> Callable[[World], bool]:
    """Whether the queue has been asked for so many nodes and has not admitted them."""
    return lambda w: (
        w.phase == "Waiting"
        and [job["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] for job in w.jobs.values()] == [nodes]
    )


def test_what_a_queue_does_not_admit_asks_for_fewer_nodes_with_the_same_global_batch() -> None:
    """Three nodes do not divide the batch; on two it runs to its end, although four are free by our count."""
    w = queued({"recovery": {"waitForCapacity": "60s", "elastic": {"minNodes": 2, "scaleUpAfter": "1s"}}})
    batch = w.status["placement"]["globalBatch"]
    w.until(waiting_for(2))
    assert (w.attempts[0]["reason"], w.attempts[0].get("usd", "0")) == ("Requeued", "0")
    assert (w.now - START).total_seconds() >= 60
    for _ in range(300):  # two are the fewest
        w.tick()
        w.reconcile()
    assert len(w.attempts) == 2
    admit(w)
    w.until(settled)
    placement = w.status["placement"]
    assert [a["reason"] for a in w.attempts] == ["Requeued", "Completed"] and w.status.get("restarts", 0) == 0
    assert (placement["nodes"], placement["plannedNodes"], w.status["layout"]) == (2, 4, "2x8")
    assert placement["globalBatch"] == batch == 2 * 8 * placement["batchPerReplica"] * placement["accumulate"]
    assert float(w.status["cost"]["usd"]) == round(w.node_seconds() / 3600 * 38.77248 / 4, 2)


def test_a_smaller_run_asks_for_the_planned_nodes_again_when_its_queue_has_taken_its_own() -> None:
    """After a lost node it does not: the quota of the smaller one is free, that of the planned one is not."""
    w = queued({"recovery": {"waitForCapacity": "60s", "backoff": "1s", "elastic": {"minNodes": 1}}})
    w.until(waiting_for(2))
    admit(w)
    w.until(lambda w: w.phase == "Running" and w.step >= 20)
    w.admits = False
    w.lose_node("n0")
    w.until(waiting_for(2))
    admit(w)
    w.until(lambda w: w.phase == "Running" and w.step >= 60)
    w.preempt()
    w.until(waiting_for(4))
    assert [a.get("reason") for a in w.attempts] == ["Requeued", "NodeLost", "Preempted", None]


def test_a_smaller_run_that_is_not_understood_keeps_its_nodes() -> None:
    """What a spec of a newer version needs of more nodes is not known."""
    w = queued({"recovery": {"waitForCapacity": "60s", "elastic": {"minNodes": 2}}})
    w.until(waiting_for(2))
    admit(w)
    w.until(lambda w: w.phase == "Running" and w.step >= 20)
    w.spec, w.generation = {**w.spec, "train": {"aNewerField": 1}}, 2
    w.preempt()
    w.until(lambda w: len(w.attempts) == 3)
    assert [a["nodes"] for a in w.attempts] == [4, 2, 2]


@pytest.mark.parametrize(("times", "nodes"), [(1.5, 4), (2.5, 2), (4.5, 1)])
def test_no_fewer_nodes_are_asked_for_than_end_in_time(times: float, nodes: int) -> None:
    """Half of the nodes take at most twice the estimate."""
    changes = {"recovery": {"waitForCapacity": "60s", "elastic": {"minNodes": 1}}}
    estimate_s = queued(changes).status["placement"]["estimateSeconds"]
    w = queued({**changes, "budget": {"deadline": f"{round(times * estimate_s)}s"}})
    for _ in range(300):
        w.tick()
        w.reconcile()
    assert waiting_for(nodes)(w)


def test_a_run_in_a_queue_publishes_what_its_eviction_would_cost() -> None:
    """Four nodes at 38.77248 USD an hour: the first step of 1 s again, and the steps since the checkpoint, of 1 s each.

    Before the first checkpoint it is all that the nodes were used for.
    """
    w = queued()
    assert not w.boosts
    w.save_every, costs = 100, []
    admit(w)
    for step in (90, 150, 290, 590):
        w.until(lambda w, step=step: w.step >= step)
        w.until(lambda w: w.status["progress"]["updated"] == w.status["cost"]["updated"])
        lost_s = 1 + w.status["progress"]["step"] - w.status["progress"].get("checkpointStep", 0)
        costs.append(float(w.status["cost"]["evictionUsd"]))
        assert costs[-1] == pytest.approx(38.77248 * lost_s / 3600, rel=0.03)
        assert costs[-1] <= float(w.status["cost"]["usd"]) + 0.01
        assert w.boosts[-1].value == boost_of(costs[-1])
    assert costs[1] < costs[0] and costs[1] < costs[2]  # the checkpoint of step 100 is made
    w.until(settled)
    assert "evictionUsd" not in w.status["cost"]


def test_what_preemptions_have_cost_is_part_of_the_published_cost() -> None:
    """A run that has resumed has little to lose, and would be preempted again before all others."""
    w = queued()
    w.save_every = 100
    admit(w)
    w.until(lambda w: w.step >= 90)
    w.until(lambda w: w.status["progress"]["updated"] == w.status["cost"]["updated"])
    before = w.boosts[-1].value
    w.preempt()
    w.until(lambda w: w.phase == "Waiting" and "has not admitted it yet" in w.status["message"])
    (first, _) = w.attempts
    lost_s = sum(first.get(part, 0) for part in ("waitingSeconds", "startUpSeconds", "lostSeconds"))
    admit(w)
    w.until(lambda w: w.phase == "Running" and w.step >= 2)
    w.until(lambda w: w.status["progress"]["updated"] == w.status["cost"]["updated"])
    usd = float(w.status["cost"]["evictionUsd"])
    assert boost_of(usd) < w.boosts[-1].value == boost_of(usd + 38.77248 * lost_s / 3600)
    assert before > 0


def test_a_boost_never_reaches_the_next_priority_class() -> None:
    costs = [0.0, 0.01, 0.05, 1.0, 10.0, 100.0, 889.0, 10**6]
    assert [boost_of(usd) for usd in costs] == [0, 6, 16, 40, 60, 80, 99, 99]


def test_what_a_queue_admitted_and_never_starts_is_not_paid_for_ever() -> None:
    w = queued({"recovery": {"waitForCapacity": "5m"}})
    w.can_mount, w.warnings = False, [Diagnostic("gan-1-worker-0", "FailedMount", "no such secret")]
    w.now += dt.timedelta(hours=7)
    admit(w)
    admitted = w.now
    w.until(ended)
    assert w.attempts[0]["reason"] == "StartupFailed"
    assert 300 <= (w.now - admitted).total_seconds() < 330


def unpriced(**changes: Any) -> World:
    """On machines of a region that has no prices."""
    spec = {"model": {"preset": "variable-angle"}, "hardware": {"accelerator": "nvidia-tesla-v100", "count": 32}}
    raw = [ex.node(f"n{i}", labels={"topology.kubernetes.io/region": "mars-1"}) for i in range(4)]
    return World(*raw, spec={**spec, **changes}, steps=10**7).until(lambda w: w.phase == "Running")


def test_a_budget_without_a_price_is_said_not_to_be_kept() -> None:
    w = unpriced()
    assert w.condition("Priced")["status"] == "False" and "budget.maxUsd" not in w.condition("Priced")["message"]
    planned = w.condition("Planned")
    assert planned["message"] == "4 nodes of pool v100-8, 4 workers"
    w.spec["budget"] = {"maxUsd": 5}
    w.generation = 2
    w.reconcile()
    assert "budget.maxUsd is not kept until there is one" in w.condition("Priced")["message"]


def test_a_budget_is_kept_from_when_there_is_a_price(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    w = unpriced(budget={})
    kinds = (("gpu", "nvidia-tesla-v100", "gpu", 2.5), ("vcpu", "n1", "vcpu", 0.03), ("mem_gib", "n1", "gib", 0.004))
    rows = [
        f"gcp,mars-1,{kind},{sku},{unit},on-demand,{usd},no,2026-11-01,,2026-11-01,our laboratory,list,no,,"
        for kind, sku, unit, usd in kinds
    ]
    (tmp_path / "prices.csv").write_text("\n".join([ex.PRICES_HEADER, *rows]) + "\n")
    prices = load_prices([tmp_path / "prices.csv"])
    monkeypatch.setattr(ex, "CATALOGUE", dataclasses.replace(ex.CATALOGUE, prices=prices, known={}))
    w.spec["budget"] = {"maxUsd": 5}
    w.generation = 2
    w.until(lambda w: w.phase == "Failed", most_seconds=3600)
    assert w.attempts[0]["reason"] == "Budget" and w.condition("Priced")["status"] == "True"
    per_second = 4 * (8 * 2.5 + 64 * 0.03 + 240 * 0.004) / 3600
    assert 5 <= float(w.status["cost"]["usd"]) < 5 + 61 * per_second


BESIDE = {"hardware": {"diskGib": 500, "controlPlane": True}}


@pytest.fixture
def beside(tmp_path: Path) -> Catalogue:
    """With prices of boot disks and of the control plane."""
    (tmp_path / "beside.csv").write_text(ex.BESIDE)
    prices = load_prices([tmp_path / "beside.csv"])
    return replace(ex.CATALOGUE, prices=prices, problem="newer ones are left aside", known={})


def test_disks_and_the_control_plane_are_in_estimate_cost_and_bill(beside: Catalogue) -> None:
    w = world(BESIDE, steps=3000, catalogue=beside).until(lambda w: w.phase == "Running" and w.step > 1500)
    w.lose_node("n0")
    w.nodes["m0"] = ex.spot("m0")
    w.until(settled)
    status = RunStatus.model_validate(w.status)
    spans = [
        (max(until for _, _, until in some) - min(since for _, since, _ in some)).total_seconds()
        for some in (w.ledger[:4], w.ledger[4:])
    ]
    node_usd = 64 * 0.01392 + 240 * 0.001866 + 8 * 1.0443 + 500 * 0.0002
    usd = (w.node_seconds() * node_usd + sum(spans) * 0.25) / 3600
    assert len(w.attempts) == 2 and float(w.status["cost"]["usd"]) == round(usd, 2)
    use = use_of("gan", status, w.now)
    assert use is not None and bill(use, beside.prices).usd == round(usd, 2)
    placed = status.placement
    assert placed is not None and placed.usd_per_hour == pytest.approx(4 * node_usd + 0.25)
    assert placed.control_plane_usd_per_hour == 0.25
    priced = w.condition("Priced")
    assert priced["message"] == "all machines have a price; newer ones are left aside"


def test_what_has_no_price_beside_the_nodes_is_no_cost() -> None:
    """No price of the control plane is known: the cost is unknown, not that of the nodes alone."""
    w = world(BESIDE, steps=100).until(settled)
    assert "usd" not in w.status["cost"] and w.status["cost"]["nodeHours"] > 0
    priced = w.condition("Priced")
    assert (priced["status"], priced["reason"]) == ("False", "NoPrice") and "disk_gib" in priced["message"]


def draft_of(
    usd_per_hour: float | None = 36.0, seconds: float | None = 7200.0, steps: int = 0, **budget: Any
) -> tuple[Draft, Any, Placed]:
    """After an hour of one node, which is 9.69 USD by its price; a placement of two of four nodes."""
    totals = {"machineType": "n1-standard-64", "accelerator": "nvidia-tesla-v100", "perNode": 8, "nodes": 1}
    totals |= {"region": "europe-west4", "capacityType": "spot", "nodeSeconds": 3600}
    attempt = {"number": 1, "job": "gan-1", "nodes": 1, "workers": 1, "launched": START.isoformat()}
    w = world().until(lambda w: "placement" in w.status)
    w.spec["budget"] = budget
    placed = {**w.status["placement"], "nodes": 2, "usdPerHour": usd_per_hour, "estimateSeconds": seconds}
    w.status |= {"attempts": [{**attempt, "ended": START.isoformat(), "nodeTotals": [totals]}], "placement": placed}
    w.status["progress"] = {"steps": 1000, "checkpointStep": steps}
    w.now = START + dt.timedelta(hours=1)
    draft = Draft(w.observe(), w.now)
    assert draft.status.placement is not None
    return draft, draft.run, draft.status.placement


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ({}, True),
        ({"maxUsd": 153.7}, True),  # 9.69 and four hours of 36: the estimate of two is that of four nodes
        ({"maxUsd": 153.6}, False),
        ({"maxUsd": 81.7, "steps": 500}, True),  # half is done
        ({"maxUsd": 81.6, "steps": 500}, False),
        ({"maxUsd": 999.0, "usd_per_hour": None}, False),
        ({"maxUsd": 999.0, "seconds": None}, False),
    ],
)
def test_another_pool_is_taken_where_the_rest_keeps_within_the_budget(given: dict[str, Any], allowed: bool) -> None:
    draft, run, placed = draft_of(**given)
    assert affordable(draft, run, placed) is allowed


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ({}, True),
        ({"deadline": "18000s"}, True),  # an hour has passed, and two hours take twice as long on half of the nodes
        ({"deadline": "17999s"}, False),
        ({"deadline": "10800s", "steps": 500}, True),
        ({"deadline": "10799s", "steps": 500}, False),
        ({"deadline": "1s", "seconds": None}, True),
    ],
)
def test_fewer_nodes_are_taken_where_the_rest_ends_in_time(given: dict[str, Any], allowed: bool) -> None:
    draft, run, placed = draft_of(**given)
    assert in_time(draft, run, placed) is allowed


def test_nothing_has_been_spent_before_the_first_attempt() -> None:
    draft, run, placed = draft_of(maxUsd=144.0)
    draft.put(attempts=())
    assert affordable(draft, run, placed) and limit_reached(draft, run) is None and draft.times == []
    draft, run, placed = draft_of(maxUsd=143.9)
    draft.put(attempts=())
    assert not affordable(draft, run, placed)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({"maxUsd": 23.0}, (23 - 9.69) / 36 * 3600),
        ({"maxUsd": 9.6901}, 1.0),
        ({"maxUsd": 23.0, "usd_per_hour": None}, 60.0),
    ],
)
def test_money_is_looked_at_when_it_will_be_spent(given: dict[str, Any], seconds: float) -> None:
    draft, run, _ = draft_of(**given)
    (first,) = draft.status.attempts
    assert limit_reached(draft, run) is None and draft.times == []  # no node is in use
    usage = NodeUsage(pod="p", uid="u", node="n0", since=draft.now)
    live = AttemptStatus(number=2, job="gan-2", nodes=1, workers=1, launched=draft.now, node_usage=(usage,))
    draft.put(attempts=(first, live))
    assert limit_reached(draft, run) is None
    assert [(due - draft.now).total_seconds() for due in draft.times] == [pytest.approx(seconds, abs=1e-3)]


def test_a_budget_is_spent_when_it_is_reached() -> None:
    draft, run, _ = draft_of(maxUsd=9.69)
    assert limit_reached(draft, run) == Outcome("Budget", "9.69 USD of budget.maxUsd 9.69 are spent")


def test_without_a_price_of_today_that_of_the_launch_counts() -> None:
    """An hour of one node of two that cost 36 USD an hour."""
    draft, run, placed = draft_of(maxUsd=18.0)
    draft.seen = replace(draft.seen, catalogue=replace(draft.seen.catalogue, prices=Prices(())))
    assert limit_reached(draft, run) == Outcome("Budget", "18.00 USD of budget.maxUsd 18 are spent")
    draft.put(placement=placed.model_copy(update={"usd_per_hour": None}))
    assert limit_reached(draft, run) is None and not affordable(draft, run, placed)
