"""The pod of a worker: whole node, no rights, nothing writable but what it needs."""

import copy
import json
from collections.abc import Sequence
from importlib import resources
from string import Template

import yaml

from caloscale.cluster import names
from caloscale.cluster.capacity.nodes import tolerated
from caloscale.cluster.capacity.resizing import pool_label
from caloscale.cluster.workload.launch import Launch, Manifest
from caloscale.spec import AnyRun, Run
from caloscale.spec.cluster import GRACE_SECONDS
from caloscale.spec.values import BUCKETS
from caloscale.status import ATTEMPT_VARIABLE

USER = 65532
"""User of the workers; the images make it."""
RUN_VARIABLE = "CALOSCALE_RUN"
"""Environment variable with the run configuration (JSON)."""
WORKSPACE_VARIABLE = "CALOSCALE_WORKSPACE"
"""Environment variable with the folder of the run that all workers see, where there is one."""
DATASET_VARIABLE = "CALOSCALE_DATASET"
"""Environment variable with the folder of prepared shards, where there is one."""
PROGRESS_VARIABLE = "CALOSCALE_PROGRESS"
"""Environment variable with namespace/name of the TrainingProgress in which worker 0 reports."""
SCRATCH = "/scratch"
"""Disk of the pod: caches and, without a workspace, the run's folder."""
SHARED = "/workspace"
"""Where cluster.volumeClaim is mounted."""
TOKEN_SECONDS = 3600
TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 (a folder)
ENVIRONMENT = "caloscale-workers"
"""ConfigMap of the run's namespace with further environment variables of all workers, if there is one: an emulator's
STORAGE_EMULATOR_HOST, a proxy. Not for secrets."""
CREDENTIALS = "/var/run/secrets/caloscale"
"""Where the Secret cluster.credentialsSecret is mounted."""
GOOGLE_KEY = "GOOGLE_APPLICATION_CREDENTIALS", "key.json"
"""Environment variable with the path of a key of Google Cloud, and its entry in the Secret."""
S3_KEY = "AWS_SHARED_CREDENTIALS_FILE", "credentials"
"""The same of a key for the API of S3, in a shared credentials file of AWS."""
RUNTIME = "caloscale-tensorflow"
"""Name of the ClusterTrainingRuntime of manifests/trainer."""
SHARED_MEMORY = "8Gi"
"""Size of /dev/shm: NCCL and the input pipeline need more than the 64 MiB of a container."""


def workspace_of(run: AnyRun) -> str | None:
    """Where a run on a cluster leaves its folder: cluster.workspace, or below checkpoint.uri if that is a bucket.

    None: its folder ends with its pods.
    """
    uri = run.checkpoint.uri if isinstance(run, Run) else None
    below = f"{uri.rstrip('/')}/run" if uri is not None and uri.startswith(BUCKETS) else None
    return run.cluster.workspace or below


def pod_template(launch: Launch, environment: Sequence[Manifest] = ()) -> Manifest:
    """Metadata and spec of a worker's pod; ``environment``: variables that only this backend needs."""
    metadata = {
        "labels": {**launch.labels, "sidecar.istio.io/inject": "false"},
        "annotations": {
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            "karpenter.sh/do-not-disrupt": "true",
        },
    }
    placed, cluster = launch.placed, launch.run.cluster
    others = [one.node_selector.items() for one in launch.alternatives]
    spec: Manifest = {
        **copy.deepcopy(_WORKER["pod"]),
        "serviceAccountName": cluster.service_account or names.WORKER_ACCOUNT,
        "terminationGracePeriodSeconds": cluster.termination_grace_period_seconds,
        # the labels that all offered pools have; Kueue adds the labels of the flavor that it chooses
        "nodeSelector": dict(pair for pair in placed.node_selector.items() if all(pair in items for items in others)),
        "tolerations": _tolerations(launch),
        "containers": [_container(launch, environment)],
        "volumes": [{"name": name, **source} for name, source, _, _ in _volumes(launch)],
    }
    if cluster.priority_class_name is not None:
        spec["priorityClassName"] = cluster.priority_class_name
    affinity: Manifest = {}
    if launch.alternatives:
        terms = [
            {"matchExpressions": [{"key": key, "operator": "In", "values": [value]} for key, value in labels.items()]}
            for labels in (one.node_selector for one in (placed, *launch.alternatives))
        ]
        affinity["nodeAffinity"] = {_REQUIRED: {"nodeSelectorTerms": terms}}
        # all workers in one pool, should the flavor have the labels of several
        together = str(pool_label((placed, *launch.alternatives)))
        affinity["podAffinity"] = {_REQUIRED: [_workers(launch, together)]}
    if placed.workers == placed.nodes:
        affinity["podAntiAffinity"] = {_REQUIRED: [_workers(launch, names.HOSTNAME)]}  # no two on one node
    if affinity:
        spec["affinity"] = affinity
    return {"metadata": metadata, "spec": spec}


def worker_templates(image: str = "") -> dict[str, Manifest]:
    """What every worker's pod and container have, and the ClusterTrainingRuntime with both (worker.yaml)."""
    text = resources.files("caloscale.cluster.workload").joinpath("worker.yaml").read_text(encoding="utf-8")
    values = {"user": USER, "environment": ENVIRONMENT, "port": names.WORKER_PORT, "runtime": RUNTIME}
    values |= {"grace": GRACE_SECONDS, "scratch": SCRATCH, "shared_memory": SHARED_MEMORY, "image": image}
    return yaml.safe_load(Template(text).substitute(values))


_WORKER = worker_templates()
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def _workers(launch: Launch, label: str) -> Manifest:
    """Workers of the attempt on nodes with one value of a label."""
    own = {name: launch.labels[name] for name in (names.RUN_LABEL, names.ATTEMPT_LABEL, names.COMPONENT)}
    return {"topologyKey": label, "labelSelector": {"matchLabels": own}}


def _tolerations(launch: Launch) -> list[Manifest]:
    placed = launch.placed
    kinds = [one.capacity_type for one in (placed, *launch.alternatives)]
    capacity_type = "spot" if "spot" in kinds else "on-demand"
    # a worker on a node that answers no more is given up after half a minute, not after five minutes
    lost = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
    return [
        *tolerated(placed.accelerator, placed.topology, capacity_type, launch.node_labels),
        *({"key": f"node.kubernetes.io/{key}", **lost} for key in ("not-ready", "unreachable")),
    ]


def _container(launch: Launch, environment: Sequence[Manifest]) -> Manifest:
    placed = launch.placed
    cpus, memory = f"{round(placed.worker_cpus * 1000)}m", f"{round(placed.worker_memory_gib * 1024)}Mi"
    resources: Manifest = {"requests": {"cpu": cpus, "memory": memory}}
    if placed.accelerators_per_worker:
        limits = {names.TPU if placed.topology is not None else names.GPU: str(placed.accelerators_per_worker)}
        resources = {"requests": resources["requests"] | limits, "limits": limits}
    return {
        "name": names.WORKER_CONTAINER,
        "image": launch.image,
        **copy.deepcopy(_WORKER["container"]),
        "env": [*_environment(launch), *environment],
        "resources": resources,
        "volumeMounts": [
            {"name": name, "mountPath": path, **({"readOnly": True} if read_only else {})}
            for name, _, path, read_only in _volumes(launch)
        ],
    }


def _environment(launch: Launch) -> list[Manifest]:
    owner, cluster = launch.owner, launch.run.cluster
    values = {
        RUN_VARIABLE: json.dumps(launch.configuration, separators=(",", ":")),
        PROGRESS_VARIABLE: f"{owner.namespace}/{names.progress_name(owner.name)}",
        ATTEMPT_VARIABLE: f"{owner.uid}/{launch.attempt}",
        "CALOSCALE_CACHE": f"{SCRATCH}/cache",
        "HOME": SCRATCH,
        "TMPDIR": "/tmp",  # noqa: S108 (an emptyDir of the pod)
    }
    if workspace := workspace_of(launch.run):
        values[WORKSPACE_VARIABLE] = workspace
    if cluster.dataset:
        values[DATASET_VARIABLE] = cluster.dataset
    if cluster.credentials_secret:
        variable, entry = _key_of(launch.run)
        values[variable] = f"{CREDENTIALS}/{entry}"
    return [{"name": name, "value": value} for name, value in values.items()]


def _key_of(run: AnyRun) -> tuple[str, str]:
    """Variable and entry of the key for the bucket of a run, the first that it names."""
    places = [workspace_of(run), run.cluster.dataset]
    if isinstance(run, Run):
        places += [run.checkpoint.uri, run.data.source]
    bucket = next((place for place in places if place is not None and place.startswith(BUCKETS)), "")
    return S3_KEY if bucket.startswith(("s3://", "minio://")) else GOOGLE_KEY


def _volumes(launch: Launch) -> list[tuple[str, Manifest, str, bool]]:
    """Volumes of the pod: name, source, where it is mounted, and whether it is read only."""
    token = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    memory = {"medium": "Memory", "sizeLimit": SHARED_MEMORY}
    volumes: list[tuple[str, Manifest, str, bool]] = [
        ("scratch", {"emptyDir": {}}, SCRATCH, False),
        ("tmp", {"emptyDir": {}}, "/tmp", False),  # noqa: S108 (an emptyDir of the pod)
        ("shared-memory", {"emptyDir": memory}, "/dev/shm", False),  # noqa: S108
        ("token", {"projected": {"sources": token}}, TOKEN_FOLDER, True),
    ]
    if claim := launch.run.cluster.volume_claim:
        volumes.append(("workspace", {"persistentVolumeClaim": {"claimName": claim}}, SHARED, False))
    if secret := launch.run.cluster.credentials_secret:
        _, entry = _key_of(launch.run)
        key = {"secretName": secret, "items": [{"key": entry, "path": entry}], "defaultMode": 0o440}
        volumes.append(("credentials", {"secret": key}, CREDENTIALS, True))
    return volumes
