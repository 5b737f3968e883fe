"""What the operator measures of itself and of its runs, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from caloscale.status import WITH_WORKERS, Phase

if TYPE_CHECKING:
    from caloscale.operator.cache import Store

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)


class Metrics:
    """Counters of the process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconcile_seconds = Histogram(
            "caloscale_reconcile_seconds",
            "Time of a reconcile with its writes.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.event_seconds = Histogram(
            "caloscale_event_to_status_seconds",
            "From the first event that concerns a run to its status.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.requests = Counter(
            "caloscale_api_requests", "Requests to the API server.", ("method", "kind", "code"), registry=self.registry
        )

    def count(self, method: str, kind: str, code: int) -> None:
        """Count a request."""
        self.requests.labels(method, kind, str(code)).inc()


class RunsCollector(Collector):
    """Runs by phase, accelerators and money, computed when Prometheus asks."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        """The gauges of now."""
        with self._store.lock:
            statuses = [known.status for known in self._store.runs.values()]
            uses = [pod.use for pod in self._store.pods.values() if pod.run is not None and pod.use is not None]
            there = {use.node for use in uses} & self._store.nodes.keys()
            on_nodes = sum(self._store.nodes[name].key.per_node for name in there)
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
        for kind, count in (("planned", planned), ("used", used), ("wasted", on_nodes - used)):
            accelerators.add_metric([kind], count)
        yield accelerators
        usd_per_hour = sum(placed.usd_per_hour or 0.0 for placed in launched)
        yield GaugeMetricFamily("caloscale_usd_per_hour", "US dollars per hour of launched runs.", usd_per_hour)
