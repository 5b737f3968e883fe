"""How the operator bears many runs, on a control plane of this machine with fake nodes.

    python -m tests.control_plane.operator.load --nodes 500 --runs 1000 --others 4000 --taken 50 --configurations 150

Prints cores, memory and times from an event to the status (docs/operator-process.md). All runs
are there at once. They run until they are ended, one a second, each reports every 15 seconds, pods of others are on the
nodes, too, 100 of them change in a second, the runs that wait differ, nodes are cut off, and of two operators the
leader is killed in the middle and started again. What others write, and the reports, go straight into etcd, as from
another API server of the cluster: two cores could not write so much beside the rest.
"""

import argparse
import base64
import datetime as dt
import http.client
import json
import math
import re
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from kubernetes import client
from prometheus_client.parser import text_string_to_metric_families

from caloscale.bench.results import describe_machine
from caloscale.cluster import names
from caloscale.connection import Connection
from caloscale.operator.election import NAME as LEASE
from caloscale.operator.reconcile import REFRESHED_PER_SECOND
from tests.control_plane import faults
from tests.control_plane.operator.process import SYSTEM, OperatorProcess, install_rights, install_worker_account
from tools.cluster import ControlPlane, Pool
from tools.cluster.errors import ClusterError
from tools.cluster.pools import add_pool

NAMESPACE = "runs"
REPORT_SECONDS, CHANGES_PER_SECOND = 15.0, 100
"""How often worker 0 reports, s, and how often pods of others change."""
QUIET_PER_SECOND = 2 * REFRESHED_PER_SECOND
"""An operator that writes no more often only keeps money and progress up to date."""
RUNS, REPORTS = f"{names.GROUP}/{names.PLURAL}", f"{names.GROUP}/{names.PROGRESS_PLURAL}"
"""Where they are in etcd."""
UID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
OPERATORS = ("operator-0", "operator-1")
"""Their pods."""
OWNERS = (names.PLURAL, "tfjobs", "services")
"""Kinds of objects that own others, in the order in which they do."""


class Counts(NamedTuple):
    """The operator's own metrics."""

    writes: float
    events: float
    times: dict[float, float]
    """From an event to the status: how many took less than a bound, s."""


def main() -> None:
    """Make a node and the runs, let the cluster change, print the figures."""
    given = options()
    # kwok renews leases four times until a node counts as lost: of 5,000 nodes 500 in a second where that is after 40 s
    cluster = ControlPlane(operators=("training-operator",), grace_seconds=3600)
    with cluster as plane, tempfile.TemporaryDirectory() as folder:
        api = plane.client()
        install_rights(plane)
        add_pool(api, Pool("load", 1))
        for namespace in namespaces(given):
            client.CoreV1Api(api).create_namespace({"metadata": {"name": namespace}})
            install_worker_account(Connection(api), namespace)
        operators = operators_of(plane, Path(folder))
        operators[0].start()
        try:
            figures = share(plane, operators, given)
        except Exception:
            print(
                *(each.log.read_text(encoding="utf-8")[-4000:] for each in operators if each.log.exists()),
                file=sys.stderr,
            )
            raise
        finally:
            for each in operators:
                each.stop()
    print(json.dumps({**figures, "machine": describe_machine().as_values()}, indent=2))


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--others", type=int, default=0, help="pods of others")
    parser.add_argument("--taken", type=int, default=0, help="so many of them have all GPUs of a node")
    parser.add_argument("--configurations", type=int, default=1, help="different specs of the runs")
    parser.add_argument("--namespaces", type=int, default=1)
    parser.add_argument("--cut-off", type=int, default=2, help="nodes that do not answer any more")
    parser.add_argument("--seconds", type=int, default=120, help="how long the shared cluster is looked at")
    parser.add_argument("--most-seconds", type=int, default=1800)
    return parser.parse_args(arguments)


def operators_of(plane: ControlPlane, folder: Path) -> list[OperatorProcess]:
    """The operator and its standby, not started."""
    operators = []
    for name in OPERATORS:
        (folder / name).mkdir()
        operators.append(OperatorProcess(plane, folder / name, POD_NAME=name))
    return operators


def most_memory_mib(pid: int) -> float:
    """Largest resident memory of a process so far, MiB."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(re.findall(r"VmHWM:\s+(\d+) kB", text)[0]) / 1024


def namespaces(given: argparse.Namespace) -> list[str]:
    return [namespace_of(index, given) for index in range(given.namespaces)] + (["others"] if given.others else [])


def namespace_of(index: int, given: argparse.Namespace) -> str:
    return NAMESPACE if given.namespaces == 1 else f"{NAMESPACE}-{index % given.namespaces:02d}"


def name_of(index: int) -> str:
    """Of a run; names are of one length (`Model`)."""
    return f"r{index:05d}"


def node_of(index: int, given: argparse.Namespace) -> str:
    """Of a node: of a run, and from the last on of a pod of others."""
    return f"load-{index % given.nodes:04d}"


def other(connection: Connection, index: int, given: argparse.Namespace) -> None:
    """A pod of others on a node, small beside a worker or with all its GPUs, as long as 8 kB."""
    container = {
        "name": "main",
        "image": "others:1",
        "env": [{"name": f"V{i}", "value": "v" * 350} for i in range(20)],
        "resources": {
            "requests": {"cpu": "100m", "memory": "100Mi"},
            "limits": {names.GPU: 8} if index < given.taken else {},
        },
    }
    metadata = {"name": f"other-{index:06d}", "namespace": "others"}
    spec = {"nodeName": node_of(-1 - index, given), "containers": [container], "terminationGracePeriodSeconds": 0}
    connection.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, manager="load")


class Store:
    """etcd, written as by another API server of the cluster. For one thread."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def __del__(self) -> None:
        self._connection.close()

    def get(self, prefix: str, *, keys: bool = False) -> dict[str, bytes]:
        """Values by key; ``keys``: without the values."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        wanted = {"key": _encode(prefix), "range_end": _encode(end), "keys_only": keys}
        found = self._ask("range", wanted).get("kvs", [])
        return {base64.b64decode(each["key"]).decode(): base64.b64decode(each.get("value", "")) for each in found}

    def put(self, key: str, value: bytes, *, anew: bool = True) -> None:
        """Write a value; ``anew``: also where there is none."""
        there = {"key": _encode(key), "target": "VERSION", "result": "GREATER", "version": "0"}
        write = {"requestPut": {"key": _encode(key), "value": _encode(value)}}
        self._ask("txn", {"compare": [] if anew else [there], "success": [write]})

    def delete(self, key: str) -> None:
        self._ask("deleterange", {"key": _encode(key)})

    def _ask(self, verb: str, request: dict[str, Any]) -> dict[str, Any]:
        self._connection.request("POST", f"/v3/kv/{verb}", json.dumps(request))
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != http.HTTPStatus.OK:
            raise ClusterError(f"etcd answers {answer.status} {text[:200]!r}", remedy="look into its log")
        return dict(json.loads(text))


def _encode(text: str | bytes) -> str:
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


class Model:
    """Objects that the cluster has made, to be written again with other names and uids."""

    def __init__(self, store: Store, name: str, words: Sequence[str]) -> None:
        """``name``: in the keys of the objects; ``words``: what is replaced in them."""
        keys = [key for key in store.get("/registry/", keys=True) if name in key and "/events/" not in key]
        # an owner comes before what it owns, which the garbage collector would else remove
        keys.sort(key=lambda key: next((i for i, kind in enumerate(OWNERS) if f"/{kind}/" in key), len(OWNERS)))
        self._store, self._words = store, words
        self._objects = [(key, store.get(key)[key]) for key in keys]
        self._uids = {uid for _, value in self._objects for uid in UID.findall(value)}

    def write(self, words: Sequence[str]) -> None:
        changes = [(old.encode(), new.encode()) for old, new in zip(self._words, words, strict=True)]
        changes += [(uid, str(uuid.uuid4()).encode()) for uid in self._uids]
        for key, value in self._objects:
            for old, new in changes:
                # protocol buffers have the lengths of texts
                assert len(old) == len(new) or not value.startswith(b"k8s")
                key, value = key.replace(old.decode(), new.decode()), value.replace(old, new)
            self._store.put(key, value)


class Others:
    """Pods of others: two are made by the API server, and all others after them."""

    def __init__(self, connection: Connection, store: Store, given: argparse.Namespace) -> None:
        self._store, self._given = store, given
        self._models = {}
        for index in {0, given.taken} if given.taken else {0}:
            other(connection, index, given)
            wait_for(connection, "Pod", "others", f"other-{index:06d}", "Running")
            self._models[index < given.taken] = Model(store, f"other-{index:06d}", self._words(index))

    def put(self, index: int) -> None:
        self._models[index < self._given.taken].write(self._words(index))

    def delete(self, index: int) -> None:
        self._store.delete(f"/registry/pods/others/other-{index:06d}")

    def _words(self, index: int) -> tuple[str, str]:
        return f"other-{index:06d}", node_of(-1 - index, self._given)


class Changes:
    """Pods of others go and come, running runs report, every second one ends and another begins."""

    def __init__(self, plane: ControlPlane, others: Others | None, given: argparse.Namespace) -> None:
        self._api, self._others, self._given = plane.client(), others, given
        self._store = Store(plane.servers.ports["etcd"])
        self._running: list[tuple[str, str]] = []
        self._values: dict[str, dict[str, Any]] = {}
        self._stop_now = threading.Event()
        self.ends_since = math.inf
        """From when on runs end (time.monotonic)."""
        self.done: Counter[str] = Counter()
        """What was written so far."""

    def stop(self) -> None:
        self._stop_now.set()

    def run(self) -> None:
        self._look()
        begun = time.monotonic()
        with ThreadPoolExecutor(2) as threads:
            while not self._stop_now.wait(0.02):
                elapsed = time.monotonic() - begun
                while self._is_behind("changes", elapsed * CHANGES_PER_SECOND) and self._others is not None:
                    index = self.done["changes"] // 2 % (self._given.others - self._given.taken) + self._given.taken
                    (self._others.put if self.done["changes"] % 2 else self._others.delete)(index)
                    self.done["changes"] += 1
                while self._is_behind("reports", elapsed * len(self._running) / REPORT_SECONDS):
                    self._report(*self._running[self.done["reports"] % len(self._running)])
                    self.done["reports"] += 1
                ending = time.monotonic() - self.ends_since
                if self._running and self._is_behind("ends", ending - 1):
                    namespace, run = self._running.pop(0)
                    selector = f"{names.RUN_LABEL}={run}"
                    threads.submit(faults.end_pods, self._api, namespace, selector=selector)
                    self.done["ends"] += 1
                    if len(self._running) < 0.75 * self._found:
                        self._look()

    def _is_behind(self, what: str, due: float) -> bool:
        return self.done[what] < due and not self._stop_now.is_set()

    def _look(self) -> None:
        """Which runs are running, and what they have reported."""
        self._values = {key: json.loads(value) for key, value in self._store.get(f"/registry/{REPORTS}/").items()}
        kept = name_of(self._given.runs - 1)  # that which `kill` suspends
        self._running = [
            (raw["metadata"]["namespace"], raw["metadata"]["name"])
            for raw in stored(RUNS, self._store, self._given)
            if raw.get("status", {}).get("phase") == "Running" and raw["metadata"]["name"] != kept
        ]
        self._found = len(self._running)

    def _report(self, namespace: str, run: str) -> None:
        key = f"/registry/{REPORTS}/{namespace}/{names.progress_name(run)}"
        progress: dict[str, object] = {"epochs": 60, "step": self.done["reports"], "steps": 10**7}
        progress |= {"updated": dt.datetime.now(dt.UTC).isoformat()}
        self._store.put(key, json.dumps(self._values[key] | {"progress": progress}).encode(), anew=False)


def fill(plane: ControlPlane, operators: Sequence[OperatorProcess], given: argparse.Namespace) -> Others | None:
    """Let a run be launched on the first node and one wait, and write copies of all three, and pods of others.

    The operators, and who makes pods of jobs, do not run meanwhile: they see all of it at once. The first one leads.
    """
    connection, store = Connection(plane.client()), Store(plane.servers.ports["etcd"])
    first, last = node_of(0, given), given.runs - 1
    connection.apply(training_run(0, given), manager="load")
    wait_for(connection, names.KIND, namespace_of(0, given), name_of(0), "Running")
    connection.apply(training_run(last, given), manager="load")
    wait_for(connection, names.KIND, namespace_of(last, given), name_of(last), "Waiting")
    operators[0].stop()
    plane.daemons["training-operator"].stop()
    node = Model(store, f"/minions/{first}", [first])
    for index in range(1, given.nodes):
        node.write([node_of(index, given)])
    _seen_by_kwok(plane, given)

    def words(index: int, seed: int) -> tuple[str, ...]:
        return name_of(index), namespace_of(index, given), node_of(index, given), f'"seed":{seed}'

    room = min(given.nodes - given.taken, last)
    running = Model(store, name_of(0), words(0, 0))
    waiting = Model(store, name_of(last), words(last, last % given.configurations))
    for index in range(1, last):
        (running if index < room else waiting).write(words(index, 0 if index < room else index % given.configurations))
    others = Others(connection, store, given) if given.others else None
    for index in range(given.others):
        assert others is not None
        others.put(index)
    plane.run(plane.daemons["training-operator"])
    for each in operators:
        each.start()
    return others


def _seen_by_kwok(plane: ControlPlane, given: argparse.Namespace) -> None:
    """Until kwok has asked for the pods of all nodes: with 40,000 pods that takes the API server minutes."""
    asked = re.compile('^apiserver_request_total.*"pods".*"cluster".*"LIST".* ([0-9.e+]+)$', re.MULTILINE)
    while sum(map(float, asked.findall(plane.kubectl("get", "--raw", "/metrics")))) < given.nodes:
        time.sleep(1)


def wait_for(connection: Connection, kind: str, namespace: str, name: str, phase: str) -> None:
    """Until an object is in a phase."""
    while ((connection.get(kind, namespace, name) or {}).get("status") or {}).get("phase") != phase:
        time.sleep(0.2)


def share(plane: ControlPlane, operators: Sequence[OperatorProcess], given: argparse.Namespace) -> dict[str, Any]:
    """Fill the cluster, let it change, cut nodes off, kill the leader: figures of the operator before and after."""
    connection, api, begun = Connection(plane.client()), plane.client(), time.monotonic()
    others, leader = fill(plane, operators, given), operators[0]
    print(f"{time.monotonic() - begun:.0f} s: written", file=sys.stderr, flush=True)
    store = Store(plane.servers.ports["etcd"])
    settle(store, leader, given, begun)
    figures: dict[str, Any] = dict(vars(given))
    changes = Changes(plane, others, given)
    with ThreadPoolExecutor(1) as threads:
        going = threads.submit(changes.run)
        try:
            time.sleep(REPORT_SECONDS)
            settle(store, leader, given, begun, reported=True)
            changes.ends_since = time.monotonic()
            first, follows = map(Watched, operators)
            time.sleep(given.seconds / 4)
            faults.break_nodes(api, [node_of(index, given) for index in range(given.cut_off)])
            time.sleep(given.seconds / 4)
            figures["standby"], figures["beforeKill"], usd = follows.figures(), first.figures(), costs(store, given)
            figures["secondsToResume"] = kill(connection, leader, given)
            lease = connection.get("Lease", SYSTEM, LEASE) or {}
            second = Watched(operators[OPERATORS.index(lease["spec"]["holderIdentity"])])
            time.sleep(given.seconds / 2)
            figures["afterKill"] = second.figures()
        finally:
            changes.stop()
        going.result()
    jobs = Counter(
        (job["metadata"]["namespace"], job["metadata"]["labels"][names.RUN_LABEL])
        for job in stored("kubeflow.org/tfjobs", store, given)
        if "deletionTimestamp" not in job["metadata"]
    )
    after = costs(store, given)
    lines = [line for each in operators for line in each.log.read_text(encoding="utf-8").splitlines()]
    figures["listed"] = [line for line in lines if "everything was listed" in line or "is active" in line]
    figures["errors"] = sum(bool(re.search(" (ERROR|CRITICAL) |^Traceback", line)) for line in lines)
    figures["doubled"] = sum(count > 1 for count in jobs.values())
    figures["billsLost"] = sum(after.get(run, 0.0) < cost for run, cost in usd.items())
    figures["phases"] = phases(stored(RUNS, store, given))
    return figures


def kill(connection: Connection, leader: OperatorProcess, given: argparse.Namespace) -> float:
    """Kill the leader, which starts again at once as a container does; returns after how many seconds one decides."""
    begun, index = time.monotonic(), given.runs - 1
    leader.kill()
    leader.start(wait=False)
    run = (names.KIND, namespace_of(index, given), name_of(index))
    connection.merge(*run, {"spec": {"cluster": {"suspend": True}}})
    while time.monotonic() - begun < given.most_seconds:
        if ((connection.get(*run) or {}).get("status") or {}).get("phase") in ("Suspended", "Suspending"):
            return time.monotonic() - begun
        time.sleep(0.1)
    raise ClusterError(f"{run} is not suspended after {given.most_seconds} s", remedy="see the log", log=leader.log)


class Watched:
    """What an operator does from now on."""

    def __init__(self, operator: OperatorProcess) -> None:
        self._pid, self._port = operator.pid, operator.metrics_port
        self._before = time.monotonic(), self._used(), counts(self._port)

    def figures(self) -> dict[str, float]:
        """Cores, memory, and upper bounds of half and of 99% of the times from an event to the status."""
        begun, used, before = self._before
        after, spent = counts(self._port), self._used() - used
        below = {bound: count - before.times.get(bound, 0.0) for bound, count in after.times.items()}
        total = max(below.values())
        found = {
            "cores": spent / (time.monotonic() - begun),
            "mostMemoryMiB": most_memory_mib(self._pid),
            "processorMsPerEvent": 1000 * spent / (after.events - before.events),
            "eventToStatusCount": total,
        }
        for quantile in (0.5, 0.99):
            bound = min(bound for bound, count in below.items() if count >= quantile * total)
            found[f"eventToStatusP{100 * quantile:.0f}Seconds"] = bound
        print(found, file=sys.stderr, flush=True)
        return found

    def _used(self) -> float:
        times = psutil.Process(self._pid).cpu_times()
        return float(times.user + times.system)


def stored(kind: str, store: Store, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All objects of a kind as they are in etcd: to list 10,000 takes the API server a minute beside the rest."""
    for namespace in {namespace_of(index, given) for index in range(given.namespaces)}:
        yield from map(json.loads, store.get(f"/registry/{kind}/{namespace}/").values())


def costs(store: Store, given: argparse.Namespace) -> dict[str, float]:
    """US dollars by uid of the run."""
    statuses = ((raw["metadata"]["uid"], raw.get("status") or {}) for raw in stored(RUNS, store, given))
    return {uid: float((status.get("cost") or {}).get("usd", 0.0)) for uid, status in statuses}


def phases(runs: Iterable[dict[str, Any]]) -> Counter[str]:
    return Counter(each.get("status", {}).get("phase", "none") for each in runs)


def settle(
    store: Store, operator: OperatorProcess, given: argparse.Namespace, begun: float, *, reported: bool = False
) -> None:
    """Until the operator only keeps money and progress up to date, or too late.

    ``reported``: and until the statuses of nearly all runs that run have a report.
    """
    while True:
        before, asked = counts(operator.metrics_port), time.monotonic()
        time.sleep(5)
        after = counts(operator.metrics_port)
        rate = (after.writes - before.writes) / (time.monotonic() - asked)
        found = phases(runs := list(stored(RUNS, store, given)))
        print(f"{asked - begun:.0f} s {dict(found)}, {rate:.0f} writes/s", file=sys.stderr, flush=True)
        running = [raw["status"] for raw in runs if raw.get("status", {}).get("phase") == "Running"]
        silent = sum("progress" not in status for status in running) if reported else 0
        few = max(len(running) / 50, 2 * REPORT_SECONDS)  # a run begins every second
        if (rate < QUIET_PER_SECOND and silent <= few) or asked - begun > given.most_seconds:
            return


def training_run(index: int, given: argparse.Namespace) -> dict[str, Any]:
    """A run on whole nodes with 8 GPUs."""
    hardware = {"accelerator": "nvidia-tesla-v100", "count": 8, "perNode": 8, "region": "europe-west4"}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name_of(index), "namespace": namespace_of(index, given)},
        "spec": {
            "model": {"preset": "variable-angle"},
            "hardware": hardware,
            "train": {"seed": index % given.configurations},
        },
    }


def counts(port: int) -> Counts:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        families = {f.name: f for f in text_string_to_metric_families(answer.read().decode())}
    requests = [s for s in families["caloscale_api_requests"].samples if s.name.endswith("_total")]
    buckets = [s for s in families["caloscale_event_to_status_seconds"].samples if s.name.endswith("_bucket")]
    return Counts(
        writes=sum(s.value for s in requests if s.labels["kind"] != "Lease" and s.labels["method"] != "GET"),
        events=sum(s.value for s in families["caloscale_events"].samples if s.name.endswith("_total")),
        times={float(s.labels["le"]): s.value for s in buckets},
    )


if __name__ == "__main__":
    main()
