"""The controller: takes in events, decides about the runs that are due, writes the status, and acts."""

import datetime as dt
import json
import logging
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from caloscale.cluster import names
from caloscale.cluster.capacity.labels import NodeLabels, load_labels
from caloscale.cluster.capacity.nodes import PoolKey
from caloscale.cluster.capacity.placement import Need
from caloscale.cluster.capacity.pods import Diagnostic, owner_of
from caloscale.cluster.capacity.pool_plan import Catalogue
from caloscale.cluster.names import RunKey
from caloscale.cluster.workload.launch import Manifest
from caloscale.connection import CONFLICT, FORBIDDEN, NOT_FOUND, Connection, FencedError, Page, is_passing, message_of
from caloscale.errors import InputError
from caloscale.operator.context import Action, Boost, Create, Decision, Delete, RunEvent, Snapshot
from caloscale.operator.election import LEASE_SECONDS
from caloscale.operator.metrics import Metrics
from caloscale.operator.outcomes import NAME_TAKEN, REFUSED, diagnostics_of, job_in_doubt
from caloscale.operator.reconcile import REFRESHED_PER_SECOND, reconcile, unwritten
from caloscale.operator.settings import Settings
from caloscale.operator.store import Store
from caloscale.operator.watches import Watches
from caloscale.operator.workqueue import RETRY_SECONDS, Turns, WorkQueue
from caloscale.planning.catalogue.measurements import load_measurements
from caloscale.planning.catalogue.prices import Prices, load_prices, today
from caloscale.status import RunProgress, RunStatus, unknown_to

log = logging.getLogger(__name__)

IN_CONFIG_MAP = "to the ConfigMap caloscale-prices (manifests/base/prices.csv)"
"""How a row is added to the operator's prices."""
ROUTINE_PER_SECOND = 1.25 * REFRESHED_PER_SECOND
"""Most writes of statuses in which only money and steps are new, 1/s: more than come due, so that those that came due
while nobody led are caught up, and few enough for other writes."""
NOT_DECLARED = "field not declared in schema"
"""What the API server answers, with the code 500, to a status with a field that the custom resource does not have."""
INSTALL_KINDS = (
    "install the custom resources of this version: make deploy, or kubectl apply --server-side -k manifests/crd"
)
GIVE_RIGHTS = "give the operator its role again: make deploy"
OUTDATED_SECONDS = 10.0
"""Most time between two looks at custom resources that lack fields, s: schemas are published later than applied."""


class Controller:
    """One thread takes runs that are due from the queue; several reconcile them, never two the same run."""

    def __init__(self, connection: Connection, settings: Settings, metrics: Metrics) -> None:
        self.connection, self.settings, self.metrics = connection, settings, metrics
        self.store = Store()
        self.watches = Watches(connection, self.notice, self.listed, settings.namespaces, settings.resync_seconds)
        self.synced = threading.Event()
        self._leads = threading.Event()
        self._stop = threading.Event()
        self.queue: WorkQueue[RunKey] = WorkQueue()
        self.routine: Turns[RunKey] = Turns(ROUTINE_PER_SECOND)
        self._first_event: dict[RunKey, float] = {}
        self._refusals: dict[RunKey, Diagnostic] = {}
        self._unwritten: dict[RunKey, str] = {}
        self._deciding = threading.Lock()
        self._catalogue: tuple[object, Catalogue] | None = None
        self._threads = ThreadPoolExecutor(settings.threads, thread_name_prefix="reconcile")
        self._free_threads = threading.BoundedSemaphore(settings.threads)
        self._has_queues = self._may_boost = True
        self.lacking: list[str] = []
        self._offered = self.catalogue()  # before the nodes are listed: it says what their labels mean

    # --- events

    def notice(self, kind: str, raw: dict[str, Any], gone: bool = False) -> None:
        """Take in an event; the runs that it concerns are looked at soon."""
        self.metrics.events.labels(kind).inc()
        for run in self.store.put(kind, raw, gone=gone):
            self._first_event.setdefault(run, time.monotonic())
            can_wait = kind == names.PROGRESS_KIND or (kind == names.KIND and not self._is_changed(run))
            self.queue.add(run, self.settings.debounce_seconds, can_wait=can_wait)

    def listed(self, kind: str, namespace: str, pages: Iterable[Page]) -> int:
        """Take in all objects of a kind, in a namespace (empty: in all); returns the version of the list."""
        concerned, version = self.store.resync(kind, pages, namespace)
        for run in concerned:  # of 10,000 runs these are minutes, for which nobody is to wait who has changed one
            self.queue.add(run, can_wait=not self._is_changed(run))
        return version

    def _is_changed(self, run: RunKey) -> bool:
        """Whether its user has changed it since it was decided about; a status is what a leader has decided."""
        known = self.store.runs.get(run)
        return known is not None and known.generation != known.status.observed_generation

    def _refresh(self) -> None:
        """Read what has no event, new prices and whether Kueue is installed, and forget what is not needed any more."""
        self.store.forget()
        self._may_boost = True
        offered, had_queues = self._offered, self._has_queues
        self._offered = self.catalogue()  # on a new day a reconcile may have read it before
        try:
            self._has_queues = self.connection.serves(names.QUEUE_GROUP)
            self._compare(self.connection.schemas(names.API_VERSION))
        except (ApiException, HTTPError) as error:  # asked again at the next refresh
            log.warning("cannot read whether Kueue is installed and which custom resources: %s", message_of(error))
        if offered is not self._offered or had_queues is not self._has_queues:
            for run in self.store.pending_runs():
                self.queue.add(run, can_wait=True)

    def _compare(self, schemas: Mapping[str, Any]) -> None:
        """Note which fields and values that this version writes the cluster's custom resources lack."""
        written = (names.KIND, "status", RunStatus), (names.PROGRESS_KIND, "progress", RunProgress)
        lacking = [
            f"{kind} {field}"
            for kind, part, block in written
            if kind in schemas
            for field in unknown_to(schemas[kind]["properties"].get(part, {}), block, part)
        ]
        if lacking and lacking != self.lacking:
            log.error("the custom resources of the cluster lack %s; remedy: %s", ", ".join(lacking), INSTALL_KINDS)
        self.lacking = lacking

    # --- work

    def lead(self) -> None:
        """From now on this process decides. What happened when there was another leader can wait: it was answered."""
        self._first_event.clear()
        self.queue.put_off(2 * LEASE_SECONDS)
        self._leads.set()

    @property
    def leads(self) -> bool:
        """Whether it decides: it has the lease, and everything was listed."""
        return self._leads.is_set() and self.synced.is_set()

    def run(self) -> None:
        """Until `stop`: when everything was listed, and from `lead` on, what is due."""
        begun, refreshed = time.monotonic(), float("-inf")
        while not self._stop.is_set():
            if not self.synced.is_set():
                if not self.watches.are_listed():
                    self._stop.wait(0.05)
                    continue
                log.info("everything was listed after %.1f s", time.monotonic() - begun)
                self.synced.set()
            now = time.monotonic()
            period = self.settings.resync_seconds
            if now >= refreshed + (min(period, OUTDATED_SECONDS) if self.lacking else period):
                refreshed = now
                self._refresh()
            if not self._leads.is_set():
                self._leads.wait(0.05)
                continue
            if not self._free_threads.acquire(timeout=1.0):
                continue  # what is due stays in the queue, which knows what comes first
            run = self.queue.get(1.0)
            if run is not None and not self._stop.is_set():
                self._threads.submit(self._work, run).add_done_callback(lambda _: self._free_threads.release())
            else:
                self._free_threads.release()

    def stop(self) -> None:
        """End `run` after the reconciles that are on their way."""
        self.watches.stop()
        self._stop.set()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _work(self, run: RunKey) -> None:
        again: float | None = RETRY_SECONDS[-1]
        try:
            with self.metrics.reconcile_seconds.time():
                again = self._reconcile(run)
            self.queue.forget(run)
        except (ApiException, HTTPError, OSError) as error:
            again = self.queue.retry(run)
            if not (isinstance(error, ApiException) and error.status == CONFLICT):
                log.warning("%s: %s", run, message_of(error))
        except FencedError:
            again = None  # the process ends
        except Exception:
            log.exception("%s: an error of ours", run)
        finally:
            self.queue.done(run)
        if again is not None:
            self.queue.add(run, again)

    def _reconcile(self, run: RunKey) -> float | None:
        """One reconcile: decide, write the status, act. Returns in how many seconds to look again."""
        first = self._first_event.pop(run, None)
        confirmed = False
        if self.store.still_waits(run):
            return None
        while True:
            with self._deciding:  # two runs must not take the same node
                now, begun = dt.datetime.now(dt.UTC), time.thread_time()
                pool_changes = self.store.parking.changes
                observed = self._observe(run, now)
                if observed is None:
                    self.routine.forget(run)
                    self._unwritten.pop(run, None)
                    self._park(run, None, pool_changes)
                    break
                seen, version = observed
                decision = reconcile(seen, now)
                self.metrics.decision_seconds.observe(time.thread_time() - begun)
                if confirmed or (job := job_in_doubt(seen, decision.status)) is None:
                    if (pause := self._turn(run, seen, decision)) > 0:
                        self._park(run, decision.awaits, pool_changes)
                        return pause if decision.again is None else min(pause, _seconds(now, decision.again))
                    self.store.assume(run, decision.status, version)
                    self._park(run, decision.awaits, pool_changes)
                    break
            confirmed = True
            for newest in self.connection.each(job.kind, run.namespace, fields=f"metadata.name={job.name}"):
                self.notice(job.kind, newest)
        if observed is None:
            for left in self.store.jobs_of(run) if run in self.store.runs else ():  # a finalizer keeps it, not its jobs
                self.connection.delete(left.kind, run.namespace, left.name, uid=left.uid)
            return None
        if decision.status != seen.status:
            try:
                version = self._write(run, version, decision.status)
            except BaseException as error:
                self.store.assume(run, seen.status, version)
                self._show_refusal(run, seen, version, error)
                raise
            self._unwritten.pop(run, None)
            if first is not None and not decision.is_routine:
                self.metrics.event_seconds.observe(time.monotonic() - first)
        self._act(run, decision.actions, version)
        return None if decision.again is None else _seconds(now, decision.again)

    def _turn(self, run: RunKey, seen: Snapshot, decision: Decision) -> float:
        """In how many seconds the status is to be written; a routine one has its turn among the others."""
        if not decision.is_routine or decision.status == seen.status:
            self.routine.forget(run)
            return 0.0
        return self.routine.take(run)

    def _park(self, run: RunKey, needs: Mapping[PoolKey, Need] | None, seen_changes: int) -> None:
        following = self.store.park(run, needs, seen_changes)
        if following is not None:
            self.queue.add(following, self.settings.debounce_seconds if following == run else 0.0)

    def _observe(self, run: RunKey, now: dt.datetime) -> tuple[Snapshot, str] | None:
        """A run and its resource version; None when it is gone or going."""
        store = self.store
        with store.lock:
            known = store.runs.get(run)
            if known is None or known.deleting:
                return None
            client, live = known.client_pod, known.status.live
            warnings = [self._refusals[run]] if run in self._refusals else []
            if live is not None:
                warnings += diagnostics_of(store.warnings.get(run, {}).values(), live, now)
            seen = Snapshot(
                run=run,
                generation=known.generation,
                spec=known.spec,
                status=known.status,
                pods=store.pods_of(run),
                jobs=store.jobs_of(run),
                progress=store.progress.get(run),
                has_progress=run in store.progress,
                nodes=store.ready_nodes(),
                pools=lambda: store.pools_for(run),
                catalogue=self.catalogue(look=False),
                image=self.settings.image,
                solver_image=self.settings.solver_image,
                gone_pods=store.went_of(run),
                has_queues=self._has_queues,
                namesakes=store.namesakes_of(run),
                refresh_seconds=store.refresh_seconds,
                lost_client=None if client is None or store.is_there(run.namespace, client) else client,
                warnings=warnings,
            )
            return seen, known.version

    def _write(self, run: RunKey, version: str, status: RunStatus) -> str:
        """The one write of a reconcile, refused when the run has changed since it was seen; returns its version."""
        manifest = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": run.name, "namespace": run.namespace, "uid": run.uid, "resourceVersion": version},
            "status": json.loads(status.model_dump_json(by_alias=True, exclude_none=True)),
        }
        written = self.connection.apply(manifest, part="status")
        self.store.put(names.KIND, written)
        version = str(written["metadata"]["resourceVersion"])
        self.store.assume(run, status, version)  # a watch of an older custom resource may have brought it pruned before
        return version

    def _show_refusal(self, run: RunKey, seen: Snapshot, version: str, error: BaseException) -> None:
        """Where the API server will refuse a status again, say so once by an event, and in the status that it has."""
        if not isinstance(error, ApiException) or error.status in (CONFLICT, NOT_FOUND):
            return
        why = message_of(error)
        if NOT_DECLARED not in why and is_passing(error):
            return
        remedy = "" if "remedy" in why else f"; remedy: {GIVE_RIGHTS if error.status == FORBIDDEN else INSTALL_KINDS}"
        problem = f"the API server refuses the status of this run: {why}{remedy}"
        status = unwritten(seen, dt.datetime.now(dt.UTC), problem)
        if status != seen.status:
            if self._unwritten.get(run) != problem:  # before the write, which the server may refuse as well
                self._record(run, RunEvent("Warning", REFUSED, problem))
            self._unwritten[run] = problem
            self._write(run, version, status)

    def _act(self, run: RunKey, actions: Iterable[Action], version: str) -> None:
        refused = self._refusals.pop(run, None)
        for action in actions:
            try:
                match action:
                    case Create(manifest):
                        self.store.put(manifest["kind"], self._create(run, manifest))
                    case Delete(kind, name, uid):
                        own = {"version": version} if kind == names.KIND else {}
                        self.connection.delete(kind, run.namespace, name, uid=uid, **own)
                    case Boost(job_uid, value):
                        self._boost(run, job_uid, value)
                    case RunEvent():
                        self._record(run, action)
            except ApiException as error:
                if isinstance(action, Create) and error.status != CONFLICT and not is_passing(error):
                    where = f"{action.manifest['kind']} {action.manifest['metadata']['name']}"
                    self._refusals[run] = Diagnostic(where, REFUSED, message_of(error))
                elif refused is not None:
                    self._refusals.setdefault(run, refused)
                raise

    def _create(self, run: RunKey, manifest: Manifest) -> Manifest:
        """The object, new or as the run has it already; one of the same name that is not the run's is left alone."""
        try:
            return self.connection.create(manifest)
        except ApiException as error:
            kind, name = manifest["kind"], manifest["metadata"]["name"]
            if error.status != CONFLICT:
                raise
            for there in self.connection.each(kind, run.namespace, fields=f"metadata.name={name}"):
                if (owner_of(there) or {}).get("uid") == run.uid:
                    return there
                self._refusals[run] = Diagnostic(f"{kind} {name}", NAME_TAKEN, "is there already and not this run's")
            raise

    def _record(self, run: RunKey, event: RunEvent) -> None:
        """An event; losing one is no harm."""
        manifest = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": f"{run.name}.{time.time_ns():x}", "namespace": run.namespace},
            "regarding": {**run.identity, "namespace": run.namespace},
            "type": event.kind,
            "reason": event.reason,
            "action": "Reconcile",
            "note": event.message[:1000],
            "eventTime": dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": names.FIELD_MANAGER,
            "reportingInstance": self.settings.identity,
        }
        try:
            self.connection.create(manifest)
        except (ApiException, HTTPError) as error:
            log.info("%s: event %s was not written: %s", run, event.reason, message_of(error))

    def _boost(self, run: RunKey, job_uid: str, value: int) -> None:
        """Write the annotation of the job's Workload. Without the right to it (manifests/kueue) nothing is lost."""
        if not self._may_boost:
            return
        change = {"metadata": {"annotations": {names.PRIORITY_BOOST: str(value)}}}
        of_job = f"{names.JOB_UID_LABEL}={job_uid}"
        try:
            for workload in self.connection.each("Workload", run.namespace, selector=of_job):
                self.connection.merge("Workload", run.namespace, workload["metadata"]["name"], change)
        except (ApiException, HTTPError) as error:
            self._may_boost = not (isinstance(error, ApiException) and error.status == FORBIDDEN)
            log.info("%s: the cost of an eviction was not published: %s", run, message_of(error))

    def catalogue(self, *, look: bool = True) -> Catalogue:
        """Prices, measurements and labels of today, read again on a new day or (``look``) when a file has changed."""
        day, last = today(), None if self._catalogue is None else self._catalogue[1]
        if not look and last is not None and last.as_of == day:
            return last
        folders = (self.settings.prices, self.settings.labels)
        prices, labels = (sorted(folder.glob("*.csv")) if folder is not None else [] for folder in folders)
        state = (day, tuple((file, _changed(file)) for file in (*prices, *labels)))
        if self._catalogue is None or self._catalogue[0] != state:
            problem = ""
            try:
                table = load_labels(labels)
            except InputError as error:  # without the files the package may say something else
                unknown = f"no node is used until the ConfigMap of labels is corrected: {_left_aside('labels', error)}"
                table = last.labels if last and not last.labels.problem else NodeLabels((), unknown)
            if self.store.read_labels_by(table):
                self.watches.list_again("Node")
            try:
                known = load_prices(prices, added=IN_CONFIG_MAP)
            except InputError as error:
                problem = _left_aside("prices", error)
                unknown = f"{IN_CONFIG_MAP}, which has an error: {problem}"
                known = last.prices if last and last.prices.rows else Prices((), unknown)
            self._catalogue = (state, Catalogue(known, load_measurements(), day, table, problem))
        return self._catalogue[1]


def _seconds(now: dt.datetime, then: dt.datetime) -> float:
    return max((then - now).total_seconds(), 0.05)


def _left_aside(what: str, error: InputError) -> str:
    """Log and return why the files of a ConfigMap do not count: what was read last does; at the start, nothing."""
    problem = f"the {what} of the ConfigMap are left aside: {' '.join(str(error).split())}"
    log.error("%s", problem)
    return problem


def _changed(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
