"""Worker 0's reports, against an API server of a few lines that really listens."""

from __future__ import annotations

import datetime as dt
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from caloscale.client.reporting import ProgressReporter, read_progress_file, trainer_status, worker_index
from caloscale.operator.store import read_progress
from caloscale.status import PROGRESS_FILE_VARIABLE, RunProgress
from caloscale.training.progress_file import ProgressFile
from tools.cluster.certificates import Authority
from tools.cluster.programs import MODULE, folder

GIVEN = {"CALOSCALE_PROGRESS": "physics/gan-progress"}


class Server:
    """Takes PATCH requests; refuses as many as a test asks for."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.refuse = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_PATCH(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                code = 503 if outer.refuse > 0 else 200
                outer.refuse -= 1
                if code == 200:
                    outer.seen.append((self.path, body))
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps({"kind": "TrainingProgress", "metadata": {"name": "p"}}).encode())

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    made = Server()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{made.http.server_port}"}}],
        "users": [{"name": "me", "user": {}}],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "kubeconfig"))
    yield made
    made.http.shutdown()
    made.http.server_close()


def written(path: Path, step: int = 61) -> None:
    file = ProgressFile(steps=6100, steps_per_epoch=61, batch=2048, environment={PROGRESS_FILE_VARIABLE: str(path)})
    file.begin(1, 12.5)
    file.saved(40)
    file.losses({"generator": 3.5})
    file.step(step, now=True)


TRAINER_CRD = next(folder(MODULE / "trainer").glob("manifests/trainer.yaml"), None)


class Trainer:
    """Kubeflow Trainer's server of reports: HTTPS with a certificate of its own, a bearer token."""

    def __init__(self, directory: Path) -> None:
        authority = Authority(directory, "trainer-ca")
        pair = authority.issue("tls", "localhost", hosts=["localhost"])
        self.seen: list[tuple[str, str, dict[str, Any]]] = []
        self.code = 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.seen.append((self.path, self.headers["Authorization"], body))
                self.send_response(outer.code)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        (directory / "token").write_text("secret\n")
        self.variables = {
            "KUBEFLOW_TRAINER_SERVER_URL": f"https://localhost:{self.http.server_port}/apis/trainjobs/gan-1/status",
            "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(authority.certificate),
            "KUBEFLOW_TRAINER_SERVER_TOKEN": str(directory / "token"),
        }


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    (tmp_path / "trainer").mkdir()
    made = Trainer(tmp_path / "trainer")
    yield made
    made.http.shutdown()
    made.http.server_close()


def test_a_worker_of_a_train_job_reports_to_kubeflow_trainer(tmp_path: Path, trainer: Trainer) -> None:
    """Without a TrainingRun, as in a TrainJob that somebody submits."""
    written(tmp_path / "progress.json")
    reporter = ProgressReporter(tmp_path / "progress.json", trainer.variables)
    assert reporter.report() and not reporter.report()
    ((path, token, body),) = trainer.seen
    assert (path, token) == ("/apis/trainjobs/gan-1/status", "Bearer secret")
    status = body["trainerStatus"]
    assert status["progressPercentage"] == 1 and {"name": "generator", "value": "3.5"} in status["metrics"]


def test_a_trainer_that_refuses_is_a_warning_and_the_run_is_reported(
    tmp_path: Path, trainer: Trainer, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path / "progress.json")
    reporter = ProgressReporter(tmp_path / "progress.json", {**GIVEN, **trainer.variables})
    trainer.code = 403
    assert not reporter.report() and len(server.seen) == 1
    assert "Kubeflow Trainer answered 403" in caplog.text
    trainer.code = 200
    assert reporter.report()


def test_the_report_is_what_the_definition_of_train_jobs_takes() -> None:
    if TRAINER_CRD is None:
        pytest.skip("no Kubeflow Trainer: python -m tools.cluster build --trainer")
    definitions = [each for each in yaml.safe_load_all(TRAINER_CRD.read_text()) if each]
    (crd,) = [each for each in definitions if each["metadata"]["name"] == "trainjobs.trainer.kubeflow.org"]
    (version,) = crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["trainerStatus"]
    updated = dt.datetime(2026, 11, 23, 9, 0, tzinfo=dt.UTC)
    progress = RunProgress(
        step=5, steps=10, losses={"generator": 1 / 3}, updated=updated, eta=updated + dt.timedelta(hours=2)
    )
    status = trainer_status(progress)
    strict = {**schema, "additionalProperties": False}
    jsonschema.validate(status, strict)
    assert status["progressPercentage"] == 50 and status["estimatedRemainingSeconds"] == 7200
    jsonschema.validate(trainer_status(RunProgress()), strict)


def test_what_the_trainer_writes_is_what_the_operator_reads(tmp_path: Path, server: Server) -> None:
    written(tmp_path / "progress.json")
    reporter = ProgressReporter(tmp_path / "progress.json", GIVEN)
    assert reporter.report() and not reporter.report()  # the second time there is nothing new
    ((path, body),) = server.seen
    assert path == "/apis/caloscale.dev/v1alpha1/namespaces/physics/trainingprogresses/gan-progress"
    progress = read_progress(body)
    assert progress is not None and progress == read_progress_file(tmp_path / "progress.json")
    assert (progress.step, progress.epoch, progress.epochs, progress.checkpoint_step) == (61, 1.0, 100, 40)
    assert progress.losses == {"generator": 3.5} and progress.seconds_first_step == 12.5
    assert progress.step_seconds is not None and progress.eta is not None and progress.updated is not None
    left = (progress.eta - progress.updated).total_seconds()
    assert left == pytest.approx((6100 - 61) * progress.step_seconds, abs=0.51)


def test_a_server_that_is_away_is_asked_again(tmp_path: Path, server: Server) -> None:
    written(tmp_path / "progress.json")
    reporter = ProgressReporter(tmp_path / "progress.json", GIVEN)
    server.refuse = 1
    assert not reporter.report()
    assert reporter.report()


def test_the_last_word_is_said_at_the_end(tmp_path: Path, server: Server) -> None:
    with ProgressReporter(tmp_path / "progress.json", GIVEN):
        written(tmp_path / "progress.json", step=6100)
    ((_, body),) = server.seen
    assert body["progress"]["step"] == 6100


def test_other_workers_say_nothing(tmp_path: Path, server: Server) -> None:
    config = json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}})
    written(tmp_path / "progress.json")
    with ProgressReporter(tmp_path / "progress.json", {**GIVEN, "TF_CONFIG": config}):
        pass
    assert server.seen == [] and worker_index({"TF_CONFIG": config}) == 1 and worker_index({}) == 0


@pytest.mark.parametrize("text", ["", "{", '{"step": "many"}', "[]"])
def test_a_damaged_file_is_no_progress(text: str, tmp_path: Path, server: Server) -> None:
    (tmp_path / "progress.json").write_text(text)
    assert not ProgressReporter(tmp_path / "progress.json", GIVEN).report() and server.seen == []


def test_without_a_name_nothing_is_written(tmp_path: Path) -> None:
    file = ProgressFile(steps=10, steps_per_epoch=5, batch=4, environment={})
    file.step(1, now=True)
    assert list(tmp_path.iterdir()) == []
