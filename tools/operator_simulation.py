"""The operator's own processor time and memory in a shared cluster, without an API server beside it.

    python -m tools.operator_simulation --runs 10000 --others 40000 [--seconds 60]

Of the runs 45% are running, a worker on a node each; the others wait in as many different configurations as 15% of the
runs. Lists come in pages as from an API server, writes succeed at once. Then, for so many seconds of a cluster's time,
100 pods of others change in a second, on nodes that become free too, and each running run reports every 10 s.
"""

from __future__ import annotations

import argparse
import datetime as dt
import itertools
import json
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

from caloscale.cluster import names
from caloscale.cluster.names import RunKey
from caloscale.connection import PAGE, Page
from caloscale.operator.controller import Controller
from caloscale.operator.metrics import Metrics
from caloscale.operator.settings import Settings
from tools.cluster.fake_nodes import node_objects
from tools.cluster.pools import Pool

Object = dict[str, Any]
CHANGES_PER_SECOND, REPORT_SECONDS = 100, 10
MOMENT = dt.datetime.now(dt.UTC).replace(microsecond=0)
SPEC: Object = {
    "model": {"preset": "variable-angle"},
    "hardware": {"accelerator": "nvidia-tesla-v100", "perNode": 8, "region": "europe-west4"},
}
FILLER = {"image": "registry.example/others:1", "env": [{"name": f"V{i}", "value": "v" * 100} for i in range(40)]}
"""Part of a pod of others that makes it some 8 kB large."""


class Server:
    """Takes every write, and knows nothing of what it was asked for before."""

    def __init__(self) -> None:
        self.versions, self.writes = itertools.count(10), 0
        self.runs: dict[str, Object] = {}

    def pages(self, objects: Iterator[Object]) -> Iterator[Page]:
        """As JSON from the network."""
        while page := list(itertools.islice(objects, PAGE)):
            yield Page(json.loads(json.dumps(page)), 5)

    def apply(self, manifest: Object, part: str = "") -> Object:
        """A written status."""
        self.writes += 1
        whole = {**self.runs[manifest["metadata"]["name"]], "status": manifest["status"]}
        return {**whole, "metadata": {**whole["metadata"], "resourceVersion": str(next(self.versions))}}

    def create(self, manifest: Object) -> Object:
        """A new object."""
        self.writes += 1
        return {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": str(next(self.versions))}}

    def delete(self, *_: Any, **__: Any) -> None:
        """It is counted."""
        self.writes += 1

    def each(self, *_: Any, **__: Any) -> Iterator[Object]:
        """Nothing is there."""
        return iter(())

    def serves(self, _: str) -> bool:
        """No group beside ours."""
        return False


class Cluster:
    """The objects, made when they are asked for."""

    def __init__(self, runs: int, others: int) -> None:
        self.running, self.waiting, self.others = round(0.45 * runs), runs - round(0.45 * runs), others
        self.configurations = max(round(0.15 * runs), 1)
        self.nodes = max(self.running * 10 // 9, 10)

    def metadata(self, name: str, **more: Any) -> Object:
        """Of an object of the namespace of runs."""
        text = MOMENT.strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"name": name, "namespace": "load", "resourceVersion": "4", "creationTimestamp": text, **more}

    def all_nodes(self) -> Iterator[Object]:
        """In five pools; ready."""
        for number in range(5):
            for raw in node_objects(Pool(f"pool-{number}", self.nodes // 5, spot=number % 2 == 0)):
                raw["metadata"]["resourceVersion"] = "4"
                raw.setdefault("status", {})["conditions"] = [{"type": "Ready", "status": "True"}]
                yield raw

    def name_of_node(self, index: int) -> str:
        """Nodes are taken in turn, of each pool one."""
        return f"pool-{index % 5}-{index // 5 % (self.nodes // 5):04d}"

    def run(self, index: int) -> Object:
        """The first ones are running."""
        running = index < self.running
        hardware = {**SPEC["hardware"], "count": 8, "capacityType": "spot" if index % 2 == 0 else "on-demand"}
        spec = {**SPEC, "hardware": hardware, "train": {"seed": 1 if running else index % self.configurations}}
        name = f"r{index}"
        metadata = self.metadata(name, uid=f"u-{name}", generation=1)
        return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": spec}

    def pod(self, index: int) -> Object:
        """The worker of a run."""
        key = RunKey("load", f"r{index}", f"u-r{index}")
        raw = self.other(index)
        name = f"{key.name}-1-worker-0"
        raw["metadata"] = self.metadata(name, uid=f"u-{name}", labels=key.labels(names.WORKER, 1))
        raw["spec"]["containers"][0] |= {"name": names.WORKER_CONTAINER}
        raw["spec"]["containers"][0]["resources"] = {
            "requests": {"cpu": "38", "memory": "140Gi"},
            "limits": {names.GPU: 8},
        }
        return raw

    def other(self, index: int, *, version: int = 4, whole: bool = False) -> Object:
        """A pod of others, small beside a worker; ``whole``: with all GPUs of its node."""
        text = MOMENT.strftime("%Y-%m-%dT%H:%M:%SZ")
        limits = {names.GPU: 8} if whole else {}
        resources = {"requests": {"cpu": "100m", "memory": "100Mi"}, "limits": limits}
        bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": text}
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": text}
        return {
            "metadata": self.metadata(f"other-{index}", uid=f"u-other-{index}", resourceVersion=str(version)),
            "spec": {
                "nodeName": self.name_of_node(index),
                "containers": [{**FILLER, "name": "main", "resources": resources}],
            },
            "status": {"phase": "Running", "conditions": [bound, ready]},
        }

    def progress(self, index: int, step: int, version: int) -> Object:
        """A report of worker 0 of a run."""
        owner = RunKey("load", f"r{index}", f"u-r{index}")
        metadata = self.metadata(names.progress_name(owner.name), ownerReferences=[owner.reference])
        metadata["resourceVersion"] = str(version)
        updated = (MOMENT + dt.timedelta(seconds=step)).isoformat()
        report = {"epoch": 1.5, "epochs": 60, "step": 1000 + step, "steps": 200_000, "checkpointStep": 900}
        return {"metadata": metadata, "progress": {**report, "losses": {"generator": 3.2}, "updated": updated}}


def main() -> None:
    """List, decide about all, let the cluster change, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--others", type=int, default=4000)
    parser.add_argument("--seconds", type=int, default=60)
    given = parser.parse_args()
    print(json.dumps(simulate(Cluster(given.runs, given.others), given.seconds), indent=2))


def simulate(cluster: Cluster, seconds: int) -> dict[str, Any]:
    """Processor times in s and ms, memory in MiB."""
    server = Server()
    controller = Controller(server, Settings(debounce_seconds=0.0), Metrics())  # type: ignore[arg-type]
    everyone = range(cluster.running + cluster.waiting)
    server.runs = {f"r{index}": cluster.run(index) for index in everyone}
    begun, imported_mib = time.process_time(), _resident_mib()
    lists = {
        "Node": cluster.all_nodes(),
        "Pod": (cluster.other(i) for i in range(cluster.running, cluster.running + cluster.others)),
        names.KIND: (server.runs[f"r{index}"] for index in range(cluster.running)),
    }
    for kind, objects in lists.items():
        controller.listed(kind, "", server.pages(objects))
    figures: dict[str, Any] = {"runs": len(everyone), "others": cluster.others, "nodes": cluster.nodes}
    figures["launch"] = _drain(controller)
    # the workers come, and the pools are full but for what pods of others free later
    controller.listed("Pod", "", server.pages(itertools.chain(
        (cluster.pod(i) for i in range(cluster.running)),
        (cluster.other(i) for i in range(cluster.running, cluster.running + cluster.others)),
        (cluster.other(10**6 + i, whole=True) for i in range(cluster.nodes)),
    )))  # fmt: skip
    figures["start"] = _drain(controller)
    controller.listed(names.KIND, "", server.pages(_runs_of(controller, server, everyone)))
    figures["wait"] = _drain(controller)
    figures["initialProcessorSeconds"] = time.process_time() - begun
    figures["change"] = _change(cluster, controller, seconds)
    some = [RunKey("load", f"r{index}", f"u-r{index}") for index in range(min(cluster.running, 2000))]
    figures["reconcileRunning"] = _reconcile(controller, some)
    figures["phases"] = {}
    for known in controller.store.runs.values():
        figures["phases"][known.status.phase] = figures["phases"].get(known.status.phase, 0) + 1
    figures["residentMiB"], figures["importedMiB"] = _resident_mib(), imported_mib
    figures["classes"] = len(controller.store.parking.firsts())
    return figures


def _runs_of(controller: Controller, server: Server, everyone: range) -> Iterator[Object]:
    for index in everyone:
        raw = server.runs[f"r{index}"]
        known = controller.store.runs.get(RunKey("load", f"r{index}", f"u-r{index}"))
        status = {} if known is None else known.status.model_dump(mode="json", by_alias=True, exclude_none=True)
        version = "4" if known is None else str(next(server.versions))
        yield {**raw, "metadata": {**raw["metadata"], "resourceVersion": version}, "status": status}


def _change(cluster: Cluster, controller: Controller, seconds: int) -> dict[str, Any]:
    """Pods of others end and come, and worker 0 of each running run reports."""
    events = {"pod": 0, "report": 0}
    used = dict.fromkeys(("pod", "report", "decisions"), 0.0)
    decided, versions = 0, itertools.count(10**6)
    for second in range(seconds):
        begun = time.process_time()
        for number in range(CHANGES_PER_SECOND):
            index = 10**6 + (second * CHANGES_PER_SECOND + number) // 2 % cluster.nodes
            controller.notice("Pod", cluster.other(index, version=next(versions), whole=True), number % 2 == 0)
        events["pod"] += CHANGES_PER_SECOND
        used["pod"] += time.process_time() - begun
        begun = time.process_time()
        for index in range(second % REPORT_SECONDS, cluster.running, REPORT_SECONDS):
            text = json.dumps(cluster.progress(index, second, next(versions)))
            controller.notice(names.PROGRESS_KIND, json.loads(text), False)
            events["report"] += 1
        used["report"] += time.process_time() - begun
        drained = _drain(controller)
        decided += drained["reconciles"]
        used["decisions"] += drained["processorSeconds"]
    return {
        "seconds": seconds,
        "cores": sum(used.values()) / seconds,
        **{f"{kind}EventMs": 1000 * used[kind] / max(count, 1) for kind, count in events.items()},
        "decisions": decided,
        "decisionMs": 1000 * used["decisions"] / max(decided, 1),
    }


def _drain(controller: Controller) -> dict[str, Any]:
    """Reconcile until nothing is due."""
    begun, count = time.process_time(), 0
    while (run := controller.queue.get(0.0)) is not None:
        controller._reconcile(run)
        controller.queue.done(run)
        count += 1
    return {"reconciles": count, "processorSeconds": time.process_time() - begun}


def _reconcile(controller: Controller, runs: list[RunKey]) -> dict[str, float]:
    """Decide anew about runs of which nothing has changed."""
    begun = time.process_time()
    for run in runs:
        controller._reconcile(run)
    return {"count": len(runs), "ms": 1000 * (time.process_time() - begun) / max(len(runs), 1)}


def _resident_mib() -> float:
    """Most memory so far (Linux: in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 2**20)


if __name__ == "__main__":
    main()
