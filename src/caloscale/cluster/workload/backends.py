"""The kinds of objects that hold the workers; each is a pure function from a launch to a manifest."""

from __future__ import annotations

import json

from caloscale.cluster import names
from caloscale.cluster.workload.launch import Launch, Manifest
from caloscale.cluster.workload.pod_template import pod_template


def render_tfjob(launch: Launch) -> Manifest:
    """A TFJob of Workers only, so that gang admission sees one set of pods.

    training-operator gives each its TF_CONFIG. Exit codes from 128 on make it start a worker again, which is right
    while nobody watches; the operator ends the attempt as a gang as soon as it sees one end.
    """
    run_policy: Manifest = {"cleanPodPolicy": "Running"}
    template = pod_template(launch)
    del template["spec"]["restartPolicy"]  # the replica's policy decides, and warns where there are two
    if launch.queue:
        run_policy["suspend"] = True
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": launch.metadata(),
        "spec": {
            "runPolicy": run_policy,
            "tfReplicaSpecs": {
                "Worker": {
                    "replicas": launch.placed.workers,
                    "restartPolicy": "ExitCode",
                    "template": template,
                }
            },
        },
    }


REPLICATED_JOB = "workers"
"""Name of the one set of pods in a JobSet."""


def render_jobset(launch: Launch) -> Manifest:
    """A JobSet of one indexed Job: a worker on each host of a TPU slice, or GPU workers with our own TF_CONFIG.

    On GKE the slice's hosts get TPU_WORKER_ID and TPU_WORKER_HOSTNAMES from the platform.
    """
    workers = launch.placed.workers
    template = pod_template(launch, _own_tf_config(launch) if workers > 1 else None)
    job = {
        "parallelism": workers,
        "completions": workers,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": template,
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": launch.metadata(),
        "spec": {
            "suspend": bool(launch.queue),
            "failurePolicy": {"maxRestarts": 0},
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "replicatedJobs": [{"name": REPLICATED_JOB, "replicas": 1, "template": {"spec": job}}],
        },
    }


def _own_tf_config(launch: Launch) -> list[Manifest]:
    """TF_CONFIG of a worker; its index comes from the pod, and Kubernetes puts it into the text."""
    name = launch.name
    hosts = [f"{name}-{REPLICATED_JOB}-0-{i}.{name}:{names.WORKER_PORT}" for i in range(launch.placed.workers)]
    text = json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": "INDEX"}})
    path = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    return [
        {"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {"fieldPath": path}}},
        {"name": "TF_CONFIG", "value": text.replace('"INDEX"', "$(JOB_COMPLETION_INDEX)")},
    ]


def render_progress(run: names.RunKey) -> Manifest:
    """The ConfigMap in which worker 0 reports."""
    metadata = {
        "name": names.progress_name(run.name),
        "namespace": run.namespace,
        "labels": run.labels("progress"),
        "ownerReferences": [run.reference],
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def render(launch: Launch) -> Manifest:
    """The manifest of an attempt's job."""
    return {"TFJob": render_tfjob, "JobSet": render_jobset}[launch.placed.backend](launch)
