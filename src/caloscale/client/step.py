"""Training as a step of a pipeline, done by a cluster: submit, follow, and clean up when the step is cancelled."""

import hashlib
import logging
import os
from pathlib import Path

from caloscale.client import runs
from caloscale.client.runs import RunOnCluster
from caloscale.client.usage import keep_use, kept_use
from caloscale.connection import Connection, active_namespace, connect
from caloscale.errors import ClusterError, StorageError, Terminated
from caloscale.showers.tfrecord.manifest import MANIFEST
from caloscale.spec import Run, parse_any_run
from caloscale.spec.workspace_layout import DATASET, TRAINED
from caloscale.storage.failure import failure_kept
from caloscale.storage.objects import download, read_object, upload
from caloscale.termination import ended_by_sigterm

log = logging.getLogger(__name__)

POD_VARIABLE = "KFP_POD_NAME"
"""Environment variable with the name of the pod of a Kubeflow Pipelines step."""


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
    shards: Path | None = None,
    connection: Connection | None = None,
    namespace: str | None = None,
) -> RunOnCluster:
    """Train as a TrainingRun of this cluster, and put the trained networks into the folder ``model``.

    ``step``: id of the pipeline run; again with the same id follows the run that is there. One that has failed, but not
    by its budget, is made again and resumes from the checkpoints in the workspace. ``workspace`` must be a folder that
    the workers see. So must be ``dataset``, unless ``shards`` is a folder of this machine with the same shards: when
    ``dataset`` is not in a bucket as the workspace is, they are put into the workspace. A step of Kubeflow Pipelines
    does not delete the run when it is cancelled: its container has less than a second, and the operator suspends the
    run, after a checkpoint, when the pod of the step has ended. Elsewhere SIGTERM and Ctrl-C delete the run, after a
    checkpoint. What was used goes into the workspace, for the bill.
    Raises ClusterError when the run fails.
    """
    with failure_kept("train", workspace):
        connected = connect() if connection is None else connection
        where = namespace or active_namespace()
        name = run_name(run, step)
        if shards is not None and dataset.partition(":")[0] != workspace.partition(":")[0]:
            dataset = share_shards(shards, f"{workspace.rstrip('/')}/{DATASET}")
        cluster = run.cluster.model_copy(update={"workspace": workspace, "dataset": dataset})
        configured = run.model_copy(update={"cluster": cluster})
        pod = os.environ.get(POD_VARIABLE)
        _remove_failed(connected, where, name, configured, workspace)
        runs.submit(connected, runs.manifest_of(configured, name, where, client_pod=pod))
        last: RunOnCluster | None = None
        with ended_by_sigterm():
            try:
                for last in runs.follow(connected, where, name):
                    log.info("%s", runs.describe(last))
            except (KeyboardInterrupt, Terminated):
                if pod is None:
                    runs.delete(connected, where, name)  # first: a workspace that refuses must not leave nodes in use
                    if last is not None:
                        _keep_use(last, configured, workspace)
                raise
        if last is None:
            raise ClusterError(f"{name} was never seen", remedy=f"see caloscale status {name} -n {where}")
        _keep_others(connected, where, configured, workspace)  # one may have held its nodes when this one was made
        _keep_use(last, configured, workspace)
        if last.status.phase != "Succeeded":
            raise ClusterError(f"{name} failed: {last.status.message}", remedy=f"see caloscale logs {name} -n {where}")
        source = f"{workspace.rstrip('/')}/{TRAINED}"
        if not download(source, model):
            remedy = "give a workspace that the workers see, too"
            raise StorageError("holds no trained networks", file=source, remedy=remedy)
        return last


def record_use(
    *, step: str, workspace: str, connection: Connection | None = None, namespace: str | None = None
) -> None:
    """Write what the TrainingRun of a pipeline run used so far into the workspace, for the bill.

    The step that followed the run cannot do it when the pipeline run was terminated. A workspace without a run, or with
    one that trains in its step, and a run that was never made leave nothing; a cluster that does not answer is logged,
    as the report is made without it.
    """
    text = read_object(f"{workspace.rstrip('/')}/run.yaml")
    run = None if text is None else parse_any_run(text.decode())
    if not isinstance(run, Run) or run.hardware is None:
        return
    try:
        connected = connect() if connection is None else connection
        where = namespace or active_namespace()
        _keep_use(runs.find_run(connected, where, run_name(run, step)), run, workspace)
    except ClusterError as error:
        log.warning("the bill does not know what the TrainingRun used: %s", error)


def failure_of(state: str, message: str | None) -> str | None:
    """Why a pipeline run failed, from the final state that Kubeflow Pipelines gives its exit handler; None: it did not.

    The state is COMPLETE (SUCCEEDED in some versions), FAILED, or, after *Terminate*, RUNNING. After *Retry* it stays
    what it was before: see `stages.record.ended_well`.
    """
    if state in ("COMPLETE", "SUCCEEDED"):
        return None
    return message or ("a step failed" if state == "FAILED" else f"the pipeline run was terminated (state {state})")


def metrics_of(run: RunOnCluster) -> dict[str, float]:
    """What a finished run shows on a metrics page; where it has no dollars, the log has the reason."""
    progress, cost = run.status.progress, run.status.cost
    figures = {"attempts": float(sum(attempt.count for attempt in run.status.attempts))}
    if progress is not None:
        figures |= {"steps": float(progress.step), "epochs": progress.epoch}
    if progress is not None and progress.showers_per_second is not None:
        figures["showersPerSecond"] = progress.showers_per_second
    if cost is not None and cost.usd is not None:
        figures["usd"] = cost.usd
    elif (priced := run.status.condition("Priced")) is not None:
        log.warning("the US dollars of the training are not known: %s", priced.message)
    return figures


def share_shards(shards: Path, target: str) -> str:
    """Put shards where the workers find them, unless they are there; the manifest goes last."""
    manifest = (shards / MANIFEST).read_bytes()
    if read_object(f"{target}/{MANIFEST}") != manifest:
        upload(shards, target)
    return target


def _remove_failed(connection: Connection, namespace: str, name: str, configured: Run, workspace: str) -> None:
    """Delete the run of an earlier try that has failed, as a submission would not change it.

    One that has reached a limit of its budget stays as it is: another one would use as much again. What deleted runs
    used is in the bill of the next one, once, wherever the step ends before the submission; so is what runs used that
    this one continues, also of a pipeline run that was terminated before it could note it.
    """
    run = runs.look(connection, namespace, name)
    failed = run.status.condition("Failed") if run is not None and run.status.phase == "Failed" else None
    if run is not None and failed is not None and failed.reason not in ("Budget", "Deadline"):
        log.info("%s failed before and is made again: %s", name, run.status.message)
        _keep_use(run, configured, workspace)
        runs.delete(connection, namespace, name)
    elif run is None:
        kept_use(workspace)  # what is damaged ends the step now, not after the training
        _keep_others(connection, namespace, configured, workspace)


def _keep_others(connection: Connection, namespace: str, configured: Run, workspace: str) -> None:
    """Note what the runs with a workspace used so far."""
    try:
        others = runs.list_runs(connection, namespace)
    except ClusterError as error:
        log.warning("the bill does not know what runs used that this one may continue: %s", error)
        return
    for other in others:
        if (other.spec.get("cluster") or {}).get("workspace") == workspace:
            _keep_use(other, configured, workspace)


def _keep_use(run: RunOnCluster, configured: Run, workspace: str) -> None:
    for problem in keep_use(run, configured, workspace):
        log.info("%s", problem)
