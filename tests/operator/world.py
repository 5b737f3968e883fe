"""A small model of a cluster for decisions: nodes, a scheduler, training-operator, a clock; no API server.

It holds raw API objects, so what reads them is tested along. It is no copy of our own code: it knows only what
Kubernetes does, and keeps its own ledger of who held which node when.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import itertools
import json
from collections.abc import Callable
from typing import Any

import yaml

from caloscale.cluster.capacity.nodes import node_of
from caloscale.cluster.capacity.pods import JOB_KINDS, Diagnostic, Pod, job_of, pod_of
from caloscale.cluster.capacity.pool_plan import Catalogue
from caloscale.cluster.names import RunKey
from caloscale.operator.context import Action, Boost, Decision, Delete, RunEvent, Snapshot
from caloscale.operator.reconcile import reconcile
from caloscale.status import RunProgress, RunStatus
from tests.cluster import examples as ex

START = dt.datetime(2026, 11, 21, 10, 0, tzinfo=dt.UTC)
STEP_SECONDS = 1.0
LOOK_SECONDS = 12
"""Time between two looks of a kubelet at a pod that does not start, s."""
PULLS = (0, 12, 36, 80, 165, *range(330, 10_000, 312))
"""When it pulls an image that is missing, s after the binding: its pause doubles up to five minutes."""
REPORT_STEPS = 10


class World:
    """One run on a model of a cluster, with a clock of its own."""

    def __init__(
        self,
        *nodes: dict[str, Any],
        spec: dict[str, Any],
        steps: int = 600,
        save_every: int = 50,
        uid: str = "u-0",
        catalogue: Catalogue | None = None,
    ) -> None:
        self.now, self.uid, self.catalogue = START, uid, catalogue
        self.nodes = {node["metadata"]["name"]: node for node in nodes}
        self.pods: dict[str, dict[str, Any]] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.others: dict[str, dict[str, Any]] = {}
        self.spec, self.generation = spec, 1
        self.status: dict[str, Any] = {}
        self.steps, self.save_every = steps, save_every
        self.step = self.saved = 0
        self.report: RunProgress | None = None
        self.events: list[RunEvent] = []
        self.boosts: list[Boost] = []
        self.removed: list[str] = []
        self.ledger: list[tuple[str, dt.datetime, dt.datetime]] = []
        self.again: dt.datetime | None = None
        self.writes = 0
        self.shown: list[str] = []
        self.most_live_jobs = 0
        self.refuses_pods = False
        self.has_image = self.can_mount = True
        self.pull_seconds, self.image = 0.0, ex.IMAGE
        self.unschedulable: set[str] = set()
        self.warnings: list[Diagnostic] = []
        self.client_runs = self.has_queues = True
        self.admits = True
        self.flavor: dict[str, str] = {}
        self.training = True
        self.went: dict[str, Pod] = {}
        self.user_error: tuple[int, str] | None = None
        self._uid = itertools.count(1)

    # --- the operator

    def observe(self) -> Snapshot:
        raw = list(self.pods.values())
        return Snapshot(
            run=RunKey("physics", "gan", self.uid),
            generation=self.generation,
            spec=self.spec,
            status=RunStatus.model_validate(self.status),
            pods=[pod_of(pod) for pod in raw],
            jobs=[job_of(job) for job in self.jobs.values()],
            progress=self.report,
            has_progress="TrainingProgress/gan-progress" in self.others,
            nodes={name: node["status"]["conditions"][0]["status"] == "True" for name, node in self.nodes.items()},
            pools=lambda: ex.pools_of(
                [node_of(node, (self.catalogue or ex.CATALOGUE).labels) for node in self.nodes.values()], ()
            ),
            catalogue=self.catalogue or ex.CATALOGUE,
            image=self.image,
            solver_image=ex.SOLVER_IMAGE,
            gone_pods=self.went,
            has_queues=self.has_queues,
            lost_client=None if self.client_runs else "step",
            warnings=self.warnings,
        )

    def reconcile(self, dies: Callable[[], bool] = lambda: False) -> Decision:
        """One reconcile; ``dies`` is asked before each effect, and the rest does not happen when it says so."""
        decision = reconcile(self.observe(), self.now)
        self.again = decision.again
        written = json.loads(decision.status.model_dump_json(by_alias=True, exclude_none=True))
        if decision.status != RunStatus.model_validate(self.status):
            if dies():
                return decision
            self._show(written)
            self.status = written
            self.writes += 1
        for action in decision.actions:
            if dies():
                return decision
            self._act(action)
        return decision

    def _show(self, status: dict[str, Any]) -> None:
        """Note what a user reads anew: phase and message, and conditions with their reasons."""
        said = f"{status['phase']}: {status.get('message', '')}"
        self.shown += [said] if said != f"{self.status.get('phase')}: {self.status.get('message', '')}" else []
        known = {each["type"]: (each["status"], each["reason"]) for each in self.status.get("conditions", ())}
        for each in status.get("conditions", ()):
            if known.get(each["type"]) != (each["status"], each["reason"]):
                self.shown.append(f"{each['type']} {each['status']} {each['reason']}")

    def _act(self, action: Action) -> None:
        if isinstance(action, RunEvent):
            self.events.append(action)
            self.shown.append(f"{action.kind} {action.reason}")
        elif isinstance(action, Boost):
            self.boosts.append(action)
        elif isinstance(action, Delete):
            self.removed.append(f"{action.kind}/{action.name}")
            if action.name in self.jobs:
                del self.jobs[action.name]
                for name in [n for n, pod in self.pods.items() if pod["job"] == action.name]:
                    self.vanish(name, 143)
        elif action.manifest["kind"] in JOB_KINDS:
            name = action.manifest["metadata"]["name"]
            metadata = {**action.manifest["metadata"], "creationTimestamp": self._text()}
            made = {**action.manifest, "metadata": metadata, "status": {"conditions": []}}
            self.jobs.setdefault(name, made)
            live = [job for job in self.jobs.values() if job_of(job).state == "active"]
            self.most_live_jobs = max(self.most_live_jobs, len(live))
        else:
            self.others[f"{action.manifest['kind']}/{action.manifest['metadata']['name']}"] = action.manifest

    # --- the cluster

    def tick(self, seconds: float = 1.0) -> None:
        """A second of the scheduler, the job's controller, the kubelets and the training."""
        self.now += dt.timedelta(seconds=seconds)
        for job in self.jobs.values():
            policy = job["spec"]["runPolicy"]
            if policy.get("suspend") and self.admits:
                policy["suspend"] = False
                self._pod_of(job).setdefault("nodeSelector", {}).update(self.flavor)
            if not policy.get("suspend") and not job["status"]["conditions"]:
                self._make_pods(job)
        self._schedule()
        if self.training:
            self._train(seconds)

    def preempt(self) -> None:
        """The queue suspends the jobs, and admits none for now; their workers save, report it and end."""
        self.admits = False
        self.now += dt.timedelta(seconds=1)
        for name, job in self.jobs.items():
            job["spec"]["runPolicy"]["suspend"] = True
            for pod in [n for n, pod in self.pods.items() if pod["job"] == name]:
                self.vanish(pod, 143)
        self.report = self.report.model_copy(
            update={"step": self.step, "checkpoint_step": self.saved, "updated": self.now}
        )

    def _make_pods(self, job: dict[str, Any]) -> None:
        if self.refuses_pods:
            return
        for kind, replica in sorted(_replicas_of(job).items(), reverse=True):  # the launcher after the workers
            for index in range(replica["replicas"]):
                name = f"{job['metadata']['name']}-{kind.lower()}-{index}"
                if name not in self.pods:
                    self.pods[name] = {
                        "job": job["metadata"]["name"],
                        "metadata": {
                            "name": name,
                            "namespace": "physics",
                            "uid": f"u-{next(self._uid)}",
                            "labels": replica["template"]["metadata"]["labels"],
                            "creationTimestamp": self._text(),
                        },
                        "spec": copy.deepcopy(replica["template"]["spec"]),
                        "status": {"phase": "Pending", "conditions": []},
                    }

    def _schedule(self) -> None:
        taken = {
            p["spec"].get("nodeName") for p in self.pods.values() if p["status"]["phase"] in ("Pending", "Running")
        }
        for pod in self.pods.values():
            if pod["status"]["phase"] != "Pending" or ("nodeName" in pod["spec"] and not self.can_mount):
                continue
            if "nodeName" in pod["spec"]:
                self._pull(pod)
                continue
            open_nodes = (n for n in sorted(self.nodes) if n not in taken | self.unschedulable and self._fits(pod, n))
            free = next(open_nodes, None)
            if free is None:
                continue
            taken.add(free)
            pod["spec"]["nodeName"], pod["since"] = free, self.now
            bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self._text()}
            pod["status"] = {"phase": "Pending", "conditions": [bound]}
            if self.can_mount:
                self._pull(pod)

    def _pull(self, pod: dict[str, Any]) -> None:
        """The kubelet pulls the image and runs the worker; why that failed it shows when it looks at the pod again."""
        held_s, failed = (self.now - pod["since"]).total_seconds(), pod.setdefault("failed", [])
        if "pulled" not in pod and held_s >= PULLS[len(failed)]:
            if self.has_image:
                pod["pulled"] = held_s + self.pull_seconds
            else:
                failed.append(held_s)
        if held_s >= pod.get("pulled", float("inf")):
            self._run(pod)
        elif shown := [each for each in failed if each + LOOK_SECONDS <= held_s]:
            just_now = len(shown) == 1 or held_s < shown[-1] + 2 * LOOK_SECONDS
            message = "429: pull rate limit" if just_now else 'Back-off pulling image "nowhere:1"'
            waiting = {"reason": "ErrImagePull" if just_now else "ImagePullBackOff", "message": message}
            pod["status"]["containerStatuses"] = [
                {"name": "tensorflow", "image": "nowhere:1", "state": {"waiting": waiting}}
            ]

    def _fits(self, pod: dict[str, Any], node: str) -> bool:
        """Node selector, node affinity, and affinity to the other workers, as the scheduler sees them."""
        spec, labels = pod["spec"], self.nodes[node]["metadata"]["labels"]
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        affinity = spec.get("affinity", {})
        terms = affinity.get("nodeAffinity", {}).get(required, {}).get("nodeSelectorTerms", [{"matchExpressions": []}])
        allowed = any(all(labels.get(e["key"]) in e["values"] for e in t["matchExpressions"]) for t in terms)
        mates = [p["spec"].get("nodeName") for p in self.pods.values() if p["job"] == pod["job"]]
        for term in affinity.get("podAffinity", {}).get(required, ()):
            here = {self.nodes[mate]["metadata"]["labels"].get(term["topologyKey"]) for mate in filter(None, mates)}
            allowed = allowed and (not here or labels.get(term["topologyKey"]) in here)
        return allowed and all(labels.get(key) == value for key, value in spec.get("nodeSelector", {}).items())

    @staticmethod
    def _pod_of(job: dict[str, Any]) -> dict[str, Any]:
        spec: dict[str, Any] = _replicas_of(job)["Worker"]["template"]["spec"]
        return spec

    def _run(self, pod: dict[str, Any]) -> None:
        text = self._text()
        bound = pod.setdefault("since", self.now).strftime("%Y-%m-%dT%H:%M:%SZ")
        pod["status"] = {
            "phase": "Running",
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": bound},
                {"type": "Ready", "status": "True", "lastTransitionTime": text},
            ],
            "containerStatuses": [{"name": "tensorflow", "state": {"running": {"startedAt": text}}}],
        }

    def _train(self, seconds: float) -> None:
        """All workers of a job together make steps; worker 0 saves and reports."""
        for job in self.jobs.values():
            workers = [p for p in self.pods.values() if p["job"] == job["metadata"]["name"]]
            wanted = sum(replica["replicas"] for replica in _replicas_of(job).values())
            if len(workers) < wanted or any(p["status"]["phase"] != "Running" for p in workers):
                continue
            if self.user_error is not None:
                for pod in list(workers):
                    self.end(pod["metadata"]["name"], *self.user_error)
                job["status"]["conditions"] = [{"type": "Failed", "status": "True", "message": "a worker failed"}]
                continue
            if "resumed" not in job:
                job["resumed"], self.step = True, self.saved
            self.step = min(self.step + round(seconds / STEP_SECONDS), self.steps)
            self.saved = max(self.saved, self.step // self.save_every * self.save_every)
            if self.step == self.steps:
                self.saved = self.step
                job["status"]["conditions"] = [{"type": "Succeeded", "status": "True", "message": "done"}]
                for pod in list(workers):
                    self.end(pod["metadata"]["name"], 0, "")
            if self.report is not None and self.step % REPORT_STEPS and self.step != self.steps:
                continue
            self.report = RunProgress(
                epoch=self.step / 100,
                epochs=self.steps // 100,
                step=self.step,
                steps=self.steps,
                checkpoint_step=self.saved,
                step_seconds=STEP_SECONDS,
                seconds_first_step=1.0,
                eta=self.now + dt.timedelta(seconds=(self.steps - self.step) * STEP_SECONDS),
                updated=self.now,
            )

    def end(self, name: str, exit_code: int, message: str) -> None:
        """A worker's process ends."""
        pod = self.pods[name]
        pod["status"]["phase"] = "Failed" if exit_code else "Succeeded"
        terminated = {"exitCode": exit_code, "finishedAt": self._text(), "message": message}
        pod["status"]["containerStatuses"] = [{"name": "tensorflow", "state": {"terminated": terminated}}]
        self._close(pod)

    def vanish(self, name: str, exit_code: int = 143) -> None:
        """A pod is deleted; a worker that is asked to end saves first."""
        pod = self.pods.pop(name)
        self.went[pod["metadata"]["uid"]] = dataclasses.replace(pod_of(pod), ended=pod_of(pod).ended or self.now)
        if exit_code == 143 and pod["status"]["phase"] == "Running":
            self.saved = max(self.saved, self.step)
        self._close(pod)

    def lose_node(self, name: str) -> None:
        """A machine goes away without a word, and its pods with it."""
        del self.nodes[name]
        for pod in [n for n, p in self.pods.items() if p["spec"].get("nodeName") == name]:
            self.vanish(pod, exit_code=137)

    def _close(self, pod: dict[str, Any]) -> None:
        if "since" in pod:
            self.ledger.append((pod["spec"]["nodeName"], pod.pop("since"), self.now))

    def _text(self) -> str:
        return self.now.strftime("%Y-%m-%dT%H:%M:%SZ")

    # --- until

    def until(self, done: Callable[[World], bool], *, most_seconds: int = 5000, **kwargs: Any) -> World:
        """Let time pass, with a reconcile after each event and when one was asked for, until something holds."""
        before = ""
        for _ in range(most_seconds):
            event = self._seen()
            if event != before or (self.again is not None and self.now >= self.again):
                before = event
                self.reconcile(**kwargs)
            if done(self):
                return self
            self.tick()
        raise AssertionError(f"never came to pass; the status is {json.dumps(self.status, indent=1)}")

    def _seen(self) -> str:
        """Changes with everything that a watch would announce: a job that the operator has made is no news to it."""
        pods = [
            (name, p["metadata"]["uid"], p["status"]["phase"], p["spec"].get("nodeName"), str(pod_of(p).diagnostic))
            for name, p in self.pods.items()
        ]
        jobs = [(name, str(job["status"])) for name, job in self.jobs.items() if job["status"]["conditions"]]
        ready = [(name, node["status"]["conditions"][0]["status"]) for name, node in self.nodes.items()]
        return f"{pods}{jobs}{self.removed}{ready}{self.generation}{self.report and self.report.updated}"

    @property
    def phase(self) -> str:
        return str(self.status.get("phase", ""))

    def condition(self, kind: str) -> dict[str, Any]:
        return next((each for each in self.status.get("conditions", ()) if each["type"] == kind), {})

    @property
    def attempts(self) -> list[dict[str, Any]]:
        return list(self.status.get("attempts", []))

    def node_seconds(self) -> float:
        """What the ledger says was held."""
        return sum((until - since).total_seconds() for _, since, until in self.ledger)


SPEC = """
model: {preset: variable-angle}
hardware: {accelerator: nvidia-tesla-v100, count: 32, perNode: 8, capacityType: spot, region: europe-west4}
recovery: {backoff: 5s, waitForCapacity: 60s, elastic: {scaleUpAfter: 20s}}
"""


def _replicas_of(job: dict[str, Any]) -> dict[str, Any]:
    """Of a TFJob, or an MPIJob with its launcher."""
    spec: dict[str, Any] = job["spec"]
    found: dict[str, Any] = spec.get("tfReplicaSpecs") or spec["mpiReplicaSpecs"]
    return found


def world(changes: dict[str, Any] | None = None, nodes: int = 4, **kwargs: Any) -> World:
    spec = yaml.safe_load(SPEC)
    for block, fields in (changes or {}).items():
        spec[block] = {**spec.get(block, {}), **fields}
    return World(*(ex.spot(f"n{i}") for i in range(nodes)), spec=spec, **kwargs)


def ended(w: World) -> bool:
    return w.phase in ("Succeeded", "Failed")


def settled(w: World) -> bool:
    return ended(w) and all("nodeUsage" not in a or not a["nodeUsage"] for a in w.attempts)
