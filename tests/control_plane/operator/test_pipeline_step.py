"""The pipeline's training step on a real API server: the same run for each retry, none after a cancellation."""

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from caloscale.client.runs import manifest_of, submit, suspend
from caloscale.client.step import run_name, train_on_cluster
from caloscale.connection import Connection
from caloscale.errors import ClusterError
from caloscale.planning.billing.usage import RunUse
from caloscale.spec import Run, load_run
from caloscale.storage.objects import read_object, write_object
from tests.control_plane.operator.conftest import Runs

Add = Callable[..., list[str]]


@pytest.fixture
def document() -> Run:
    settings = ["accelerator=nvidia-tesla-v100", "count=16", "perNode=8", "region=europe-west4"]
    return load_run(preset="variable-angle", overrides=[f"hardware.{each}" for each in settings])


def step(runs: Runs, document: Run, workspace: str, model: Path) -> object:
    connection = Connection(runs.plane.client())
    places = {"workspace": workspace, "dataset": "gs://bucket/dataset"}
    return train_on_cluster(
        document, step="run-7", **places, model=model, connection=connection, namespace=runs.namespace
    )


def test_a_retried_step_follows_the_run_that_is_there(
    runs: Runs, add_nodes: Add, document: Run, tmp_path: Path, bucket_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_nodes(pool="v100", count=2)
    runs.fake_pods("1s")
    workspace = f"{bucket_server}/retried"
    write_object(b"weights", f"{workspace}/training/model/generator.keras")
    for attempt in ("first", "again"):
        monkeypatch.setenv("KFP_POD_NAME", attempt)
        step(runs, document, workspace, tmp_path / attempt)
        assert (tmp_path / attempt / "generator.keras").read_text() == "weights"
    (run,) = runs.plane.get("trainingruns", "-n", runs.namespace)["items"]
    assert run["metadata"]["annotations"]["caloscale.dev/client-heartbeat"] == "again"
    assert run["metadata"]["name"] == run_name(document, "run-7") and len(run["status"]["attempts"]) == 1
    use = RunUse.model_validate_json(read_object(f"{workspace}/usage.json") or "")
    assert use.attempts[0].nodes[0].nodes == 2 and run_name(document, "run-8") != run_name(document, "run-7")


def test_a_run_that_fails_fails_the_step(
    runs: Runs, add_nodes: Add, document: Run, tmp_path: Path, bucket_server: str
) -> None:
    add_nodes(pool="v100", count=2)
    runs.fake_pods("1s", exit_code=5)
    with pytest.raises(ClusterError, match="exit code 5"):
        step(runs, document, f"{bucket_server}/failed", tmp_path / "model")


def test_a_step_tried_again_makes_a_run_that_has_failed_again(
    runs: Runs, add_nodes: Add, document: Run, tmp_path: Path, bucket_server: str
) -> None:
    add_nodes(pool="v100", count=2)
    runs.fake_pods("1s", exit_code=5)
    workspace = f"{bucket_server}/again"
    for _ in range(2):
        with pytest.raises(ClusterError, match="exit code 5"):
            step(runs, document, workspace, tmp_path / "model")
    runs.fake_pods("1s")
    write_object(b"weights", f"{workspace}/training/model/generator.keras")
    step(runs, document, workspace, tmp_path / "model")
    (run,) = runs.plane.get("trainingruns", "-n", runs.namespace)["items"]
    assert run["status"]["phase"] == "Succeeded" and len(run["status"]["attempts"]) == 1
    use = RunUse.model_validate_json(read_object(f"{workspace}/usage.json") or "")
    assert [attempt.nodes[0].nodes for attempt in use.attempts] == [2, 2, 2]


def test_a_cancelled_step_takes_its_run_back(
    runs: Runs, add_nodes: Add, document: Run, tmp_path: Path, bucket_server: str
) -> None:
    """The step's process gets SIGTERM."""
    add_nodes(pool="v100", count=2)
    runs.fake_pods(None)
    (tmp_path / "run.yaml").write_text(document.model_dump_json(by_alias=True))
    code = f"""
        from pathlib import Path
        from caloscale.client.step import train_on_cluster
        from caloscale.spec import load_run
        train_on_cluster(load_run({str(tmp_path / "run.yaml")!r}), step="run-7", dataset="gs://bucket/dataset",
            workspace="{bucket_server}/cancelled", model=Path({str(tmp_path / "model")!r}),
            namespace={runs.namespace!r})
    """
    environment = {**os.environ, "KUBECONFIG": str(runs.plane.kubeconfig)}
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], env=environment)
    runs.plane.wait_until(
        lambda: bool(runs.plane.get("trainingruns", "-n", runs.namespace)["items"]), "the step has submitted its run"
    )
    runs.phase(run_name(document, "run-7"), "Running")
    process.terminate()
    assert process.wait() == 143
    runs.plane.wait_until(
        lambda: not runs.plane.get("trainingruns,tfjobs,pods", "-n", runs.namespace)["items"], "nothing is left"
    )


@pytest.mark.long
def test_a_run_stops_a_minute_after_its_steps_pod_and_resumes_without(
    runs: Runs, add_nodes: Add, document: Run
) -> None:
    """Kubeflow ends a step's pod without the step hearing of it."""
    add_nodes(pool="v100", count=2)
    add_nodes(pool="steps", count=1, accelerator="")
    runs.fake_pods(None)
    server = Connection(runs.plane.client())
    container = {"name": "main", "image": "none"}
    step_pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "step", "namespace": runs.namespace}}
    server.create({**step_pod, "spec": {"containers": [container]}})
    runs.plane.wait_until(
        lambda: runs.plane.get("pod", "step", "-n", runs.namespace)["status"]["phase"] == "Running", "the step runs"
    )
    submit(server, manifest_of(document, "gan", runs.namespace, client_pod="step"))
    runs.phase("gan", "Running")
    runs.plane.kubectl("delete", "pod", "step", "-n", runs.namespace)
    deleted = time.monotonic()
    status = runs.phase("gan", "Suspended", seconds=90)
    assert time.monotonic() - deleted > 55 and "pod step, has ended" in status["message"]
    runs.plane.wait_until(
        lambda: not runs.plane.get("tfjobs,pods", "-n", runs.namespace)["items"], "the machines are given back"
    )
    suspend(server, runs.namespace, "gan", on=False)
    status = runs.phase("gan", "Running")
    assert [a.get("reason") for a in status["attempts"]] == ["Suspended", None] and "clientGoneSince" not in status
