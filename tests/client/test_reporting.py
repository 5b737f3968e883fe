"""Worker 0's reports, against an API server of a few lines that really listens."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from caloscale.client.reporting import ProgressReporter, read_progress_file, worker_index
from caloscale.operator.store import read_progress
from caloscale.status import PROGRESS_FILE_VARIABLE
from caloscale.training.progress_file import ProgressFile
from tests.client.server import ApiServer, kubeconfig_of

GIVEN = {"CALOSCALE_PROGRESS": "physics/gan-progress", "CALOSCALE_ATTEMPT": "u-1/3"}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with ApiServer((200, {"kind": "TrainingProgress", "metadata": {"name": "p"}})) as made:
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig_of(made.address)))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))  # for the processes of tests/smoke
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "kubeconfig"))
        yield made


def written(path: Path, step: int = 61) -> None:
    file = ProgressFile(steps=6100, steps_per_epoch=61, batch=2048, environment={PROGRESS_FILE_VARIABLE: str(path)})
    file.begin(1, 12.5)
    file.saved(40)
    file.losses({"generator": 3.5})
    file.step(step, now=True)


def test_what_the_trainer_writes_is_what_the_operator_reads(tmp_path: Path, server: ApiServer) -> None:
    written(tmp_path / "progress.json")
    reporter = ProgressReporter(tmp_path / "progress.json", GIVEN)
    assert reporter.report() and not reporter.report()  # the second time there is nothing new
    ((_, path, _, _, body),) = server.asked
    assert path == "/apis/caloscale.dev/v1alpha1/namespaces/physics/trainingprogresses/gan-progress"
    progress = read_progress(body)
    assert progress is not None and progress.attempt == 3
    assert progress.model_copy(update={"attempt": None}) == read_progress_file(tmp_path / "progress.json")
    assert (progress.step, progress.epoch, progress.epochs, progress.checkpoint_step) == (61, 1.0, 100, 40)
    assert progress.losses == {"generator": 3.5} and progress.seconds_first_step == 12.5
    assert progress.step_seconds is not None and progress.eta is not None and progress.updated is not None
    left = (progress.eta - progress.updated).total_seconds()
    assert left == pytest.approx((6100 - 61) * progress.step_seconds, abs=0.51)


def test_a_server_that_is_away_is_asked_again(tmp_path: Path, server: ApiServer) -> None:
    written(tmp_path / "progress.json")
    reporter = ProgressReporter(tmp_path / "progress.json", GIVEN)
    server.answers.insert(0, (503, {}))
    assert not reporter.report()
    assert reporter.report()


def test_the_last_word_is_said_at_the_end(tmp_path: Path, server: ApiServer) -> None:
    with ProgressReporter(tmp_path / "progress.json", GIVEN):
        written(tmp_path / "progress.json", step=6100)
    ((*_, body),) = server.asked
    assert body["progress"]["step"] == 6100


def test_other_workers_say_nothing(tmp_path: Path, server: ApiServer) -> None:
    config = json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}})
    written(tmp_path / "progress.json")
    with ProgressReporter(tmp_path / "progress.json", {**GIVEN, "TF_CONFIG": config}):
        pass
    assert server.asked == [] and worker_index({"TF_CONFIG": config}) == 1 and worker_index({}) == 0


@pytest.mark.parametrize("text", ["", "{", '{"step": "many"}', "[]"])
def test_a_damaged_file_is_no_progress(text: str, tmp_path: Path, server: ApiServer) -> None:
    (tmp_path / "progress.json").write_text(text)
    assert not ProgressReporter(tmp_path / "progress.json", GIVEN).report() and server.asked == []


def test_without_a_name_nothing_is_written(tmp_path: Path) -> None:
    file = ProgressFile(steps=10, steps_per_epoch=5, batch=4, environment={})
    file.step(1, now=True)
    assert list(tmp_path.iterdir()) == []
