"""The phases of a run without a cluster: phases, recovery, money, and an operator that ends anywhere."""

import dataclasses
import datetime as dt
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caloscale.client.usage import use_of
from caloscale.cluster.capacity.nodes import PoolKey
from caloscale.cluster.capacity.placement import Need
from caloscale.cluster.capacity.pods import Pod, pod_of
from caloscale.operator import context
from caloscale.operator.context import Delete, Draft
from caloscale.operator.lifecycle import attempts_in_vain, is_left_over
from caloscale.operator.reconcile import _reopen, brings_news, reconcile
from caloscale.planning.billing.bill import bill
from caloscale.spec import configuration
from caloscale.status import AttemptStatus, Condition, RunProgress, RunStatus
from tests.cluster import examples as ex
from tests.operator.world import START, World, ended, settled, world

USD_PER_NODE_HOUR = 64 * 0.01392 + 240 * 0.001866 + 8 * 1.0443
"""n1-standard-64 with 8 V100, spot, europe-west4, at the prices that were seen in 2026."""


def test_nothing_is_written_when_nothing_happens() -> None:
    w = world(nodes=2)
    w.until(lambda w: w.phase == "Waiting")
    writes = w.writes
    for _ in range(50):
        w.now += dt.timedelta(seconds=1)
        w.reconcile()
    assert w.writes == writes
    assert w.status["message"] == "4 nodes with 8 free nvidia-tesla-v100 needed, 2 present: pool v100-8 is at 2/2"


@pytest.mark.parametrize("adds", [False, True])
def test_a_priority_class_that_preempts_nobody_says_so(adds: bool) -> None:
    """Its pods have it, but they are made when their nodes are free."""
    w = world({"cluster": {"priorityClassName": "urgent", "addNodes": adds}}, nodes=2)
    w.reconcile()
    assert ("priorityClassName preempts others only with" in w.status["message"]) is not adds
    assert w.phase == ("Starting" if adds else "Waiting")


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
    assert float(w.status["cost"]["usd"]) == usd
    assert sum(round(100 * float(a["usd"])) for a in w.attempts) == round(100 * usd)
    use = use_of("gan", RunStatus.model_validate(w.status), w.now)
    assert use is not None and bill(use, ex.CATALOGUE.prices).usd == usd
    assert bill(use, ex.CATALOGUE.prices).interruptions == 1


def test_of_many_attempts_the_oldest_are_summed_up_and_the_bill_stays() -> None:
    w = world({"recovery": {"maxRestarts": 100, "backoff": "1s"}}, steps=10_000, save_every=5)
    for number in range(1, 46):
        w.until(lambda w, number=number: w.status["attempts"][-1]["number"] == number and w.step > 10 * number)
        w.end(f"gan-{number}-worker-1", 138, "peer lost")
    w.training = False
    w.until(lambda w: w.phase == "Running" and w.status["attempts"][-1]["number"] == 46)
    w.spec["cluster"] = {"suspend": True}
    w.generation = 2
    w.until(lambda w: w.phase == "Suspended" and all(not a.get("nodeUsage") for a in w.attempts))
    first, *others = w.attempts
    assert [a["number"] for a in others] == list(range(27, 47)) and (first["count"], first["interruptions"]) == (26, 26)
    usd = round(w.node_seconds() / 3600 * USD_PER_NODE_HOUR, 2)
    assert float(w.status["cost"]["usd"]) == usd and sum(round(100 * float(a["usd"])) for a in w.attempts) == round(
        100 * usd
    )
    use = use_of("gan", RunStatus.model_validate(w.status), w.now)
    made = bill(use, ex.CATALOGUE.prices)
    assert (made.usd, made.attempts, made.interruptions) == (usd, 46, 45)
    assert w.report is not None and w.status["restarts"] == 45
    assert sum(a["stepsKept"] for a in w.attempts) == w.report.checkpoint_step


def test_a_report_is_written_when_it_says_something_new() -> None:
    """Every ten seconds there is another one."""
    w = world(steps=100_000, save_every=100_000).until(lambda w: w.phase == "Running" and w.step > 60)
    epoch, writes = w.step // 100, w.writes
    w.until(lambda w: w.step >= 100 * epoch + 600)
    assert w.writes - writes <= 17  # six epochs, and the money once a minute
    assert w.status["progress"]["epoch"] >= epoch + 5
    w.lose_node("n2")
    w.until(lambda w: w.phase == "Recovering")
    assert w.report is not None and w.status["progress"]["step"] == w.report.step


@pytest.mark.parametrize("code", [128, 134, 137, 138, 139, 143, 255])
def test_a_machines_error_is_tried_again(code: int) -> None:
    w = world(steps=400)
    w.until(lambda w: w.step >= 100)
    w.end("gan-1-worker-3", code, "peer lost")
    w.until(settled)
    assert w.phase == "Succeeded" and [a["reason"] for a in w.attempts] == ["WorkerFailed", "Completed"]
    assert w.attempts[0]["exitCode"] == code


@pytest.mark.parametrize("of_its_user", [True, False])
def test_a_run_that_stops_saves_and_gives_back_and_resumes_when_it_is_wanted(of_its_user: bool) -> None:
    """Its user stops it, or the step of a pipeline that waits for it has gone: nobody pays for its machines then."""
    w = world(steps=600).until(lambda w: w.step >= 130)
    w.client_runs, left = of_its_user, w.now
    w.spec["cluster"], w.generation = {"suspend": of_its_user}, 2
    w.until(lambda w: w.phase == "Suspended")
    assert not w.pods and not w.jobs and w.saved >= 130  # not before its workers have ended
    assert (0 if of_its_user else 60) <= (w.now - left).total_seconds() <= (30 if of_its_user else 90)
    for _ in range(100):
        w.reconcile()
        w.tick()
    assert w.phase == "Suspended"
    w.client_runs, w.spec["cluster"], w.generation = True, {}, 3
    w.until(settled)
    assert w.phase == "Succeeded" and w.status["restarts"] == 0 and "clientGoneSince" not in w.status
    assert [a["reason"] for a in w.attempts] == ["Suspended", "Completed"] and w.status["observedGeneration"] == 3


def test_a_step_that_is_tried_again_soon_disturbs_nothing() -> None:
    w = world(steps=600)
    w.until(lambda w: w.step >= 130)
    w.client_runs, left = False, w.now
    w.until(lambda w: (w.now - left).total_seconds() >= 40)
    w.client_runs = True
    w.until(settled)
    assert w.phase == "Succeeded" and len(w.attempts) == 1


def test_a_training_that_is_not_understood_is_a_condition_until_it_is() -> None:
    w = world({"data": {"preprocessing": {"rebin": [2, 1, 1]}}})
    for _ in range(10):
        w.reconcile()
        w.tick()
    assert parsed(w)["status"] == "False" and "does not divide" in parsed(w)["message"] and not w.attempts
    assert w.status["message"] == parsed(w)["message"] and "remedy" in w.status["message"] and w.phase == "Pending"
    w.spec["data"] = {}
    w.generation = 2
    w.until(settled)
    assert w.phase == "Succeeded" and (parsed(w)["status"], parsed(w)["observedGeneration"]) == ("True", 2)


def test_conditions_are_those_of_the_newest_generation() -> None:
    w = world().until(lambda w: w.phase == "Running" and w.step > 100)
    w.spec["recovery"], w.generation = {**w.spec["recovery"], "maxRestarts": 3}, 2
    w.until(lambda w: w.step > 300)
    priced = w.condition("Priced")
    assert (priced["status"], priced["observedGeneration"]) == ("True", 2)
    assert priced["lastTransitionTime"] < w.now.strftime("%Y-%m-%dT%H:%M:%SZ")


def parsed(w: World) -> dict[str, Any]:
    return w.condition("SpecParsed")


def test_an_operator_that_does_not_understand_the_training_looks_after_it_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rolled back to a version without this preset: workers stay, a lost node is replaced, the bill continues."""
    w = world({"model": {"preset": "compact"}}, steps=600).until(lambda w: w.phase == "Running" and w.step > 100)
    (first,) = w.jobs.values()
    narrowed = dataclasses.replace(configuration._TRAINING, presets=("variable-angle",))
    monkeypatch.setattr(configuration, "_TRAINING", narrowed)
    context._read.cache_clear()  # another process
    w.until(lambda w: w.step > 200)
    assert w.phase == "Running" and parsed(w)["status"] == "False" and len(w.attempts) == 1 and not w.removed
    w.lose_node("n2")
    w.nodes["n9"] = ex.spot("n9")
    w.until(lambda w: len(w.attempts) == 2 and w.phase == "Running")
    (second,) = w.jobs.values()
    assert environment(second)["CALOSCALE_RUN"] == environment(first)["CALOSCALE_RUN"]
    monkeypatch.undo()
    context._read.cache_clear()
    w.until(settled)
    assert w.phase == "Succeeded" and parsed(w)["status"] == "True"
    assert float(w.status["cost"]["usd"]) == round(w.node_seconds() / 3600 * USD_PER_NODE_HOUR, 2)


def environment(job: dict[str, Any]) -> dict[str, str]:
    (container,) = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    return {each["name"]: each.get("value", "") for each in container["env"]}


def test_a_report_that_somebody_deletes_is_made_again() -> None:
    w = world(steps=400).until(lambda w: w.phase == "Running")
    made = w.others.pop("TrainingProgress/gan-progress")
    w.reconcile()
    assert w.others["TrainingProgress/gan-progress"] == made and w.phase == "Running" and len(w.attempts) == 1


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


def key_of(w: World) -> PoolKey:
    return w.observe().pools()[0][0].key


def test_what_a_run_waits_for_is_known_to_who_frees_nodes() -> None:
    """By pool: so many free nodes, or, as its plan depends on how many there are, others."""
    w = world(nodes=2)
    assert w.reconcile().awaits == {key_of(w): Need(4, changed=False)}
    changes = {"backoff": "1s", "waitForCapacity": "60s", "elastic": {"minNodes": 1, "scaleUpAfter": "20s"}}
    w = world({"recovery": changes}, steps=10_000).until(lambda w: w.phase == "Running" and w.step > 60)
    assert w.reconcile().awaits is None
    w.lose_node("n0")
    w.lose_node("n1")
    w.until(lambda w: "waitingSince" in w.status)
    assert w.reconcile().awaits == {key_of(w): Need(4, changed=True)}
    w.until(lambda w: len(w.attempts) == 2 and w.phase == "Running")
    assert w.reconcile().awaits == {key_of(w): Need(2, changed=True)}
    changes["elastic"] = {"minNodes": 3}
    w = world({"recovery": changes}, steps=10_000).until(lambda w: w.phase == "Running" and w.step > 60)
    w.lose_node("n0")
    w.lose_node("n1")
    w.until(lambda w: "waitingSince" in w.status)
    w.now += dt.timedelta(seconds=60)
    assert w.reconcile().awaits == {key_of(w): Need(3, changed=True)}  # two are free, which are too few


@pytest.mark.parametrize("late", [set(), {"n0"}])
def test_a_successor_whose_clock_is_behind_looks_after_what_was_launched(late: set[str]) -> None:
    """The status is one that the API server takes."""
    w = world()
    w.reconcile()
    w.training, w.unschedulable = False, late
    w.tick()
    w.now -= dt.timedelta(minutes=10)
    w.reconcile()
    assert len(w.attempts[0]["nodeUsage"]) == 4 - len(late)
    assert RunStatus.model_validate(w.status).cost is not None


def test_the_money_of_a_run_on_nodes_is_written_once_a_minute() -> None:
    w = world().until(lambda w: w.phase == "Running")
    w.training, known = False, dt.datetime.fromisoformat(w.status["cost"]["updated"])
    for seconds in (30, 59, 60):
        w.now = known + dt.timedelta(seconds=seconds)
        decision = w.reconcile()
        assert w.status["cost"]["updated"] == (w._text() if seconds == 60 else known.strftime("%Y-%m-%dT%H:%M:%SZ"))
    assert decision.again == w.now + dt.timedelta(seconds=60)
    w.now -= dt.timedelta(minutes=10)  # a successor whose clock is behind: it wrote no money for as long
    w.reconcile()
    assert w.status["cost"]["updated"] == w._text()


@pytest.mark.parametrize(
    ("report", "is_routine"),
    [
        ({}, True),
        ({"updated": START + dt.timedelta(hours=1)}, True),
        ({"updated": START + dt.timedelta(hours=1), "checkpoint_step": 10**6}, False),
        ({"updated": START + dt.timedelta(hours=1), "step": 10**6}, False),
    ],
)
def test_money_and_steps_that_time_makes_due_are_routine(report: dict[str, Any], is_routine: bool) -> None:
    """What a user waits for is not, whatever else is new."""
    w = world().until(lambda w: w.phase == "Running" and "progress" in w.status)
    w.training = False
    w.now += dt.timedelta(hours=1)
    w.report = w.report.model_copy(update=report)
    spent, decision = w.status["cost"], w.reconcile()
    assert decision.is_routine is is_routine and w.status["cost"] != spent
    w.now += dt.timedelta(hours=1)
    del w.others["TrainingProgress/gan-progress"]
    assert not w.reconcile().is_routine and w.others["TrainingProgress/gan-progress"]
    w.now += dt.timedelta(hours=1)
    w.vanish("gan-1-worker-0")
    assert not w.reconcile().is_routine and w.phase != "Running"


def test_the_first_report_is_no_routine() -> None:
    w = world().until(lambda w: w.phase == "Running" and "progress" in w.status)
    del w.status["progress"]
    assert not w.reconcile().is_routine and "progress" in w.status


KNOWN = RunProgress(epoch=1.2, step=1000, steps=100_000, checkpoint_step=900, updated=START)


@pytest.mark.parametrize(
    ("report", "news"),
    [
        ({"updated": START + dt.timedelta(seconds=59), "step": 1999}, False),
        ({"updated": START + dt.timedelta(seconds=60)}, True),
        ({"step": 2000}, True),
        ({"epoch": 1.9}, False),
        ({"epoch": 2.0}, True),
        ({"checkpoint_step": 901}, True),
        ({"attempt": 2}, True),
        ({"updated": None}, True),
    ],
)
def test_a_report_brings_news(report: dict[str, Any], news: bool) -> None:
    changed = KNOWN.model_copy(update=report)
    assert brings_news(KNOWN, changed, 60.0) is news
    assert brings_news(KNOWN.model_copy(update={"updated": None}), changed, 60.0)


def ended_as(*ends: tuple[str, int]) -> RunStatus:
    made = [
        AttemptStatus(number=i, job="j", nodes=1, workers=1, launched=START, reason=reason, steps_kept=kept)  # type: ignore[arg-type]
        for i, (reason, kept) in enumerate(ends, 1)
    ]
    return RunStatus(attempts=tuple(made))


@pytest.mark.parametrize(
    ("ends", "in_vain"),
    [
        ([], 0),
        ([("NodeLost", 0)], 1),
        ([("NodeLost", 0), ("Unschedulable", 0), ("JobLost", 0)], 3),
        ([("NodeLost", 0), ("NodeLost", 1), ("WorkerFailed", 0)], 1),
        ([("NodeLost", 0), ("Preempted", 0)], 0),
        ([("WorkerLost", 5)], 0),
    ],
)
def test_attempts_in_vain_are_the_last_ones_that_kept_no_step(ends: list[tuple[str, int]], in_vain: int) -> None:
    assert attempts_in_vain(ended_as(*ends)) == in_vain


def test_pauses_double_up_to_five_minutes() -> None:
    w = world({"recovery": {"maxRestarts": 10, "backoff": "40s"}}, save_every=10_000)
    pauses = []
    for number in range(1, 6):
        w.until(lambda w, number=number: len(w.attempts) == number and w.phase == "Running")
        w.end(f"gan-{number}-worker-1", 139, "")
        w.saved = 0
        w.reconcile()
        pauses.append((dt.datetime.fromisoformat(w.status["notBefore"]) - w.now).total_seconds())
        assert w.status["restarts"] == number
    assert pauses == [40, 80, 160, 300, 300]


def left(phase: str = "Running", node: str = "n0", seconds: float | None = None) -> Pod:
    raw = {"metadata": {"name": "p", "uid": "u"}, "spec": {"nodeName": node}, "status": {"phase": phase}}
    return dataclasses.replace(pod_of(raw), deleting=None if seconds is None else START + dt.timedelta(seconds=seconds))


@pytest.mark.parametrize(
    ("pod", "there"),
    [
        (left(), True),
        (left(node=""), True),
        (left("Failed"), False),
        (left(seconds=-5), True),  # its node is well: it takes its time
        (left(node="gone"), False),
        (left(node="ill"), True),
        (left(node="ill", seconds=1), True),
        (left(node="ill", seconds=0), False),
    ],
)
def test_a_pod_is_left_over_until_it_cannot_run_any_more(pod: Pod, there: bool) -> None:
    """Two attempts must not write one checkpoint."""
    seen = dataclasses.replace(world().observe(), nodes={"n0": True, "ill": False})
    draft = Draft(seen, START)
    assert is_left_over(draft, [pod]) is there
    assert draft.times == ([START + dt.timedelta(seconds=30)] if there else []) and draft.actions == []


def test_a_run_begins_when_the_pods_of_an_earlier_one_of_its_name_have_gone() -> None:
    seen = world().observe()
    waits = reconcile(dataclasses.replace(seen, namesakes=[left()]), START)
    assert waits.status.live is None and waits.again == START + dt.timedelta(seconds=30)
    assert reconcile(dataclasses.replace(seen, namesakes=[left("Succeeded")]), START).status.live is not None


def test_jobs_that_are_on_their_way_out_are_not_deleted_again() -> None:
    w = world(steps=600).until(lambda w: w.phase == "Running")
    seen = w.observe()
    going = [dataclasses.replace(seen.jobs[0], name=name, uid=name, deleting=name == "b") for name in ("a", "b", "a")]
    draft = Draft(dataclasses.replace(seen, jobs=going), w.now)
    draft.remove_jobs()
    assert draft.actions == [Delete("TFJob", "a", "a")]


@pytest.mark.parametrize(("seconds", "is_named"), [(299, False), (300, True)])
def test_a_job_that_does_not_go_is_named(seconds: float, is_named: bool) -> None:
    w = world(steps=600).until(lambda w: w.phase == "Running")
    stuck = dataclasses.replace(w.observe().jobs[0], deleting=True)
    w.lose_node("n0")
    w.reconcile()
    ended = dt.datetime.fromisoformat(w.attempts[0]["ended"])
    draft = Draft(dataclasses.replace(w.observe(), jobs=[stuck]), ended + dt.timedelta(seconds=seconds))
    assert is_left_over(draft, [])
    assert (draft.status.message or "").startswith("waits until TFJob gan-1 is gone") is is_named


NOT_A_NUMBER = {"hardware": {"accelerator": "nvidia-tesla-v100", "count": "many"}}


@pytest.mark.parametrize(
    ("code", "phase"), [(2, "Failed"), (138, "Recovering"), (0, "Succeeded")], ids=["mistake", "lost", "done"]
)
def test_of_hardware_that_is_not_understood_an_attempt_ends_and_no_other_begins(code: int, phase: str) -> None:
    w = world(steps=10_000).until(lambda w: w.phase == "Running" and w.step > 60)
    w.spec |= NOT_A_NUMBER
    w.generation = 2
    w.reconcile()
    assert w.phase == "Running" and "hardware.count" in w.status["message"] and parsed(w)["status"] == "False"
    for name in list(w.pods):
        w.end(name, code, "why")
    if not code:
        w.jobs["gan-1"]["status"]["conditions"] = [{"type": "Succeeded", "status": "True", "message": ""}]
    w.training = False
    for _ in range(30):
        w.reconcile()
        w.tick()
    assert w.phase == phase and len(w.attempts) == 1 and bool(w.removed) == (phase == "Recovering")
    reasons = {"Failed": "UserError", "Succeeded": "Completed", "Recovering": "WorkerFailed"}
    assert w.attempts[0].get("reason") == reasons[phase]
    if phase == "Failed":
        said = w.condition("Failed")
        assert said["message"] == w.status["message"] == "gan-1-worker-0 ended with exit code 2: why"


NO_PLACE = {"dataset": "az://x"}
EDITS: dict[str, tuple[dict[str, Any], str, str]] = {
    "stop": ({"cluster": {**NO_PLACE, "suspend": True}}, "Suspended", "Suspended"),
    "deadline": ({"cluster": NO_PLACE, "budget": {"deadline": "1m"}}, "Failed", "Deadline"),
    "money": ({"cluster": NO_PLACE, "budget": {"deadline": "soon", "maxUsd": 1}}, "Failed", "Budget"),
    "blocks": ({"cluster": {"suspend": True, "unknown": 1}, "recovery": 3}, "Suspended", "Suspended"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_field_that_is_not_understood_keeps_no_other_from_being_acted_on(edit: str) -> None:
    changes, phase, reason = EDITS[edit]
    w = world(steps=10_000).until(lambda w: w.phase == "Running" and w.step > 120)
    w.spec |= changes
    w.generation = 2
    w.until(lambda w: w.phase == phase and not w.pods)
    assert parsed(w)["status"] == "False" and [a["reason"] for a in w.attempts] == [reason]
    assert w.saved > 120 and not w.jobs


def test_an_attempt_that_is_lost_is_followed_by_another_when_the_spec_is_understood() -> None:
    w = world(steps=600).until(lambda w: w.phase == "Running" and w.step > 100)
    w.spec["cluster"], w.generation = NO_PLACE, 2
    w.reconcile()
    assert w.phase == "Running" and "cluster.dataset" in w.status["message"] and not w.removed
    w.lose_node("n2")
    w.nodes["n9"] = ex.spot("n9")
    for _ in range(60):
        w.reconcile()
        w.tick()
    assert (w.phase, w.status["message"], w.jobs) == ("Recovering", parsed(w)["message"], {})
    w.spec["cluster"], w.generation = {}, 3
    w.until(settled)
    assert w.phase == "Succeeded" and [a["reason"] for a in w.attempts] == ["NodeLost", "Completed"]


def test_a_job_that_is_missing_is_made_when_the_spec_is_understood() -> None:
    w = world()
    w.reconcile(dies=iter([False, True]).__next__)
    assert len(w.attempts) == 1 and not w.jobs
    w.spec["cluster"], w.generation = NO_PLACE, 2
    w.reconcile()
    assert not w.jobs
    w.spec["cluster"], w.generation = {}, 3
    w.reconcile()
    assert list(w.jobs) == ["gan-1"]


def test_a_run_of_which_nothing_is_understood_waits() -> None:
    w = world()
    w.spec |= NOT_A_NUMBER
    w.reconcile()
    assert w.phase == "Pending" and "hardware.count" in w.status["message"] and not w.jobs


def reopened(reason: str, attempts: int, spec: dict[str, Any] | None = None, **changes: Any) -> RunStatus:
    """The status of a run that has failed, after its spec was changed; generation: of that spec, 2 if not given."""
    failed = Condition(type="Failed", status="True", reason=reason, last_transition_time=START)
    made = ended_as(*[("NodeLost", 0)] * attempts).attempts
    known = {"phase": "Failed", "conditions": (failed,), "attempts": made, "restarts": 2, "finished": START}
    generation = changes.pop("generation", 2)
    status = RunStatus(**{**known, "observed_generation": 1, **changes})
    draft = Draft(dataclasses.replace(world(spec).observe(), status=status, generation=generation), START)
    _reopen(draft, draft.run)
    return draft.status


@pytest.mark.parametrize(("attempts", "phase"), [(0, "Pending"), (1, "Recovering")])
def test_a_limit_that_was_raised_lets_a_run_continue(attempts: int, phase: str) -> None:
    status = reopened("Deadline", attempts)
    assert (status.phase, status.finished) == (phase, None)
    for unchanged in (
        reopened("Deadline", attempts, generation=1),
        reopened("Deadline", attempts, {"cluster": {"suspend": True}}),
        reopened("UserError", attempts),
    ):
        assert (unchanged.phase, unchanged.finished) == ("Failed", START)
    assert reopened("Deadline", attempts, phase="Succeeded").phase == "Succeeded"


@pytest.mark.parametrize(("most", "phase"), [(2, "Failed"), (3, "Recovering")])
def test_a_run_without_restarts_continues_when_it_is_given_more(most: int, phase: str) -> None:
    """Another edit, such as cluster.ttlSecondsAfterFinished, rents no machines."""
    assert reopened("RestartBudget", 3, {"recovery": {"maxRestarts": most}}).phase == phase


def without_an_image() -> World:
    w = world()
    w.has_image = False
    return w


def late() -> World:
    w = world({"budget": {"deadline": "6h"}}, steps=100_000).until(lambda w: w.phase == "Running")
    w.tick(6 * 3600)
    return w


@pytest.mark.parametrize(
    ("reason", "made", "edit"),
    [
        ("StartupFailed", without_an_image, {"cluster": {"ttlSecondsAfterFinished": 600}}),
        ("Budget", lambda: world({"budget": {"maxUsd": 2}}), {"cluster": {"ttlSecondsAfterFinished": 600}}),
        ("Deadline", late, {"recovery": {"maxRestarts": 9}}),
    ],
)
def test_an_edit_that_mends_nothing_reopens_nothing(
    reason: str, made: Callable[[], World], edit: dict[str, dict[str, Any]]
) -> None:
    """It rents no machines, warns no second time and does not let the time to live begin again."""
    w = made()
    w.until(settled)
    before = w.phase, w.status["finished"], len(w.attempts), len(w.events)
    assert w.condition("Failed")["reason"] == reason
    for block, fields in edit.items():
        w.spec[block] = {**w.spec.get(block, {}), **fields}
    w.generation, w.has_image = 2, True
    w.tick()
    w.reconcile()
    assert (w.phase, w.status["finished"], len(w.attempts), len(w.events)) == before and not w.jobs
    if "cluster" in edit:
        w.tick(600)
        w.reconcile()
        assert w.removed[-1] == "TrainingRun/gan"


def test_a_failure_after_an_edit_is_that_of_the_edited_configuration() -> None:
    w = world({"budget": {"maxUsd": 2}})
    w.until(ended)
    for generation, change in enumerate(({"budget": {"maxUsd": 3}}, {"cluster": {"ttlSecondsAfterFinished": 600}}), 2):
        w.spec, w.generation = {**w.spec, **change}, generation
        w.tick()
        w.reconcile()
        assert len(w.events) == 2 and "budget.maxUsd is 3" in w.status["message"]


def test_own_machines_have_no_price_and_that_is_no_problem_without_a_budget() -> None:
    labels = {"node.kubernetes.io/instance-type": "", "topology.kubernetes.io/region": ""}
    hardware = {"accelerator": "nvidia-tesla-v100", "count": 8}
    for budget, reason in (({}, "OwnMachines"), ({"maxUsd": 5}, "NoPrice")):
        w = World(ex.node("n0", labels=labels), spec={"model": {"preset": "variable-angle"}, "hardware": hardware})
        w.until(lambda w: w.phase == "Running")
        w.spec["budget"], w.generation = budget, 2
        w.reconcile()
        priced = w.condition("Priced")
        assert (priced["status"], priced["reason"]) == ("False", reason)


def test_a_solver_that_is_suspended_resumes_from_the_saves_of_its_ranks() -> None:
    solver = {"solver": {"ranks": 8}, "hardware": {"accelerator": "nvidia-tesla-v100"}, "cluster": {"volumeClaim": "s"}}
    w = World(ex.node("n0"), ex.cpu_node("c0"), spec=solver).until(lambda w: w.phase == "Running")
    w.spec["cluster"], w.generation = {"volumeClaim": "s", "suspend": True}, 2
    w.reconcile()
    assert w.status["message"] == "cluster.suspend is set; its ranks end, and resume from their newest save"
