"""Worker 0 reports the training's progress file into the run's TrainingProgress."""

import datetime as dt
import json
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from kubernetes.client.exceptions import ApiException
from pydantic import ValidationError
from urllib3.exceptions import HTTPError

from caloscale.cluster.names import PROGRESS_KIND
from caloscale.cluster.workload.pod_template import PROGRESS_VARIABLE
from caloscale.connection import Connection, connect, message_of
from caloscale.errors import ClusterError
from caloscale.status import RunProgress, attempt_of
from caloscale.training.strategy import worker_of

log = logging.getLogger(__name__)

EVERY_SECONDS = 10.0
"""Pause between two reports, s; the status shows them at most 15 s late."""


class ProgressReporter:
    """``with ProgressReporter(file)``: ``file`` holds fields of `RunProgress`, as the training writes them.

    Reports in a thread; a cluster that does not listen never ends a training.
    """

    def __init__(self, file: Path, environment: Mapping[str, str] | None = None) -> None:
        variables = os.environ if environment is None else environment
        namespace, _, name = variables.get(PROGRESS_VARIABLE, "").partition("/")
        self._file, self._namespace, self._name = file, namespace, name
        self._index, self._attempt = worker_index(variables), attempt_of(variables)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._reported: str | None = None
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        if self._name and self._index == 0:
            self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
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
        if progress is None or not self._name:
            return False
        progress = progress.model_copy(update={"attempt": self._attempt})
        text = progress.model_dump_json(by_alias=True)  # null: a field of the report before that is not in this one
        if text == self._reported:
            return False
        try:
            if self._connection is None:
                self._connection = connect()
            self._connection.merge(PROGRESS_KIND, self._namespace, self._name, {"progress": json.loads(text)})
        except (ApiException, HTTPError, OSError, ClusterError) as error:
            log.warning("progress was not reported: %s", message_of(error))
            return False
        self._reported = text
        return True


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
