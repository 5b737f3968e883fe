"""What the operator knows: events in any order, lists, and whom they concern."""

import dataclasses
import datetime as dt
import json
import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from caloscale.cluster.capacity.placement import Need
from caloscale.cluster.names import RunKey
from caloscale.connection import Page
from caloscale.operator.store import Store
from caloscale.status import RunStatus
from tests.cluster import examples as ex
from tests.operator.world import World, world

GAN = RunKey("physics", "gan", "u")
V100 = {"accelerator": "nvidia-tesla-v100", "count": 32, "capacityType": "spot", "region": "europe-west4"}
QUEUED = {"model": {"preset": "variable-angle"}, "hardware": {**V100, "queue": "q"}}


def run(version: int, **status: Any) -> dict[str, Any]:
    metadata = {"name": "gan", "namespace": "physics", "uid": "u", "resourceVersion": str(version), "generation": 1}
    return {"metadata": metadata, "spec": {}, "status": status}


def pod(name: str, version: int, phase: str = "Running", node: str = "n0", run: str = "gan") -> dict[str, Any]:
    labels = {"caloscale.dev/run": run, "caloscale.dev/run-uid": "u", "caloscale.dev/attempt": "1"} if run else {}
    status: dict[str, Any] = {"phase": phase, "conditions": [{"type": "PodScheduled", "status": "True"}]}
    if phase == "Failed":
        ended = {"exitCode": 143, "finishedAt": "2026-11-21T10:00:05Z"}
        status["containerStatuses"] = [{"name": "tensorflow", "state": {"terminated": ended}}]
    return {
        "metadata": {
            "name": name,
            "namespace": "physics",
            "uid": f"u-{name}",
            "labels": labels,
            "resourceVersion": str(version),
            "creationTimestamp": "2026-11-21T10:00:00Z",
        },
        "spec": {"nodeName": node, "containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]},
        "status": status,
    }


def versioned(raw: dict[str, Any], version: int) -> dict[str, Any]:
    return {**raw, "metadata": {**raw["metadata"], "resourceVersion": str(version)}}


@pytest.mark.parametrize(
    "about", ["gan-2-x-3", "gan-2-x-3-worker-0", "gan-2-x-3-workers-0-1-abcde", "gan-2", "other-1-worker-0", ""]
)
def test_a_warning_concerns_the_run_of_its_pod(about: str) -> None:
    """Names of pods end with numbers, too, and those of runs may have some."""
    store, run = Store(), RunKey("physics", "gan-2-x", "u")
    attempt = {"number": 3, "job": "gan-2-x-3", "nodes": 1, "workers": 1, "launched": "2026-11-21T10:00:00Z"}
    metadata = {"namespace": run.namespace, "resourceVersion": "1"}
    status = {"phase": "Starting", "attempts": [attempt]}
    store.put("TrainingRun", {"metadata": {**metadata, "name": run.name, "uid": run.uid}, "status": status})
    store.put("TrainingRun", {"metadata": {**metadata, "name": "gan", "uid": "other"}, "status": {"phase": "Starting"}})
    event = {"type": "Warning", "regarding": {"name": about}, "eventTime": "2026-11-21T10:00:00Z"}
    concerned = store.put("Event", {"metadata": {**metadata, "name": "e"}, **event})
    assert concerned == ({run} if about.startswith("gan-2-x") else set())


def test_of_two_names_that_fit_the_longer_one_is_that_of_the_warning() -> None:
    store = Store()
    for name in ("scan", "scan-1-b"):
        attempt = {"number": 1, "job": f"{name}-1", "nodes": 1, "workers": 1, "launched": "2026-11-21T10:00:00Z"}
        metadata = {"namespace": "physics", "name": name, "uid": name, "resourceVersion": "1"}
        store.put("TrainingRun", {"metadata": metadata, "status": {"phase": "Starting", "attempts": [attempt]}})
    assert {run.name for run in warn(store, "e0", 2, "scan-1-b-1-worker-0")} == {"scan-1-b"}
    assert {run.name for run in warn(store, "e1", 3, "scan-1-worker-0")} == {"scan"}


def test_a_label_of_somebody_else_hides_no_pod_from_its_node() -> None:
    store = Store()
    strange = pod("copy", 1)
    strange["metadata"]["labels"] |= {"caloscale.dev/attempt": "first"}
    store.put("Pod", strange)
    assert store.pods["physics", "copy"].attempt == 0 and store.pods["physics", "copy"].use is not None


def test_an_older_event_changes_nothing() -> None:
    store = Store()
    assert store.put("TrainingRun", run(7, phase="Running")) == {GAN}
    assert store.put("TrainingRun", run(5, phase="Pending")) == set()
    assert store.put("TrainingRun", run(7, phase="Failed")) == set()
    assert store.runs[GAN].status.phase == "Running"


def test_a_heartbeat_concerns_nobody() -> None:
    store = Store()
    store.put("TrainingRun", run(1, phase="Waiting"))
    store.park(GAN, {}, store.parking.changes)
    assert store.put("Node", versioned(ex.node("n0"), 2)) == {GAN}
    assert store.put("Node", versioned(ex.node("n0"), 3)) == set()


def test_launched_and_not_yet_bound_counts() -> None:
    store = Store()
    store.put("Node", versioned(ex.node("n0"), 1))
    store.put("Node", versioned(ex.node("n1"), 2))
    attempt = {"number": 1, "job": "gan-1", "nodes": 2, "workers": 2, "launched": "2026-11-21T10:00:00Z"}
    store.put("TrainingRun", run(3, phase="Starting", placement=ex.PLACED, attempts=[attempt]))
    other = RunKey("physics", "other", "u-other")
    assert store.pools_for(other)[0][0].free == 0
    store.put("Pod", pod("gan-1-worker-0", 4))
    assert store.pools_for(other)[0][0].free == 0  # one is bound, the other is coming


def test_what_a_queue_keeps_back_takes_no_room() -> None:
    store = Store()
    for number in range(4):
        store.put("Node", versioned(ex.spot(f"n{number}"), number + 1))
    w = World(*(ex.spot(f"n{i}") for i in range(4)), spec=QUEUED, uid="u")
    w.reconcile()
    store.put("TrainingRun", {**run(9), "spec": w.spec, "status": w.status})
    other = RunKey("physics", "other", "u-other")
    assert store.pools_for(other)[0][0].free == 0  # nobody knows yet that it is kept back
    store.put("TrainingRun", {**run(10), "metadata": {**run(10)["metadata"], "name": "other", "uid": "u-other"}})
    store.park(other, {store.pools_for(other)[0][0].key: Need(4, changed=False)}, store.parking.changes)
    job = w.jobs["gan-1"]
    assert store.put("TFJob", versioned(job, 11)) == {GAN, other}
    assert store.pools_for(other)[0][0].free == 4
    admitted = {**job, "spec": {**job["spec"], "runPolicy": {**job["spec"]["runPolicy"], "suspend": False}}}
    store.put("TFJob", versioned(admitted, 12))
    assert store.pools_for(other)[0][0].free == 0


def test_when_a_pod_went_is_remembered() -> None:
    store = Store()
    store.put("Pod", pod("a", 1))
    assert store.put("Pod", pod("a", 2, "Failed"), gone=True) == {GAN}
    last = store.went_of(GAN)["u-a"]
    assert (last.phase, last.ended) == ("Failed", dt.datetime(2026, 11, 21, 10, 0, 5, tzinfo=dt.UTC))
    assert store.pods_of(GAN) == []


@pytest.mark.parametrize("order", ["end first", "successor first"])
def test_how_a_pod_ended_is_known_when_another_has_its_name(order: str) -> None:
    store = Store()
    store.put("Pod", pod("a", 1))
    ended, successor = pod("a", 2, "Failed"), pod("a", 3)
    successor["metadata"]["uid"] = "u-b"
    for raw in (ended, successor) if order == "end first" else (successor, ended):
        store.put("Pod", raw, gone=raw is ended)
    assert [known.uid for known in store.pods_of(GAN)] == ["u-b"]
    assert store.went_of(GAN)["u-a"].phase == "Failed"


def test_what_a_run_left_is_not_its_successors() -> None:
    """Another run by the same name: the report, the pods and the jobs of the first one are not its own."""
    store, w = Store(), World(*(ex.spot(f"n{i}") for i in range(4)), spec=QUEUED, uid="u")
    w.reconcile()
    store.put("TrainingRun", {**run(1), "status": w.status})
    store.put("TFJob", versioned(w.jobs["gan-1"], 2))
    store.put("TrainingProgress", versioned({**w.others["TrainingProgress/gan-progress"], "progress": {}}, 3))
    store.put("Pod", pod("gan-1-worker-0", 4))
    assert store.jobs_of(GAN) and store.pods_of(GAN) and GAN in store.progress
    again = run(9)
    again["metadata"]["uid"] = "u-again"
    other = RunKey("physics", "gan", "u-again")
    assert store.put("TrainingRun", again) == {other}
    assert store.put("TrainingRun", run(8), gone=True) == set()  # the end of the first is heard of later
    assert set(store.runs) == {other} and other not in store.progress
    assert not store.jobs_of(other) and not store.pods_of(other)
    assert [each.name for each in store.namesakes_of(other)] == ["gan-1-worker-0"]
    assert other in store.put("Pod", pod("gan-1-worker-0", 10), gone=True) and not store.namesakes_of(other)


def test_a_report_that_vanished_concerns_its_run() -> None:
    for how in ("event", "list"):
        store, w = Store(), World(*(ex.spot(f"n{i}") for i in range(4)), spec=QUEUED, uid="u")
        w.reconcile()
        store.put("TrainingRun", run(1))
        made = versioned(w.others["TrainingProgress/gan-progress"], 3)
        store.put("TrainingProgress", made)
        gone = store.put("TrainingProgress", versioned(made, 4), gone=True) if how == "event" else None
        assert (store.resync("TrainingProgress", [Page([], 9)])[0] if gone is None else gone) == {
            GAN
        } and GAN not in store.progress


def test_a_write_without_an_answer_does_not_undo_what_the_watch_says() -> None:
    store = Store()
    store.put("TrainingRun", run(1, phase="Pending"))
    before, written = store.runs[GAN].status, RunStatus(phase="Starting")
    store.assume(GAN, written, "1")
    assert store.runs[GAN].status == written
    store.put("TrainingRun", run(2, phase="Starting"))  # it was carried out, and the answer did not come
    store.assume(GAN, before, "1")
    assert store.runs[GAN].status.phase == "Starting" and store.runs[GAN].version == "2"


@pytest.mark.parametrize("kind", ["Pod", "Node", "TrainingRun"])
def test_a_list_ends_what_went_while_nobody_watched(kind: str) -> None:
    store = Store()
    made = {"Pod": pod("a", 3), "Node": versioned(ex.node("n0"), 3), "TrainingRun": run(3)}
    for name, raw in made.items():
        store.put(name, raw)
    others = {"Pod": pod("b", 9), "Node": versioned(ex.node("n1"), 9), "TrainingRun": run(9)}
    others["TrainingRun"]["metadata"]["name"] = "other"
    store.resync(kind, [Page([others[kind]], 9)])
    known = {
        "Pod": ("physics", "a") in store.pods,
        "Node": "n0" in store.capacity.nodes,
        "TrainingRun": GAN in store.runs,
    }
    assert {name for name, there in known.items() if not there} == {kind}


def test_what_is_newer_than_the_list_stays() -> None:
    store = Store()
    store.put("Pod", pod("new", 12))
    store.resync("Pod", [Page([pod("old", 9)], 10)])
    assert ("physics", "new") in store.pods


def test_the_end_of_a_pipelines_step_concerns_the_run_that_it_follows() -> None:
    store = Store()
    metadata = {"name": "gan", "namespace": "physics", "uid": "u", "resourceVersion": "1"}
    followed = {"metadata": {**metadata, "annotations": {"caloscale.dev/client-heartbeat": "step"}}, "spec": {}}
    followed["status"] = {"phase": "Running"}  # nothing else would have it looked at
    store.put("TrainingRun", followed)
    assert not store.is_there("physics", "step")
    come = store.put("Pod", pod("step", 2, run=""))  # again, maybe, and by the same name
    assert GAN in come and store.is_there("physics", "step")
    ended = store.put("Pod", pod("step", 3, "Failed", run=""))
    assert GAN in ended and not store.is_there("physics", "step")
    store.put("Pod", pod("step", 4, run=""))
    assert GAN in store.put("Pod", pod("step", 5, run=""), gone=True)
    assert not store.is_there("physics", "step")
    for version, phase, there in ((20, "Running", True), (21, "Failed", False)):  # a worker may be a client, too
        store.put("Pod", pod("worker", version, phase))
        assert store.is_there("physics", "worker") is there
    elsewhere = {**pod("step", 6, "Failed", run="")}
    elsewhere["metadata"] = {**elsewhere["metadata"], "namespace": "others"}
    assert GAN not in store.put("Pod", elsewhere)


def test_an_echo_of_an_own_write_concerns_nobody() -> None:
    """The event may be quicker than the answer."""
    store = Store()
    store.put("TrainingRun", run(1, phase="Pending"))
    store.assume(GAN, RunStatus(phase="Starting"), "1")
    assert store.put("TrainingRun", run(2, phase="Starting")) == set() and store.runs[GAN].version == "2"
    edited = run(3, phase="Starting")
    edited["metadata"]["generation"] = 2
    assert store.put("TrainingRun", edited) == {GAN}
    assert store.put("TrainingRun", {**edited, "metadata": {**edited["metadata"], "resourceVersion": "4"}}) == set()
    assert store.put("TrainingRun", run(5, phase="Starting", message="by somebody else")) == {GAN}


REPORT = {"epoch": 1.2, "epochs": 60, "step": 1000, "steps": 100_000, "checkpointStep": 900}


@pytest.mark.parametrize(
    ("seconds", "changes", "concerns"),
    [(59, {"step": 1999}, False), (60, {"step": 1100}, True), (15, {"step": 2000}, True)],
)
def test_a_report_concerns_its_run_when_it_brings_news(seconds: int, changes: dict[str, Any], concerns: bool) -> None:
    """All others are kept for the next decision."""
    store, w = Store(), World(*(ex.spot(f"n{i}") for i in range(4)), spec=QUEUED, uid="u")
    w.reconcile()
    made = w.others["TrainingProgress/gan-progress"]

    def reported(version: int, after: int, **changes: Any) -> set[RunKey]:
        moment = (dt.datetime(2026, 11, 21, 10, tzinfo=dt.UTC) + dt.timedelta(seconds=after)).isoformat()
        progress = {**REPORT, **changes, "updated": moment}
        return store.put("TrainingProgress", versioned({**made, "progress": progress}, version))

    store.put("TrainingRun", run(1, phase="Running", progress={**REPORT, "updated": "2026-11-21T10:00:00Z"}))
    assert reported(2, 0) == {GAN}
    assert reported(3, seconds, **changes) == ({GAN} if concerns else set())
    assert store.progress[GAN] is not None and store.progress[GAN].updated is not None
    assert store.progress[GAN].updated.second == seconds % 60


def test_with_many_runs_money_and_steps_are_written_more_seldom() -> None:
    store, attempt = Store(), {"number": 1, "job": "j", "nodes": 1, "workers": 1, "launched": "2026-11-21T10:00:00Z"}
    for number in range(1300):
        raw = run(1, phase="Running", attempts=[attempt])
        raw["metadata"] |= {"name": f"r{number}", "uid": f"u{number}"}
        store.put("TrainingRun", raw)
    assert store.refresh_seconds == 65
    for number in range(300):
        ended = run(2, phase="Running", attempts=[{**attempt, "ended": "2026-11-21T11:00:00Z"}])
        ended["metadata"] |= {"name": f"r{number}", "uid": f"u{number}"}
        store.put("TrainingRun", ended, gone=number % 2 == 0)
    assert store.refresh_seconds == 60


MOMENT = "2026-11-21T10:00:00Z"
OWNERS = [GAN, RunKey("physics", "gan", "u-again"), RunKey("physics", "other", "u-other")]


def drawn_object(drawn: random.Random, kind: str) -> dict[str, Any]:
    """An object of one of a few names, in any state; a pod may get another run, node or uid under its name."""
    owner = drawn.choice(OWNERS)
    if kind == "Node":
        return ex.node(f"n{drawn.randrange(5)}", drawn.choice(["v100-8", "b"]), ready=drawn.choice(["True", "False"]))
    if kind == "Pod":
        phase = drawn.choice(["Pending", "Running", "Running", "Succeeded", "Failed"])
        made = pod(f"p{drawn.randrange(6)}", 1, phase, f"n{drawn.randrange(5)}", drawn.choice(["", owner.name]))
        made["metadata"]["uid"] += drawn.choice(["", "-again"])
        if made["metadata"]["labels"]:
            made["metadata"]["labels"] |= {
                "caloscale.dev/run-uid": owner.uid,
                "caloscale.dev/attempt": drawn.choice("12"),
            }
        if drawn.random() < 0.3:
            del made["spec"]["nodeName"]
        return made
    metadata: dict[str, Any] = {"namespace": owner.namespace, "name": owner.name, "uid": owner.uid, "generation": 1}
    if kind == "TrainingRun":
        usage = {"pod": "p0", "uid": "u-p0", "node": f"n{drawn.randrange(5)}", "since": MOMENT}
        attempt = {"number": 1, "job": "j1", "nodes": drawn.choice([1, 2]), "workers": 2, "launched": MOMENT}
        attempt |= drawn.choice([{}, {"nodeUsage": [usage]}, {"ended": MOMENT}])
        status = {"phase": "Starting", "placement": {**ex.PLACED, "pool": drawn.choice(["v100-8", "b"])}}
        metadata["annotations"] = drawn.choice([{}, {"caloscale.dev/client-heartbeat": f"p{drawn.randrange(6)}"}])
        return {"metadata": metadata, "spec": {}, "status": drawn.choice([{}, {**status, "attempts": [attempt]}])}
    owned = {"ownerReferences": [{**owner.identity, "controller": True}]}
    if kind == "TFJob":
        named = {"namespace": owner.namespace, "name": f"j{drawn.randrange(1, 3)}", "uid": "uj", **owned}
        return {"metadata": named, "spec": {"runPolicy": {"suspend": drawn.random() < 0.5}}}
    named = {"namespace": owner.namespace, "name": f"{owner.name}-progress", **owned}
    return {"metadata": named, "progress": {"step": drawn.randrange(3)}}


KINDS = ("Node", "Pod", "TrainingRun", "TFJob", "TrainingProgress")


def answers(store: Store) -> list[Any]:
    """What a reconcile asks of the store."""
    of_runs = [
        (
            [store.pods_of(run), store.jobs_of(run), store.namesakes_of(run), store.pools_for(run)],
            [run in store.progress, store.progress.get(run), store.runs[run].status if run in store.runs else None],
        )
        for run in OWNERS
    ]
    pods = [store.is_there("physics", f"p{number}") for number in range(6)]
    return [of_runs, pods, dict(store.ready_nodes())]


@pytest.mark.parametrize("seed", range(8))
def test_after_any_events_it_answers_as_if_it_had_been_listed_just_now(seed: int) -> None:
    """Its indexes and sums are kept up to date one event at a time."""
    drawn, store = random.Random(seed), Store()
    there: dict[tuple[str, str], dict[str, Any]] = {}
    for version in range(1, 161):
        kind = drawn.choice(KINDS)
        if there and drawn.random() < 0.3:
            kind, name = drawn.choice(sorted(there))
            store.put(kind, versioned(there.pop((kind, name)), version), gone=True)
        else:
            raw = versioned(drawn_object(drawn, kind), version)
            there[kind, raw["metadata"]["name"]] = raw
            store.put(kind, raw)
        if version % 4 == 0:
            fresh = Store()
            for kind in KINDS:
                listed = [raw for (each, _), raw in there.items() if each == kind]
                fresh.resync(kind, [Page(listed, version)])
            assert answers(store) == answers(fresh), version


def launched_run(version: int, *, nodes: int = 2, **status: Any) -> dict[str, Any]:
    attempt = {"number": 1, "job": "gan-1", "nodes": nodes, "workers": nodes, "launched": MOMENT}
    return run(version, phase="Starting", placement=ex.PLACED, attempts=[attempt], **status)


def with_two_nodes_and_one_who_waits(free: int) -> tuple[Store, RunKey]:
    """Two nodes, on which GAN is coming, and another run that waits for so many free ones."""
    store, other = Store(), RunKey("physics", "other", "u-other")
    for number in range(2):
        store.put("Node", versioned(ex.node(f"n{number}"), number + 1))
    store.put("TrainingRun", launched_run(3))
    waits = run(4, phase="Waiting")
    waits["metadata"] |= {"name": "other", "uid": "u-other"}
    store.put("TrainingRun", waits)
    key = store.pools_for(other)[0][0].key
    assert store.pools_for(other)[0][0].free == 0
    assert store.park(other, {key: Need(free, changed=False)}, store.parking.changes) is None
    return store, other


def test_who_waits_is_tried_when_a_run_that_was_to_take_nodes_is_deleted_or_ends() -> None:
    store, other = with_two_nodes_and_one_who_waits(2)
    assert store.put("TrainingRun", launched_run(9), gone=True) == {other}
    store, other = with_two_nodes_and_one_who_waits(2)
    assert store.put("TrainingRun", run(9, phase="Failed")) == {GAN, other}
    store, other = with_two_nodes_and_one_who_waits(2)
    assert other not in store.put("TrainingRun", launched_run(9, nodes=1))  # one is too few
    store, other = with_two_nodes_and_one_who_waits(1)
    assert store.put("TrainingRun", launched_run(9, nodes=1)) == {GAN, other}
    store, other = with_two_nodes_and_one_who_waits(2)
    assert store.put("TrainingRun", launched_run(9, message="m")) == {GAN}


def test_a_status_that_is_assumed_counts_for_the_others_at_once() -> None:
    store, other = with_two_nodes_and_one_who_waits(2)
    store.assume(GAN, RunStatus(phase="Failed"), "2")  # of an older version
    assert store.pools_for(other)[0][0].free == 0
    store.assume(GAN, RunStatus(phase="Failed"), "3")
    assert store.pools_for(other)[0][0].free == 2 and store.runs[GAN].version == "3"
    store.assume(RunKey("physics", "none", "u"), RunStatus(), "3")


def test_what_a_list_that_broke_off_has_brought_concerns_its_runs_when_it_is_begun_again() -> None:
    """Else a run of its first page would not be looked at before its next change."""
    store, first = Store(), Page([run(3)], 9)

    def broken() -> Iterator[Page]:
        yield first
        raise ApiException(429)

    with pytest.raises(ApiException):
        store.resync("TrainingRun", broken())
    for concerned in ({GAN}, set()):
        assert store.resync("TrainingRun", [Page([run(3)], 10)]) == (concerned, 10)


def test_a_list_of_a_namespace_says_nothing_about_others() -> None:
    store, elsewhere = Store(), run(3)
    elsewhere["metadata"] |= {"namespace": "b", "uid": "u-b"}
    store.put("TrainingRun", run(3))
    store.put("TrainingRun", elsewhere)
    assert store.resync("TrainingRun", [Page([], 9)], "b") == (set(), 9)
    assert set(store.runs) == {GAN}
    assert store.resync("TrainingRun", []) == (set(), 0)  # the cluster does not know the kind
    assert set(store.runs) == {GAN}


def test_a_page_of_a_list_is_emptied_when_it_was_read() -> None:
    pages = [Page([run(3)], 9), Page([pod("a", 4)], 9)]
    Store().resync("TrainingRun", pages[:1])
    assert [len(page.objects) for page in pages] == [0, 1]


def warn(store: Store, name: str, version: int, about: str = "gan-1-worker-0", *, gone: bool = False) -> set[RunKey]:
    metadata = {"namespace": "physics", "name": name, "resourceVersion": str(version)}
    event = {"metadata": metadata, "type": "Warning", "regarding": {"name": about}, "eventTime": MOMENT}
    return store.put("Event", event, gone=gone)


def test_warnings_are_kept_while_their_run_lives() -> None:
    store = Store()
    assert warn(store, "e0", 1) == set()  # its run is not known yet: it may come again
    store.put("TrainingRun", launched_run(2))
    assert warn(store, "e0", 1) == {GAN} and warn(store, "e1", 4) == {GAN} and warn(store, "e1", 4) == set()
    assert set(store.warnings[GAN]) == {"e0", "e1"}
    assert warn(store, "e0", 5, gone=True) == set() and set(store.warnings[GAN]) == {"e1"}
    assert warn(store, "stranger", 6, "somebody-1", gone=True) == set()
    store.forget()
    assert set(store.warnings[GAN]) == {"e1"}
    store.put("TrainingRun", run(7, phase="Failed"))
    store.forget()
    assert store.warnings == {}
    store.put("TrainingRun", launched_run(8))
    warn(store, "e2", 9)
    store.put("TrainingRun", launched_run(10), gone=True)
    assert store.warnings == {}


@pytest.mark.parametrize("about", ["gan-2-worker-0", "gan-12", "gan-1x", "gan", "gan-x-1"])
def test_a_warning_about_another_attempt_or_run_is_none(about: str) -> None:
    store = Store()
    store.put("TrainingRun", launched_run(2))
    assert warn(store, "e", 3, about) == set() and not store.warnings


def test_pods_that_went_are_forgotten_after_ten_minutes() -> None:
    store, now = Store(), dt.datetime.now(dt.UTC)
    for name, minutes in (("old", 11), ("new", 9)):
        store.put("Pod", pod(name, 1))
        ended = pod(name, 2, "Failed")
        terminated = ended["status"]["containerStatuses"][0]["state"]["terminated"]
        terminated["finishedAt"] = (now - dt.timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
        store.put("Pod", ended, gone=True)
    assert set(store.went_of(GAN)) == {"u-old", "u-new"}
    store.forget()
    assert set(store.went_of(GAN)) == {"u-new"}


def test_a_pod_that_nobody_saw_go_ended_when_it_was_missed() -> None:
    store = Store()
    store.put("Pod", pod("a", 1))
    before = dt.datetime.now(dt.UTC).replace(microsecond=0)
    store.resync("Pod", [Page([], 9)])
    last = store.went_of(GAN)["u-a"]
    assert last.ended is not None and before <= last.ended <= dt.datetime.now(dt.UTC) and last.phase == "Running"


def test_nodes_are_read_anew_where_labels_mean_something_else() -> None:
    store, node = Store(), versioned(ex.node("n0"), 5)
    store.put("Node", node)
    assert store.read_labels_by(store.labels) is False and store.put("Node", node) == set()
    assert store.read_labels_by(dataclasses.replace(store.labels, rows=())) is True
    store.put("Node", node)  # of the same version
    assert store.pools_for(GAN)[0] == []


def test_a_node_that_goes_concerns_the_runs_on_it() -> None:
    store = Store()
    for name in ("n0", "n1"):
        store.put("Node", versioned(ex.node(name), 1))
    store.put("Pod", pod("a", 2, node="n0"))
    store.put("Pod", pod("b", 3, node="n1", run=""))
    assert store.put("Node", versioned(ex.node("n1"), 4), gone=True) == set()
    assert store.put("Node", versioned(ex.node("n0"), 4), gone=True) == {GAN}
    assert store.ready_nodes() == {}


def test_who_waits_is_asked_about_prices_and_queues() -> None:
    store = Store()
    for number, phase in enumerate(("Waiting", "Recovering", "Pending", "Running", "Starting", "Failed", "Suspended")):
        raw = run(1, phase=phase)
        raw["metadata"] |= {"name": phase.lower(), "uid": str(number)}
        store.put("TrainingRun", raw)
    waits = {RunKey("physics", name, uid) for uid, name in zip("012", ("waiting", "recovering", "pending"))}
    store.park(min(waits), {}, store.parking.changes)
    assert store.pending_runs() == waits and min(waits) not in store.parking


def test_runs_of_equal_blocks_take_some_kilobytes_each() -> None:
    """10,000 runs are to fit beside the cluster; a status alone took 20 kB, and each spec 6."""
    store, w = Store(), world(nodes=1, changes={"hardware": {**V100, "count": 8}}).until(lambda w: w.phase == "Running")
    text = json.dumps({"metadata": run(1)["metadata"], "spec": w.spec, "status": w.status})
    tracemalloc.start()
    for number in range(200):
        raw = json.loads(text)
        raw["metadata"] |= {"name": f"gan-{number}", "uid": f"u-{number}"}
        store.put("TrainingRun", raw)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(store.runs) == 200 and taken / 200 < 16_000
    one, other = list(store.runs.values())[:2]
    assert all(one.spec[name] is other.spec[name] for name in w.spec)
    assert (one.spec, one.status) == (w.spec, RunStatus.model_validate(w.status))
