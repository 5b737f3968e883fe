"""Waiting runs: those that can be launched are tried, and only those of whom it is not known that they cannot."""

import datetime as dt
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from caloscale.cluster.capacity.nodes import PoolKey, Use, node_of
from caloscale.cluster.capacity.placement import Need
from caloscale.cluster.names import RunKey
from caloscale.operator import controller as module
from caloscale.operator.controller import Controller
from caloscale.operator.metrics import Metrics
from caloscale.operator.parking import Parking
from caloscale.operator.reconcile import reconcile
from caloscale.operator.settings import Settings
from tests.cluster import examples as ex
from tests.operator import test_controller
from tests.operator.test_store import pod, versioned

ATTEMPT = {"number": 1, "job": "j", "nodes": 1, "workers": 1, "launched": "2026-11-21T10:00:00Z"}
HARDWARE: dict[str, Any] = {"accelerator": "nvidia-tesla-v100", "region": "europe-west4"}


class Crowd(test_controller.Server):
    """Many runs, one-node pools and pods of others."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.now = 100
        self.raw: dict[str, dict[str, Any]] = {}
        self.decided: list[str] = []
        self.controller = Controller(self, Settings(prices=folder, debounce_seconds=0.0), Metrics())  # type: ignore[arg-type]

        def decide(seen: Any, now: dt.datetime) -> Any:
            self.decided.append(seen.run.name)
            return reconcile(seen, now)

        monkeypatch.setattr(module, "reconcile", decide)

    def apply(self, manifest: dict[str, Any], part: str = "") -> dict[str, Any]:
        self.now += 1
        name = manifest["metadata"]["name"]
        if part == "status":
            manifest = self.raw[name] = {**self.raw[name], "status": manifest["status"]}
        metadata = {**manifest["metadata"], "resourceVersion": str(self.now)}
        return {**manifest, "metadata": {"uid": f"u-{name}", **metadata}}

    def put(self, kind: str, raw: dict[str, Any], *, gone: bool = False) -> None:
        self.now += 1
        self.controller.notice(kind, versioned(raw, self.now), gone)

    def submit(self, name: str, **hardware: Any) -> None:
        metadata = {"namespace": "physics", "name": name, "uid": f"u-{name}", "generation": 1}
        spec = {"model": {"preset": "variable-angle"}, "hardware": {**HARDWARE, **hardware}}
        self.raw[name] = {**test_controller.run(), "metadata": metadata, "spec": spec}
        self.put("TrainingRun", self.raw[name])

    def settle(self) -> list[str]:
        """Reconcile until nothing is due; returns what was decided about."""
        self.decided.clear()
        while (run := self.controller.queue.get(0.0)) is not None:
            self.controller._reconcile(run)
            self.controller.queue.done(run)
        return list(self.decided)

    @property
    def phases(self) -> Counter[str]:
        return Counter(known.status.phase for known in self.controller.store.runs.values())


@pytest.fixture
def crowd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Crowd:
    return Crowd(tmp_path, monkeypatch)


def stranger(number: int, node: str) -> dict[str, Any]:
    return pod(f"stranger-{number}", 1, node=node, run="")


def test_a_pod_of_others_that_ends_has_one_run_of_each_class_tried(crowd: Crowd) -> None:
    for number in range(4):
        crowd.put("Node", ex.spot(f"n{number}"))
        crowd.put("Pod", stranger(number, f"n{number}"))
    for number in range(10):
        crowd.submit(f"two-{number}", count=16, capacityType="spot")
        crowd.submit(f"one-{number}", count=8, capacityType="spot")
        crowd.submit(f"none-{number}", count=8, capacityType="on-demand")
    assert sorted(crowd.settle()) == sorted(f"{kind}-{n}" for kind in ("two", "one", "none") for n in range(10))
    crowd.put("Pod", stranger(0, "n0"), gone=True)
    assert crowd.settle() == ["one-0"] and crowd.phases["Starting"] == 1
    crowd.put("Node", ex.spot("n4"))
    assert crowd.settle() == ["one-1"] and crowd.phases["Starting"] == 2
    crowd.put("Node", ex.node("d0", "on-demand"))  # a pool that was not there
    crowd.settle()
    assert (
        crowd.phases["Starting"] == 3
        and crowd.controller.store.runs[RunKey("physics", "none-0", "u-none-0")].status.live
    )


@pytest.mark.parametrize("nodes", [(("n1", "others"), ("n2", "others")), (("n1", "v100-8"),)], ids=["a pool", "a node"])
def test_nodes_that_come_while_a_run_is_decided_about_are_not_missed(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch, nodes: tuple[tuple[str, str], ...]
) -> None:
    """A decision takes long on a busy machine, and knows the pools as they were when it began."""
    crowd.put("Node", ex.spot("n0"))
    decide = module.reconcile

    def slow(seen: Any, now: dt.datetime) -> Any:
        decision = decide(seen, now)
        if len(crowd.decided) == 1:
            for name, pool in nodes:
                crowd.put("Node", ex.spot(name, pool))
        return decision

    monkeypatch.setattr(module, "reconcile", slow)
    crowd.submit("two", count=16, capacityType="spot")
    crowd.settle()
    assert crowd.phases == {"Starting": 1} and len(crowd.decided) == 2


@pytest.mark.parametrize("seed", range(6))
def test_nobody_waits_who_could_be_launched(crowd: Crowd, seed: int) -> None:
    """Against a decision about each waiting run after each event."""
    drawn, names, pods = random.Random(seed), 0, {}
    nodes = [(ex.spot if number % 2 else ex.node)(f"n{number}", f"pool-{number % 3}") for number in range(9)]
    for step in range(60):
        match drawn.randrange(6):
            case 0:
                crowd.put("Node", drawn.choice(nodes))
            case 1 if crowd.controller.store.capacity.nodes:
                name = drawn.choice(sorted(crowd.controller.store.capacity.nodes))
                crowd.put("Node", next(n for n in nodes if n["metadata"]["name"] == name), gone=True)
            case 2 | 3:
                names += 1
                kind = drawn.choice([{"count": 8}, {"count": 16}, {"count": 24}, {"maxNodes": 3}])
                crowd.submit(f"r{names}", **kind, **drawn.choice([{}, {"capacityType": "spot"}]))
            case 4:
                pods[step] = stranger(step, f"n{drawn.randrange(9)}")
                crowd.put("Pod", pods[step])
            case 5 if pods:
                crowd.put("Pod", pods.pop(drawn.choice(sorted(pods))), gone=True)
        crowd.settle()
        now = dt.datetime.now(dt.UTC)
        for run, known in crowd.controller.store.runs.items():
            if known.status.phase == "Waiting":
                observed = crowd.controller._observe(run, now)
                assert reconcile(observed[0], now).status.live is None, (step, run, known.status.message)


def test_pools_are_kept_up_to_date_as_if_they_were_counted_anew() -> None:
    """Incrementally and from nothing: the same pools, for a run's own view, too."""
    from caloscale.cluster.capacity.nodes import Capacity

    drawn, kept = random.Random(1), Capacity()
    nodes, uses = {}, []
    sizes = [(0, 0.5, 1.0), (8, 30.0, 100.0), (0, 40.0, 10.0), (1, 0.1, 230.0)]
    for _ in range(400):
        name = f"n{drawn.randrange(8)}"
        match drawn.randrange(5):
            case 0:
                nodes[name] = node_of(ex.node(name, drawn.choice("ab"), ready=drawn.choice(["True", "True", "False"])))
                kept.put(nodes[name])
            case 1:
                nodes.pop(name, None)
                kept.remove(name)
            case 2 | 3:
                uses.append(Use(name, *drawn.choice(sizes)))
                kept.add(uses[-1], 1)
            case 4 if uses:
                kept.add(uses.pop(drawn.randrange(len(uses))), -1)
        own = drawn.sample(uses, min(3, len(uses)))
        others = list(uses)
        for use in own:
            others.remove(use)
        coming = {("a", "nvidia-tesla-v100", "on-demand"): 1}
        assert kept.pools(coming=coming) == ex.pools_of(nodes.values(), uses, coming)
        assert kept.pools(own) == ex.pools_of(nodes.values(), others)


def test_when_several_nodes_are_free_as_many_of_a_class_are_launched(crowd: Crowd) -> None:
    """The first is tried; each that leaves has the next one tried, also when it is deleted."""
    for number in range(4):
        crowd.put("Node", ex.spot(f"n{number}"))
        crowd.put("Pod", stranger(number, f"n{number}"))
    for number in range(6):
        crowd.submit(f"one-{number}", count=8)
    crowd.settle()
    for number in range(3):
        crowd.put("Pod", stranger(number, f"n{number}"), gone=True)
    assert crowd.settle() == ["one-0", "one-1", "one-2"] and crowd.phases == {"Starting": 3, "Waiting": 3}
    crowd.put("Pod", stranger(3, "n3"), gone=True)
    crowd.put("TrainingRun", crowd.raw["one-3"], gone=True)
    assert crowd.settle() == ["one-4"] and crowd.phases == {"Starting": 4, "Waiting": 1}


@pytest.mark.parametrize(
    ("change", "decided"),
    [
        ({}, []),
        ({"metadata": {"generation": 2}}, ["one-1"]),
        ({"metadata": {"annotations": {"caloscale.dev/client-heartbeat": "step"}}}, ["one-1"]),
        ({"metadata": {"deletionTimestamp": "2026-11-21T10:00:00Z"}}, []),
        ({"status": {"phase": "Recovering"}}, ["one-1"]),
        ({"status": {"observedGeneration": 7}}, ["one-1"]),
        ({"status": {"attempts": [ATTEMPT]}}, ["one-1"]),
    ],
)
def test_who_waits_behind_others_is_decided_about_where_something_is_its_own(
    crowd: Crowd, change: dict[str, dict[str, Any]], decided: list[str]
) -> None:
    crowd.put("Node", ex.spot("n0"))
    crowd.put("Pod", stranger(0, "n0"))
    for number in range(3):
        crowd.submit(f"one-{number}", count=8)
    crowd.settle()
    for number in (0, 1, 2):
        crowd.controller.queue.add(RunKey("physics", f"one-{number}", f"u-one-{number}"))
    assert crowd.settle() == []
    raw = crowd.raw["one-1"]
    crowd.put(
        "TrainingRun", {part: raw[part] | change.get(part, {}) for part in raw if part not in ("kind", "apiVersion")}
    )
    crowd.controller.queue.add(RunKey("physics", "one-1", "u-one-1"))
    assert crowd.settle() == decided


A, B = (ex.pools_of([node_of(ex.node("n", name))], ())[0][0].key for name in "ab")
ONE, TWO, THREE = (RunKey("physics", name, name) for name in ("one", "two", "three"))


def none_free(_: PoolKey) -> int:
    return 0


def parked(need: Need) -> Parking:
    """ONE and, behind it, TWO wait; pool A is known."""
    made = Parking()
    made.wake(A, 0)
    made.park(ONE, "class", {A: need})
    made.park(TWO, "class", {A: need})
    return made


def test_the_first_of_a_class_is_tried_when_a_pool_has_what_it_needs() -> None:
    made = parked(Need(2, changed=False))
    assert made.wake(A, 1) == set() and made.wake(A, 0, changed=True) == set()
    assert made.wake(A, 2) == made.wake(A, 3) == {ONE}
    assert made.waits(ONE, lambda key: {A: 1}[key]) and not made.waits(ONE, lambda key: {A: 2}[key])
    assert made.waits(TWO, lambda _: 9)  # ONE is before it
    assert TWO in made and THREE not in made
    for run in (THREE, TWO):  # which keeps its place
        made.park(run, "class", {A: Need(2, changed=False)})
    assert made.leave(ONE) == TWO and made.leave(ONE) is None and made.wake(A, 9) == {TWO}
    assert made.leave(THREE) is None and made.wake(A, 9) == {TWO}  # it was not the first
    assert made.leave(TWO) is None and made.wake(A, 9) == set()


def test_a_run_that_has_changed_is_of_another_class() -> None:
    made = parked(Need(2, changed=False))
    made.park(TWO, "another", {B: Need(1, changed=False)})
    assert made.wake(A, 2) == {ONE} and made.wake(B, 1) == {ONE, TWO} and made.wake(B, 1) == {TWO}
    made.park(TWO, "class", {A: Need(2, changed=False)})
    assert made.wake(B, 1) == set()
    made.park(ONE, "class", {A: Need(5, changed=False)})  # what it needs is known anew
    assert made.wake(A, 4) == set() and made.wake(A, 5) == {ONE}
    made.clear()
    assert ONE not in made and made.wake(A, 5) == set()
