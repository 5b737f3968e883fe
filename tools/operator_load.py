"""How the operator bears many runs, on a control plane of this machine with fake nodes.

    python -m tools.operator_load --nodes 1000 --runs 500 --nodes-per-run 2 [--output FILE]
    python -m tools.operator_load --nodes 60 --runs 50 --live
    python -m tools.operator_load --nodes 450 --runs 1000 --shared --others 4000 --configurations 150 --namespaces 10

Prints time to drain, writes to the API server in a run's life, memory, reconcile times, times from an event to the
status; `make bench BENCH=operator` puts them into docs/benchmarks.md. All runs are created at once; with --live the
times are those of the runs' life afterwards: each reports every 15 seconds, and every second one of them ends.
With --shared pods of others are on the nodes, too, 100 of them change in a second, the runs that wait differ, nodes are
cut off, and the leader is killed in the middle. tools.operator_simulation has no API server beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import socket
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from prometheus_client.parser import text_string_to_metric_families

from caloscale.bench.machine import describe_machine
from caloscale.cluster import names
from caloscale.connection import Connection
from caloscale.storage.atomic import write_text
from tests.control_plane.operator.process import OperatorProcess, install_rights, install_worker_account
from tools.cluster import ControlPlane, Pool, machines

NAMESPACE = "load"
HISTOGRAMS = {"reconcile": "caloscale_reconcile_seconds", "eventToStatus": "caloscale_event_to_status_seconds"}
REPORT_SECONDS, CHANGES_PER_SECOND = 15.0, 100
"""How often worker 0 reports, s, and how often pods of others change."""

Counts = dict[str, dict[float, float]]
"""By metric: how many were below a bound (requests: all, below infinity)."""


def main() -> None:
    """Make nodes and runs, wait until all have ended, print the figures."""
    given = options()
    with ControlPlane() as plane, tempfile.TemporaryDirectory() as folder:
        api = plane.client()
        install_rights(plane)
        machines.add_pool(api, Pool("load", given.nodes))
        lasting = given.live or given.shared
        for namespace in namespaces(given):
            client.CoreV1Api(api).create_namespace({"metadata": {"name": namespace}})
            install_worker_account(Connection(api), namespace)
            machines.fake_pods(api, namespace, run=None if lasting else f"{given.run_seconds}s")
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        operator = OperatorProcess(plane, Path(folder), CALOSCALE_METRICS_PORT=str(port))
        operator.start()
        try:
            figures = share(plane, operator, port, given) if given.shared else None
            figures = figures or drain(plane, psutil.Process(operator.pid), port, given)
        finally:
            operator.stop()
    text = json.dumps({**figures, "machine": describe_machine().model_dump(mode="json", by_alias=True)}, indent=2)
    print(text)
    if given.output:
        write_text(given.output, text)


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line says; absent: that of this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--nodes-per-run", type=int, default=1)
    parser.add_argument("--run-seconds", type=int, default=20, help="how long fake workers run")
    parser.add_argument("--live", action="store_true", help="workers run until they are ended, one run a second")
    parser.add_argument("--shared", action="store_true", help="a cluster with pods of others")
    parser.add_argument("--others", type=int, default=0, help="pods of others")
    parser.add_argument("--configurations", type=int, default=1, help="different specs of the runs")
    parser.add_argument("--namespaces", type=int, default=1)
    parser.add_argument("--cut-off", type=int, default=2, help="nodes that do not answer any more")
    parser.add_argument("--seconds", type=int, default=120, help="how long the shared cluster is looked at")
    parser.add_argument("--most-seconds", type=int, default=1800)
    parser.add_argument("--output", type=Path, help="the figures as JSON")
    return parser.parse_args(arguments)


def drain(plane: ControlPlane, process: psutil.Process, port: int, given: argparse.Namespace) -> dict[str, Any]:
    """Create the runs and wait for their ends: seconds, phases, memory in MiB, and what the operator measured."""
    connection, begun = Connection(plane.client()), time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda i: connection.apply(training_run(i, given), manager="load"), range(given.runs)))
    before: Counts = {}
    peak_mib = 0.0
    if given.live:
        _, peak_mib = follow(connection, process, given, ("Running",), begun)
        before = counts(port)
        live(connection, plane.client(), given)
    phases, later_mib = follow(connection, process, given, ("Succeeded", "Failed"), begun)
    used = process.cpu_times()
    return {
        "nodes": given.nodes,
        "runs": given.runs,
        "nodesPerRun": given.nodes_per_run,
        "runSeconds": None if given.live else given.run_seconds,
        "phases": phases,
        "secondsToDrain": time.monotonic() - begun,
        "processorSeconds": used.user + used.system,
        "peakMemoryMiB": max(peak_mib, later_mib),
        "writesPerRun": sum(counts(port)["writes"].values()) / given.runs,
        "loadAverage": os.getloadavg()[0],
        **times(before, counts(port)),
    }


def follow(
    connection: Connection, process: psutil.Process, given: argparse.Namespace, ends: tuple[str, ...], begun: float
) -> tuple[Counter[str], float]:
    """Until all runs are in one of these phases: runs by phase, and the operator's largest memory, MiB."""
    peak_mib = 0.0
    while True:
        phases = Counter(each.get("status", {}).get("phase", "none") for each in connection.each(names.KIND))
        peak_mib = max(peak_mib, process.memory_info().rss / 2**20)
        seconds = time.monotonic() - begun
        print(f"{seconds:.0f} s {dict(phases)} {peak_mib:.0f} MiB", file=sys.stderr, flush=True)
        if sum(phases[end] for end in ends) == given.runs or seconds > given.most_seconds:
            return phases, peak_mib
        time.sleep(2)


def live(connection: Connection, api: client.ApiClient, given: argparse.Namespace) -> None:
    """Runs report in turn, each every 15 s, and every second one of them ends."""
    begun = time.monotonic()
    reports = ended = 0
    while ended < given.runs:
        elapsed = time.monotonic() - begun
        while reports < elapsed * given.runs / REPORT_SECONDS:
            if (index := reports % given.runs) >= ended:
                report(connection, index, reports, given)
            reports += 1
        if elapsed > ended:
            machines.end_pods(api, NAMESPACE, selector=f"{names.RUN_LABEL}=r{ended}")
            ended += 1
        time.sleep(0.02)


def namespaces(given: argparse.Namespace) -> list[str]:
    """Of the runs, and that of the others."""
    return [namespace_of(index, given) for index in range(given.namespaces)] + (["others"] if given.others else [])


def namespace_of(index: int, given: argparse.Namespace) -> str:
    """Of a run."""
    return NAMESPACE if given.namespaces == 1 else f"{NAMESPACE}-{index % given.namespaces}"


def other(connection: Connection, index: int, given: argparse.Namespace) -> None:
    """A pod of others on a node, small beside a worker, as long as 8 kB."""
    container = {
        "name": "main",
        "image": "others:1",
        "env": [{"name": f"V{i}", "value": "v" * 150} for i in range(40)],
        "resources": {"requests": {"cpu": "100m", "memory": "100Mi"}},
    }
    metadata = {"name": f"other-{index}", "namespace": "others"}
    node = f"load-{index % given.nodes:04d}"
    spec = {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 0}
    connection.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, manager="load")


def share(plane: ControlPlane, operator: OperatorProcess, port: int, given: argparse.Namespace) -> dict[str, Any]:
    """Fill the cluster, let it change, cut nodes off, kill the leader: figures of the operator before and after."""
    connection, api = Connection(plane.client()), plane.client()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda i: other(connection, i, given), range(given.others)))
        list(threads.map(lambda i: connection.apply(training_run(i, given), manager="load"), range(given.runs)))
    begun, process = time.monotonic(), psutil.Process(operator.pid)
    settle(connection, given, begun, lambda phases: phases["Running"] == min(given.nodes, given.runs))
    figures: dict[str, Any] = {"fillSeconds": time.monotonic() - begun, **vars(given), "output": None}
    before, used, since = counts(port), process.cpu_times(), time.monotonic()
    change(connection, api, given, given.seconds / 2)
    machines.break_nodes(api, [f"load-{index:04d}" for index in range(given.cut_off)])
    change(connection, api, given, given.seconds / 2)
    spent, seconds = process.cpu_times(), time.monotonic() - since
    figures |= times(before, counts(port))
    figures["cores"] = (spent.user + spent.system - used.user - used.system) / seconds
    figures["residentMiB"] = process.memory_info().rss / 2**20
    figures["errors"] = sum(line.count(" ERROR ") for line in operator.log.read_text().splitlines())
    usd = costs(connection)
    operator.kill()
    begun = time.monotonic()
    operator.start()
    index = given.runs - 1
    connection.merge(names.KIND, namespace_of(index, given), f"r{index}", {"spec": {"cluster": {"suspend": True}}})
    settle(connection, given, begun, lambda phases: phases["Suspended"] + phases["Suspending"] == 1)
    figures["secondsToResume"] = time.monotonic() - begun
    jobs = Counter(
        (job["metadata"]["namespace"], job["metadata"]["labels"][names.RUN_LABEL])
        for job in connection.each("TFJob")
        if "deletionTimestamp" not in job["metadata"]
    )
    figures["doubled"] = sum(count > 1 for count in jobs.values())
    after = costs(connection)
    figures["billsLost"] = sum(after.get(run, 0.0) < cost for run, cost in usd.items())
    return figures


def costs(connection: Connection) -> dict[str, float]:
    """US dollars by uid of the run."""
    statuses = ((raw["metadata"]["uid"], raw.get("status") or {}) for raw in connection.each(names.KIND))
    return {uid: float((status.get("cost") or {}).get("usd", 0.0)) for uid, status in statuses}


def settle(
    connection: Connection, given: argparse.Namespace, begun: float, holds: Callable[[Counter[str]], bool]
) -> None:
    """Until the runs' phases are so, or too late."""
    while time.monotonic() - begun < given.most_seconds:
        phases = Counter(each.get("status", {}).get("phase", "none") for each in connection.each(names.KIND))
        print(f"{time.monotonic() - begun:.0f} s {dict(phases)}", file=sys.stderr, flush=True)
        if holds(phases):
            return
        time.sleep(1)


def change(connection: Connection, api: client.ApiClient, given: argparse.Namespace, seconds: float) -> None:
    """Pods of others go and come, running runs report, every second one ends and another begins."""
    begun, changed, reports, ended = time.monotonic(), 0, 0, 0
    with ThreadPoolExecutor(8) as threads:
        while (elapsed := time.monotonic() - begun) < seconds:
            while changed < elapsed * CHANGES_PER_SECOND / 2 and given.others:
                threads.submit(replace_other, connection, changed % given.others, given)
                changed += 1
            while reports < elapsed * given.nodes / REPORT_SECONDS:
                threads.submit(report, connection, reports % given.runs, reports, given)
                reports += 1
            if elapsed > ended + 1:
                selector = f"{names.RUN_LABEL}=r{ended % given.runs}"
                threads.submit(machines.end_pods, api, namespace_of(ended % given.runs, given), selector=selector)
                ended += 1
            time.sleep(0.02)


def replace_other(connection: Connection, index: int, given: argparse.Namespace) -> None:
    """A pod of others goes, and another one comes: two changes."""
    connection.delete("Pod", "others", f"other-{index}")
    with contextlib.suppress(ApiException):  # it goes only now
        other(connection, index, given)


def report(connection: Connection, index: int, step: int, given: argparse.Namespace) -> None:
    """As worker 0 of a run does."""
    progress = {"epochs": 60, "step": step, "steps": 10**7, "updated": dt.datetime.now(dt.UTC).isoformat()}
    namespace, name = namespace_of(index, given), names.progress_name(f"r{index}")
    with contextlib.suppress(ApiException):  # it waits
        connection.merge(names.PROGRESS_KIND, namespace, name, {"progress": progress})


def training_run(index: int, given: argparse.Namespace) -> dict[str, Any]:
    """A run on whole nodes with 8 GPUs."""
    hardware = {
        "accelerator": "nvidia-tesla-v100",
        "count": 8 * given.nodes_per_run,
        "perNode": 8,
        "region": "europe-west4",
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": f"r{index}", "namespace": namespace_of(index, given)},
        "spec": {
            "model": {"preset": "variable-angle"},
            "hardware": hardware,
            "train": {"seed": index % given.configurations},
        },
    }


def counts(port: int) -> Counts:
    """The operator's own metrics: buckets of its times, and its writes."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        families = {f.name: f for f in text_string_to_metric_families(answer.read().decode())}
    requests = [s for s in families["caloscale_api_requests"].samples if s.name.endswith("_total")]
    writes = sum(s.value for s in requests if s.labels["kind"] != "Lease" and s.labels["method"] != "GET")
    found: Counts = {"writes": {float("inf"): writes}}
    for title, name in HISTOGRAMS.items():
        buckets = [s for s in families[name].samples if s.name.endswith("_bucket")]
        found[title] = {float(s.labels["le"]): s.value for s in buckets}
    return found


def times(before: Counts, after: Counts) -> dict[str, float]:
    """Upper bounds of half and of 99% of the times since `before`, seconds, and how many there were."""
    figures = {}
    for title in HISTOGRAMS:
        below = {bound: count - before.get(title, {}).get(bound, 0.0) for bound, count in after[title].items()}
        total = max(below.values())
        for quantile in (0.5, 0.99):
            bound = min(bound for bound, count in below.items() if count >= quantile * total)
            figures[f"{title}P{100 * quantile:.0f}Seconds"] = bound
        figures[f"{title}Count"] = total
    return figures


if __name__ == "__main__":
    main()
