"""What a run may cost and how long it may last: budget, deadline, queue."""

from __future__ import annotations

import dataclasses
import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from caloscale.planning.catalogue.prices import Prices, load_prices
from tests.cluster import examples as ex
from tests.operator.world import START, World, ended, settled, world


def test_a_run_beyond_its_budget_is_not_launched_and_resumes_when_it_is_raised() -> None:
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
    assert 90 <= float(w.status["cost"]["usd"]) < 90 + 38.77248 / 3600 * 30


def test_a_deadline_ends_a_run() -> None:
    w = world({"budget": {"deadline": "6h"}}, steps=100_000)
    w.until(lambda w: w.phase == "Running")
    w.tick(6 * 3600)
    w.until(lambda w: w.phase == "Failed")
    assert w.attempts[0]["reason"] == "Deadline" and "budget.deadline of 6h" in w.status["message"]


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
    (launched,) = [each for each in w.status["conditions"] if each["type"] == "Launched"]
    assert launched["status"] == "False" and launched["reason"] == "NoKueue"
    w.has_queues = True
    w.until(settled)
    assert w.phase == "Succeeded"


def test_one_worker_waits_in_a_queue_as_a_suspended_job() -> None:
    """A bare pod could not be suspended: it was judged unschedulable every ten minutes and used up the restarts."""
    w = world({"hardware": {"queue": "q", "count": 8}})
    w.reconcile()
    (job,) = w.jobs.values()
    assert job["kind"] == "TFJob" and job["spec"]["runPolicy"]["suspend"] is True
    for _ in range(180):
        w.now += dt.timedelta(minutes=1)
        w.reconcile()
    assert w.phase == "Waiting" and len(w.attempts) == 1 and w.status.get("restarts", 0) == 0


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


def test_what_a_queue_admitted_and_never_starts_is_not_paid_for_ever() -> None:
    w = queued({"recovery": {"waitForCapacity": "5m"}})
    w.has_image = False
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
        "provider,region,sku_kind,sku,unit,capacity_type,usd_per_unit_hour,includes_host,effective_from,effective_to,"
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
    assert 5 <= float(w.status["cost"]["usd"]) < 5 + 61 * per_second


def test_a_budget_is_kept_when_the_price_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the price of the launch: somebody took the row out of the ConfigMap."""
    w = world({"budget": {"maxUsd": 90}}, steps=100_000).until(lambda w: w.phase == "Running")
    none = Prices(())
    monkeypatch.setattr(ex, "CATALOGUE", dataclasses.replace(ex.CATALOGUE, prices=none, known={}))
    w.tick(8300)
    w.until(lambda w: w.phase == "Failed", most_seconds=200)
    assert w.attempts[0]["reason"] == "Budget"
