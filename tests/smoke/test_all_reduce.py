"""All-reduces of a step's gradients between two pods of two nodes."""

from __future__ import annotations

import json
import math
import statistics

import pytest

from caloscale.bench.allreduce import gradient_shapes
from caloscale.spec import parse_run
from tests.smoke.runs import NAMESPACE, image_of
from tools.cluster.real import RealCluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

ROUNDS = 30
PYTHON = "/opt/caloscale/bin/python"


def test_pods_of_two_nodes_reduce_together(cluster: RealCluster, bucket: str, timings: dict[str, float]) -> None:
    """A TFJob of the bench's workers, which check every sum themselves."""
    preset = "variable-angle"
    tapes = gradient_shapes(parse_run(f"{{model: {{preset: {preset}}}}}"))
    cluster.apply([_job(json.dumps({"tapes": tapes, "rounds": ROUNDS}))])
    pod = ["reduce-worker-0", "-n", NAMESPACE]
    try:
        cluster.wait_until(lambda: _phase(cluster) in ("Succeeded", "Failed"), "the reduces are done", 600)
        said = cluster.kubectl("logs", *pod)
        nodes = {each["spec"]["nodeName"] for each in _pods(cluster)}
    finally:
        cluster.kubectl("delete", "tfjob", "reduce", "-n", NAMESPACE)
    seconds = json.loads(said.strip().splitlines()[-1])
    assert len(nodes) == 2
    assert len(seconds["packed"]) == ROUNDS and all(0 < one < 60 for one in seconds["packed"])
    timings["allReduceBytes"] = 4 * sum(math.prod(shape) for tape in tapes for shape in tape)
    timings["allReducePackedSeconds"] = statistics.median(seconds["packed"])
    timings["allReducePerVariableSeconds"] = statistics.median(seconds["perVariable"])


def _job(settings: str) -> dict[str, object]:
    container = {
        "name": "tensorflow",
        "image": image_of("trainer"),
        "args": [PYTHON, "-m", "caloscale.bench.allreduce_worker", settings],
        "env": [{"name": "TF_CPP_MIN_LOG_LEVEL", "value": "2"}],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "containers": [container],
        "tolerations": [{"operator": "Exists"}],
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    worker = {"replicas": 2, "restartPolicy": "Never", "template": {"spec": spec}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "reduce", "namespace": NAMESPACE},
        "spec": {"runPolicy": {"cleanPodPolicy": "None"}, "tfReplicaSpecs": {"Worker": worker}},
    }


def _pods(cluster: RealCluster) -> list[dict[str, dict[str, str]]]:
    where = ("-n", NAMESPACE, "-l", "training.kubeflow.org/job-name=reduce")
    return list(cluster.get("pods", *where)["items"])


def _phase(cluster: RealCluster) -> str:
    """Of worker 0: Failed as soon as one has failed."""
    phases = [pod["status"].get("phase", "") for pod in _pods(cluster)]
    return "Failed" if "Failed" in phases else next(iter(phases), "")
