"""How the operator bears many runs, on a control plane of this machine with imitated nodes.

python -m tools.operator_load --nodes 1000 --runs 500 --nodes-per-run 2

Prints what docs/operator.md lists: time to drain, requests a run, memory, reconcile times, from event to status.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
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

from caloscale.cluster import names
from caloscale.connection import Connection
from tests.cluster.operator.process import OperatorProcess, install_rights
from tools.cluster import ControlPlane, Pool, machines

NAMESPACE = "load"
QUANTILES = ("caloscale_reconcile_seconds", "caloscale_event_to_status_seconds")


def main() -> None:
    """Make nodes and runs, wait until all have ended, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--nodes-per-run", type=int, default=1)
    parser.add_argument("--run-seconds", type=int, default=20, help="how long imitated workers run")
    parser.add_argument("--most-seconds", type=int, default=1800)
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
            seconds, peak_mib = drain(Connection(api), psutil.Process(operator.pid), given)
            report(port, given.runs, seconds, peak_mib)
        finally:
            operator.stop()


def drain(connection: Connection, process: psutil.Process, given: argparse.Namespace) -> tuple[float, float]:
    """Create the runs and wait for their ends; returns the seconds and the operator's largest memory, MiB."""
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
    return time.monotonic() - begun, peak_mib


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


def report(port: int, runs: int, seconds: float, peak_mib: float) -> None:
    """Print the figures of the operator's own metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        families = {f.name: f for f in text_string_to_metric_families(answer.read().decode())}
    requests = families["caloscale_api_requests"].samples
    counted = [s for s in requests if s.name.endswith("_total") and s.labels["kind"] != "Lease"]
    writes = sum(s.value for s in counted if s.labels["method"] != "GET")
    print(f"time to drain {seconds:.0f} s; {writes / runs:.1f} writes a run; operator at most {peak_mib:.0f} MiB")
    for name in QUANTILES:
        buckets = [(float(s.labels["le"]), s.value) for s in families[name].samples if s.name.endswith("_bucket")]
        total = buckets[-1][1]
        at = {q: next(le for le, count in buckets if count >= q * total) for q in (0.5, 0.99)}
        print(f"{name}: half below {at[0.5]:g} s, 99% below {at[0.99]:g} s ({total:.0f} in all)")
    load = subprocess.run(["uptime"], capture_output=True, text=True, check=False).stdout.rpartition("average: ")[2]
    print(f"load average {load.strip()}")


if __name__ == "__main__":
    main()
