"""The cluster's objects as far as the operator keeps them, with an index for each question that a reconcile asks.

Objects are reduced to the fields that are used before they are kept: 40,000 pods of others take some 20 MB so.
"""

import datetime as dt
import functools
import hashlib
import json
import logging
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from caloscale.cluster import names
from caloscale.cluster.capacity.labels import NodeLabels, load_labels
from caloscale.cluster.capacity.nodes import Capacity, Pool, PoolGroup, PoolKey, Use, node_of
from caloscale.cluster.capacity.placement import Need
from caloscale.cluster.capacity.pods import (
    ENDED,
    JOB_KINDS,
    Diagnostic,
    Job,
    Pod,
    job_of,
    owner_of,
    pod_of,
    use_of,
    warning_of,
)
from caloscale.cluster.names import RunKey
from caloscale.connection import Page
from caloscale.operator.parking import Parking
from caloscale.operator.reconcile import REFRESH_SECONDS, REFRESHED_PER_SECOND, brings_news
from caloscale.status import FINISHED, RunProgress, RunStatus

log = logging.getLogger(__name__)

ATTEMPT = re.compile(r"-\d+(?=-[a-z]|$)")
"""The number of the attempt in the names of jobs and of their pods; it may be in the name of the run, too."""
MOST_BLOCKS = 4096
"""Number of different blocks of specs that are kept for other runs; most runs differ in one."""
REMEMBERED_SECONDS = 600.0
"""Time for which pods that are gone are remembered, s."""

Name = tuple[str, str]
"""Namespace and name."""


class KnownRun(NamedTuple):
    """A run as it was seen last."""

    version: str
    generation: int
    deleting: bool
    client_pod: str | None
    """The pod of its client, without which it is to stop; None: it needs none."""
    spec: Mapping[str, Any]
    """As the API server has it."""
    status: RunStatus


@functools.lru_cache(maxsize=MOST_BLOCKS)
def _block(text: str) -> Any:
    """Equal blocks of specs are one object."""
    return json.loads(text)


class Store:
    """The cluster as lists and events have it. All methods may be called by several threads."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.labels = load_labels()
        self.capacity = Capacity()
        self.pods: dict[Name, Pod] = {}
        """Pods of runs."""
        self.others: dict[Name, Use | None] = {}
        """Other pods that have not ended, and what they take of their nodes."""
        self.jobs: dict[tuple[str, str, str], Job] = {}
        self.runs: dict[RunKey, KnownRun] = {}
        self.progress: dict[RunKey, RunProgress | None] = {}
        self.warnings: dict[RunKey, dict[str, Diagnostic]] = {}
        self._versions: defaultdict[str, dict[Name, int]] = defaultdict(dict)
        self._gone_versions: defaultdict[str, dict[Name, int]] = defaultdict(dict)
        self._went: dict[RunKey, dict[str, Pod]] = {}
        self._pods_of: dict[Name, dict[RunKey, set[Name]]] = {}
        """By namespace and name of a run: pods of all runs that have had this name."""
        self._jobs_of: dict[RunKey, set[tuple[str, str, str]]] = {}
        self._named: dict[Name, RunKey] = {}
        self._clients: dict[Name, set[RunKey]] = {}
        self._progress_objects: dict[Name, RunKey] = {}
        self._coming_of: dict[RunKey, tuple[PoolGroup, int]] = {}
        self._coming: Counter[PoolGroup] = Counter()
        self._less_coming: set[PoolGroup] = set()
        self._with_live: set[RunKey] = set()
        self._unheard: dict[Name, set[RunKey]] = {}
        self.parking = Parking()
        self._ready: dict[str, bool] | None = None

    # --- events

    def put(self, kind: str, raw: Mapping[str, Any], *, gone: bool = False) -> set[RunKey]:
        """Take in an object as an event has it; returns the runs that it concerns, with those that wait for capacity.

        What is not newer than what is known is left aside: events and answers to our own writes overtake.
        """
        metadata = raw["metadata"]
        name = (metadata.get("namespace", ""), metadata["name"])
        version = int(metadata.get("resourceVersion", 0))
        with self.lock:
            known, went = self._versions[kind], self._gone_versions[kind]
            if version <= max(known.get(name, -1), went.get(name, -1)):
                if gone and kind == "Pod":  # another one has its name by now
                    self._remember(pod_of(raw))
                return set()
            try:
                if gone:
                    if known.pop(name, None) is None and kind == "Event":
                        return set()
                    if kind != "Pod" or name in self.pods:
                        went[name] = version
                    return self._drop(kind, name, raw) | self._freed()
                went.pop(name, None)
                known[name] = version
                return self._take(kind, name, raw) | self._freed()
            except (KeyError, ValueError, TypeError) as error:  # an object of somebody else must not stop everything
                log.warning("%s %s/%s is left aside: %r", kind, *name, error)
                return set()

    def _take(self, kind: str, name: Name, raw: Mapping[str, Any]) -> set[RunKey]:
        if kind == "Node":
            node, before = node_of(raw, self.labels), self.capacity.nodes.get(name[1])
            self.capacity.put(node)
            if before is None or before.ready != node.ready:
                self._ready = None
            return set()
        if kind == "Pod":
            return self._take_pod(name, raw)
        if kind in JOB_KINDS:
            return self._take_job(kind, name, raw)
        if kind == names.PROGRESS_KIND:
            return self._take_progress(name, raw)
        if kind == "Event":
            warning = warning_of(raw)
            about = None if warning is None else self._warned_of(name[0], warning.where)
            if warning is None or about is None:
                del self._versions["Event"][name]
                return set()
            self.warnings.setdefault(about, {})[name[1]] = warning
            return {about}
        return self._take_run(name, raw)

    def _take_run(self, name: Name, raw: Mapping[str, Any]) -> set[RunKey]:
        run = RunKey(*name, raw["metadata"].get("uid", ""))
        concerned = {run}
        if (predecessor := self._named.get(name, run)) != run:
            concerned |= self._forget_run(predecessor)
        self._named[name] = run
        metadata, before = raw["metadata"], self.runs.get(run)
        known = KnownRun(
            version=metadata["resourceVersion"],
            generation=metadata.get("generation", 1),
            deleting="deletionTimestamp" in metadata,
            client_pod=(metadata.get("annotations") or {}).get(names.CLIENT_HEARTBEAT) or None,
            spec={name: _block(json.dumps(block)) for name, block in (raw.get("spec") or {}).items()},
            status=RunStatus.model_validate(raw.get("status") or {}),
        )
        if before is not None and before.client_pod is not None:
            self._clients[name[0], before.client_pod].discard(run)
        if known.client_pod is not None:
            self._clients.setdefault((name[0], known.client_pod), set()).add(run)
        if before is not None and before.spec == known.spec:
            known = known._replace(spec=before.spec)
        self.runs[run] = known
        if before is not None and before._replace(version=known.version) == known:
            return set()  # what we wrote ourselves
        self._count_coming(run)
        return concerned

    def _take_pod(self, name: Name, raw: Mapping[str, Any]) -> set[RunKey]:
        before, was_there = self.pods.get(name), self.is_there(*name)
        if not (raw["metadata"].get("labels") or {}).get(names.RUN_LABEL):
            concerned = set() if before is None else self._lose_pod(name, before)
            use, has_ended = use_of(raw), (raw.get("status") or {}).get("phase") in ENDED
            self._use(self.others.pop(name, None), use)
            if has_ended:  # nothing is asked about it any more
                del self._versions["Pod"][name]
            else:
                self.others[name] = use
            return concerned | (self._clients.get(name, set()) if was_there == has_ended else set())
        pod = pod_of(raw)
        if pod == before:
            return set()
        self._use(self.others.pop(name, None), None)
        if before is not None and (before.run != pod.run or before.uid != pod.uid):
            if before.uid not in self._went.get(before.run, {}):
                self._remember(before)
            self._lose_pod(name, before)
            before = None
        self.pods[name] = pod
        self._use(before.use if before is not None else None, pod.use)
        self._pods_of.setdefault(pod.run[:2], {}).setdefault(pod.run, set()).add(name)
        self._count_coming(pod.run)
        return self._concerned(pod.run)

    def _lose_pod(self, name: Name, pod: Pod) -> set[RunKey]:
        """A pod of a run is here no more."""
        self.pods.pop(name, None)
        self._use(pod.use, None)
        self._pods_of[pod.run[:2]][pod.run].discard(name)
        self._count_coming(pod.run)
        return self._concerned(pod.run)

    def _take_job(self, kind: str, name: Name, raw: Mapping[str, Any]) -> set[RunKey]:
        key, job = (kind, *name), job_of({"kind": kind, **raw})
        before = self.jobs.get(key)
        if job.run is None or before == job:
            return set()
        self.jobs[key] = job
        if before is not None and before.run is not None and before.run != job.run:
            self._jobs_of[before.run].discard(key)
            self._count_coming(before.run)
        self._jobs_of.setdefault(job.run, set()).add(key)
        self._count_coming(job.run)
        return self._concerned(job.run)

    def _take_progress(self, name: Name, raw: Mapping[str, Any]) -> set[RunKey]:
        owner = owner_of(raw)
        if owner is None or name[1] != names.progress_name(owner["name"]):
            return set()
        key = RunKey(name[0], owner["name"], owner["uid"])
        if (before := self._progress_objects.get(name, key)) != key:
            self.progress.pop(before, None)
        self._progress_objects[name] = key
        progress = read_progress(raw)
        is_first, self.progress[key] = key not in self.progress, progress
        run = self.runs.get(key)
        if is_first or run is None or run.status.progress is None or progress is None:
            return {key}
        return {key} if brings_news(run.status.progress, progress, self.refresh_seconds) else set()

    def _drop(self, kind: str, name: Name, raw: Mapping[str, Any]) -> set[RunKey]:
        if kind == "Node":
            self.capacity.remove(name[1])
            self._ready = None
            return {pod.run for pod in self.pods.values() if pod.node == name[1]}
        if kind == "Pod":
            pod = self.pods.get(name)
            if pod is not None:
                self._remember(pod_of(raw) if raw.get("status") else pod)
                return self._lose_pod(name, pod)
            was_there = name in self.others
            self._use(self.others.pop(name, None), None)
            return set(self._clients.get(name, ())) if was_there else set()
        if kind in JOB_KINDS:
            job = self.jobs.pop((kind, *name), None)
            if job is None or job.run is None:
                return set()
            self._jobs_of[job.run].discard((kind, *name))
            self._count_coming(job.run)
            return self._concerned(job.run)
        if kind == names.PROGRESS_KIND:
            lost = self._progress_objects.pop(name, None)
            if lost is None:
                return set()
            self.progress.pop(lost, None)
            return self._concerned(lost)
        if kind == "Event":
            for warnings in self.warnings.values():
                warnings.pop(name[1], None)
            return set()
        run = self._named.pop(name, None)
        return set() if run is None else self._forget_run(run)

    def _forget_run(self, run: RunKey) -> set[RunKey]:
        """Returns the run that is to be tried in its place."""
        known = self.runs.pop(run, None)
        self.warnings.pop(run, None)
        if known is not None and known.client_pod is not None:
            self._clients[run.namespace, known.client_pod].discard(run)
        self._count_coming(run)
        following = self.parking.leave(run)
        return set() if following is None else {following}

    def _remember(self, pod: Pod) -> None:
        """Keep a pod as it was last: a list has no events of what ended meanwhile, and pods are replaced quickly."""
        if pod.run.name:
            ended = pod.ended or dt.datetime.now(dt.UTC).replace(microsecond=0)
            self._went.setdefault(pod.run, {})[pod.uid] = replace(pod, ended=ended)

    def read_labels_by(self, table: NodeLabels) -> bool:
        """Read the labels of nodes by a table; True: by another than before, and the nodes are to be listed again."""
        with self.lock:
            changed = table != self.labels
            if changed:
                self.labels = table
                self._versions["Node"] = dict.fromkeys(self._versions["Node"], -1)
            return changed

    def resync(self, kind: str, pages: Iterable[Page], namespace: str = "") -> tuple[set[RunKey], int]:
        """Take in all objects of a kind, page by page: what is known and not among them has gone.

        Returns the runs that it concerns and the version of the list, 0 for a kind that the cluster does not know.
        ``namespace``: the only one that was listed; empty: all were.
        """
        # with those of a list that broke off: what it had taken in is no news to this one
        concerned = self._unheard.setdefault((kind, namespace), set())
        seen: set[Name] = set()
        version = 0
        for page in pages:
            version = page.version
            for raw in page.objects:
                seen.add((raw["metadata"].get("namespace", ""), raw["metadata"]["name"]))
                concerned |= self.put(kind, raw)
            page.objects.clear()  # before the next one is read
        with self.lock:
            # what is newer than the list was made while it was read
            known = self._versions[kind]
            missing = [
                name for name in known if namespace in ("", name[0]) and name not in seen and known[name] <= version
            ]
            for name in missing:
                del known[name]
                concerned |= self._drop(kind, name, {"metadata": {"namespace": name[0], "name": name[1]}})
            return self._unheard.pop((kind, namespace)) | self._freed(), version

    # --- questions

    def pods_of(self, run: RunKey) -> list[Pod]:
        """Pods of a run."""
        return [self.pods[name] for name in sorted(self._pods_of.get(run[:2], {}).get(run, ()))]

    def jobs_of(self, run: RunKey) -> list[Job]:
        """Jobs of a run."""
        return [self.jobs[key] for key in sorted(self._jobs_of.get(run, ()))]

    def namesakes_of(self, run: RunKey) -> list[Pod]:
        """Pods of earlier runs of the same name."""
        return [pod for other in sorted(self._pods_of.get(run[:2], {})) if other != run for pod in self.pods_of(other)]

    def went_of(self, run: RunKey) -> dict[str, Pod]:
        """By uid: pods of a run that are gone, as they were last."""
        with self.lock:
            return dict(self._went.get(run, {}))

    def is_there(self, namespace: str, pod: str) -> bool:
        """Whether a pod is there and has not ended."""
        own = self.pods.get((namespace, pod))
        return (namespace, pod) in self.others or (own is not None and own.phase not in ENDED)

    def ready_nodes(self) -> Mapping[str, bool]:
        """All nodes of the cluster, and whether they are ready; never changed after it was returned."""
        with self.lock:
            if self._ready is None:
                self._ready = {name: node.ready for name, node in self.capacity.nodes.items()}
            return self._ready

    def pools_for(self, run: RunKey) -> tuple[list[Pool], list[str]]:
        """The pools without what this run holds and is about to take."""
        with self.lock:
            own = [pod.use for pod in self.pods_of(run) if pod.use is not None]
            coming = self._coming.copy()
            if run in self._coming_of:
                group, missing = self._coming_of[run]
                coming[group] -= missing
            return self.capacity.pools(own, coming)

    @property
    def refresh_seconds(self) -> float:
        """How often what is written of a run changes by money and steps alone, s."""
        return max(REFRESH_SECONDS, len(self._with_live) / REFRESHED_PER_SECOND)

    def _use(self, before: Use | None, after: Use | None) -> None:
        """A pod takes of its node something else than before."""
        if before != after:
            for use, sign in ((before, -1), (after, 1)):
                if use is not None:
                    self.capacity.add(use, sign)

    def _count_coming(self, run: RunKey) -> None:
        """Count the workers of a run that will take a node and are not bound to one yet."""
        known, before = self.runs.get(run), self._coming_of.pop(run, None)
        live, placed = (known.status.live, known.status.placement) if known is not None else (None, None)
        if live is not None and placed is not None and not self._is_queued(run, placed.backend, live.job):
            bound = {pod.node for pod in self.pods_of(run) if pod.node and pod.attempt == live.number}
            bound |= {usage.node for usage in live.node_usage}
            if live.nodes > len(bound):
                group = placed.pool, placed.accelerator, placed.capacity_type
                self._coming_of[run] = group, live.nodes - len(bound)
        (self._with_live.discard if live is None else self._with_live.add)(run)
        if before != (after := self._coming_of.get(run)):
            if after is not None:
                self._coming[after[0]] += after[1]
            if before is not None:
                self._coming[before[0]] -= before[1]
                self._less_coming.add(before[0])

    def _freed(self) -> set[RunKey]:
        """The waiting runs to try, now that pools have got more room."""
        grown = self.capacity.grown()
        for group in self._less_coming:
            for key in self.capacity.keys_of(group):
                grown.setdefault(key, False)
        self._less_coming.clear()
        woken: set[RunKey] = set()
        for key, changed in grown.items():
            woken |= self.parking.wake(key, self._free(key), exists=self.capacity.has(key), changed=changed)
        return woken

    def park(self, run: RunKey, needs: Mapping[PoolKey, Need] | None, seen_changes: int) -> RunKey | None:
        """After a decision: the run waits until a pool has what it needs, or (None) waits no more.

        ``seen_changes``: `Parking.changes` when the decision began; it does not know of pools that have come since.
        Returns the run that is to be tried next: the next of its class, or this one where there is room by now.
        """
        with self.lock:
            if needs is None or run not in self.runs:
                return self.parking.leave(run)
            outdated, known = seen_changes != self.parking.changes, self.runs[run]
            # runs of equal specs that were never launched are one class; each other run is a class
            text = json.dumps(known.spec, sort_keys=True, separators=(",", ":"))
            of_spec = hashlib.blake2b(text.encode(), digest_size=16).digest()
            self.parking.park(run, run if known.status.attempts else of_spec, needs, outdated=outdated)
            is_met = any(need.is_met(self._free(key), changed=False) for key, need in needs.items())
            return run if is_met or outdated else None

    def _free(self, key: PoolKey) -> int:
        return self.capacity.free(key, self._coming[key.group])

    def still_waits(self, run: RunKey) -> bool:
        """Whether a decision about the run would say again that it waits: others of its class are before it and wait,
        or no pool has by now what it needs."""
        with self.lock:
            known = self.runs.get(run)
            if known is None or known.deleting or known.client_pod is not None or known.status.attempts:
                return False
            if known.status.phase != "Waiting" or known.status.observed_generation != known.generation:
                return False
            return run in self.parking and self.parking.waits(run, self._free)

    def _is_queued(self, run: RunKey, kind: str, name: str) -> bool:
        """Whether the job is suspended by a queue: it uses nodes only when it is admitted."""
        job = self.jobs.get((kind, run.namespace, name))
        return job is not None and (job.run, job.state) == (run, "suspended")

    def pending_runs(self) -> set[RunKey]:
        """Runs that other prices or queues concern: those that wait; what they need is not known any more."""
        phases = ("Waiting", "Recovering", "Pending")
        with self.lock:
            self.parking.clear()
            return {run for run, known in self.runs.items() if known.status.phase in phases}

    def assume(self, run: RunKey, status: RunStatus, version: str) -> None:
        """Take a status for written before it is, so that nobody else plans with the same nodes.

        ``version``: the one from which it was made; where another one is known by now, that has the newer status.
        """
        with self.lock:
            if run in self.runs and self.runs[run].version == version:
                self.runs[run] = self.runs[run]._replace(status=status)
                self._count_coming(run)

    def forget(self) -> None:
        """Forget what no reconcile will ask for any more."""
        with self.lock:
            oldest = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=REMEMBERED_SECONDS)
            for run, pods in self._went.items():
                self._went[run] = {uid: pod for uid, pod in pods.items() if pod.ended and pod.ended > oldest}
            self._went = {run: pods for run, pods in self._went.items() if pods}
            self._jobs_of = {run: jobs for run, jobs in self._jobs_of.items() if jobs}
            held = {name: {run: pods for run, pods in runs.items() if pods} for name, runs in self._pods_of.items()}
            self._pods_of = {name: runs for name, runs in held.items() if runs}
            self._clients = {pod: runs for pod, runs in self._clients.items() if runs}
            self._gone_versions.clear()
            waiting = {run for run, known in self.runs.items() if known.status.phase not in FINISHED}
            self.warnings = {run: known for run, known in self.warnings.items() if run in waiting}

    def _warned_of(self, namespace: str, name: str) -> RunKey | None:
        """The live run whose job or worker a warning is about: of runs scan and scan-1-b, scan-1-b-1 is of the longer
        name."""
        for number in reversed(list(ATTEMPT.finditer(name))):
            run = self._named.get((namespace, name[: number.start()]))
            live = self.runs[run].status.live if run is not None else None
            if live is not None and live.job == name[: number.end()]:
                return run
        return None

    def _concerned(self, run: RunKey) -> set[RunKey]:
        """The run, and the one that has its name by now and waits for what it leaves."""
        return {run, self._named.get(run[:2], run)}


def read_progress(raw: Mapping[str, Any]) -> RunProgress | None:
    """What worker 0 reported; None where it did not, or wrote nonsense."""
    try:
        return RunProgress.model_validate(raw["progress"])
    except (KeyError, ValueError):
        return None
