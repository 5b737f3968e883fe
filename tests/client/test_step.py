"""What the pipeline's training step does around its run; the run itself is in tests/cluster/operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from caloscale.client.runs import RunOnCluster
from caloscale.client.step import metrics_of, share_shards, train_on_cluster
from caloscale.spec import load_run
from caloscale.status import RunCost, RunProgress, RunStatus
from caloscale.storage.objects import download
from tests.client.server import Server, seen


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


def test_a_step_tried_again_takes_the_result_of_the_run_that_has_finished(tmp_path: Path) -> None:
    """What a person is told of as finished already, a step has asked for before."""
    trained = tmp_path / "workspace" / "training" / "model"
    trained.mkdir(parents=True)
    (trained / "generator.keras").write_text("weights")
    server: Any = Server(seen("Succeeded"))
    places = {"workspace": str(tmp_path / "workspace"), "dataset": "gs://bucket/dataset", "namespace": "physics"}
    run = load_run(preset="variable-angle", overrides=["hardware.count=8"])
    done = train_on_cluster(run, step="run-7", model=tmp_path / "model", connection=server, **places)
    assert done.status.phase == "Succeeded" and (tmp_path / "model" / "generator.keras").read_text() == "weights"


def test_the_metrics_of_a_run_say_only_what_is_known() -> None:
    progress = RunProgress(step=40, epoch=2.0, showers_per_second=1200.0)
    known = RunStatus(progress=progress, cost=RunCost(usd=1.25))
    for status, figures in (
        (known, {"attempts": 0, "steps": 40, "epochs": 2.0, "showers_per_second": 1200.0, "usd": 1.25}),
        (RunStatus(cost=RunCost()), {"attempts": 0}),
    ):
        assert metrics_of(RunOnCluster("gan", "physics", {}, status, "")) == figures
