"""A local copy of the objects of the cluster, fed by a list and a watch of each kind."""

from __future__ import annotations

import datetime as dt
import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from caloscale.cluster import names
from caloscale.cluster.capacity.labels import NodeLabels, load_labels
from caloscale.cluster.capacity.nodes import Node, Pool, node_of, pools_of
from caloscale.cluster.capacity.pods import ENDED, JOB_KINDS, Job, Pod, job_of, owner_of, pod_of, subject_of
from caloscale.cluster.names import RunKey
from caloscale.connection import GONE, Connection, message_of
from caloscale.status import FINISHED, RunProgress, RunStatus

log = logging.getLogger(__name__)

ATTEMPT = re.compile(r"-\d+(?=-[a-z]|$)")
"""The number of the attempt in the names of jobs and of their pods; it may be in the name of the run, too."""
REMEMBERED_SECONDS = 600.0
"""Pods that went are remembered so long, s."""


class KnownRun(NamedTuple):
    """A run as it was seen last."""

    raw: Mapping[str, Any]
    """The object without its status."""
    status: RunStatus
    """Its status."""


class Store:
    """The cluster as lists and events have it. All methods may be called by several threads."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.labels = load_labels()
        self.nodes: dict[str, Node] = {}
        self.pods: dict[tuple[str, str], Pod] = {}
        self.jobs: dict[tuple[str, str, str], Job] = {}
        self.runs: dict[RunKey, KnownRun] = {}
        self.progress: dict[RunKey, RunProgress | None] = {}
        self.went: dict[str, Pod] = {}
        self.warnings: dict[RunKey, dict[str, Mapping[str, Any]]] = {}
        self._versions: dict[tuple[str, str, str], int] = {}
        self._present: set[tuple[str, str, str]] = set()
        self._of_run: dict[RunKey, set[tuple[str, str]]] = {}
        self._named: dict[tuple[str, str], RunKey] = {}
        self._progress_maps: dict[tuple[str, str], RunKey] = {}
        self._pools: tuple[int, tuple[list[Pool], list[str]]] | None = None
        self._changes = 0

    # --- events

    def put(self, kind: str, raw: Mapping[str, Any], *, gone: bool = False) -> set[RunKey]:
        """Take in an object as an event has it; returns the runs that it concerns, with those that wait for capacity.

        What is not newer than what is known is left aside: events and answers to our own writes overtake.
        """
        metadata = raw["metadata"]
        key = (kind, metadata.get("namespace", ""), metadata["name"])
        version = int(metadata.get("resourceVersion", 0))
        with self.lock:
            if version <= self._versions.get(key, -1):
                if gone and kind == "Pod":  # another one has its name by now
                    self._remember(pod_of(raw))
                return set()
            self._versions[key] = version
            if gone:
                return self._drop(key, raw)
            self._present.add(key)
            try:
                return self._take(key, raw)
            except (KeyError, ValueError, TypeError) as error:  # an object of somebody else must not stop everything
                log.warning("%s %s/%s is left aside: %r", kind, key[1], key[2], error)
                return set()

    def _take(self, key: tuple[str, str, str], raw: Mapping[str, Any]) -> set[RunKey]:
        kind, namespace, name = key
        if kind == "Node":
            node = node_of(raw, self.labels)
            if self.nodes.get(name) == node:
                return set()
            self.nodes[name] = node
            self._changed()
            return self.pending_runs() if node.ready and node.open else set()
        if kind == "Pod":
            return self._take_pod(namespace, name, raw)
        if kind in JOB_KINDS:
            job = job_of({"kind": kind, **raw})
            if job.run is None or self.jobs.get(key) == job:
                return set()
            before, self.jobs[key] = self.jobs.get(key), job
            concerned = self._concerned(job.run)
            if (before is not None and before.state == "suspended") != (job.state == "suspended"):
                self._changed()
                concerned |= self.pending_runs()
            return concerned
        if kind == "ConfigMap":
            return self._take_progress(namespace, name, raw)
        if kind == "Event":
            about = self._warned_of(namespace, raw)
            if about is not None:
                self.warnings.setdefault(about, {})[name] = raw
            return set() if about is None else {about}
        run = RunKey(namespace, name, raw["metadata"].get("uid", ""))
        if (predecessor := self._named.get((namespace, name), run)) != run:
            self.runs.pop(predecessor, None)
            self.warnings.pop(predecessor, None)
        self._named[namespace, name] = run
        known = {k: v for k, v in raw.items() if k != "status"}
        self.runs[run] = KnownRun(known, RunStatus.model_validate(raw.get("status") or {}))
        self._changed()
        return {run}

    def _take_pod(self, namespace: str, name: str, raw: Mapping[str, Any]) -> set[RunKey]:
        pod, before = pod_of(raw), self.pods.get((namespace, name))
        if pod == before:
            return set()
        self.pods[(namespace, name)] = pod
        if before is not None and before.uid != pod.uid and before.uid not in self.went:
            self._remember(before)
        concerned: set[RunKey] = set()
        if pod.run is not None:
            self._of_run.setdefault(pod.run, set()).add((namespace, name))
            concerned |= self._concerned(pod.run)
        elif (before is not None and before.phase not in ENDED) != (pod.phase not in ENDED):
            concerned |= self._clients_of(namespace, name)  # it has come, or ended
        if before is None or pod.use != before.use:
            self._changed()
            if before is not None and before.use is not None and pod.use is None:
                concerned |= self.pending_runs()
        return concerned

    def _take_progress(self, namespace: str, name: str, raw: Mapping[str, Any]) -> set[RunKey]:
        owner = owner_of(raw)
        if owner is None or name != names.progress_name(owner["name"]):
            return set()
        key = self._progress_maps[namespace, name] = RunKey(namespace, owner["name"], owner["uid"])
        progress = read_progress(raw)
        if key in self.progress and self.progress[key] == progress:
            return set()
        self.progress[key] = progress
        return {key}

    def _drop(self, key: tuple[str, str, str], raw: Mapping[str, Any]) -> set[RunKey]:
        kind, namespace, name = key
        self._present.discard(key)
        if kind == "Node":
            self.nodes.pop(name, None)
            self._changed()
            return {pod.run for pod in self.pods.values() if pod.node == name and pod.run is not None}
        if kind == "Pod":
            pod = self.pods.pop((namespace, name), None)
            self._changed()
            if pod is None:
                return set()
            self._remember(pod_of(raw) if raw.get("status") else pod)
            if pod.run is None:
                return self._clients_of(namespace, name) | self.pending_runs()
            self._of_run.get(pod.run, set()).discard((namespace, name))
            return self._concerned(pod.run) | self.pending_runs()
        if kind in JOB_KINDS:
            job = self.jobs.pop(key, None)
            return self._concerned(job.run) if job is not None and job.run is not None else set()
        if kind == "ConfigMap":
            lost = self._progress_maps.pop((namespace, name), None)
            if lost is None:
                return set()
            self.progress.pop(lost, None)
            return self._concerned(lost)
        if kind == "Event":
            for known in self.warnings.values():
                known.pop(name, None)
            return set()
        if (gone := self._named.pop((namespace, name), None)) is not None:
            self.runs.pop(gone, None)
        self._changed()
        return self.pending_runs()

    def _remember(self, pod: Pod) -> None:
        """A pod as it was last: a list has no events of what ended meanwhile, and who makes pods anew is quick."""
        if pod.run is not None:
            self.went[pod.uid] = replace(pod, ended=pod.ended or dt.datetime.now(dt.UTC).replace(microsecond=0))

    def read_labels_by(self, table: NodeLabels) -> None:
        """Read the labels of nodes by another table; the nodes that are known, when they are listed again."""
        with self.lock:
            if table != self.labels:
                self.labels = table
                self._versions |= {key: -1 for key in self._versions if key[0] == "Node"}

    def resync(self, kind: str, objects: Iterable[Mapping[str, Any]], version: int, namespace: str = "") -> set[RunKey]:
        """Take in all objects of a kind as they were at a version: what is known and not among them has gone.

        ``namespace``: the only one that was listed; empty: all were.
        """
        concerned: set[RunKey] = set()
        seen = set()
        for raw in objects:
            metadata = raw["metadata"]
            seen.add((kind, metadata.get("namespace", ""), metadata["name"]))
            concerned |= self.put(kind, raw)
        with self.lock:
            # what is newer than the list was made while it was read
            missing = [key for key in self._present if key[0] == kind and namespace in ("", key[1]) and key not in seen]
            for key in missing:
                if self._versions[key] <= version:
                    metadata = {"namespace": key[1], "name": key[2]}
                    concerned |= self._drop(key, {"metadata": metadata})
        return concerned

    # --- questions

    def pods_of(self, run: RunKey) -> list[Pod]:
        """Pods of a run."""
        return [self.pods[key] for key in sorted(self._of_run.get(run, ())) if key in self.pods]

    def jobs_of(self, run: RunKey) -> list[Job]:
        """Jobs of a run."""
        return [job for job in self.jobs.values() if job.run == run]

    def namesakes_of(self, run: RunKey) -> list[Pod]:
        """Pods of earlier runs of the same name."""
        others = [key for key in self._of_run if key[:2] == run[:2] and key != run]
        return [pod for other in others for pod in self.pods_of(other)]

    def is_there(self, namespace: str, pod: str) -> bool:
        """Whether a pod is there and has not ended."""
        found = self.pods.get((namespace, pod))
        return found is not None and found.phase not in ENDED

    def pools_for(self, run: RunKey) -> tuple[list[Pool], list[str]]:
        """The pools without what this run holds and is about to take."""
        with self.lock:
            if self._of_run.get(run) or (run in self.runs and self.runs[run].status.live is not None):
                return self._pools_without(run)
            if self._pools is None or self._pools[0] != self._changes:
                self._pools = (self._changes, self._pools_without(None))
            return self._pools[1]

    def _pools_without(self, own: RunKey | None) -> tuple[list[Pool], list[str]]:
        uses = [pod.use for pod in self.pods.values() if pod.use is not None and (own is None or pod.run != own)]
        coming: dict[str, int] = {}
        for key, known in self.runs.items():
            live, placed = known.status.live, known.status.placement
            if key == own or live is None or placed is None or self._is_queued(key, placed.backend, live.job):
                continue
            bound = {pod.node for pod in self.pods_of(key) if pod.node and pod.attempt == live.number}
            bound |= {usage.node for usage in live.node_usage}
            if missing := live.nodes - len(bound):
                coming[placed.pool] = coming.get(placed.pool, 0) + max(missing, 0)
        return pools_of(self.nodes.values(), uses, coming)

    def _is_queued(self, run: RunKey, kind: str, name: str) -> bool:
        """Whether the job is suspended by a queue: it uses nodes only when it is admitted."""
        job = self.jobs.get((kind, run.namespace, name))
        return job is not None and job.state == "suspended"

    def pending_runs(self) -> set[RunKey]:
        """Runs that more capacity concerns: those that wait for it, or run on fewer nodes than planned."""
        return {
            key
            for key, known in self.runs.items()
            if known.status.phase in ("Waiting", "Recovering", "Pending")
            or (
                known.status.phase not in FINISHED
                and known.status.placement is not None
                and known.status.placement.nodes < known.status.placement.planned_nodes
            )
        }

    def assume(self, run: RunKey, status: RunStatus, version: str) -> None:
        """Take a status for written before it is, so that nobody else plans with the same nodes.

        Nothing happens where the run is known in another version than the one that the status was made from: a write
        without an answer may have been carried out, and the watch was quicker.
        """
        with self.lock:
            if run in self.runs and self.runs[run].raw["metadata"]["resourceVersion"] == version:
                self.runs[run] = self.runs[run]._replace(status=status)
                self._changed()

    def forget(self) -> None:
        """Forget what nobody will ask for any more."""
        with self.lock:
            oldest = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=REMEMBERED_SECONDS)
            self.went = {uid: pod for uid, pod in self.went.items() if pod.ended and pod.ended > oldest}
            self._versions = {key: version for key, version in self._versions.items() if key in self._present}
            self._of_run = {run: pods for run, pods in self._of_run.items() if pods}
            waiting = {run for run, known in self.runs.items() if known.status.phase not in FINISHED}
            self.warnings = {run: known for run, known in self.warnings.items() if run in waiting}

    def _warned_of(self, namespace: str, raw: Mapping[str, Any]) -> RunKey | None:
        """The live run whose job or worker a warning is about."""
        name = subject_of(raw)
        for found in ATTEMPT.finditer(name):
            run = self._named.get((namespace, name[: found.start()]))
            live = self.runs[run].status.live if run is not None else None
            if live is not None and live.job == name[: found.end()]:
                return run
        return None

    def _concerned(self, run: RunKey) -> set[RunKey]:
        """The run, and the one that has its name by now and waits for what it leaves."""
        return {run, self._named.get(run[:2], run)}

    def _clients_of(self, namespace: str, pod: str) -> set[RunKey]:
        """Runs that are to stop without this pod."""
        return {
            key for key, known in self.runs.items() if key.namespace == namespace and client_pod_of(known.raw) == pod
        }

    def _changed(self) -> set[RunKey]:
        self._changes += 1
        return set()


def client_pod_of(raw: Mapping[str, Any]) -> str | None:
    """The pod of a run's client, without which it is to stop."""
    return (raw["metadata"].get("annotations") or {}).get(names.CLIENT_HEARTBEAT) or None


def read_progress(raw: Mapping[str, Any]) -> RunProgress | None:
    """What worker 0 reported; None where it did not, or wrote nonsense."""
    text = (raw.get("data") or {}).get(names.PROGRESS_KEY)
    if text is None:
        return None
    try:
        return RunProgress.model_validate_json(text)
    except ValueError:
        return None


log = logging.getLogger(__name__)

RETRY_SECONDS = 2.0
"""Pause after an error, s."""
NOT_INSTALLED_SECONDS = 30.0
"""A kind that the cluster does not know is looked for so often, s."""
OURS = names.RUN_LABEL
WATCHED: dict[str, dict[str, str]] = {
    names.KIND: {},
    "Node": {},
    "Pod": {},
    "ConfigMap": {"selector": OURS},
    "TFJob": {"selector": OURS},
    "JobSet": {"selector": OURS},
    "TrainJob": {"selector": OURS},
    "MPIJob": {"selector": OURS},
    "Event": {"fields": "type=Warning"},
}
"""Kinds that are followed, and which of their objects."""
WHOLE_CLUSTER = ("Node", "Pod")
"""Kinds that are watched in all namespaces: all pods use capacity."""


Notice = Callable[[str, dict[str, Any], bool], None]
Listed = Callable[[str, str, Iterable[dict[str, Any]], int], None]


class Watches:
    """A thread for each kind and namespace."""

    def __init__(
        self, connection: Connection, notice: Notice, listed: Listed, namespaces: tuple[str, ...], seconds: float
    ) -> None:
        """``notice``: called with each event (kind, object, whether it is gone); ``listed``: with each list (kind,
        namespace (empty: all), objects, resource version). ``namespaces``: those of the runs, empty for all.
        ``seconds``: everything is listed again so often, s.
        """
        self._connection, self._notice, self._listed, self._seconds = connection, notice, listed, seconds
        self._stop = threading.Event()
        scopes = [(kind, "") for kind in WHOLE_CLUSTER]
        scopes += [(kind, name) for kind in WATCHED if kind not in WHOLE_CLUSTER for name in namespaces or ("",)]
        self._unlisted = set(scopes)
        self._threads = [
            threading.Thread(target=self._follow, args=scope, name=f"watch {' '.join(scope)}", daemon=True)
            for scope in scopes
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Inform nobody any more."""
        self._stop.set()

    def are_listed(self) -> bool:
        """Whether everything was listed once."""
        return not self._unlisted

    def are_alive(self) -> bool:
        """Whether all threads run, or none was started yet."""
        return all(thread.ident is None or thread.is_alive() for thread in self._threads)

    def _follow(self, kind: str, namespace: str) -> None:
        while kind == "Event" and any(other != "Event" for other, _ in self._unlisted) and not self._stop.is_set():
            self._stop.wait(0.1)  # a warning is kept where its run is known
        while not self._stop.is_set():
            try:
                pause = self._list_and_watch(kind, namespace)
            except (ApiException, HTTPError, OSError) as error:
                pause = RETRY_SECONDS
                if not (isinstance(error, ApiException) and error.status == GONE):
                    log.warning("%s cannot be watched: %s", kind, message_of(error))
            except Exception:
                log.exception("%s: an error of ours", kind)
                pause = RETRY_SECONDS
            self._stop.wait(pause)

    def _list_and_watch(self, kind: str, namespace: str) -> float:
        """Until it is time to list anew; returns a pause before that, s."""
        chosen = WATCHED[kind]
        objects, version = self._connection.snapshot(kind, namespace or None, **chosen)
        self._listed(kind, namespace, objects, version)
        self._unlisted.discard((kind, namespace))
        if not version:
            return NOT_INSTALLED_SECONDS
        for event in self._connection.watch(kind, namespace or None, version, seconds=self._seconds, **chosen):
            if self._stop.is_set():
                return 0.0
            if event["type"] != "BOOKMARK":
                self._notice(kind, event["object"], event["type"] == "DELETED")
        return 0.0
