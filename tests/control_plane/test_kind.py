"""kind's configuration, as far as it can be seen without kind: nodes like those of the fake pools."""

import re
from pathlib import Path

import yaml

from tools.cluster import kind
from tools.cluster.pools import node_objects
from tools.cluster.programs import KUBERNETES, version
from tools.cluster.real import DEFAULT_POOLS, SHARED

MADE = kind.kind_configuration(Path("/cache/shared"))
FIELDS = {"role", "image", "labels", "extraMounts", "kubeadmConfigPatches"}


def test_workers_carry_the_labels_and_taints_of_the_pools() -> None:
    control, *workers = MADE["nodes"]
    fake = [node for pool in DEFAULT_POOLS for node in node_objects(pool)]
    assert control["role"] == "control-plane"
    assert [worker["role"] for worker in workers] == ["worker"] * len(fake)
    for worker, node in zip(workers, fake, strict=True):
        assert set(worker) <= FIELDS
        labels = node["metadata"]["labels"]
        assert worker["labels"] == {key: labels[key] for key in labels if key not in kind.OWN_LABELS}
        (patch,) = map(yaml.safe_load, worker["kubeadmConfigPatches"])
        assert patch == {"kind": "JoinConfiguration", "nodeRegistration": {"taints": node["spec"]["taints"]}}
        assert worker["extraMounts"] == [{"hostPath": "/cache/shared", "containerPath": SHARED}]


def test_names_are_those_that_kind_gives() -> None:
    assert kind.KindCluster().nodes == ["caloscale-worker", "caloscale-worker2", "caloscale-worker3"]
    assert kind.KindCluster().context == "kind-caloscale"


def test_the_node_image_is_pinned_and_of_the_minor_release_of_the_module() -> None:
    found = re.fullmatch(r"kindest/node:(v1\.\d+)\.\d+@sha256:[0-9a-f]{64}", kind.NODE_IMAGE)
    assert found is not None
    assert version(KUBERNETES).startswith(f"{found.group(1)}.")
