"""The operator's rights are enough and none too many: what it asked of the API server, beside what it may ask."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from caloscale.cluster import names
from tests.control_plane import audit
from tests.control_plane.operator.conftest import Runs
from tests.control_plane.operator.process import OperatorProcess
from tools.cluster import ControlPlane

RBAC = Path(__file__).parents[3] / "manifests" / "base" / "rbac.yaml"
OPERATOR = "system:serviceaccount:caloscale-system:caloscale-operator"
KINDS: dict[str, dict[str, Any]] = {"tfjob": {}, "jobset": {"cluster": {"backend": "JobSet"}}}


MADE: dict[str, tuple[str, dict[str, Any]]] = {
    "trainjob": ("TrainJob", {"cluster": {"backend": "TrainJob"}}),
    "mpijob": (
        "MPIJob",
        {
            "solver": {"ranks": 2},
            "hardware": {"accelerator": "cpu", "count": 2, "perNode": 1},
            "cluster": {"volumeClaim": "none"},
        },
    ),
}
"""Jobs that never run here: they are made and deleted. Nobody reconciles the TrainJob; there is no claim."""


class Right(NamedTuple):
    """What a rule allows: one operation on one resource."""

    group: str
    resource: str
    verb: str


def granted() -> set[Right]:
    roles = [each for each in read(RBAC) if "rules" in each]
    return {
        Right(group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(requests: list[audit.Request]) -> set[Right]:
    """Rights without which a request would have been denied."""
    rights = set()
    for request in requests:
        if request.resource:
            rights.add(Right(request.group, request.resource, request.verb))
            if request.verb == "create" and request.resource == "tfjobs":  # its owner waits for it when it is deleted
                rights.add(Right("caloscale.dev", "trainingruns/finalizers", "update"))
    return rights


def test_every_right_is_used_and_none_is_missing(
    runs: Runs, control_plane: ControlPlane, add_nodes: Callable[..., list[str]]
) -> None:
    live_through_everything(runs, add_nodes)
    requests = [request for request in audit.requests(control_plane) if request.user == OPERATOR]
    assert [request for request in requests if not request.allowed] == []
    assert used(requests) == granted()


@pytest.mark.long
def test_so_it_is_with_rights_in_one_namespace_only(
    runs: Runs,
    operator: OperatorProcess,
    control_plane: ControlPlane,
    add_nodes: Callable[..., list[str]],
    tmp_path: Path,
) -> None:
    """Without the binding for the whole cluster, and with that of manifests/run-namespace; a second namespace of the
    operator's is not there."""
    (everywhere,) = read(RBAC.parents[1] / "overlays" / "all-namespaces" / "cluster-wide.yaml")
    (here,) = read(RBAC.parents[1] / "run-namespace" / "operator-access.yaml")
    here["metadata"]["namespace"] = runs.namespace
    operator.stop()
    control_plane.kubectl("delete", "leases", "--all", "-n", "caloscale-system")
    control_plane.apply([here])
    control_plane.kubectl("delete", "clusterrolebinding", everywhere["metadata"]["name"])
    seen = len(audit.requests(control_plane))
    named = OperatorProcess(control_plane, tmp_path, CALOSCALE_NAMESPACES=f"{runs.namespace},deleted")
    named.start()
    try:
        live_through_everything(runs, add_nodes)
    finally:
        named.stop()
        control_plane.apply([everywhere])
        operator.start()
    requests = [request for request in audit.requests(control_plane, seen) if request.user == OPERATOR]
    (started, *_) = [number for number, request in enumerate(requests) if request.resource == "leases"]
    assert {request.namespace for request in requests[started:] if not request.allowed} == {"deleted"}
    assert used(requests[started:]) == granted()


def live_through_everything(runs: Runs, add_nodes: Callable[..., list[str]]) -> None:
    """Every kind of job: one ends, one is stopped, one deleted by its time to live, one blocked by a quota."""
    add_nodes("v100", 3)
    add_nodes("cpu", 2, gpus=0, accelerator="", machine_type="n1-standard-4", cpu="4")
    runs.fake_pods("500ms")
    for name, blocks in KINDS.items():
        runs.create(name, **blocks, **({"cluster": {"ttlSecondsAfterFinished": 1}} if name == "tfjob" else {}))
    runs.phase("jobset", "Succeeded")
    runs.until("tfjob", lambda status: not status, "a finished run is deleted after its time to live")
    runs.fake_pods(None)
    for name, blocks in KINDS.items():
        runs.create(f"stopped-{name}", **blocks)
        runs.phase(f"stopped-{name}", "Running")
        _suspend(runs, f"stopped-{name}")
        runs.phase(f"stopped-{name}", "Suspended")
    for name, (kind, blocks) in MADE.items():
        runs.create(name, **blocks)
        runs.plane.wait_until(lambda kind=kind: list(runs.server.each(kind, runs.namespace)), f"its {kind} is made")
        _suspend(runs, name)
        runs.phase(name, "Suspended")
    runs.quota(gpus=0)
    runs.create("blocked")
    runs.until(
        "blocked", lambda s: any(c["type"] == "Blocked" for c in s.get("conditions", [])), "diagnostic is reported"
    )


def read(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def _suspend(runs: Runs, name: str) -> None:
    runs.server.merge(names.KIND, runs.namespace, name, {"spec": {"cluster": {"suspend": True}}})
