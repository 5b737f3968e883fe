"""Metrics of the operator and of its runs, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, Summary
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from caloscale.cluster.names import RunKey
from caloscale.status import FINISHED, WITH_WORKERS, Phase

if TYPE_CHECKING:
    from caloscale.operator.store import KnownRun, Store

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
MOST_RUNS = 200
"""Number of unfinished runs that have metrics each: a run is a few series of Prometheus."""


class Metrics:
    """Counters of the process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        histogram = partial(Histogram, buckets=SECONDS, registry=self.registry)
        counter = partial(Counter, registry=self.registry)
        text = "Time of a reconcile with its writes."
        self.reconcile_seconds = histogram("caloscale_reconcile_seconds", text)
        text = "Processor time of a decision about a run, without its writes."
        self.decision_seconds = Summary("caloscale_decision_processor_seconds", text, registry=self.registry)
        text = "From the first event that concerns a run to its status, where that has more than money and steps."
        self.event_seconds = histogram("caloscale_event_to_status_seconds", text)
        self.requests = counter("caloscale_api_requests", "Requests to the API server.", ("method", "kind", "code"))
        self.events = counter("caloscale_events", "Events of watched objects.", ("kind",))

    def count(self, method: str, kind: str, code: int) -> None:
        """Count a request."""
        self.requests.labels(method, kind, str(code)).inc()


class RunsCollector(Collector):
    """Runs by phase, accelerators and money, and each unfinished run, computed when Prometheus asks."""

    def __init__(self, store: Store, leads: Callable[[], bool]) -> None:
        """``leads``: whether this operator decides; one that only follows would have each run counted twice."""
        self._store, self._leads = store, leads

    def collect(self) -> Iterator[Metric]:
        """The gauges of now."""
        if not self._leads():
            return
        with self._store.lock:
            statuses = [known.status for known in self._store.runs.values()]
            unfinished = [each for each in self._store.runs.items() if each[1].status.phase not in FINISHED]
            uses = [pod.use for pod in self._store.pods.values() if pod.use is not None and pod.works]
            nodes = self._store.capacity.nodes
            on_nodes = sum(nodes[name].key.per_node for name in {use.node for use in uses} & nodes.keys())
            wasted = on_nodes - sum(use.accelerators for use in uses if use.node in nodes)
        launched = [s.placement for s in statuses if s.phase in WITH_WORKERS and s.placement is not None]
        planned = sum(placed.workers * placed.accelerators_per_worker for placed in launched)
        used = sum(use.accelerators for use in uses)
        family = GaugeMetricFamily("caloscale_runs", "Training runs.", labels=["phase"])
        for phase in get_args(Phase):
            family.add_metric([phase], sum(status.phase == phase for status in statuses))
        yield family
        accelerators = GaugeMetricFamily(
            "caloscale_accelerators",
            "planned: of launched runs; used: requested by their pods; wasted: on their nodes, used by no pod.",
            labels=["kind"],
        )
        for kind, count in (("planned", planned), ("used", used), ("wasted", wasted)):
            accelerators.add_metric([kind], count)
        yield accelerators
        usd_per_hour = sum(placed.usd_per_hour or 0.0 for placed in launched)
        yield GaugeMetricFamily("caloscale_usd_per_hour", "US dollars per hour of launched runs.", usd_per_hour)
        yield from _run_metrics(unfinished)


def _run_metrics(runs: Sequence[tuple[RunKey, KnownRun]]) -> Iterator[Metric]:
    """Metrics of single runs: of `MOST_RUNS` at most, those with workers first."""
    ordered = sorted(runs, key=lambda each: (each[1].status.phase not in WITH_WORKERS, each[0]))
    yield GaugeMetricFamily(
        "caloscale_runs_without_metrics",
        f"Unfinished runs beyond the {MOST_RUNS} that have metrics of their own.",
        max(0, len(runs) - MOST_RUNS),
    )
    labels = ("namespace", "run")
    kinds = ("phase", "accelerator", "capacity_type")
    info = GaugeMetricFamily("caloscale_run_info", "1; an unfinished run and where it runs.", labels=(*labels, *kinds))
    text = "Steps that are done, as a fraction of all; 0 of a run that is Running and has not reported yet."
    progress = GaugeMetricFamily("caloscale_run_progress", text, labels=labels)
    restarts = GaugeMetricFamily("caloscale_run_restarts", "Restarts that count.", labels=labels)
    usd = GaugeMetricFamily("caloscale_run_usd", "US dollars so far, where a price is known.", labels=labels)
    budget = GaugeMetricFamily("caloscale_run_budget_usd", "budget.maxUsd, where it is set.", labels=labels)
    for key, known in ordered[:MOST_RUNS]:
        status, named = known.status, (key.namespace, key.name)
        placed = (status.placement.accelerator, status.placement.capacity_type) if status.placement else ("", "")
        info.add_metric((*named, status.phase, *placed), 1)
        restarts.add_metric(named, status.restarts)
        if status.progress is not None and status.progress.steps:
            progress.add_metric(named, status.progress.step / status.progress.steps)
        elif status.phase == "Running":
            progress.add_metric(named, 0.0)
        if status.cost is not None and status.cost.usd is not None:
            usd.add_metric(named, status.cost.usd)
        with suppress(KeyError, TypeError, ValueError):  # of a spec that the operator need not understand
            budget.add_metric(named, float(known.spec["budget"]["maxUsd"]))
    yield from (info, progress, restarts, usd, budget)
