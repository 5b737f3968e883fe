"""How the operator bears many runs, on a control plane of this machine with imitated nodes.

    python -m tools.operator_load --nodes 1000 --runs 500 --nodes-per-run 2 [--output FILE]

Prints time to drain, writes to the API server in a run's life, memory, reconcile times, times from an event to the
status; `make bench BENCH=operator` puts them into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
from kubernetes import client
from prometheus_client.parser import text_string_to_metric_families

from caloscale.bench.machine import describe_machine
from caloscale.cluster import names
from caloscale.connection import Connection
from caloscale.showers.storage import atomic_writer
from tests.cluster.operator.process import OperatorProcess, install_rights
from tools.cluster import ControlPlane, Pool, machines

NAMESPACE = "load"
HISTOGRAMS = {"reconcile": "caloscale_reconcile_seconds", "eventToStatus": "caloscale_event_to_status_seconds"}


def main() -> None:
    """Make nodes and runs, wait until all have ended, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--nodes-per-run", type=int, default=1)
    parser.add_argument("--run-seconds", type=int, default=20, help="how long imitated workers run")
    parser.add_argument("--most-seconds", type=int, default=1800)
    parser.add_argument("--output", type=Path, help="the figures as JSON")
    given = parser.parse_args()
    with ControlPlane() as plane, tempfile.TemporaryDirectory() as folder:
        api = plane.client()
        install_rights(plane)
        machines.add_pool(api, Pool("load", given.nodes))
        client.CoreV1Api(api).create_namespace({"metadata": {"name": NAMESPACE}})
        machines.imitate_pods(api, NAMESPACE, run=f"{given.run_seconds}s")
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        operator = OperatorProcess(plane, Path(folder), CALOSCALE_METRICS_PORT=str(port))
        operator.start()
        try:
            drained = drain(Connection(api), psutil.Process(operator.pid), given)
            figures = {**drained, **measured(port, given.runs), "loadAverage": os.getloadavg()[0]}
        finally:
            operator.stop()
    text = json.dumps({**figures, "machine": describe_machine().model_dump(mode="json", by_alias=True)}, indent=2)
    print(text)
    if given.output:
        with atomic_writer(given.output) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")


def drain(connection: Connection, process: psutil.Process, given: argparse.Namespace) -> dict[str, Any]:
    """Create the runs, wait for their ends: seconds, phases, the operator's processor seconds, most memory in MiB."""
    begun, peak_mib = time.monotonic(), 0.0
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda i: connection.apply(training_run(i, given), manager="load"), range(given.runs)))
    while time.monotonic() - begun < given.most_seconds:
        time.sleep(2)
        objects, _ = connection.snapshot(names.KIND)
        phases = [each.get("status", {}).get("phase", "none") for each in objects]
        peak_mib = max(peak_mib, process.memory_info().rss / 2**20)
        counts = {phase: phases.count(phase) for phase in sorted(set(phases))}
        print(f"{time.monotonic() - begun:.0f} s {counts} {peak_mib:.0f} MiB", file=sys.stderr, flush=True)
        if counts.get("Succeeded", 0) + counts.get("Failed", 0) == given.runs:
            break
    used = process.cpu_times()
    return {
        "nodes": given.nodes,
        "runs": given.runs,
        "nodesPerRun": given.nodes_per_run,
        "runSeconds": given.run_seconds,
        "phases": counts,
        "secondsToDrain": time.monotonic() - begun,
        "processorSeconds": used.user + used.system,
        "peakMemoryMiB": peak_mib,
    }


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
        "metadata": {"name": f"r{index}", "namespace": NAMESPACE},
        "spec": {"model": {"preset": "variable-angle"}, "hardware": hardware},
    }


def measured(port: int, runs: int) -> dict[str, Any]:
    """The operator's own metrics: writes a run, and upper bounds of half and of 99% of the times, seconds."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        families = {f.name: f for f in text_string_to_metric_families(answer.read().decode())}
    requests = families["caloscale_api_requests"].samples
    counted = [s for s in requests if s.name.endswith("_total") and s.labels["kind"] != "Lease"]
    figures: dict[str, Any] = {"writesPerRun": sum(s.value for s in counted if s.labels["method"] != "GET") / runs}
    for title, name in HISTOGRAMS.items():
        buckets = [(float(s.labels["le"]), s.value) for s in families[name].samples if s.name.endswith("_bucket")]
        total = buckets[-1][1]
        for quantile in (0.5, 0.99):
            below = next(bound for bound, count in buckets if count >= quantile * total)
            figures[f"{title}P{100 * quantile:.0f}Seconds"] = below
        figures[f"{title}Count"] = total
    return figures


if __name__ == "__main__":
    main()
