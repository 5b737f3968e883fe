"""The command line against a real API server: what a person types from submission to the bill."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from kubernetes import client

from tests.control_plane import faults
from tests.control_plane.operator.conftest import Runs

Add = Callable[..., list[str]]

HARDWARE = (
    *("--preset", "variable-angle"),
    *("--set", "hardware.accelerator=nvidia-tesla-v100"),
    *("--set", "hardware.count=16"),
    *("--set", "hardware.perNode=8"),
    *("--set", "hardware.region=europe-west4"),
    *("--set", "recovery.backoff=1s"),
)


@pytest.fixture
def cluster(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """The command's kubeconfig is that of the control plane."""
    path = str(runs.plane.kubeconfig)
    monkeypatch.setenv("KUBECONFIG", path)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", path)
    return runs


def test_from_submission_to_the_bill(
    cluster: Runs, add_nodes: Add, command: Callable, api: client.ApiClient, tmp_path: Path
) -> None:
    add_nodes(pool="v100", count=2)
    cluster.fake_pods(None)
    where = ("-n", cluster.namespace)
    done = command("submit", *HARDWARE, "--name", "gan", *where, "--yes")
    assert done.code == 0 and done.out.strip() == "gan" and "16 x nvidia-tesla-v100" in done.err
    cluster.phase("gan", "Running")
    shown = command("status", *where)
    assert "gan" in shown.out and "Running" in shown.out and "2 workers on 2 nodes" in shown.out
    assert "2x8" in command("status", "--wide", *where).out
    assert json.loads(command("status", "gan", *where, "--json").out)["phase"] == "Running"
    logs = command("logs", "gan", *where, "--tail", "5")
    assert logs.code == 0 and all(line.startswith("gan-1-worker-") for line in logs.out.splitlines())
    assert "stops after a checkpoint" in command("stop", "gan", *where).out
    cluster.phase("gan", "Suspended")
    cluster.plane.wait_until(lambda: not cluster.pods("gan"), "the pods are gone")
    assert command("stop", "gan", *where, "--resume").code == 0
    cluster.phase("gan", "Running")
    faults.end_pods(api, cluster.namespace)
    cluster.phase("gan", "Succeeded")
    fetched = command("fetch", "gan", *where, "--to", tmp_path / "gan")
    assert fetched.code == 0 and "neither in a bucket nor on a volume claim" in fetched.err
    cluster.until("gan", lambda s: not any(a.get("nodeUsage") for a in s["attempts"]), "all is settled")
    command("fetch", "gan", *where, "--to", tmp_path / "gan")
    bill = json.loads(command("bill", tmp_path / "gan", "--json").out)
    status = cluster.status("gan")
    assert bill["usd"] == float(status["cost"]["usd"]) and bill["attempts"] == 2 and bill["interruptions"] == 0
    assert command("stop", "gan", *where, "--delete").code == 0
    assert command("status", "gan", *where).code == 4


def test_what_the_server_refuses_is_reported_before_anything_is_made(cluster: Runs, command: Callable) -> None:
    done = command("submit", "--preset", "compact", "--set", "data.showers=9", "--name", "gan", "-n", cluster.namespace)
    assert done.code == 2 and "hardware" in done.err and "remedy" in done.err
    named = command("submit", *HARDWARE, "--name", "Gan", "-n", cluster.namespace, "--yes")
    assert named.code == 2 and "small letters" in named.err
    elsewhere = command("submit", *HARDWARE, "--name", "gan", "-n", "not-there", "--yes")
    assert elsewhere.code == 4 and "not-there" in elsewhere.err
    asked = command("submit", *HARDWARE, "--name", "gan", "-n", cluster.namespace)
    assert asked.code == 2 and "--yes" in asked.err
    assert not cluster.plane.get("trainingruns", "-n", cluster.namespace)["items"]


def test_a_failed_run_ends_a_follower_with_an_exit_code(cluster: Runs, add_nodes: Add, command: Callable) -> None:
    add_nodes(pool="v100", count=2)
    cluster.fake_pods("1s", exit_code=2)
    done = command("submit", *HARDWARE, "--name", "gan", "-n", cluster.namespace, "--yes", "--follow")
    assert done.code == 7 and "exit code 2" in done.err


def test_what_failed_for_its_budget_resumes_with_more_and_only_then(
    cluster: Runs, add_nodes: Add, command: Callable
) -> None:
    add_nodes(pool="v100", count=2)
    cluster.fake_pods("1s")
    gan = ("submit", *HARDWARE, "--name", "gan", "-n", cluster.namespace, "--yes", "--follow", "--set")
    assert command(*gan, "budget.maxUsd=1").code == 7
    again = command(*gan, "budget.maxUsd=1")
    assert again.code == 2 and "has failed" in again.err and "it resumes" in again.err
    assert command("stop", "gan", "-n", cluster.namespace, "--resume").code == 2
    more = command(*gan, "budget.maxUsd=1000")
    assert more.code == 0 and "Failed" not in more.err
    assert command(*gan, "budget.maxUsd=2000").code == 2
