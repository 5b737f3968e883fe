"""The operator's rights are enough and none too many: what it asked of the API server, beside what it may ask."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.cluster.operator.conftest import Runs
from tools.cluster import ControlPlane
from tools.cluster.audit import Request

RBAC = Path(__file__).parents[3] / "manifests" / "base" / "rbac.yaml"
OPERATOR = "system:serviceaccount:caloscale-system:caloscale-operator"


class Right(NamedTuple):
    """A verb on a resource."""

    group: str
    resource: str
    verb: str


def granted() -> set[Right]:
    roles = [each for each in yaml.safe_load_all(RBAC.read_text(encoding="utf-8")) if "rules" in each]
    return {
        Right(group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(requests: list[Request]) -> set[Right]:
    """Rights without which a request would have been denied.

    An object that is applied (a patch) and was not there needs the right to create it, too: the log tells it by 201.
    """
    rights = set()
    for request in requests:
        if request.resource:
            rights.add(Right(request.group, request.resource, request.verb))
            if request.verb == "patch" and request.code == 201:
                rights.add(Right(request.group, request.resource, "create"))
    return rights


def test_every_right_is_used_and_none_is_missing(
    runs: Runs, control_plane: ControlPlane, add_nodes: Callable[..., list[str]]
) -> None:
    """A life of every kind of job, one stopped, one deleted by its time to live; the lease by the fixture."""
    add_nodes("v100", 3)
    runs.imitate("500ms")
    kinds: dict[str, dict[str, Any]] = {
        "tfjob": {},
        "jobset": {"cluster": {"backend": "JobSet"}},
        "pod": {"hardware": {"count": 8}, "cluster": {"keepFinished": "1s"}},
    }
    for name, blocks in kinds.items():
        runs.create(name, **blocks)
    for name in ("tfjob", "jobset"):
        runs.phase(name, "Succeeded")
    until = time.monotonic() + 90
    while (left := _statuses(runs, "pod")) and time.monotonic() < until:
        time.sleep(0.2)
    assert not left, "a finished run is deleted after its time to live"
    runs.imitate(None)
    for name, blocks in kinds.items():
        runs.create(f"stopped-{name}", **blocks)
        runs.phase(f"stopped-{name}", "Running")
        control_plane.kubectl(
            "patch", "trainingrun", f"stopped-{name}", "-n", runs.namespace, "--type=merge",
            '--patch={"spec": {"cluster": {"suspend": true}}}',
        )  # fmt: skip
        runs.phase(f"stopped-{name}", "Suspended")

    requests = [request for request in control_plane.requests() if request.user == OPERATOR]
    assert [request for request in requests if not request.allowed] == []
    assert used(requests) == granted()


def _statuses(runs: Runs, name: str) -> list[dict[str, Any]]:
    items = runs.plane.get("trainingruns", "-n", runs.namespace)["items"]
    return [each.get("status", {}) for each in items if each["metadata"]["name"] == name]
