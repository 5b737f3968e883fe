"""Nodes that a run used and what they cost, by tables with the figures worked out by hand."""

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from caloscale.cluster import accounting
from caloscale.cluster.accounting import KEPT_ATTEMPTS
from caloscale.cluster.capacity.pods import Pod, pod_of
from caloscale.planning.catalogue.prices import Prices
from caloscale.status import AttemptStatus, NodeTotals, NodeUsage, Placed, RunProgress, RunStatus
from tests.cluster import examples as ex

START = dt.datetime(2026, 11, 21, 10, 0, tzinfo=dt.UTC)
PRICES = ex.CATALOGUE.prices
NODE_USD = 64 * 0.01392 + 240 * 0.001866 + 8 * 1.0443
"""An hour of n1-standard-64 with 8 V100, spot, europe-west4."""


def at(seconds: float) -> dt.datetime:
    return START + dt.timedelta(seconds=seconds)


def usage(uid: str, node: str, since: float, until: float | None = None, *, done: bool = False) -> NodeUsage:
    ended = None if until is None else at(until)
    return NodeUsage(pod=f"p-{uid}", uid=uid, node=node, since=at(since), until=ended, done=done)


def pod(uid: str, node: str = "n0", phase: str = "Running", ended: float | None = None, **changes: Any) -> Pod:
    made = pod_of(
        {"metadata": {"name": f"p-{uid}", "uid": uid}, "spec": {"nodeName": node}, "status": {"phase": phase}}
    )
    return replace(made, **{"bound": at(10), "ended": None if ended is None else at(ended), **changes})


HELD = usage("a", "n0", 10)


def until(seconds: float, *, done: bool = False) -> NodeUsage:
    return usage("a", "n0", 10, seconds, done=done)


@pytest.mark.parametrize(
    ("before", "pods", "gone_nodes", "gone_pods", "after"),
    [
        ([], [pod("b", "n1"), pod("a")], (), [], [HELD, usage("b", "n1", 10)]),
        ([], [pod("a", ""), pod("b", bound=None), pod("c", works=False)], (), [], []),
        ([], [pod("a", phase="Failed", ended=50)], (), [], [until(50)]),
        ([], [pod("a", phase="Failed")], (), [], [until(100)]),
        ([], [pod("a", phase="Succeeded", ended=5)], (), [], [until(10, done=True)]),
        # the clock of a kubelet is an hour ahead
        ([], [pod("a", phase="Failed", ended=3700)], (), [], [until(100)]),
        ([], [], (), [pod("a", ended=3700)], [until(100)]),
        ([HELD], [pod("a", phase="Failed", ended=3700)], (), [], [until(100)]),
        ([HELD], [], (), [pod("a", ended=3700)], [until(100)]),
        ([], [pod("a")], ("n0",), [], []),
        ([HELD], [pod("a")], (), [], [HELD]),
        ([HELD], [pod("a")], ("n0",), [], [until(100)]),
        ([HELD], [pod("a", phase="Failed", ended=50)], (), [], [until(50)]),
        ([usage("a", "n0", 60)], [pod("a", phase="Failed", ended=50)], (), [], [usage("a", "n0", 60, 60)]),
        ([HELD], [pod("a", phase="Failed")], (), [], [until(100)]),
        ([HELD], [pod("a", phase="Succeeded", ended=50)], (), [], [until(50, done=True)]),
        ([HELD], [], (), [], [until(100)]),
        ([HELD], [], (), [pod("a", ended=70)], [until(70)]),
        ([usage("a", "n0", 90)], [], (), [pod("a", ended=70)], [usage("a", "n0", 90, 90)]),
        ([HELD], [], (), [pod("a")], [until(100)]),
        ([HELD], [], (), [pod("a", phase="Succeeded", ended=70)], [until(70, done=True)]),
        ([until(30, done=True)], [], ("n0",), [pod("a", ended=70)], [until(30, done=True)]),
        ([until(30)], [pod("a")], (), [], [until(30)]),
        # came and went between two looks: by its node's name, too, which may be gone by now
        ([], [], ("n0",), [pod("a", ended=70)], [until(70)]),
        ([], [], (), [pod("a", ended=5)], [until(10)]),
        ([], [], (), [pod("a")], [until(100)]),
        ([], [pod("a")], (), [pod("a", ended=70)], [HELD]),
        ([usage("b", "n1", 10)], [pod("b", "n1"), pod("a")], (), [], [usage("b", "n1", 10), HELD]),
    ],
)
def test_a_node_is_used_from_the_binding_of_a_worker_to_its_end(
    before: list[NodeUsage], pods: list[Pod], gone_nodes: tuple[str, ...], gone_pods: list[Pod], after: list[NodeUsage]
) -> None:
    """Looked at after 100 s."""
    gone = {one.uid: one for one in gone_pods}
    assert list(accounting.track(before, pods, frozenset(gone_nodes), at(100), gone, None)) == after


@pytest.mark.parametrize(("counted", "since", "ends"), [(80, 10, 80), (80, 90, 90), (15, 10, 20), (3600, 10, 100)])
def test_what_was_counted_is_not_taken_back_by_a_kubelet_whose_clock_is_behind(
    counted: float, since: float, ends: float
) -> None:
    """The worker has ended at 20 s by its clock; a leader before had a clock that was ahead."""
    left = pod("a", phase="Failed", ended=20)
    (found,) = accounting.track([usage("a", "n0", since)], [left], frozenset(), at(100), {}, at(counted))
    assert found.until == at(ends)


def placed(**changes: Any) -> Placed:
    return Placed(
        backend="TFJob",
        pool="v100-8",
        machine_type="n1-standard-64",
        region="europe-west4",
        nodes=2,
        workers=2,
        accelerators_per_worker=8,
        planned_nodes=2,
        global_batch=1,
        batch_per_replica=1,
        **{"accelerator": "nvidia-tesla-v100", "per_node": 8, "capacity_type": "spot", **changes},
    )


def attempt(*usages: NodeUsage, number: int = 1, **changes: Any) -> AttemptStatus:
    given = {"nodes": 2, "workers": 2, "launched": START, **changes}
    return AttemptStatus(number=number, job=f"gan-{number}", node_usage=usages, **given)


def totals(node_seconds: float, nodes: int = 2, **changes: Any) -> NodeTotals:
    kind = {"machine_type": "n1-standard-64", "accelerator": "nvidia-tesla-v100", "per_node": 8}
    where = {"region": "europe-west4", "capacity_type": "spot"}
    return NodeTotals(**{**kind, **where, "nodes": nodes, "node_seconds": node_seconds, **changes})


USED = (usage("a", "n0", 10, 50), usage("b", "n0", 30, 60), usage("c", "n0", 100, 110), usage("d", "n1", 10))


def test_workers_on_a_node_count_once_and_gaps_do_not() -> None:
    """n0: 10 to 60 and 100 to 110; n1: 10 to 100. At least one: 10 to 110."""
    assert accounting.node_totals(attempt(*USED), placed(), at(100)) == (totals(150),)
    beside = placed(disk_gib=500, control_plane=True)
    expected = totals(150, disk_gib=500, control_plane_seconds=100)
    assert accounting.node_totals(attempt(*USED), beside, at(100)) == (expected,)
    on_processors = placed(accelerator="cpu", per_node=0)
    assert accounting.node_totals(attempt(*USED), on_processors, at(100)) == (totals(150, accelerator="", per_node=0),)
    assert accounting.node_totals(attempt(*USED), None, at(100)) == ()
    known = attempt(*USED, node_totals=(totals(7),))
    assert accounting.node_totals(known, placed(), at(100)) == (totals(7),)


def test_an_attempt_is_settled_when_it_has_ended_and_uses_no_node() -> None:
    ended = attempt(usage("a", "n0", 10, 50), ended=at(50))
    settled = accounting.settle(ended, placed(), at(100))
    assert settled == ended.model_copy(update={"node_usage": (), "node_totals": (totals(40, nodes=1),)})
    in_use = attempt(usage("a", "n0", 10, 50), usage("d", "n1", 10), ended=at(50))
    for unchanged in (in_use, attempt(usage("a", "n0", 10, 50)), attempt(ended=at(50))):
        assert accounting.settle(unchanged, placed(), at(100)) == unchanged


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (attempt(first_used=at(3), launched=at(1)), 3),
        (attempt(usage("a", "n0", 20), usage("b", "n1", 10)), 10),
        (attempt(launched=at(1)), 1),
        (attempt(launched=at(1), running=at(60), waiting_seconds=20), 40),
    ],
)
def test_the_first_usage_of_an_attempt(given: AttemptStatus, seconds: float) -> None:
    assert accounting.first_usage(given) == at(seconds)


def test_interruptions_are_losses_of_machines() -> None:
    """A crash or a lack of memory made the rate of spot nodes higher, by which the planner chooses."""
    reasons = ("WorkerLost", "WorkerFailed", "NodeLost", "JobLost", "Preempted", "Completed", None)
    assert [accounting.interruptions(attempt(reason=reason)) for reason in reasons] == [1, 0, 1, 0, 0, 0, 0]
    failed = [attempt(reason="WorkerFailed", exit_code=code) for code in (137, 138, 139, 143)]
    assert [accounting.interruptions(each) for each in failed] == [0, 1, 0, 1]
    assert accounting.interruptions(attempt(reason="NodeLost", count=3, interruptions=2)) == 2


SPENT: dict[str, Any] = {
    "waiting_seconds": 10.0,
    "start_up_seconds": 20.0,
    "training_seconds": 30.0,
    "lost_seconds": 40.0,
}


def test_of_many_attempts_the_older_ones_are_summed_up() -> None:
    """Three nodes for 10 s and one for 10 s are three nodes for 13.333 s: seconds times nodes stay."""
    first = attempt(
        nodes=3,
        workers=3,
        reason="NodeLost",
        node_totals=(totals(200, nodes=3),),
        running=at(10),
        first_step=5,
        steps_kept=3,
        steps_lost=1,
        **SPENT,
    )
    small = attempt(
        number=2,
        nodes=1,
        workers=1,
        launched=at(50),
        running=at(70),
        reason="WorkerLost",
        node_totals=(totals(40, nodes=1, control_plane_seconds=40.0),),
        first_step=8,
        steps_kept=4,
        steps_lost=2,
        message="gone",
        exit_code=137,
        **SPENT,
    )
    newest = [attempt(number=3 + i) for i in range(KEPT_ATTEMPTS)]
    one, *others = accounting.summed([first, small, *newest])
    assert others == newest
    expected = {
        "nodes": 3,
        "workers": 3,
        "launched": START,
        "running": at(10),
        "first_step": 5,
        "steps_kept": 7,
        "steps_lost": 3,
        "waiting_seconds": 13.333,
        "start_up_seconds": 26.667,
        "training_seconds": 40.0,
        "lost_seconds": 53.333,
        "first_used": START,
        "node_totals": (totals(240, nodes=3, control_plane_seconds=40.0),),
        "count": 2,
        "interruptions": 2,
        "message": "sum of older attempts",
        "exit_code": None,
    }
    assert one == small.model_copy(update=expected)
    again = accounting.summed([first, small, *newest, attempt(number=30)])
    assert len(again) == KEPT_ATTEMPTS + 1 and again[0].count == 3
    assert accounting.summed([first, *newest]) == (first, *newest)
    assert accounting.summed(newest) == tuple(newest)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (attempt(usage("a", "n0", 1)), attempt()),
        (attempt(), attempt(usage("a", "n0", 1))),
        (attempt(), attempt(node_totals=(totals(1),))),
        (attempt(node_totals=(totals(1),)), attempt(node_totals=(totals(1, region="us-east1"),))),
        (attempt(node_totals=(totals(1),)), attempt(node_totals=(totals(1, disk_gib=5.0),))),
        (attempt(), attempt(workers=4)),
    ],
)
def test_attempts_on_other_machines_or_in_use_are_not_summed_up(first: AttemptStatus, second: AttemptStatus) -> None:
    newest = [attempt(number=3 + i) for i in range(KEPT_ATTEMPTS)]
    assert accounting.summed([first, second, *newest]) == (first, second, *newest)


def progress(**changes: Any) -> RunProgress:
    said = {"step": 150, "checkpoint_step": 120, "steps": 1000, "step_seconds": 0.5, "seconds_first_step": 20.0}
    return RunProgress(**{**said, "updated": at(300), **changes})


def parts(given: AttemptStatus) -> tuple[float, ...]:
    times = (given.waiting_seconds, given.start_up_seconds, given.training_seconds, given.lost_seconds)
    return (given.steps_kept, given.steps_lost, *times)


WORKED = attempt(usage("a", "n0", 10, 310), usage("b", "n1", 10, 310), running=at(40), first_step=100)
"""Two nodes for 300 s, of which 30 s until all workers ran."""


@pytest.mark.parametrize(
    ("changes", "said", "expected"),
    [
        ({}, {}, (20, 30, 30, 20, 10, 15)),
        ({"reason": "Completed"}, {}, (50, 0, 30, 20, 25, 0)),
        ({}, {"checkpoint_step": 90}, (0, 50, 30, 20, 0, 25)),  # a checkpoint of another attempt
        ({}, {"checkpoint_step": 170}, (50, 0, 30, 20, 25, 0)),
        ({}, {"step": 80, "checkpoint_step": 70}, (0, 0, 30, 20, 0, 0)),
        ({}, {"step_seconds": None, "seconds_first_step": None}, (20, 30, 30, 0, 0, 0)),
        ({}, {"step_seconds": 11.0}, (20, 30, 15, 10, 110, 165)),  # 600 s of 300: all shrink to half
        ({"running": None}, {}, (20, 30, 0, 20, 10, 15)),
        ({"running": None, "launched": at(25)}, {}, (20, 30, 15, 20, 10, 15)),
        ({}, {"updated": at(-1)}, (0, 0, 0, 0, 0, 0)),
        ({}, {"updated": at(-1), "attempt": 1}, (20, 30, 30, 20, 10, 15)),  # by a clock that is behind
        ({}, {"attempt": 2}, (0, 0, 0, 0, 0, 0)),
        ({}, {"updated": START}, (20, 30, 30, 20, 10, 15)),
        ({}, {"updated": None}, (0, 0, 0, 0, 0, 0)),
        ({"node_usage": (), "running": at(8)}, {}, (20, 30, 0, 0, 0, 0)),  # no node: no time at all
    ],
)
def test_where_the_time_of_an_attempt_went(
    changes: dict[str, Any], said: dict[str, Any], expected: tuple[float, ...]
) -> None:
    given = WORKED.model_copy(update=changes)
    assert parts(accounting.with_steps(given, progress(**said), at(400))) == expected
    assert accounting.with_steps(given, None, at(400)) is given


def test_nothing_reported_and_nothing_used_is_no_time() -> None:
    silent = progress(step=0, checkpoint_step=0, step_seconds=None, seconds_first_step=None)
    assert parts(accounting.with_steps(attempt(), silent, at(400))) == (0, 0, 0, 0, 0, 0)


def status(*attempts: AttemptStatus, **changes: Any) -> RunStatus:
    return RunStatus(**{"attempts": attempts, "placement": placed(), **changes})


def test_the_cost_is_the_nodes_time_by_their_price_and_attempts_add_up_to_it() -> None:
    first, second = attempt(node_totals=(totals(7200),)), attempt(usage("a", "n0", 0), number=2)
    priced, problem = accounting.with_cost(status(first, second), PRICES, at(1800))
    assert problem is None and priced.cost is not None
    assert priced.cost.usd == round(2.5 * NODE_USD, 2) == 24.23
    assert [one.usd for one in priced.attempts] == [19.38, 4.85]  # of 19.386 and 4.847
    assert [one.node_hours for one in priced.attempts] == [2.0, 0.5]
    cost = priced.cost
    assert (cost.node_hours, cost.accelerator_hours, cost.updated) == (2.5, 20.0, at(1800))
    assert cost.nodes == (totals(9000),) and cost.as_of == START.date()


def test_a_small_cost_has_four_decimals() -> None:
    priced, _ = accounting.with_cost(status(attempt(node_totals=(totals(36, nodes=1),))), PRICES, at(100))
    assert priced.cost is not None and priced.cost.usd == round(NODE_USD / 100, 4) == 0.0969
    assert (priced.cost.node_hours, priced.cost.accelerator_hours) == (0.01, 0.08)
    empty, _ = accounting.with_cost(status(attempt(node_totals=(totals(0, nodes=0),))), PRICES, at(100))
    assert empty.cost is not None and empty.cost.usd == 0
    assert accounting.with_cost(status(), PRICES, at(100)) == (status(), None)


def test_without_a_price_hours_are_counted_and_the_reason_is_given() -> None:
    unpriced, problem = accounting.with_cost(status(attempt(node_totals=(totals(36),))), Prices(()), at(100))
    assert (
        problem is not None
        and "no spot price of vcpu n1 in europe-west4 on 2026-11-21" in problem
        and unpriced.cost is not None
    )
    assert (unpriced.cost.usd, unpriced.attempts[0].usd, unpriced.cost.node_hours) == (None, None, 0.01)
    assert unpriced.cost.estimate_usd is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"progress": RunProgress(eta=at(3600 + 1800))}, 19.69),
        ({"progress": RunProgress(eta=at(60))}, 9.69),
        ({"progress": RunProgress(eta=at(7200 + 1800), updated=at(7200))}, 19.69),  # worker 0 is an hour ahead
        ({"progress": RunProgress()}, 77.0),
        ({"progress": None}, 77.0),
        ({"progress": RunProgress(eta=at(5400)), "finished": at(3600)}, 9.69),
        # half an hour from its newest checkpoint, however long it waits
        (
            {
                "progress": RunProgress(eta=at(60), step=60, steps=80, checkpoint_step=50, step_seconds=60),
                "phase": "Suspended",
            },
            19.69,
        ),
        ({"progress": RunProgress(eta=at(5400)), "placement": placed(estimate_usd=77.0)}, 77.0),
    ],
)
def test_the_cost_to_the_end(changes: dict[str, Any], expected: float) -> None:
    """An hour of a node is spent; two of them cost 20 USD an hour by the plan, which took 77 USD."""
    known = {"placement": placed(usd_per_hour=20.0, estimate_usd=77.0), "phase": "Running", **changes}
    priced, _ = accounting.with_cost(status(attempt(node_totals=(totals(3600, nodes=1),)), **known), PRICES, at(3600))
    assert priced.cost is not None and priced.cost.estimate_usd == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (status(WORKED, progress=progress(), placement=placed(usd_per_hour=36.0)), 0.65),  # 30 + 20 + 15 s
        (status(WORKED, placement=placed(usd_per_hour=36.0)), 3.9),  # since 10 s, at 400 s
        (status(WORKED, progress=progress()), None),
        (status(WORKED, progress=progress(), placement=None), None),
        (status(attempt(), progress=progress(), placement=placed(usd_per_hour=36.0)), None),
        (status(WORKED.model_copy(update={"ended": at(310)}), placement=placed(usd_per_hour=36.0)), None),
    ],
)
def test_what_an_eviction_would_cost(given: RunStatus, expected: float | None) -> None:
    assert accounting.eviction_usd(given, at(400)) == expected


def test_what_preemptions_have_cost() -> None:
    preempted = [attempt(reason=reason, **SPENT) for reason in ("Preempted", "NodeLost", "Preempted")]
    assert accounting.preempted_usd(status(*preempted, placement=placed(usd_per_hour=36.0))) == pytest.approx(1.4)
    assert accounting.preempted_usd(status(*preempted)) == 0
    assert accounting.preempted_usd(status(*preempted, placement=None)) == 0


def test_prices_are_those_of_the_first_launch() -> None:
    later = START + dt.timedelta(days=3)
    given = status(attempt(), attempt(number=2, launched=later))
    assert accounting.first_day(given, later) == START.date() and accounting.first_day(status(), later) == later.date()


def test_the_time_of_many_nodes_is_not_found_by_comparing_each_with_each() -> None:
    """A run of a thousand nodes is decided about while all others wait."""
    compared = 0

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    held = tuple(usage(str(i), "", i, 100 + 2 * i).model_copy(update={"node": Name(f"n{i}")}) for i in range(100))
    attempt = AttemptStatus(number=1, job="j", nodes=100, workers=100, launched=START, node_usage=held)
    seconds = accounting._seconds_by_node(attempt, at(1000))
    assert sorted(seconds) == [100.0 + i for i in range(100)] and compared < 1000
