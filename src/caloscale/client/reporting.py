"""Worker 0 reports the training's progress file: into the run's TrainingProgress, and to Kubeflow Trainer."""

from __future__ import annotations

import datetime as dt
import http
import json
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import urllib3
from kubernetes.client.exceptions import ApiException
from pydantic import ValidationError
from urllib3.exceptions import HTTPError

from caloscale.cluster.names import PROGRESS_KIND
from caloscale.cluster.workload.pod_template import PROGRESS_VARIABLE
from caloscale.connection import Connection, connect
from caloscale.errors import ClusterError
from caloscale.status import RunProgress
from caloscale.training.strategy import worker_of

log = logging.getLogger(__name__)

EVERY_SECONDS = 10.0
"""Pause between two reports, s; the status shows them at most 15 s late."""
TRAINER_URL, TRAINER_CERTIFICATE, TRAINER_TOKEN = (
    f"KUBEFLOW_TRAINER_SERVER_{name}" for name in ("URL", "CA_CERT", "TOKEN")
)
"""Variables of a TrainJob's worker where Kubeflow Trainer takes reports (feature gate TrainJobStatus): address, file of
the certificate, file of the token."""
TRAINER_SECONDS = 10.0
"""Time-out of a report to Kubeflow Trainer, s."""


class ProgressReporter:
    """``with ProgressReporter(file)``: ``file`` holds fields of `RunProgress`, as the training writes them.

    Reports in a thread; a cluster that does not listen never ends a training.
    """

    def __init__(self, file: Path, environment: Mapping[str, str] | None = None) -> None:
        given = os.environ if environment is None else environment
        namespace, _, name = given.get(PROGRESS_VARIABLE, "").partition("/")
        self._file, self._namespace, self._name = file, namespace, name
        self._index = worker_index(given)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._reported: str | None = None
        self._connection: Connection | None = None
        self._trainer = {name: given.get(name, "") for name in (TRAINER_URL, TRAINER_CERTIFICATE, TRAINER_TOKEN)}

    def __enter__(self) -> ProgressReporter:
        if (self._name or self._trainer[TRAINER_URL]) and self._index == 0:
            self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5.0)
            self.report()

    def _run(self) -> None:
        while not self._stop.wait(EVERY_SECONDS):
            self.report()

    def report(self) -> bool:
        """Report the content of the file; False when there is nothing new, or no receiver."""
        progress = read_progress_file(self._file)
        if progress is None:
            return False
        text = progress.model_dump_json(by_alias=True)  # null: a field of the report before that is not in this one
        if text == self._reported:
            return False
        try:
            if self._name:
                if self._connection is None:
                    self._connection = connect()
                self._connection.merge(PROGRESS_KIND, self._namespace, self._name, {"progress": json.loads(text)})
            if self._trainer[TRAINER_URL]:
                self._report_to_trainer(trainer_status(progress))
        except (ApiException, HTTPError, OSError, ClusterError) as error:
            log.warning("progress was not reported: %s", error)
            return False
        self._reported = text
        return True

    def _report_to_trainer(self, status: dict[str, Any]) -> None:
        token = Path(self._trainer[TRAINER_TOKEN]).read_text(encoding="utf-8").strip()
        with urllib3.PoolManager(ca_certs=self._trainer[TRAINER_CERTIFICATE]) as pool:
            answer = pool.request(
                "POST",
                self._trainer[TRAINER_URL],
                json={"trainerStatus": status},
                headers={"Authorization": f"Bearer {token}"},
                timeout=TRAINER_SECONDS,
                retries=False,
            )
        if answer.status != http.HTTPStatus.OK:
            raise OSError(f"Kubeflow Trainer answered {answer.status}: {answer.data[:200].decode(errors='replace')}")


def trainer_status(progress: RunProgress) -> dict[str, Any]:
    """A TrainJob's status.trainerStatus (KEP-2779): percentage, time left in s, newest losses and speed as texts."""
    metrics = {**progress.losses, "showersPerSecond": progress.showers_per_second}
    updated = progress.updated or dt.datetime.now(dt.UTC)
    status: dict[str, Any] = {
        "lastUpdatedTime": updated.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "metrics": [{"name": name, "value": f"{value:.6g}"} for name, value in metrics.items() if value is not None],
    }
    if progress.steps > 0:
        status["progressPercentage"] = min(100 * progress.step // progress.steps, 100)
    if progress.eta is not None:
        status["estimatedRemainingSeconds"] = max(round((progress.eta - updated).total_seconds()), 0)
    return status


def read_progress_file(file: Path) -> RunProgress | None:
    """What the trainer wrote last, with the end that follows from it; None where there is nothing yet."""
    try:
        progress = RunProgress.model_validate_json(file.read_bytes())
        written = dt.datetime.fromtimestamp(file.stat().st_mtime, dt.UTC).replace(microsecond=0)
    except (OSError, ValidationError):
        return None
    left = max(progress.steps - progress.step, 0)
    eta = None if progress.step_seconds is None else written + dt.timedelta(seconds=round(left * progress.step_seconds))
    return progress.model_copy(update={"updated": written, "eta": eta})


def worker_index(environment: Mapping[str, str]) -> int:
    """Index of this worker, as TF_CONFIG says; 0 where there is one. Raises ConfigurationError as `worker_of`."""
    return worker_of(environment)[0] if environment.get("TF_CONFIG") else int(environment.get("TPU_WORKER_ID") or 0)
