"""Training as a step of a pipeline, done by a cluster: submit, follow, and clean up when the step is cancelled."""

from __future__ import annotations

import datetime as dt
import hashlib
import logging
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from caloscale.client.runs import RunOnCluster, delete, describe, follow, manifest_of, submit
from caloscale.cluster.accounting import use_of
from caloscale.connection import Connection, active_namespace, connect
from caloscale.errors import ClusterError, StorageError, Terminated
from caloscale.showers.storage import atomic_writer, download, is_remote, upload
from caloscale.spec import Run

log = logging.getLogger(__name__)

USAGE_FILE = "usage.json"
MODEL_FOLDER = "training/model"


def run_name(run: Run, step: str) -> str:
    """Name of the run of a pipeline's step: the same for each retry, another for each pipeline run."""
    return f"{run.model.preset}-{hashlib.sha256(step.encode()).hexdigest()[:12]}"


def train_on_cluster(
    run: Run,
    *,
    step: str,
    workspace: str,
    dataset: str,
    model: Path,
    connection: Connection | None = None,
    namespace: str | None = None,
) -> RunOnCluster:
    """Train as a TrainingRun of this cluster, and put the trained networks into the folder ``model``.

    ``step``: id of the pipeline run; again with the same id follows the run that is there. ``workspace`` and
    ``dataset`` must be places that the workers see. When the step is cancelled (SIGTERM, Ctrl-C) the run is deleted,
    after a checkpoint. What was used goes into the workspace, for the bill. Raises ClusterError when the run fails.
    """
    connected = connect() if connection is None else connection
    where = namespace or own_namespace()
    name = run_name(run, step)
    cluster = run.cluster.model_copy(update={"workspace": workspace, "dataset": dataset})
    submit(connected, manifest_of(run.model_copy(update={"cluster": cluster}), name, where))
    last: RunOnCluster | None = None
    with _cancelled_by_sigterm():
        try:
            for last in follow(connected, where, name):
                log.info("%s", describe(last))
        except (KeyboardInterrupt, Terminated):
            delete(connected, where, name)
            raise
    if last is None:
        raise ClusterError(f"{name} was never seen\n  remedy: see caloscale status {name} -n {where}")
    _keep_use(last, workspace)
    if last.status.phase != "Succeeded":
        raise ClusterError(f"{name} failed: {last.status.message}\n  remedy: see caloscale logs {name} -n {where}")
    source = f"{workspace.rstrip('/')}/{MODEL_FOLDER}"
    if is_remote(source):
        download(source, model)
    elif Path(source).is_dir():
        shutil.copytree(source, model, dirs_exist_ok=True)
    else:
        raise StorageError(
            "holds no trained networks", file=source, remedy="give a workspace that the workers see, too"
        )
    return last


def own_namespace() -> str:
    """The namespace of this pod, or of the kubeconfig's context."""
    file = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
    return file.read_text(encoding="utf-8").strip() if file.is_file() else active_namespace()


def _keep_use(run: RunOnCluster, workspace: str) -> None:
    """What the run used, where the cost report looks for it."""
    use = use_of(run.name, run.status, dt.datetime.now(dt.UTC))
    if use is None:
        return
    text = use.model_dump_json(by_alias=True, indent=2) + "\n"
    if not is_remote(workspace):
        with atomic_writer(Path(workspace) / USAGE_FILE) as temporary:
            temporary.write_text(text, encoding="utf-8")
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / USAGE_FILE
        file.write_text(text, encoding="utf-8")
        upload(file, f"{workspace.rstrip('/')}/{USAGE_FILE}")


@contextmanager
def _cancelled_by_sigterm() -> Iterator[None]:
    """SIGTERM as an exception, so that what was submitted can be taken back; only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
