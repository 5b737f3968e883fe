"""What the operator does with the API server's answers; the server is a dictionary here."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from caloscale.operator.controller import Controller
from caloscale.operator.metrics import Metrics
from caloscale.operator.settings import Settings
from caloscale.operator.store import RunKey
from caloscale.status import RunStatus
from tests.cluster_objects import examples as ex

RUN = RunKey("physics", "gan")
HARDWARE = {"accelerator": "nvidia-tesla-v100", "count": 8, "purchase": "spot", "region": "europe-west4"}
HEADER = (
    "provider,region,sku_kind,sku,unit,purchase,usd_per_unit_hour,includes_host,effective_from,effective_to,"
    "observed_on,source,confidence,retired,waiver,note"
)
QUOTA = 'pods "gan-1" is forbidden: exceeded quota: gpus'


class Server:
    """Takes everything but what it is told to refuse."""

    def __init__(self) -> None:
        self.version = 10
        self.refusals: dict[str, tuple[int, str]] = {}
        self.events: list[tuple[str, str]] = []

    def each(self, kind: str, namespace: str | None = None, **_: Any) -> list[dict[str, Any]]:
        return []

    def snapshot(self, kind: str, **_: Any) -> tuple[list[dict[str, Any]], int]:
        return [], 0

    def create(self, event: dict[str, Any]) -> None:
        self.events.append((event["reason"], event["message"]))

    def apply(self, manifest: dict[str, Any], part: str = "") -> dict[str, Any]:
        if manifest["kind"] in self.refusals:
            status, message = self.refusals[manifest["kind"]]
            error = ApiException(status=status, reason="refused")
            error.body = json.dumps({"message": message})
            raise error
        self.version += 1
        whole = {**run(), **manifest} if part == "status" else manifest
        metadata = {**whole["metadata"], "uid": "u", "resourceVersion": str(self.version)}
        return {**whole, "metadata": metadata}


def run() -> dict[str, Any]:
    return {
        "apiVersion": "caloscale.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"namespace": RUN.namespace, "name": RUN.name, "uid": "u", "resourceVersion": "2", "generation": 1},
        "spec": {"model": {"preset": "variable-angle"}, "hardware": HARDWARE},
    }


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def controller(server: Server, tmp_path: Path) -> Controller:
    made = Controller(server, Settings(prices=tmp_path), Metrics())  # type: ignore[arg-type]
    node = ex.spot("n0")
    node["metadata"]["resourceVersion"] = "1"
    made.store.put("Node", node)
    made.store.put("TrainingRun", run())
    return made


def status(controller: Controller) -> RunStatus:
    return controller.store.runs[RUN].status


def test_what_the_api_server_refuses_is_told_and_told_no_more_when_it_is_mended(
    controller: Controller, server: Server
) -> None:
    server.refusals["TFJob"] = (403, QUOTA)
    for _ in range(3):
        with pytest.raises(ApiException):
            controller._reconcile(RUN)
    blocked = status(controller).condition("Blocked")
    assert blocked is not None and blocked.status == "True"
    assert QUOTA in blocked.message and "raise the quota" in blocked.message
    assert QUOTA in status(controller).message
    assert [reason for reason, _ in server.events] == ["Launched", "Refused"]
    server.refusals.clear()
    controller._reconcile(RUN)
    controller._reconcile(RUN)
    assert status(controller).phase == "Starting" and QUOTA not in status(controller).message


def test_a_refusal_for_ever_gives_the_nodes_back(controller: Controller, server: Server) -> None:
    server.refusals["TFJob"] = (404, "the server could not find the requested resource")
    with pytest.raises(ApiException):
        controller._reconcile(RUN)
    other = RunKey("physics", "other")
    assert controller.store.pools_for(other)[0][0].free == 0  # it is about to take it
    known = status(controller)
    assert known.live is not None
    hour = dt.timedelta(hours=1)
    live = known.live.model_copy(update={"launched": known.live.launched - hour})
    conditions = tuple(
        each.model_copy(update={"last_transition_time": each.last_transition_time - hour}) for each in known.conditions
    )
    controller.store.assume(RUN, known.model_copy(update={"attempts": (live,), "conditions": conditions}))
    controller._reconcile(RUN)
    assert status(controller).phase == "Recovering" and status(controller).attempts[0].reason == "JobLost"
    assert "kubectl apply --server-side -k manifests/third-party" in status(controller).message
    assert controller.store.pools_for(other)[0][0].free == 1


def test_new_prices_concern_those_who_wait(controller: Controller, tmp_path: Path) -> None:
    """Files announce nothing: they are looked at with each list."""
    controller.resync()
    controller._due.clear()
    controller.resync()
    assert not controller._due
    (tmp_path / "own.csv").write_text("# none yet\n" + HEADER + "\n")
    controller.resync()
    assert set(controller._due) == {RUN}


@pytest.mark.parametrize("code", [409, 429, 500, 503])
def test_a_trouble_of_the_moment_is_not_held_against_a_run(controller: Controller, server: Server, code: int) -> None:
    server.refusals["TFJob"] = (code, "later")
    for _ in range(3):
        with pytest.raises(ApiException):
            controller._reconcile(RUN)
    assert status(controller).condition("Blocked") is None
