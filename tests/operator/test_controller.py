"""What the operator does with the API server's answers; the server is a dictionary here."""

import copy
import datetime as dt
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from caloscale.cluster.capacity.placement import Need
from caloscale.cluster.names import RunKey
from caloscale.connection import FencedError, Page
from caloscale.operator import controller as module
from caloscale.operator.context import Decision, RunEvent, Snapshot
from caloscale.operator.controller import Controller
from caloscale.operator.election import LEASE_SECONDS
from caloscale.operator.metrics import Metrics
from caloscale.operator.settings import Settings
from caloscale.operator.workqueue import Turns, WorkQueue
from caloscale.planning.catalogue.prices import PriceRow, load_prices
from caloscale.planning.catalogue.rows import rows_csv
from caloscale.status import RunStatus
from tests.cluster import examples as ex
from tests.operator.test_store import pod, versioned
from tests.operator.test_workqueue import Clock
from tools.custom_resource import custom_resource_definition, progress_definition

RUN = RunKey("physics", "gan", "u")
HARDWARE = {"accelerator": "nvidia-tesla-v100", "count": 8, "capacityType": "spot", "region": "europe-west4"}
LABELS = (
    "vendor,label,concept,value,means,selects,source,observed_on,note\n"
    "own,example.com/pool,pool,,,yes,our laboratory,2026-11-01,\n"
)
QUOTA = 'pods "gan-1" is forbidden: exceeded quota: gpus'


class Server:
    """Takes everything but what it is set to refuse."""

    def __init__(self) -> None:
        self.groups = {"kueue.x-k8s.io"}
        self.published: dict[str, Any] = {}
        self.watched: Callable[[dict[str, Any]], object] = lambda _: None
        self.version = 10
        self.refusals: dict[str, tuple[int, str]] = {}
        self.events: list[tuple[str, str]] = []
        self.foreign: dict[tuple[str, str], dict[str, Any]] = {}
        self.deleted: list[tuple[Any, ...]] = []
        self.listed: list[str] = []
        self.merged: list[tuple[str, str, str, dict[str, Any]]] = []
        self.sent: list[dict[str, Any]] = []

    def serves(self, group: str) -> bool:
        return group in self.groups

    def schemas(self, _: str) -> dict[str, Any]:
        return self.published

    def each(self, kind: str, namespace: str | None = None, fields: str = "", **_: Any) -> list[dict[str, Any]]:
        self.listed.append(kind)
        there = self.foreign.get((kind, fields.removeprefix("metadata.name=")))
        return [there] if there else []

    def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        self.sent.append(manifest)
        if manifest["kind"] == "Event":
            self.events.append((manifest["reason"], manifest["note"]))
            return manifest
        if (manifest["kind"], manifest["metadata"]["name"]) in self.foreign:
            raise ApiException(status=409, reason="AlreadyExists")
        return self.apply(manifest)

    def delete(self, *what: Any, uid: str, version: str = "") -> None:
        self.deleted.append((*what, uid, version))

    def merge(self, kind: str, namespace: str, name: str, change: dict[str, Any]) -> None:
        self._check(kind)
        self.merged.append((kind, namespace, name, change))

    def _check(self, kind: str) -> None:
        if kind in self.refusals:
            status, message = self.refusals[kind]
            error = ApiException(status=status, reason="refused")
            error.body = json.dumps({"message": message})
            raise error

    def apply(self, manifest: dict[str, Any], part: str = "") -> dict[str, Any]:
        self._check(manifest["kind"])
        if manifest.get("status", {}).get("attempts"):
            self._check("attempts")
        self.sent.append(manifest)
        self.version += 1
        whole = {**run(), **manifest} if part == "status" else manifest
        metadata = {"uid": "u", **whole["metadata"], "resourceVersion": str(self.version)}
        self.watched({**whole, "metadata": metadata})
        return {**whole, "metadata": metadata}


def run() -> dict[str, Any]:
    return {
        "apiVersion": "caloscale.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"namespace": RUN.namespace, "name": RUN.name, "uid": "u", "resourceVersion": "2", "generation": 1},
        "spec": {"model": {"preset": "variable-angle"}, "hardware": HARDWARE},
    }


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def controller(server: Server, tmp_path: Path) -> Controller:
    made = Controller(server, Settings(prices=tmp_path), Metrics())  # type: ignore[arg-type]
    node = ex.spot("n0")
    node["metadata"]["resourceVersion"] = "1"
    made.store.put("Node", node)
    made.store.put("TrainingRun", run())
    return made


def observe(controller: Controller) -> Snapshot:
    observed = controller._observe(RUN, dt.datetime.now(dt.UTC))
    return observed[0]


def status(controller: Controller) -> RunStatus:
    return controller.store.runs[RUN].status


def test_what_the_api_server_refuses_is_reported_and_no_longer_reported_when_it_is_mended(
    controller: Controller, server: Server
) -> None:
    server.refusals["TFJob"] = (403, QUOTA)
    for _ in range(3):
        with pytest.raises(ApiException):
            controller._reconcile(RUN)
    blocked = status(controller).condition("Blocked")
    assert blocked is not None and blocked.status == "True"
    assert QUOTA in blocked.message and "raise the quota" in blocked.message
    assert QUOTA in status(controller).message
    assert [reason for reason, _ in server.events] == ["Refused"]
    server.refusals.clear()
    controller._reconcile(RUN)
    controller._reconcile(RUN)
    assert status(controller).phase == "Starting" and QUOTA not in status(controller).message


def test_what_is_sent_has_the_names_of_the_api(controller: Controller, server: Server) -> None:
    controller._reconcile(RUN)
    (written,) = (one["status"] for one in server.sent if one["kind"] == "TrainingRun")
    assert written["observedGeneration"] == 1 and written["attempts"][0]["launched"]
    assert not [name for name in written if "_" in name] and None not in written.values()
    (applied,) = (one for one in server.sent if one["kind"] == "TrainingRun")
    assert applied["apiVersion"] == "caloscale.dev/v1alpha1"
    assert applied["metadata"] == {"name": "gan", "namespace": "physics", "uid": "u", "resourceVersion": "2"}
    server.refusals["TFJob"] = (403, QUOTA)
    controller._record(RUN, RunEvent("Warning", "Refused", "n" * 2000))
    event = server.sent[-1]
    assert (event["apiVersion"], event["kind"], event["type"]) == ("events.k8s.io/v1", "Event", "Warning")
    assert event["regarding"] == {
        "apiVersion": "caloscale.dev/v1alpha1",
        "kind": "TrainingRun",
        "name": "gan",
        "uid": "u",
        "namespace": "physics",
    }
    assert event["metadata"]["namespace"] == "physics" and len(event["note"]) == 1000
    assert event["metadata"]["name"].startswith("gan.") and event["reason"] == "Refused" and event["action"]
    assert (
        event["reportingController"] == "caloscale-operator"
        and event["reportingInstance"] == controller.settings.identity
    )
    assert dt.datetime.strptime(event["eventTime"], "%Y-%m-%dT%H:%M:%S.%fZ")


def test_the_time_from_an_event_to_the_status_is_measured_once(controller: Controller) -> None:
    def measured(what: str = "event_seconds") -> float:
        (family,) = getattr(controller.metrics, what).collect()
        return next(one.value for one in family.samples if one.name.endswith("_count"))

    controller.notice(
        "TrainingRun", {**run(), "metadata": {**run()["metadata"], "resourceVersion": "3", "generation": 2}}
    )
    controller._reconcile(RUN)
    assert measured() == 1
    controller._reconcile(RUN)
    assert measured() == 1 and measured("decision_seconds") == 2


@pytest.mark.parametrize(("code", "said"), [(409, False), (403, True)])
def test_a_run_that_has_changed_meanwhile_is_no_warning(
    controller: Controller, server: Server, caplog: pytest.LogCaptureFixture, code: int, said: bool
) -> None:
    server.refusals["TrainingRun"] = (code, "somebody was quicker")
    controller._work(RUN)
    assert ("somebody was quicker" in caplog.text) == said


def test_warnings_are_watched_and_not_asked_for(controller: Controller, server: Server) -> None:
    """A thousand runs that start would list all warnings of their namespaces again and again."""
    controller._reconcile(RUN)
    known = status(controller)
    assert known.phase == "Starting" and known.live is not None
    warning = {
        "metadata": {"namespace": RUN.namespace, "name": "gan-1.1", "resourceVersion": "5"},
        "regarding": {"name": "gan-1-worker-0"},
        "type": "Warning",
        "reason": "FailedScheduling",
        "note": "0/1 nodes are available",
        "eventTime": (known.live.launched + dt.timedelta(seconds=1)).isoformat(),
    }
    live = known.live.model_copy(update={"launched": known.live.launched - dt.timedelta(seconds=20)})
    version = controller.store.runs[RUN].version
    controller.store.assume(RUN, known.model_copy(update={"attempts": (live,)}), version)
    controller.notice("Event", warning)
    controller._reconcile(RUN)
    blocked = status(controller).condition("Blocked")
    assert blocked is not None and blocked.reason == "FailedScheduling" and "Event" not in server.listed


def test_a_refusal_for_ever_gives_the_nodes_back(controller: Controller, server: Server) -> None:
    server.refusals["TFJob"] = (404, "the server could not find the requested resource")
    with pytest.raises(ApiException):
        controller._reconcile(RUN)
    other = RunKey("physics", "other", "u-other")
    assert controller.store.pools_for(other)[0][0].free == 0  # it is about to take it
    known = status(controller)
    assert known.live is not None
    hour = dt.timedelta(hours=1)
    live = known.live.model_copy(update={"launched": known.live.launched - hour})
    conditions = tuple(
        each.model_copy(update={"last_transition_time": each.last_transition_time - hour}) for each in known.conditions
    )
    version = controller.store.runs[RUN].version
    controller.store.assume(RUN, known.model_copy(update={"attempts": (live,), "conditions": conditions}), version)
    controller._reconcile(RUN)
    assert status(controller).phase == "Recovering" and status(controller).attempts[0].reason == "JobLost"
    assert "kubectl apply --server-side -k manifests/third-party" in status(controller).message
    assert controller.store.pools_for(other)[0][0].free == 1


def test_new_prices_concern_those_who_wait(controller: Controller, tmp_path: Path) -> None:
    """Files announce nothing: they are looked at with each list."""
    controller._refresh()
    assert controller.queue.get(0.0) is None
    (tmp_path / "own.csv").write_text(f"# none yet\n{ex.PRICES_HEADER}\n")
    controller._refresh()
    other = RunKey("physics", "other", "u-other")
    controller.queue.add(other)
    assert [controller.queue.get(0.0) for _ in range(2)] == [other, RUN]


def test_the_prices_of_a_new_day_concern_those_who_wait_also_when_a_reconcile_has_read_them(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller._refresh()
    tomorrow = controller.catalogue().as_of + dt.timedelta(days=1)
    monkeypatch.setattr(module, "today", lambda: tomorrow)
    assert observe(controller).catalogue.as_of == tomorrow
    controller._refresh()
    assert controller.queue.get(0.0) == RUN
    controller._refresh()
    assert controller.queue.get(0.0) is None


def test_a_run_with_a_queue_is_reconciled_again_when_kueue_is_removed_or_installed(
    controller: Controller, server: Server
) -> None:
    for groups in (set(), {"kueue.x-k8s.io"}):
        server.groups = groups
        controller._refresh()
        assert controller.queue.get(0.0) == RUN
        assert observe(controller).has_queues is bool(groups)
        controller.queue.done(RUN)
    controller._refresh()
    assert controller.queue.get(0.0) is None


def test_a_refused_boost_is_not_tried_again_before_the_next_refresh(controller: Controller, server: Server) -> None:
    """Without manifests/kueue: the run is reconciled all the same."""
    server.foreign["Workload", ""] = {"metadata": {"name": "tfjob-gan-1-0a1b2"}}
    controller._boost(RUN, "j", 40)
    server.refusals["Workload"] = (403, "no right")
    controller._boost(RUN, "j", 41)
    del server.refusals["Workload"]
    controller._boost(RUN, "j", 42)
    controller._refresh()
    controller._boost(RUN, "j", 43)
    change = {"metadata": {"annotations": {"kueue.x-k8s.io/priority-boost": "40"}}}
    assert server.merged[0] == ("Workload", "physics", "tfjob-gan-1-0a1b2", change)
    assert [list(merged[3]["metadata"]["annotations"].values()) for merged in server.merged] == [["40"], ["43"]]


@pytest.mark.parametrize("code", [409, 429, 500, 503])
def test_a_trouble_of_the_moment_is_not_held_against_a_run(controller: Controller, server: Server, code: int) -> None:
    server.refusals["TFJob"] = (code, "later")
    for _ in range(3):
        with pytest.raises(ApiException):
            controller._reconcile(RUN)
    assert status(controller).condition("Blocked") is None


@pytest.mark.parametrize("kind", ["TrainingProgress", "TFJob"])
def test_an_object_of_the_same_name_is_left_alone(controller: Controller, server: Server, kind: str) -> None:
    name = {"TrainingProgress": "gan-progress", "TFJob": "gan-1"}[kind]
    mine = {
        "kind": kind,
        "metadata": {"name": name, "namespace": "physics", "resourceVersion": "3"},
        "data": {"a": "b"},
    }
    server.foreign[kind, name] = mine
    for _ in range(3):
        with pytest.raises(ApiException):
            controller._reconcile(RUN)
    blocked = status(controller).condition("Blocked")
    assert blocked is not None and (blocked.status, blocked.reason) == ("True", "NameTaken")
    assert f"{kind} {name}: is there already" in blocked.message and "delete or rename that object" in blocked.message
    assert server.deleted == []
    del server.foreign[kind, name]
    controller._reconcile(RUN)
    assert [job.name for job in controller.store.jobs_of(RUN)] == ["gan-1"] and RUN in controller.store.progress


def test_what_the_run_has_already_is_taken_as_it_is(controller: Controller, server: Server) -> None:
    """The answer to the first creation was lost."""
    owner = {"kind": "TrainingRun", "name": "gan", "uid": "u", "controller": True}
    metadata = {"name": "gan-progress", "namespace": "physics", "resourceVersion": "3", "ownerReferences": [owner]}
    server.foreign["TrainingProgress", "gan-progress"] = {"kind": "TrainingProgress", "metadata": metadata}
    controller._reconcile(RUN)
    assert [job.name for job in controller.store.jobs_of(RUN)] == ["gan-1"]


def test_a_run_is_deleted_as_it_was_decided_and_in_no_other_version(controller: Controller, server: Server) -> None:
    ended = {**run(), "status": {"phase": "Succeeded", "finished": "2026-11-21T10:00:00Z"}}
    ended["spec"] = {**ended["spec"], "cluster": {"ttlSecondsAfterFinished": 1}}
    ended["metadata"] = {**ended["metadata"], "resourceVersion": "5"}
    controller.store.put("TrainingRun", ended)
    controller._reconcile(RUN)
    (*what, uid, version) = server.deleted[-1]
    assert what == ["TrainingRun", "physics", "gan"] and uid == "u"
    assert version == controller.store.runs[RUN].version == str(server.version)


def test_the_job_of_a_run_that_a_finalizer_keeps_is_deleted(controller: Controller, server: Server) -> None:
    controller._reconcile(RUN)
    (job,) = controller.store.jobs_of(RUN)
    going = {**run(), "status": {"phase": "Starting"}}
    going["metadata"] = {**going["metadata"], "resourceVersion": "90", "deletionTimestamp": "2026-11-21T10:00:00Z"}
    controller.store.put("TrainingRun", going)
    assert controller._reconcile(RUN) is None
    assert server.deleted[-1][:4] == ("TFJob", "physics", "gan-1", job.uid)


@pytest.mark.parametrize(("state", "phase"), [("Succeeded", "Succeeded"), ("Running", "Recovering")])
def test_a_worker_that_is_gone_is_lost_only_when_the_newest_state_of_its_job_says_no_success(
    controller: Controller, server: Server, state: str, phase: str
) -> None:
    """The controller of a job that has succeeded deletes workers; pods and jobs have a watch each."""
    controller._reconcile(RUN)
    (job,) = controller.store.jobs_of(RUN)
    controller.store.put("Pod", pod("gan-1-worker-0", 50))
    controller._reconcile(RUN)
    condition = {"type": state, "status": "True"}
    owner = {"kind": "TrainingRun", "name": "gan", "uid": "u", "controller": True}
    labels = {"caloscale.dev/attempt": "1"}
    metadata = {"name": job.name, "namespace": RUN.namespace, "uid": job.uid, "resourceVersion": "60"}
    server.foreign["TFJob", job.name] = {
        "kind": "TFJob",
        "metadata": {**metadata, "ownerReferences": [owner], "labels": labels},
        "status": {"conditions": [condition]},
    }
    controller.store.put("Pod", pod("gan-1-worker-0", 61), gone=True)
    controller._reconcile(RUN)
    assert status(controller).phase == phase, status(controller).message


def test_a_worker_that_came_and_went_between_two_reconciles_used_its_node(controller: Controller) -> None:
    controller._reconcile(RUN)
    controller.store.put("Pod", pod("gan-1-worker-0", 50))
    controller.store.put("Pod", pod("gan-1-worker-0", 61), gone=True)
    controller._reconcile(RUN)
    (attempt,) = status(controller).attempts
    (total,) = attempt.node_totals
    assert attempt.reason == "WorkerLost" and total.nodes == 1 and total.node_seconds > 0


def test_what_was_seen_does_not_change_while_events_come(controller: Controller) -> None:
    """A decision iterates over it beside the threads of the watches."""
    controller.store.put("Pod", pod("gan-1-worker-0", 50))
    controller.store.put("Pod", pod("gan-1-worker-1", 51))
    controller.store.put("Pod", pod("gan-1-worker-1", 52), gone=True)
    seen = observe(controller)
    before = (dict(seen.gone_pods), dict(seen.nodes), len(seen.pods))
    controller.store.put("Pod", pod("gan-1-worker-0", 61), gone=True)
    for node in ("n1", "n2"):
        controller.store.put("Node", versioned(ex.spot(node), 9))
    assert (dict(seen.gone_pods), dict(seen.nodes), len(seen.pods)) == before
    assert len(before[0]) == 1


def test_a_status_that_was_not_written_is_not_taken_for_written(controller: Controller, server: Server) -> None:
    """Its node is free for others again, and one decision at a time takes nodes."""
    other, before = RunKey("physics", "other", "u-other"), status(controller)
    server.refusals["TrainingRun"] = (409, "somebody was quicker")
    assert controller.store.pools_for(other)[0][0].free == 1
    seen_free: list[int] = []
    write = controller._write

    def during(*given: Any) -> str:
        seen_free.append(controller.store.pools_for(other)[0][0].free)
        return write(*given)

    controller._write = during  # type: ignore[method-assign]
    with pytest.raises(ApiException):
        controller._reconcile(RUN)
    assert seen_free == [0]  # while it is written nobody else plans with the node
    assert status(controller) == before and controller.store.pools_for(other)[0][0].free == 1


@pytest.mark.parametrize(
    ("code", "why"), [(500, ".status.attempts: field not declared in schema"), (422, "status.phase: Unsupported value")]
)
def test_a_run_whose_status_is_refused_says_so_in_the_one_that_it_has(
    controller: Controller, server: Server, code: int, why: str
) -> None:
    """The custom resource of an older version lacks what this one writes; the API server answers 500, too."""
    server.refusals["attempts"] = (code, why)
    for _ in range(3):
        with pytest.raises(ApiException):
            controller._reconcile(RUN)
    (written,) = (one["status"] for one in server.sent if one["kind"] == "TrainingRun")
    (condition,) = written["conditions"]
    assert (condition["type"], condition["status"]) == ("StatusWritten", "False")
    assert why in condition["message"] and "make deploy" in condition["message"]
    assert [(reason, why in note) for reason, note in server.events] == [("Refused", True)]
    assert not any(one["kind"] == "TFJob" for one in server.sent)
    server.refusals.clear()
    controller._reconcile(RUN)
    assert status(controller).phase == "Starting" and status(controller).condition("StatusWritten") is None


def test_a_run_of_which_no_status_can_be_written_has_one_event(controller: Controller, server: Server) -> None:
    """Without the right to statuses the log of the operator was the only place that said so."""
    server.refusals["TrainingRun"] = (403, "trainingruns/status is forbidden")
    for _ in range(3):
        with pytest.raises(ApiException):
            controller._reconcile(RUN)
    ((reason, note),) = server.events
    assert reason == "Refused" and "forbidden" in note and "its role again: make deploy" in note
    server.refusals.clear()
    controller._reconcile(RUN)
    assert status(controller).phase == "Starting" and len(server.events) == 1


def test_what_was_written_is_known_whole_where_a_watch_brings_it_pruned(controller: Controller, server: Server) -> None:
    """The API server prunes for watches that are older than the custom resource; the event may come before the answer.
    A launch without its placement would never get on."""

    def prune(written: dict[str, Any]) -> None:
        if written["kind"] == "TrainingRun":
            kept = {name: value for name, value in written["status"].items() if name != "placement"}
            controller.notice("TrainingRun", {**written, "status": kept})

    server.watched = prune
    controller._reconcile(RUN)
    assert status(controller).placement is not None


def test_a_status_that_is_refused_for_the_moment_is_only_tried_again(controller: Controller, server: Server) -> None:
    server.refusals["attempts"] = (500, "etcdserver: request timed out")
    with pytest.raises(ApiException):
        controller._reconcile(RUN)
    assert server.sent == [] and server.events == []


def test_custom_resources_of_an_older_version_are_named_until_they_fit(
    controller: Controller, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    definitions = (custom_resource_definition(), progress_definition())
    server.published = {
        each["spec"]["names"]["kind"]: copy.deepcopy(each["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
        for each in definitions
    }
    controller._refresh()
    assert controller.lacking == [] and not caplog.messages
    status = server.published["TrainingRun"]["properties"]["status"]["properties"]
    ended = status["attempts"]["items"]["properties"]["reason"]["enum"]
    held = status["attempts"]["items"]["properties"]["nodeUsage"]["items"]["properties"]
    progress = server.published["TrainingProgress"]["properties"]["progress"]["properties"]
    removed = status.pop("failedSpec"), held.pop("done"), progress.pop("attempt"), ended.remove("Requeued")
    controller._refresh()
    assert controller.lacking == [
        "TrainingRun status.attempts[].reason: Requeued",
        "TrainingRun status.attempts[].nodeUsage[].done",
        "TrainingRun status.failedSpec",
        "TrainingProgress progress.attempt",
    ]
    assert "nodeUsage[].done" in caplog.text and "make deploy" in caplog.text
    status["failedSpec"], held["done"], progress["attempt"] = removed[:3]
    ended.append("Requeued")
    controller._refresh()
    assert controller.lacking == []


def test_one_run_at_a_time_is_decided_about(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two must not take the same node: the decision and its assumption are one step."""
    held: list[bool] = []

    def noting(called: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            held.append(controller._deciding.locked())
            return called(*given)

        return call

    monkeypatch.setattr(module, "reconcile", noting(module.reconcile))
    monkeypatch.setattr(controller.store, "assume", noting(controller.store.assume))
    controller._reconcile(RUN)
    assert held[:2] == [True, True] and not controller._deciding.locked()


def test_a_process_without_the_lease_follows_and_decides_nothing(
    controller: Controller, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its refreshes continue, so that it forgets what is gone; with the lease it decides about what it knows."""
    refreshes, written = threading.Semaphore(0), threading.Event()
    monkeypatch.setattr(controller, "settings", controller.settings.model_copy(update={"resync_seconds": 0.01}))
    monkeypatch.setattr(controller.watches, "are_listed", lambda: True)
    monkeypatch.setattr(controller, "_refresh", refreshes.release)
    write = controller._write

    def writing(*given: Any) -> str:
        written.set()
        return write(*given)

    monkeypatch.setattr(controller, "_write", writing)
    controller.queue.add(RUN)
    loop = threading.Thread(target=controller.run, daemon=True)
    loop.start()
    try:
        for _ in range(3):
            assert refreshes.acquire(timeout=60)
        assert controller.synced.is_set() and not controller.leads
        assert not written.is_set() and server.version == 10
        controller.lead()
        assert written.wait(60) and controller.leads
    finally:
        controller.stop()
        loop.join(60)
    assert not loop.is_alive() and status(controller).phase != "Pending"


def test_an_event_is_decided_before_what_is_listed_and_not_begun(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All threads are busy with writes of a list: what an event asks for is the next one, not the last.

    What no thread is free for stays in the queue, which knows what comes first.
    """
    decided: list[RunKey] = []
    begun, go_on, all_done = threading.Semaphore(0), threading.Semaphore(0), threading.Event()
    threads = controller.settings.threads
    keys = [RunKey("listed", str(number), "u") for number in range(5 * threads)]

    def decide(run: RunKey) -> None:
        begun.release()
        assert go_on.acquire(timeout=60)
        decided.append(run)
        if len(decided) == len(keys) + 1:
            all_done.set()

    drained, take = threading.Event(), controller.queue.get

    def get(seconds: float) -> RunKey | None:
        key = take(seconds)
        if key == keys[-1]:
            drained.set()
        return key

    monkeypatch.setattr(controller.queue, "get", get)
    monkeypatch.setattr(controller, "_reconcile", decide)
    monkeypatch.setattr(controller.watches, "are_listed", lambda: True)
    monkeypatch.setattr(controller, "_refresh", lambda: None)
    for key in keys:
        controller.queue.add(key, can_wait=True)
    controller.lead()
    loop = threading.Thread(target=controller.run, daemon=True)
    loop.start()
    try:
        for _ in range(threads):
            assert begun.acquire(timeout=60)
        assert not drained.wait(1.0)
        controller.queue.add(RUN)
        go_on.release(len(keys) + 1)
        assert all_done.wait(60)
    finally:
        controller.stop()
        loop.join(60)
    assert decided.index(RUN) <= 2 * threads


def due_after(controller: Controller, most: float = 1000.0) -> float | None:
    """In how many seconds the run is due; None: it is not."""
    clock = controller.queue._clock
    assert isinstance(clock, Clock)
    begun = clock.now
    while clock.now <= begun + most:
        if (run := controller.queue.get(0.0)) is not None:
            assert run == RUN
            controller.queue.done(RUN)
            return round(clock.now - begun, 2)
        clock.now += 0.125
    return None


@pytest.fixture
def timed(controller: Controller) -> Controller:
    controller.queue = WorkQueue(Clock())
    return controller


def test_after_a_change_of_the_leader_what_has_happened_is_written_before_the_money_of_all_others(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Money that came due meanwhile is written little by little, of each run once; what is new is written at once."""
    clock, written, lost = Clock(), dict[RunKey, float](), RunKey("physics", "r199", "u-r199")
    controller.queue, controller.routine = WorkQueue(clock), Turns(module.ROUTINE_PER_SECOND, clock)

    def decide(seen: Snapshot, now: dt.datetime) -> Decision:
        told = seen.status.model_copy(update={"message": "told"})
        return Decision(told, is_routine=seen.run != lost, again=now + dt.timedelta(seconds=100))

    monkeypatch.setattr(module, "reconcile", decide)
    write = controller._write

    def noting(key: RunKey, version: str, what: RunStatus) -> str:
        assert key not in written
        written[key] = clock.now
        return write(key, version, what)

    monkeypatch.setattr(controller, "_write", noting)
    controller.store.put("TrainingRun", versioned(run(), 9), gone=True)
    for number in range(200):
        metadata = {**run()["metadata"], "name": f"r{number:03d}", "uid": f"u-r{number:03d}"}
        controller.listed("TrainingRun", "physics", [Page([{**run(), "metadata": metadata}], 0)])
    begun = clock.now
    while clock.now < begun + 20:
        while (due := controller.queue.get(0.0)) is not None:
            controller._work(due)
        clock.now += 0.01
    assert written.pop(lost) == begun and len(written) == 199
    assert max(written.values()) - begun == pytest.approx(198 / module.ROUTINE_PER_SECOND, abs=0.05)


def test_a_run_whose_money_is_put_off_is_looked_at_when_its_own_time_comes(
    timed: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody measures how long that takes, and what it waits for is known all the same."""
    timed.routine = Turns(0.1, timed.queue._clock)
    timed.routine.take(RunKey("physics", "other", "u-other"))
    told = status(timed).model_copy(update={"message": "told"})
    again, awaits = dt.timedelta(seconds=3), {timed.store.pools_for(RUN)[0][0].key: Need(9, changed=False)}
    monkeypatch.setattr(
        module, "reconcile", lambda seen, now: Decision(told, is_routine=True, again=now + again, awaits=awaits)
    )
    assert timed._reconcile(RUN) == 3.0 and status(timed).message == "" and RUN in timed.store.parking
    again = dt.timedelta(seconds=30)
    assert timed._reconcile(RUN) == 10.0 and status(timed).message == ""
    timed.queue._clock.now += 10.0  # type: ignore[attr-defined]
    timed.notice("TrainingRun", versioned({**run(), "spec": {}}, 5))
    assert timed._reconcile(RUN) == 30.0 and status(timed).message == "told"
    (family,) = timed.metrics.event_seconds.collect()
    assert all(one.value == 0 for one in family.samples if one.name.endswith("_count"))


def test_a_run_whose_money_was_written_with_something_else_or_that_is_gone_has_no_turn(
    timed: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed.routine = Turns(0.1, timed.queue._clock)
    made: list[Decision] = []
    monkeypatch.setattr(module, "reconcile", lambda *_: made.pop())

    def decide(message: str, *, is_routine: bool) -> float | None:
        made.append(Decision(status(timed).model_copy(update={"message": message}), is_routine=is_routine))
        return timed._reconcile(RUN)

    assert decide("", is_routine=True) is None  # there is nothing to write
    assert decide("a", is_routine=True) is None and decide("b", is_routine=True) == 10.0
    assert decide("c", is_routine=False) is None and status(timed).message == "c"
    assert decide("d", is_routine=True) == 20.0
    timed.store.put("TrainingRun", versioned(run(), 99), gone=True)
    assert timed._reconcile(RUN) is None and timed.routine.take(RUN) == 30.0


def test_what_happened_when_there_was_another_leader_can_wait(timed: Controller) -> None:
    clock, news = timed.queue._clock, RunKey("physics", "news", "u-news")
    assert isinstance(clock, Clock)
    timed.notice("TrainingRun", versioned({**run(), "spec": {}}, 5))
    clock.now += 3 * LEASE_SECONDS
    timed.queue.add(news)
    timed.lead()
    assert [timed.queue.get(0.0), timed.queue.get(0.0)] == [news, RUN]


def test_events_of_a_gang_are_answered_by_one_reconcile(timed: Controller) -> None:
    for version in (3, 4):
        timed.notice("TrainingRun", versioned({**run(), "status": {"message": str(version)}}, version))
    assert due_after(timed) == 0.5 and due_after(timed) is None
    timed.notice("TrainingRun", versioned(run(), 9), gone=True)
    assert RUN not in timed.store.runs
    assert timed.listed("TrainingRun", "", [Page([versioned(run(), 11)], 12)]) == 12
    assert due_after(timed) == 0.0 and RUN in timed.store.runs
    assert timed.listed("TrainingRun", "elsewhere", [Page([], 20)]) == 20 and RUN in timed.store.runs


def test_of_what_is_listed_a_run_that_its_user_has_changed_comes_first(timed: Controller) -> None:
    """Also when no operator ran at that time."""
    known = {**run(), "status": {"observedGeneration": 1}}
    others = [{**known, "metadata": {**known["metadata"], "name": name, "uid": name}} for name in "abc"]
    changed = {**known, "metadata": {**known["metadata"], "generation": 2}}
    timed.listed("TrainingRun", "", [Page([versioned(each, 20) for each in (*others, changed)], 20)])
    first, *rest = (timed.queue.get(0.0) for _ in range(5))
    assert first == RUN and {each.name for each in rest if each is not None} == set("abc")


def test_what_another_leader_has_decided_comes_after_what_it_has_not(timed: Controller) -> None:
    decided = {**run(), "status": {"observedGeneration": 1, "message": "decided"}}
    for version, name in enumerate("abc", 20):
        timed.notice("TrainingRun", versioned({**decided, "metadata": {**run()["metadata"], "name": name}}, version))
    timed.notice("TrainingRun", versioned({**decided, "metadata": {**run()["metadata"], "generation": 2}}, 23))
    clock = timed.queue._clock
    assert isinstance(clock, Clock)
    clock.now += 1.0
    assert timed.queue.get(0.0) == RUN and {timed.queue.get(0.0).name for _ in range(3)} == set("abc")  # type: ignore[union-attr]


def test_a_failure_is_tried_again_after_pauses_that_grow(
    timed: Controller, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.refusals["TrainingRun"] = (500, "down")
    pauses = []
    for _ in range(3):
        timed._work(RUN)
        pauses.append(due_after(timed))
    assert pauses == [0.5, 1.0, 2.0] and caplog.text.count("down") == 3
    server.refusals.clear()
    timed._work(RUN)
    assert due_after(timed) is not None  # it looks again at the job that it has made
    server.refusals["TFJob"] = (500, "down")
    timed.store.jobs.clear()
    timed.store._jobs_of.clear()
    timed._work(RUN)
    assert due_after(timed) == 0.5  # after a success the next failure is the first one


@pytest.mark.parametrize(("error", "pause"), [(ValueError("odd"), 30.0), (FencedError("leads no more"), None)])
def test_an_error_of_ours_is_logged_and_who_leads_no_more_does_nothing(
    timed: Controller, caplog: pytest.LogCaptureFixture, error: Exception, pause: float | None
) -> None:
    def fail(_: RunKey) -> float:
        raise error

    timed._reconcile = fail  # type: ignore[method-assign]
    timed._work(RUN)
    assert due_after(timed) == pause and ("an error of ours" in caplog.text) == (pause is not None)


def test_what_has_no_time_of_its_own_waits_for_an_event(timed: Controller, server: Server) -> None:
    timed.notice("Node", versioned(ex.spot("n0"), 5), gone=True)
    due_after(timed)
    assert timed._reconcile(RUN) is None and status(timed).phase == "Waiting"
    sent = len(server.sent)
    assert timed._reconcile(RUN) is None and len(server.sent) == sent  # nor is it decided about again
    timed.notice("Node", versioned(ex.spot("n0"), 6))
    assert due_after(timed) == 0.5
    again = timed._reconcile(RUN)
    assert status(timed).phase == "Starting" and again is not None and 0.05 <= again <= 10
    timed.notice("TrainingRun", versioned(run(), 99), gone=True)
    assert timed._reconcile(RUN) is None and timed._observe(RUN, dt.datetime.now(dt.UTC)) is None


def test_a_run_on_its_way_out_is_left_alone(controller: Controller, server: Server) -> None:
    going = run()
    going["metadata"] |= {"deletionTimestamp": "2026-11-21T10:00:00Z", "resourceVersion": "3"}
    controller.store.put("TrainingRun", going)
    assert controller._reconcile(RUN) is None and server.sent == []


def test_an_event_that_is_not_written_is_no_harm(
    controller: Controller, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: dict[str, Any]) -> dict[str, Any]:
        raise ApiException(status=403, reason="no right")

    server.create = refuse  # type: ignore[method-assign]
    with caplog.at_level("INFO"):
        controller._record(RUN, RunEvent("Warning", "Refused", "why"))
    assert "event Refused was not written: 403 no right" in caplog.text


def test_whether_kueue_is_installed_is_asked_again_after_an_error(
    controller: Controller, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: str) -> bool:
        raise ApiException(status=500, reason="down")

    server.groups = set()
    controller._refresh()
    controller.queue.get(0.0)
    controller.queue.done(RUN)
    server.serves = fail  # type: ignore[method-assign]
    controller._refresh()
    assert not observe(controller).has_queues and controller.queue.get(0.0) is None
    assert "cannot read whether Kueue is installed" in caplog.text


def test_what_a_reconcile_sees(controller: Controller) -> None:
    """The run's own objects, its client's pod, and what was said about its job."""
    assert observe(controller).lost_client is None
    followed = run()
    followed["metadata"] |= {"annotations": {"caloscale.dev/client-heartbeat": "step"}, "resourceVersion": "3"}
    controller.store.put("TrainingRun", followed)
    seen = observe(controller)
    assert (seen.run, seen.generation, seen.spec) == (RUN, 1, followed["spec"])
    assert (seen.lost_client, seen.has_progress, seen.progress) == ("step", False, None)
    assert seen.nodes == {"n0": True} and [pool.free for pool in seen.pools()[0]] == [1] and not seen.warnings
    assert seen.image.startswith("caloscale/trainer:") and seen.solver_image.startswith("caloscale/solver:")
    controller.store.put("Pod", pod("step", 4, run=""))
    owner = {"kind": "TrainingRun", "name": "gan", "uid": "u", "controller": True}
    reported = {"metadata": {"name": "gan-progress", "namespace": "physics", "ownerReferences": [owner]}}
    controller.store.put("TrainingProgress", versioned({**reported, "progress": {"step": 5}}, 5))
    stranger = pod("gan-1-worker-0", 6)
    stranger["metadata"]["labels"]["caloscale.dev/run-uid"] = "u-before"
    controller.store.put("Pod", stranger)
    seen = observe(controller)
    assert seen.lost_client is None and seen.has_progress
    assert seen.progress is not None and seen.progress.step == 5
    assert [each.name for each in seen.namesakes] == ["gan-1-worker-0"] and seen.pods == []
    assert seen.refresh_seconds == 60


def test_a_table_that_cannot_be_read_is_left_aside_and_named(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prices, labels = tmp_path / "prices", tmp_path / "labels"
    for folder in (prices, labels):
        folder.mkdir()
        (folder / "own.csv").write_text("nonsense\n1\n")
    controller = Controller(server, Settings(prices=prices, labels=labels), Metrics())  # type: ignore[arg-type]
    assert "the prices of the ConfigMap are left aside" in caplog.text
    assert "the labels of the ConfigMap are left aside" in caplog.text
    # those of before the start, which are not known, may say something else than the package's
    known = controller.catalogue()
    assert not known.prices.rows and "own.csv" in known.prices.added
    controller.store.put("Node", versioned(ex.spot("n0"), 5))
    pools, (refused,) = controller.store.pools_for(RUN)
    assert not pools and "the labels of the ConfigMap are left aside" in refused
    assert known is controller.catalogue(look=False) is controller.catalogue() and known.labels.problem
    for folder in (prices, labels):  # the first error is corrected, and there is another one
        (folder / "own.csv").rename(folder / "lab.csv")
    known = controller.catalogue()
    assert "lab.csv" in known.prices.added and "lab.csv" in known.labels.problem
    (labels / "lab.csv").unlink()
    controller.watches._to_list.clear()
    (labels / "own.csv").write_text(LABELS)
    controller.store.put("TrainingRun", run())
    assert observe(controller).catalogue is known  # files are looked at with each refresh
    again = controller.catalogue()
    assert again is not known and not again.labels.problem and again.labels.rows
    assert controller.watches._to_list == {("Node", "")}


def test_prices_stay_when_a_hand_breaks_them_and_runs_say_so(server: Server, tmp_path: Path) -> None:
    """With the package's prices a run would meet its budget earlier, or later."""
    own = tmp_path / "own.csv"
    own.write_text(rows_csv(PriceRow, [row := load_prices().rows[0].model_copy(update={"usd_per_unit_hour": 9.5})]))
    controller = Controller(server, Settings(prices=tmp_path), Metrics())  # type: ignore[arg-type]
    assert controller.catalogue().prices.rows[0] == row and not controller.catalogue().problem
    own.write_text(own.read_text().replace("9.5", "9;5"))
    os.utime(own, (1, 1))
    broken = controller.catalogue()
    assert broken.prices.rows[0] == row and "own.csv:2: usd_per_unit_hour" in broken.problem


def test_prices_are_those_of_today(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    before = controller.catalogue()
    monkeypatch.setattr(module, "today", lambda: before.as_of + dt.timedelta(days=1))
    assert controller.catalogue(look=False).as_of == before.as_of + dt.timedelta(days=1)


def test_a_refusal_is_kept_while_something_else_is_in_the_way(controller: Controller, server: Server) -> None:
    server.refusals["TFJob"] = (403, QUOTA)
    with pytest.raises(ApiException):
        controller._reconcile(RUN)
    server.refusals["TFJob"] = (503, "later")
    for _ in range(2):
        with pytest.raises(ApiException):
            controller._reconcile(RUN)
    blocked = status(controller).condition("Blocked")
    assert blocked is not None and (blocked.status, blocked.reason) == ("True", "Refused")
    assert "TFJob gan-1: pods" in blocked.message


def test_it_ends_after_the_reconciles_that_are_on_their_way(controller: Controller) -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def slow(_: RunKey) -> None:
        begun.set()
        may_end.wait(60)
        ended.set()

    controller._threads.submit(slow, RUN)
    assert begun.wait(60)
    stopping = threading.Thread(target=controller.stop)
    stopping.start()
    assert controller._stop.wait(60) and controller.watches._stop.is_set() and not ended.is_set()
    may_end.set()
    stopping.join(60)
    assert ended.is_set()


def test_a_run_for_which_there_is_room_by_now_is_tried_again_and_the_next_of_its_class_at_once(
    timed: Controller,
) -> None:
    key = observe(timed).pools()[0][0].key
    timed._park(RUN, {key: Need(2, changed=False)}, timed.store.parking.changes)
    assert due_after(timed) is None
    timed._park(RUN, {key: Need(1, changed=False)}, timed.store.parking.changes)
    assert due_after(timed) == 0.5
    follower = run()
    follower["metadata"] |= {"name": "next", "uid": "u-next"}
    timed.store.put("TrainingRun", follower)
    other = RunKey("physics", "next", "u-next")
    timed.store.park(other, {key: Need(2, changed=False)}, timed.store.parking.changes)
    timed._park(RUN, None, timed.store.parking.changes)
    assert timed.queue.get(0.0) == other
