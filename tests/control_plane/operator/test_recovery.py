"""Machines go away: once, all at once, for good; and the operator itself."""

import datetime as dt
import itertools
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from kubernetes import client

from caloscale.client.usage import use_of
from caloscale.planning.billing.bill import bill
from caloscale.planning.catalogue.prices import load_prices
from caloscale.status import RunStatus
from tests.control_plane import faults
from tests.control_plane.operator.conftest import Runs
from tests.control_plane.operator.process import OperatorProcess
from tools.cluster import ControlPlane

Add = Callable[..., list[str]]
USD_PER_NODE_HOUR = {"spot": 64 * 0.01392 + 240 * 0.001866 + 8 * 1.0443}
"""n1-standard-64 with 8 V100 in europe-west4, at the prices that were seen in 2026."""


def second_attempt(status: dict[str, Any]) -> bool:
    return len(status.get("attempts", [])) == 2 and status["phase"] == "Running"


def settled(status: dict[str, Any]) -> bool:
    return status.get("phase") == "Succeeded" and not any(attempt.get("nodeUsage") for attempt in status["attempts"])


def nodes_of(runs: Runs, name: str) -> list[str]:
    return sorted({pod["spec"].get("nodeName", "") for pod in runs.pods(name)})


def test_a_spot_node_goes_and_another_comes(
    runs: Runs, add_nodes: Add, remove_nodes: Callable[..., None], api: client.ApiClient
) -> None:
    """The next attempt resumes; what was held is billed to the cent, and no job is there twice."""
    add_nodes(pool="spot", count=3, spot=True)
    runs.fake_pods(None)
    runs.create("gan", hardware={"capacityType": "spot"})
    runs.phase("gan", "Running")
    remove_nodes(nodes_of(runs, "gan")[:1], notice=True)
    status = runs.until(
        "gan", lambda s: len(s.get("attempts", [])) == 2 and s["phase"] == "Running", "a second attempt"
    )
    assert status["attempts"][0]["reason"] in ("NodeLost", "WorkerLost", "WorkerFailed") and status["restarts"] == 1
    faults.end_pods(api, runs.namespace, after="2s")
    status = runs.until(
        "gan", lambda s: s["phase"] == "Succeeded" and all(not a.get("nodeUsage") for a in s["attempts"]), "end"
    )
    held = sum(kind["nodeSeconds"] for a in status["attempts"] for kind in a["nodeTotals"])
    assert all(kind["nodeSeconds"] > 0 for kind in status["attempts"][1]["nodeTotals"])
    assert float(status["cost"]["usd"]) == pytest.approx(held / 3600 * USD_PER_NODE_HOUR["spot"], abs=0.00006)
    assert sum(round(10_000 * float(a["usd"])) for a in status["attempts"]) == round(
        10_000 * float(status["cost"]["usd"])
    )
    use = use_of("gan", RunStatus.model_validate(status), dt.datetime.now(dt.UTC))
    made = bill(use, load_prices())
    assert (made.usd, made.interruptions, made.attempts) == (float(status["cost"]["usd"]), 1, 2)
    assert [job["metadata"]["name"] for job in runs.plane.get("tfjobs", "-n", runs.namespace)["items"]] == ["gan-2"]


@pytest.mark.integration
def test_all_nodes_go_and_fewer_come_back_and_then_all(
    runs: Runs, add_nodes: Add, remove_nodes: Callable[..., None], api: client.ApiClient
) -> None:
    add_nodes(pool="fleet", count=4, spot=True)
    runs.fake_pods(None)
    runs.create("gan", hardware={"count": 32, "capacityType": "spot"})
    batch = runs.phase("gan", "Running")["placement"]["globalBatch"]
    remove_nodes(nodes_of(runs, "gan"))
    status = runs.phase("gan", "Recovering")
    assert "node" in status["attempts"][0]["message"] and status["attempts"][0]["reason"] in ("NodeLost", "WorkerLost")
    add_nodes(pool="fleet", count=2, spot=True)
    status = runs.until("gan", lambda s: s.get("layout") == "2x8" and s["phase"] == "Running", "two nodes")
    assert status["placement"]["globalBatch"] == batch and status["placement"]["accumulate"] == 2
    add_nodes(pool="fleet", count=2, spot=True)
    status = runs.until("gan", lambda s: s.get("layout") == "4x8" and s["phase"] == "Running", "four nodes again")
    assert [a.get("reason") for a in status["attempts"]][1:] == ["ScaledUp", None] and status["restarts"] == 1
    faults.end_pods(api, runs.namespace)
    runs.phase("gan", "Succeeded")


@pytest.mark.integration
def test_a_worker_that_lost_its_peer_starts_the_gang_again(runs: Runs, add_nodes: Add, api: client.ApiClient) -> None:
    add_nodes(pool="v100", count=2)
    runs.fake_pods(None)
    runs.create("gan")
    runs.phase("gan", "Running")
    faults.end_pods(api, runs.namespace, exit_code=138, selector="training.kubeflow.org/replica-index=1")
    status = runs.until(
        "gan", lambda s: len(s.get("attempts", [])) == 2 and s["phase"] == "Running", "a second attempt"
    )
    assert status["attempts"][0]["reason"] in ("WorkerFailed", "WorkerLost")
    faults.end_pods(api, runs.namespace)
    runs.phase("gan", "Succeeded")


OLDER = """
import dataclasses
from caloscale.spec import configuration
narrowed = dataclasses.replace(configuration._TRAINING, presets=("variable-angle",))
configuration._TRAINING = narrowed  # a version that does not know the others yet
from caloscale.operator.__main__ import main
main()
"""


@pytest.mark.integration
@pytest.mark.parametrize("count", [3, pytest.param(10, marks=pytest.mark.long)])
def test_an_operator_that_is_rolled_back_and_forward_ends_no_run(
    count: int, runs: Runs, add_nodes: Add, operator: OperatorProcess, api: client.ApiClient
) -> None:
    add_nodes(pool="v100", count=count)
    runs.fake_pods(None)
    names = [f"r{index}" for index in range(count)]
    for name in names:
        runs.create(name, model={"preset": "compact"}, hardware={"count": 8})
    for name in names:
        runs.phase(name, "Running")
    workers = {pod["metadata"]["uid"] for name in names for pod in runs.pods(name)}
    for program, parsed in ((("-c", OLDER), "False"), (("-m", "caloscale.operator"), "True")):
        operator.kill()
        operator.start(program=program)
        for name in names:
            runs.until(name, lambda s, parsed=parsed: ("SpecParsed", parsed) in conditions(s), f"SpecParsed {parsed}")
        assert {pod["metadata"]["uid"] for name in names for pod in runs.pods(name)} == workers
    faults.end_pods(api, runs.namespace)
    for name in names:
        assert len(runs.phase(name, "Succeeded")["attempts"]) == 1


def conditions(status: dict[str, Any]) -> set[tuple[str, str]]:
    return {(each["type"], each["status"]) for each in status.get("conditions", [])}


@pytest.mark.integration
@pytest.mark.parametrize(("kills", "count"), [(2, 4), pytest.param(50, 24, marks=pytest.mark.long)])
def test_the_operator_is_killed_again_and_again(
    kills: int,
    count: int,
    runs: Runs,
    add_nodes: Add,
    operator: OperatorProcess,
    remove_nodes: Callable[..., None],
    control_plane: ControlPlane,
) -> None:
    """Mixed load, kills at random moments, a lost node, an API server that is restarted after each tenth kill."""
    chance = random.Random(20261121)
    names = add_nodes(pool="mixed", count=6, spot=True)
    runs.fake_pods("2s")
    kinds: itertools.cycle[dict[str, Any]] = itertools.cycle([{}, {"backend": "JobSet"}])
    for index in range(count):
        size = 8 if index % 4 == 3 else 16
        runs.create(f"r{index}", hardware={"capacityType": "spot", "count": size}, cluster=next(kinds))
    for kill in range(kills):
        time.sleep(chance.uniform(0.0, 1.5))
        operator.kill()
        if kill == kills // 2:
            remove_nodes(names[:1])
            add_nodes(pool="mixed", count=1, spot=True)
        if kill % 10 == 5:
            control_plane.restart("kube-apiserver")
        operator.start()
    for index in range(count):
        status = runs.phase(f"r{index}", "Succeeded", "Failed", seconds=240)
        assert status["phase"] == "Succeeded", status
        attempts = status["attempts"]
        assert [a["number"] for a in attempts] == list(range(1, len(attempts) + 1))
        assert attempts[-1]["reason"] == "Completed" and all(a.get("ended") for a in attempts)
    jobs = [
        (job["metadata"]["labels"]["caloscale.dev/run"], job["metadata"]["labels"]["caloscale.dev/attempt"])
        for kind in ("tfjobs", "jobsets")
        for job in runs.plane.get(kind, "-n", runs.namespace)["items"]
    ]
    assert len(jobs) == len(set(jobs))
