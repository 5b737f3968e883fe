"""Two workers, as the pods of a rendered TFJob: their command and environment, a real bucket server, fresh disks.

What is not the pods' own: TF_CONFIG (which training-operator gives them) names ports of this machine, /scratch is a
folder of the test, and progress goes to a server of a few lines instead of the cluster's API.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from caloscale.client.fetch import fetch
from caloscale.client.runs import RunOnCluster
from caloscale.cluster.workload.backends import render
from caloscale.operator.store import read_progress
from caloscale.ports import free_ports
from caloscale.showers.hdf5.writer import write_showers
from caloscale.spec import Run, load_run
from caloscale.stages.record import StageRecord
from caloscale.status import RunStatus
from caloscale.storage.objects import download, read_object, upload
from tests.client.server import ApiServer
from tests.client.test_reporting import server
from tests.cluster import examples as ex
from tests.processes import wait_for
from tests.training.conftest import eagerly, random_showers
from tests.training.detector import DETECTOR
from tests.training.processes import exit_codes

__all__ = ["eagerly", "server"]

QUICK = ("train.generatorUpdates=1", "train.decay=constant", "checkpoint.everySeconds=0.2")
JUDGED = ("validation.showers=64", "validation.energyBins=1", "validation.bootstraps=20")
ADVERTISED = ("hardware.accelerator=nvidia-tesla-v100", "hardware.count=2", "hardware.perNode=1")


class Pods:
    """The worker pods of an attempt."""

    def __init__(self, run: Run, attempt: int, folder: Path) -> None:
        kind = {"node.kubernetes.io/instance-type": "n1-standard-8"}
        launch = ex.launch_of(run, *(ex.node(f"n{i}", "v100-1", 1, labels=kind) for i in range(2)), attempt=attempt)
        worker = render(launch)["spec"]["tfReplicaSpecs"]["Worker"]
        self.container: dict[str, Any] = worker["template"]["spec"]["containers"][0]
        self.replicas: int = worker["replicas"]
        self.folder = folder / f"attempt-{attempt}"

    def scratch(self, index: int) -> Path:
        """The disk of a pod: new in each attempt."""
        return self.folder / f"scratch-{index}"

    def start(self) -> list[subprocess.Popen[str]]:
        """Start them all."""
        hosts = [f"127.0.0.1:{port}" for port in free_ports(self.replicas)]
        started = []
        for index in range(self.replicas):
            self.scratch(index).mkdir(parents=True)
            cluster = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}}
            given = {each["name"]: each["value"] for each in self.container["env"]}
            here = {name: value.replace("/scratch", str(self.scratch(index))) for name, value in given.items()}
            here |= {"TF_CONFIG": json.dumps(cluster), "CALOSCALE_SCRATCH": str(self.scratch(index))}
            here |= {"TMPDIR": str(self.scratch(index)), "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
            # What the pod has of its image, its node and the ConfigMap caloscale-workers.
            kept = {name: os.environ[name] for name in ("KUBECONFIG", "STORAGE_EMULATOR_HOST")}
            kept["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            with (self.folder / f"{index}.log").open("w") as log:
                process = subprocess.Popen(
                    self.container["args"], env=kept | here, stdout=log, stderr=log, text=True, cwd=self.folder
                )
            started.append(process)
        return started

    def said(self, index: int) -> str:
        """The log of a pod."""
        return (self.folder / f"{index}.log").read_text()


def newest_step(workspace: str) -> int:
    """Step of the newest checkpoint in the bucket; 0: none."""
    content = read_object(f"{workspace}/training/checkpoints/newest.json")
    checkpoints = json.loads(content)["checkpoints"] if content else []  # an attempt that begins writes an empty list
    return int(checkpoints[0]["name"][5:14]) if checkpoints else 0


def record(workspace: str, stage: str) -> StageRecord:
    """What a stage left in the bucket."""
    content = read_object(f"{workspace}/stages/{stage}.json")
    assert content is not None, stage
    return StageRecord.model_validate_json(content)


def raw_showers(files: int, folder: Path, uri: str) -> list[str]:
    """Put files of ten showers each into a bucket; the settings of a run that reads them."""
    for number in range(files):
        write_showers(folder / f"showers-{number}.h5", random_showers(10, number), attributes={})
    upload(folder, uri)
    others = [each for each in DETECTOR if not each.startswith(("data.showers", "data.source", "train.epochs"))]
    return [*others, f"data.source={uri}"]


def fetch_succeeded(run: Run, workspace: str, folder: Path) -> None:
    """Fetch a run that has succeeded and was never on a node: its results, without shards and checkpoints."""
    spec = json.loads(run.model_dump_json(by_alias=True, exclude_none=True))
    spec["cluster"]["workspace"] = workspace
    notes = fetch(RunOnCluster("gan", "physics", spec, RunStatus(), ""), folder)
    assert notes == ["it was not placed yet: there is no estimate", "it held no node yet: there is no bill"]
    names = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    assert {"report.html", "summary.json", "training/model/generator.keras", "training/history.json"} <= names
    assert not any(name.startswith(("dataset", "training/checkpoints")) for name in names)
    assert json.loads((folder / "summary.json").read_text())["outcome"] == "succeeded"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_run_is_kept_in_its_bucket(bucket_server: str, server: ApiServer, tmp_path: Path) -> None:
    """Raw showers in a bucket, shards made once, all workers killed, another attempt on new disks; fetched."""
    workspace = f"{bucket_server}/runs/gan"
    settings = [*raw_showers(8, tmp_path / "raw", f"{bucket_server}/raw"), "train.epochs=6", "hardware.advertised=true"]
    run = ex.run_of(*settings, *QUICK, *JUDGED, *ADVERTISED, f"cluster.workspace={workspace}", preset="compact")

    first = Pods(run, 1, tmp_path)
    workers = first.start()
    wait_for(lambda: newest_step(workspace) >= 1, *workers)
    for worker in workers:
        worker.send_signal(signal.SIGKILL)
    assert exit_codes(workers) == [-signal.SIGKILL] * 2
    made = record(workspace, "preprocess")
    kept = newest_step(workspace)

    second = Pods(run, 2, tmp_path)
    workers = second.start()
    assert exit_codes(workers) == [0, 0], second.said(0) + second.said(1)
    assert f"resuming from step {kept}" in second.said(0)
    assert record(workspace, "preprocess").started == made.started, "the shards are made once"
    assert record(workspace, "train").figures["resumedFromStep"] == kept
    assert record(workspace, "train").figures["workers"] == 2
    # A batch has showers of all training shards; of the validation a worker reads the first alone.
    fetched = {kind: len(list(second.scratch(1).rglob(f"{kind}-*.tfrecord"))) for kind in ("train", "validation")}
    assert fetched == {"train": 8, "validation": 1}
    assert {path.split("/")[-2] for _, path, *_ in server.asked} == {"trainingprogresses"}
    shown = read_progress(server.asked[-1][-1])
    assert shown.step == shown.checkpoint_step == record(workspace, "train").figures["steps"]

    fetch_succeeded(run, workspace, tmp_path / "fetched")
    assert len(download(f"{workspace}/dataset", tmp_path / "shards")) > 8


@pytest.mark.long
def test_one_worker_goes_the_whole_way(
    bucket_server: str,
    server: ApiServer,
    eagerly: None,
    command: Callable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In this process, without compiling: from raw showers in a bucket to a report there, and a second attempt."""
    workspace = f"{bucket_server}/runs/one"
    settings = [*raw_showers(4, tmp_path / "raw", f"{bucket_server}/raw-one"), "train.epochs=1", "checkpoint.keep=1"]
    run = load_run(preset="compact", overrides=[*settings, *QUICK, *JUDGED])
    monkeypatch.setenv("CALOSCALE_WORKSPACE", workspace)
    monkeypatch.setenv("CALOSCALE_PROGRESS", "physics/gan-progress")
    monkeypatch.setenv("CALOSCALE_PROGRESS_FILE", "")  # the worker names its own; undone behind the test
    monkeypatch.delenv("CALOSCALE_DATASET", raising=False)
    for attempt in (1, 2):  # the second finds all done, with a budget that was raised meanwhile
        raised = run.model_copy(update={"budget": run.budget.model_copy(update={"max_usd": 10.0 * attempt})})
        monkeypatch.setenv("CALOSCALE_RUN", raised.model_dump_json(by_alias=True))
        monkeypatch.setenv("CALOSCALE_SCRATCH", str(tmp_path / f"scratch-{attempt}"))
        (tmp_path / f"scratch-{attempt}").mkdir()
        done = command("worker")
        assert done.code == 0, done.err
    assert record(workspace, "train").figures["resumedFromStep"] == record(workspace, "train").figures["steps"]
    fetch_succeeded(run, workspace, tmp_path / "fetched")


@pytest.mark.long
def test_a_bucket_that_does_not_exist_is_said_at_once(bucket_server: str, server: ApiServer, tmp_path: Path) -> None:
    """Exit code 2, which the operator does not try again, and a log that ends with the remedy."""
    settings = [*DETECTOR, "hardware.advertised=true", *ADVERTISED, "cluster.workspace=gs://nobody/gan"]
    pods = Pods(ex.run_of(*settings, preset="compact"), 1, tmp_path)
    workers = pods.start()
    try:
        assert workers[0].wait(60) == 2
        assert "no such bucket" in pods.said(0) and "check the name 'nobody'" in pods.said(0).splitlines()[-1]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
