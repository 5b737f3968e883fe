"""What the pipeline's training step does around its run; the run itself is in tests/control_plane/operator."""

import copy
import datetime as dt
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from caloscale.client.fetch import fetch
from caloscale.client.runs import RunOnCluster, find_run, manifest_of
from caloscale.client.step import (
    POD_VARIABLE,
    failure_of,
    metrics_of,
    record_use,
    run_name,
    share_shards,
    train_on_cluster,
)
from caloscale.errors import ClusterError, InputError, StorageError, Terminated
from caloscale.planning.billing.usage import RunUse
from caloscale.spec import load_run
from caloscale.stages.workspace import keep_configuration
from caloscale.status import Condition, RunCost, RunProgress, RunStatus
from caloscale.storage.objects import download, write_object
from tests.client.server import Server, seen
from tests.cluster import examples as ex


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder = tmp_path / "shards"
    folder.mkdir()
    for name in ("manifest.json", "train-00000.tfrecord"):
        (folder / name).write_text(name)
    return folder


def content(place: str, tmp_path: Path) -> dict[str, str]:
    folder = Path(place)
    if place.startswith("gs://"):
        folder = tmp_path / f"copy-{len(list(tmp_path.iterdir()))}"
        download(place, folder)
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("where", ["bucket", "volume"])
def test_shards_that_workers_cannot_see_go_into_the_workspace(
    request: pytest.FixtureRequest, shards: Path, tmp_path: Path, where: str
) -> None:
    """Artifacts in Kubeflow's own object store, say. A retried step finds them there; other shards replace them."""
    root = str(tmp_path / "volume") if where == "volume" else request.getfixturevalue("bucket_server")
    place = share_shards(shards, f"{root}/run/dataset")
    assert content(place, tmp_path) == {name: name for name in ("manifest.json", "train-00000.tfrecord")}
    (shards / "train-00000.tfrecord").write_text("not looked at while the manifest is the same")
    share_shards(shards, place)
    assert content(place, tmp_path)["train-00000.tfrecord"] == "train-00000.tfrecord"
    for path in shards.iterdir():
        path.write_text("another")
    share_shards(shards, place)
    assert set(content(place, tmp_path).values()) == {"another"}


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder of this machine where cluster.volumeClaim is mounted."""
    monkeypatch.setattr("caloscale.cluster.workload.backends.SHARED", str(tmp_path))
    return str(tmp_path / "volume")


ON_CLAIM = ["hardware.count=8", "cluster.volumeClaim=runs"]


@pytest.mark.parametrize("where", ["bucket", "volume"])
def test_a_step_tried_again_takes_the_result_of_the_run_that_has_finished(
    request: pytest.FixtureRequest, tmp_path: Path, volume: str, where: str
) -> None:
    """A run that is finished already is an error for a person and the result for a step that is retried."""
    workspace = volume if where == "volume" else f"{request.getfixturevalue('bucket_server')}/run"
    places: dict[str, Any] = {"workspace": workspace, "dataset": "gs://bucket/dataset", "model": tmp_path / "model"}
    server: Any = Server(seen("Succeeded"))
    run = load_run(preset="variable-angle", overrides=ON_CLAIM)
    with pytest.raises(StorageError, match="holds no trained networks"):
        train_on_cluster(run, step="run-7", connection=server, namespace="physics", **places)
    write_object(b"weights", f"{workspace}/training/model/generator.keras")
    done = train_on_cluster(run, step="run-7", connection=server, namespace="physics", **places)
    assert done.status.phase == "Succeeded" and (tmp_path / "model" / "generator.keras").read_text() == "weights"


def test_the_metrics_of_a_run_say_only_what_is_known(caplog: pytest.LogCaptureFixture) -> None:
    why = "no spot price of gpu v100"
    unpriced = Condition(
        type="Priced", status="False", reason="NoPrice", message=why, last_transition_time=dt.datetime.now(dt.UTC)
    )
    progress = RunProgress(step=40, epoch=2.0, showers_per_second=1200.0)
    known = RunStatus(progress=progress, cost=RunCost(usd=1.25))
    for status, figures in (
        (known, {"attempts": 0, "steps": 40, "epochs": 2.0, "showersPerSecond": 1200.0, "usd": 1.25}),
        (RunStatus(cost=RunCost(), conditions=(unpriced,)), {"attempts": 0}),
    ):
        assert metrics_of(RunOnCluster("gan", "physics", {}, status, "")) == figures
        assert (why in caplog.text) == ("usd" not in figures)


@pytest.mark.parametrize(
    ("state", "failed"),
    [("COMPLETE", False), ("SUCCEEDED", False), ("FAILED", True), ("RUNNING", True), ("CANCELLED", True)],
)
def test_every_final_state_but_success_is_a_failure(state: str, failed: bool) -> None:
    """Kubeflow Pipelines 2.17 passes COMPLETE, FAILED, and RUNNING after Terminate."""
    assert (failure_of(state, None) is not None) == failed
    if failed:
        assert failure_of(state, "node lost") == "node lost"


@pytest.mark.parametrize("pod", ["pod-of-the-step", None])
def test_a_cancelled_step_under_kubeflow_leaves_its_run_to_the_operator(
    tmp_path: Path, volume: str, monkeypatch: pytest.MonkeyPatch, pod: str | None
) -> None:
    """Its container ends within a second of SIGTERM: a deleted run takes the record of what it used along."""
    if pod is None:
        monkeypatch.delenv(POD_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(POD_VARIABLE, pod)
    server: Any = Server(seen("Running"), seen("Running"), Terminated())
    deleted: list[str] = []
    server.delete = lambda kind, namespace, name, **_: deleted.append(name)
    monkeypatch.setattr("caloscale.client.runs.POLL_SECONDS", 0.0)
    monkeypatch.setattr("caloscale.client.step.keep_use", Mock(side_effect=StorageError("is full")))
    run = load_run(preset="variable-angle", overrides=ON_CLAIM)
    with pytest.raises(Terminated if pod else StorageError):
        train_on_cluster(
            run,
            step="run-7",
            workspace=volume,
            dataset="gs://bucket/dataset",
            model=tmp_path / "model",
            connection=server,
            namespace="physics",
        )
    assert deleted == ([] if pod else [run_name(run, "run-7")])


def billed(phase: str, reason: str = "", day: int = 21) -> dict[str, Any]:
    """A run that has held two nodes for an hour."""
    raw = seen(phase, reason)
    raw["metadata"]["uid"] = f"u-{day}"
    begun, ended = f"2026-11-{day}T10:00:00Z", f"2026-11-{day}T11:00:00Z"
    holds = [
        {"pod": f"w{n}", "uid": f"u{n}", "node": f"node-{n}", "since": begun, "until": ended, "done": False}
        for n in range(2)
    ]
    attempt = {"number": 1, "job": "gan-1", "launched": begun, "ended": ended, "nodes": 2, "workers": 2}
    attempt["nodeUsage"] = holds
    raw["status"] |= {"placement": {**ex.PLACED, "region": "europe-west4"}, "attempts": [attempt]}
    return raw


def node_hours(workspace: Path) -> float:
    use = RunUse.model_validate_json((workspace / "usage.json").read_text())
    return sum(n.nodes * n.seconds for a in use.attempts for n in a.nodes) / 3600


class Cluster(Server):
    """Has a run until it is deleted, and after a submission the next of its runs; may end a step after a request."""

    def __init__(self, *runs: dict[str, Any]) -> None:
        super().__init__(*runs, None)
        self.there = self.answers.pop(0)
        self.others: list[dict[str, Any]] = []
        self.steps: list[str] = []
        self.ends_after = ""

    def each(self, *_: object, **__: object) -> Iterator[dict[str, Any]]:
        return iter(self.others)

    def get(self, *_: object) -> Any:
        return self.there

    def delete(self, *_: object, **__: object) -> None:
        self.there = None
        self._note("delete")

    def apply(self, manifest: dict[str, Any], **_: object) -> dict[str, Any]:
        if self.there is None:
            self.there = self.answers.pop(0)
        self._note("apply")
        return manifest

    def _note(self, done: str) -> None:
        self.steps.append(done)
        if done == self.ends_after:
            self.ends_after = ""
            raise Terminated


@pytest.mark.parametrize("ends_after", ["", "delete", "apply"])
@pytest.mark.parametrize("reason", ["UserError", "RestartBudget"])
def test_a_retry_makes_a_run_that_has_failed_again_and_bills_both(
    tmp_path: Path, volume: str, monkeypatch: pytest.MonkeyPatch, reason: str, ends_after: str
) -> None:
    """Also when the step is ended before it has made the run."""
    monkeypatch.setenv(POD_VARIABLE, "pod-of-the-step")
    run = load_run(preset="variable-angle", overrides=["hardware.count=2", "cluster.volumeClaim=runs"])
    runs = billed("Failed", reason), billed("Failed", reason, day=22), billed("Succeeded", day=23)
    for raw in runs:
        raw["metadata"]["name"] = run_name(run, "run-7")
    server: Any = Cluster(*runs)
    write_object(b"weights", f"{volume}/training/model/generator.keras")

    def step() -> RunOnCluster:
        places: dict[str, Any] = {"workspace": volume, "dataset": "gs://bucket/dataset"}
        return train_on_cluster(
            run, step="run-7", **places, model=tmp_path / "model", connection=server, namespace="physics"
        )

    server.ends_after = ends_after
    tries = 0
    while server.there is None or server.there["status"]["phase"] == "Failed":
        with suppress(ClusterError, Terminated):
            step()
        tries += 1
        assert tries < 5
    assert step().status.phase == "Succeeded" and server.steps.count("delete") == 2
    assert node_hours(Path(volume)) == pytest.approx(6)
    use = RunUse.model_validate_json((Path(volume) / "usage.json").read_text())
    assert len(use.attempts) == 3 and use.day == dt.date(2026, 11, 21)


@pytest.mark.parametrize("there", [True, False])
def test_a_damaged_file_of_what_was_used_is_refused_before_anything_is_done(
    tmp_path: Path, volume: str, there: bool
) -> None:
    run = load_run(preset="variable-angle", overrides=["hardware.count=2", "cluster.volumeClaim=runs"])
    server: Any = Cluster(billed("Failed", "UserError"))
    server.there = server.there if there else None
    write_object(b'{"name": "run-7", "attempts": [', f"{volume}/usage.json")
    places: dict[str, Any] = {"workspace": volume, "dataset": "gs://bucket/dataset", "model": tmp_path / "model"}
    with pytest.raises(InputError, match=rf"(?s){volume}/usage.json: .*remedy: delete it"):
        train_on_cluster(run, step="run-7", connection=server, namespace="physics", **places)
    assert server.steps == []


@pytest.mark.parametrize("reason", ["Budget", "Deadline"])
def test_a_retry_does_not_spend_a_budget_twice(tmp_path: Path, volume: str, reason: str) -> None:
    run = load_run(preset="variable-angle", overrides=["hardware.count=2", "cluster.volumeClaim=runs"])
    server: Any = Cluster(billed("Failed", reason))
    places: dict[str, Any] = {"workspace": volume, "dataset": "gs://bucket/dataset", "model": tmp_path / "model"}
    for _ in range(2):
        with pytest.raises(ClusterError, match="failed"):
            train_on_cluster(run, step="run-7", connection=server, namespace="physics", **places)
    assert node_hours(Path(volume)) == pytest.approx(2) and "delete" not in server.steps


@pytest.mark.parametrize("terminated", [False, True])
def test_runs_that_continue_another_in_its_folder_bill_all(tmp_path: Path, volume: str, terminated: bool) -> None:
    """Of other pipeline runs, so that each TrainingRun has another name. What one used is counted once, also when it
    was terminated, so that its step noted nothing, and when it is fetched after it was continued."""
    run = load_run(preset="variable-angle", overrides=["hardware.count=2", "cluster.volumeClaim=runs"])
    write_object(b"weights", f"{volume}/training/model/generator.keras")
    ends = ("Failed", "Budget"), ("Failed", "Deadline"), ("Succeeded", "")
    runs = [billed(*end, day=day) for day, end in enumerate(ends, 21)]
    for raw, step in zip(runs, ("run-7", "run-8", "run-9")):
        raw["metadata"]["name"] = run_name(run, step)
        raw["spec"] = manifest_of(run, "gan", "physics")["spec"]
        raw["spec"]["cluster"]["workspace"] = volume
    server: Any = Cluster(*runs)

    def train(step: str) -> None:
        places: dict[str, Any] = {"workspace": volume, "dataset": "gs://bucket/dataset", "model": tmp_path / "model"}
        train_on_cluster(run, step=step, connection=server, namespace="physics", **places)

    if not terminated:
        with pytest.raises(ClusterError, match="failed"):
            train("run-7")
    for number, step in enumerate(("run-8", "run-9"), 1):
        server.there, server.others = None, runs[:number] if terminated else []
        for _ in range(2):
            with suppress(ClusterError):
                train(step)
            assert node_hours(Path(volume)) == pytest.approx(2 * (number + 1))
    for raw in runs:
        fetch(find_run(Server(raw), "physics", raw["metadata"]["name"]), Path(volume))  # type: ignore[arg-type]
        (Path(volume) / "status.json").unlink()
        use = RunUse.model_validate_json((Path(volume) / "usage.json").read_text())
        assert node_hours(Path(volume)) == pytest.approx(6) and use.name == run_name(run, "run-9")


def test_what_a_run_used_after_another_had_continued_it_is_billed(tmp_path: Path, volume: str) -> None:
    """It was terminated, and its workers were still saving when the next pipeline run came to its training."""
    run = load_run(preset="variable-angle", overrides=["hardware.count=2", "cluster.volumeClaim=runs"])
    write_object(b"weights", f"{volume}/training/model/generator.keras")
    before, server = billed("Suspending"), Mock()
    before["metadata"]["name"], before["spec"] = run_name(run, "run-7"), {"cluster": {"workspace": volume}}
    early = copy.deepcopy(before)
    for use in early["status"]["attempts"][0]["nodeUsage"]:
        use["until"] = "2026-11-21T10:30:00Z"
    server.get.side_effect = [None, billed("Succeeded", day=22)]
    server.each.side_effect = [iter([early]), iter([before])]
    places: dict[str, Any] = {"workspace": volume, "dataset": "gs://bucket/dataset", "model": tmp_path / "model"}
    train_on_cluster(run, step="run-8", connection=server, namespace="physics", **places)
    assert node_hours(Path(volume)) == pytest.approx(4)


def test_the_use_of_a_terminated_run_is_recorded_at_exit(tmp_path: Path) -> None:
    """The exit handler asks the cluster: the step that followed the run had no time to."""
    server: Any = Server(billed("Suspended"))
    keep_configuration(load_run(preset="variable-angle", overrides=["hardware.count=2"]), tmp_path)
    record_use(step="run-7", workspace=str(tmp_path), connection=server, namespace="physics")
    use = RunUse.model_validate_json((tmp_path / "usage.json").read_text())
    assert not use.own_machine
    assert node_hours(tmp_path) == pytest.approx(2)


def test_without_a_cluster_the_report_is_made_all_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server: Any = Server(OSError("no route to host"))
    keep_configuration(load_run(preset="variable-angle", overrides=["hardware.count=2"]), tmp_path)
    record_use(step="run-7", workspace=str(tmp_path), connection=server, namespace="physics")
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"] and "no route to host" in caplog.text
