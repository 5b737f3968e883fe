"""Runs on a cluster: made, looked at, followed, stopped, and the logs of their workers."""

import json
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

from kubernetes.client.exceptions import ApiException
from pydantic import ValidationError
from urllib3.exceptions import HTTPError

from caloscale.cluster import names
from caloscale.cluster.workload.backends import require_lasting_places, require_shared_folder
from caloscale.connection import (
    CONFLICT,
    FORBIDDEN,
    GONE,
    INVALID,
    TOO_MANY,
    Connection,
    is_passing,
    is_unknown,
    message_of,
    status_of,
)
from caloscale.errors import ClusterError, ConfigurationError, InputError
from caloscale.spec import AnyRun, SolverRun, build_any_run
from caloscale.status import FINISHED, MENDABLE, WRITTEN, RunStatus

MANAGER = "caloscale-submit"
"""Owner of the fields of the run configuration: not the operator."""
NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
POLL_SECONDS = 2.0
"""Pause before a server that does not answer, or lets nobody watch, is asked again, s."""
WATCH_SECONDS = 300.0
"""Length of a watch, s."""
NEVER_STORED = "1"
"""A resource version that no run has: the server makes a run that is applied with it, or refuses where there is one."""
SET_ONCE = "cannot be changed"
"""What the server says of a field, or of a block of them, that is set once."""
UNSEEN = "no operator has seen it; if that lasts, none runs, or this namespace is not in its CALOSCALE_NAMESPACES"
_REMEDIES = {
    0: "see whether the server of the context is the API server, and what stands before it (kubectl cluster-info)",
    401: "log in to the cluster again, or name another --context",
    FORBIDDEN: "ask for the right (kubectl auth can-i --list), or name another --namespace",
    **dict.fromkeys((GONE, TOO_MANY, 500, 502, 503, 504), "try again; kubectl get --raw=/readyz shows its state"),
}
_Answer = TypeVar("_Answer")


class RunOnCluster(NamedTuple):
    """A run as the cluster has it."""

    name: str
    namespace: str
    spec: dict[str, Any]
    status: RunStatus
    created: str
    uid: str = ""
    version: str = ""
    """Resource version: that of the last change, also of its status."""


def manifest_of(run: AnyRun, name: str, namespace: str | None, client_pod: str | None = None) -> dict[str, Any]:
    """The TrainingRun of a run configuration, every field resolved; namespace: None where kubectl is to choose it.

    Raises ConfigurationError for a name that is not valid for pods, and for what a cluster needs besides.

    ``client_pod``: the pod of its client, as that one's heartbeat; a minute after its end the run stops.
    """
    if not NAME.fullmatch(name):
        remedy = "at most 40 small letters, digits and '-', a letter first"
        raise ConfigurationError("is not a name for a run on a cluster", field="--name", value=name, remedy=remedy)
    if run.hardware is None:
        remedy = "--set hardware={} lets the planner choose"
        raise ConfigurationError("is needed on a cluster", field="hardware", remedy=remedy)
    if isinstance(run, SolverRun):
        require_shared_folder(run)
    require_lasting_places(run)
    metadata: dict[str, Any] = {"name": name} | ({"namespace": namespace} if namespace else {})
    if client_pod:
        metadata["annotations"] = {names.CLIENT_HEARTBEAT: client_pod}
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": _spec_of(run)}


def _spec_of(run: AnyRun) -> dict[str, Any]:
    return run.model_dump(mode="json", by_alias=True, exclude_none=True)


def submit(connection: Connection, manifest: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
    """Make or change the run (``dry_run``: let the server check it); returns it as it is then. Raises ClusterError."""
    return ask(lambda: connection.apply(manifest, manager=MANAGER, dry_run=dry_run), "the run cannot be submitted")


def submit_checked(connection: Connection, manifest: dict[str, Any], checked: RunOnCluster | None) -> None:
    """Submit a run that `check` has let pass, where the cluster still has what that found.

    Raises ClusterError, and InputError when another one has made, changed or deleted the run since.
    """
    while True:
        version = NEVER_STORED if checked is None else checked.version
        try:
            submit(connection, {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": version}})
            return
        except ClusterError as error:
            if getattr(error.__cause__, "status", None) != CONFLICT:
                raise
            namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
            now = look(connection, namespace, name)
            if now is not None and checked is not None and (now.uid, now.spec) == (checked.uid, checked.spec):
                checked = now  # only its status has changed
                continue
            done = "made" if checked is None else "deleted" if now is None else "changed"
            problem = f"was {done} in namespace {namespace} by another submission or command meanwhile"
            remedy = "submit it again to see what that changes"
            raise InputError(problem, field="--name", value=name, remedy=remedy) from error


def check(connection: Connection, manifest: dict[str, Any]) -> tuple[RunOnCluster | None, list[str]]:
    """Let the server check a run; returns that of the same name, where there is one, and what of it would change.

    Raises ClusterError, and InputError when that run has finished and this run configuration does not resume it:
    submitting it would change nothing, and its old end would be taken for the new one.
    """
    run = look(connection, manifest["metadata"]["namespace"], manifest["metadata"]["name"])
    finished = run is not None and run.status.phase in FINISHED
    changes: list[str] = []
    if run is None or not finished or _is_mendable(run):
        try:
            checked = submit(connection, manifest, dry_run=True)
        except ClusterError as error:
            if run is not None and SET_ONCE in error.problem:
                error.problem = f"{error.problem}; {_difference(run, manifest['spec'], error.problem)}"
            raise
        changes = list(_changes(run.spec, checked["spec"])) if run is not None else []
    if run is not None and finished and not changes:
        problem = f"is there already in namespace {run.namespace} and has {run.status.phase.lower()}"
        raise InputError(problem, field="--name", value=run.name, remedy=_after_the_end(run))
    return run, changes


def _difference(run: RunOnCluster, spec: dict[str, Any], refused: str) -> str:
    """In which fields a run that is there differs from a run configuration that is ``refused``, its preset resolved."""
    try:
        there = _spec_of(build_any_run(run.spec))
    except ConfigurationError:  # of another version of caloscale
        there = run.spec
    if changes := ", ".join(_changes(there, spec)):
        return f"it differs from {run.name}, which is there already, in {changes}"
    unset = [change.partition(":")[0] for change in _changes(run.spec, spec)]
    unset = [field for field in unset if f"{field.partition('.')[0]} {SET_ONCE}" in refused]
    return (
        f"{run.name} is there already with the same values, but does not state all of them ({', '.join(unset)}): "
        "change it as it was made, with kubectl"
    )


def _changes(before: Any, after: Any, field: str = "") -> Iterator[str]:
    """What differs between two run configurations, such as budget.maxUsd: 50 -> none."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            yield from _changes(before.get(key), after.get(key), f"{field}.{key}".removeprefix("."))
    elif before != after:
        values = ("none" if value is None else json.dumps(value) for value in (before, after))
        yield f"{field}: {' -> '.join(values)}"


def find_run(connection: Connection, namespace: str, name: str) -> RunOnCluster:
    """A run; raises ClusterError when there is none, as under a text that would be another address on the server."""
    run = look(connection, namespace, name) if NAME.fullmatch(name) else None
    if run is None:
        there = ", ".join(other.name for other in list_runs(connection, namespace)) or "none"
        raise ClusterError(f"no run {name} in namespace {namespace}", remedy=f"one of: {there}; or another --namespace")
    return run


def list_runs(connection: Connection, namespace: str | None) -> list[RunOnCluster]:
    """All runs of a namespace, or of the cluster; the newest last. Raises ClusterError."""
    objects = ask(lambda: list(connection.each(names.KIND, namespace)), "runs cannot be listed")
    return sorted((_run_of(raw) for raw in objects), key=lambda run: run.created)


def follow(connection: Connection, namespace: str, name: str) -> Iterator[RunOnCluster]:
    """The run each time that its status has changed, until it has finished. An API server may fail to answer meanwhile.

    Raises ClusterError when the run is gone, or may not be read (any more).
    """
    before = None
    while True:
        try:
            raw = connection.get(names.KIND, namespace, name)
        except (ApiException, HTTPError, OSError) as error:
            if isinstance(error, ApiException) and is_final(error):
                raise refused(error, f"{name} cannot be followed") from error
            time.sleep(POLL_SECONDS)
            continue
        if raw is None:
            remedy = "submit it again; it resumes from the checkpoint in its bucket"
            raise ClusterError(f"run {name} is gone from namespace {namespace}: it was deleted", remedy=remedy)
        run = _run_of(raw)
        ended = run.status.phase in FINISHED
        if ended and run.status.observed_generation < raw["metadata"].get("generation", 0):
            _await_change(connection, namespace, raw)  # the run configuration was changed since; the end may be none
            continue
        if run.status != before:
            before = run.status
            yield run
        if ended:
            return
        _await_change(connection, namespace, raw)


def _await_change(connection: Connection, namespace: str, raw: dict[str, Any]) -> None:
    """Until the server reports that a run has changed; where it cannot be watched, a while."""
    metadata = raw["metadata"]
    try:
        version = int(metadata["resourceVersion"])
        chosen = f"metadata.name={metadata['name']}"
        for event in connection.watch(names.KIND, namespace, version, fields=chosen, seconds=WATCH_SECONDS):
            if event["type"] != "BOOKMARK":
                return
    except (ApiException, HTTPError, OSError):
        time.sleep(POLL_SECONDS)  # `follow` asks for it, and says what is refused


def suspend(connection: Connection, namespace: str, name: str, *, on: bool = True) -> bool:
    """Stop a run after a checkpoint, or resume it, also without the pod of its client.

    Returns whether it was stopped before. Raises ClusterError, and InputError when it has finished.
    """
    run = find_run(connection, namespace, name)
    if run.status.phase in FINISHED:
        what = "be stopped" if on else "be resumed"
        raise InputError(f"{name} has {run.status.phase.lower()} and cannot {what}", remedy=_after_the_end(run))
    _change(connection, run, on)
    return run.status.phase in ("Suspending", "Suspended") or _is_suspended(run)


def _is_suspended(run: RunOnCluster) -> bool:
    return bool((run.spec.get("cluster") or {}).get("suspend"))


def _change(connection: Connection, run: RunOnCluster, suspend: bool, *, dry_run: bool = False) -> None:
    change: dict[str, Any] = {"spec": {"cluster": {"suspend": suspend}}}
    if not suspend:
        change["metadata"] = {"annotations": {names.CLIENT_HEARTBEAT: None}}
    try:
        merge = partial(connection.merge, names.KIND, run.namespace, run.name, change, dry_run=dry_run)
        ask(merge, "the run cannot be changed")
    except ClusterError as error:
        if getattr(error.__cause__, "status", None) == INVALID:  # by a rule that is newer than the run
            delete = f"caloscale stop {run.name} -n {run.namespace} --delete"
            error.remedy = f"delete it ({delete}), and submit one that keeps this rule"
        raise


def with_refusal(connection: Connection, run: RunOnCluster) -> RunOnCluster:
    """The run; where the server would refuse to stop or change it by a rule that is newer, its message says so.

    The server is asked only where the rules of this package refuse the run, too.
    """
    if run.status.phase in FINISHED and not _is_mendable(run):
        return run
    try:
        manifest_of(build_any_run(run.spec), run.name, run.namespace)
    except ConfigurationError:
        try:
            _change(connection, run, not _is_suspended(run), dry_run=True)
        except ClusterError as error:
            if getattr(error.__cause__, "status", None) == INVALID:
                message = "; ".join(filter(None, (run.status.message, error.sentence)))
                return run._replace(status=run.status.model_copy(update={"message": message}))
    return run


def delete(connection: Connection, namespace: str, name: str) -> None:
    """Delete a run with everything that it made on the cluster; its workers save a checkpoint. Raises ClusterError."""
    ask(lambda: connection.delete(names.KIND, namespace, name), "the run cannot be deleted")


def describe(run: RunOnCluster) -> str:
    """A line that says how a run is."""
    status, progress, cost = run.status, run.status.progress, run.status.cost
    parts = [f"{run.name}: {status.phase}"]
    if status.layout:
        parts.append(status.layout)
    if progress is not None and progress.steps:
        parts.append(f"step {progress.step}/{progress.steps}, epoch {progress.epoch:.1f}/{progress.epochs}")
    if progress is not None and progress.showers_per_second:
        parts.append(f"{progress.showers_per_second:.0f} showers/s")
    if cost is not None and cost.usd is not None:
        parts.append(f"{cost.usd:.2f} USD")
    elif cost is not None:
        hours = cost.accelerator_hours
        parts.append(f"{hours:.2f} accelerator hours" if hours else f"{cost.node_hours:.2f} node hours")
    return ", ".join(parts) + (f" ({status.message})" if status.message else "")


def _run_of(raw: dict[str, Any]) -> RunOnCluster:
    metadata = raw["metadata"]
    try:
        status = RunStatus.model_validate(raw.get("status") or {"message": UNSEEN})
    except ValidationError as error:
        problem = f"the status of run {metadata['name']} cannot be read: {error.errors()[0]['msg']}"
        field = ".".join(["status", *map(str, error.errors()[0]["loc"])])
        raise ClusterError(problem, field=field, remedy="use the version of caloscale that its operator has") from error
    if (refusal := status.condition(WRITTEN)) is not None:  # the status is older than it says
        status = status.model_copy(update={"message": "; ".join(filter(None, (status.message, refusal.message)))})
    namespace, created = metadata.get("namespace", ""), metadata.get("creationTimestamp", "")
    ids = metadata.get("uid", ""), metadata.get("resourceVersion", "")
    return RunOnCluster(metadata["name"], namespace, raw.get("spec") or {}, status, created, *ids)


def _is_mendable(run: RunOnCluster) -> bool:
    failed = run.status.condition("Failed")
    return run.status.phase == "Failed" and failed is not None and failed.reason in MENDABLE


def _after_the_end(run: RunOnCluster) -> str:
    """What can be done with a run that has finished."""
    delete = f"caloscale stop {run.name} -n {run.namespace} --delete"
    anew = f"submit under another --name, or delete this run first ({delete})"
    if _is_mendable(run):
        return f"change the field that it failed for and submit it as {run.name} again: it resumes; or {anew}"
    return anew


def look(connection: Connection, namespace: str, name: str) -> RunOnCluster | None:
    """A run; None: there is none. Raises ClusterError."""
    raw = ask(lambda: connection.get(names.KIND, namespace, name), "the run cannot be read")
    return None if raw is None else _run_of(raw)


def ask(question: Callable[[], _Answer], problem: str) -> _Answer:
    """The answer of a cluster. Raises ClusterError with the problem and why it is one."""
    try:
        return question()
    except ApiException as error:
        raise refused(error, problem) from error
    except (OSError, HTTPError) as error:
        raise ClusterError(f"{problem}: {error}", remedy="see whether the cluster is reachable") from error


def is_final(error: BaseException | None) -> bool:
    """Whether another try is useless: the cluster has answered, and not that it cannot answer just now."""
    return not (is_passing(error) if isinstance(error, ApiException) else isinstance(error, (OSError, HTTPError)))


def refused(error: ApiException, problem: str) -> ClusterError:
    """What a cluster answers instead of what was asked for."""
    if is_unknown(error):
        remedy = "install the operator: make deploy CONTEXT=... OVERLAY=..."
        return ClusterError("the cluster does not know TrainingRun", remedy=remedy)
    known = _REMEDIES.get(error.status if status_of(error) else 0)
    return ClusterError(f"{problem}: {message_of(error)}", remedy=known)
