"""A run of a Kubeflow pipeline: its folder, how it begins, and its report at exit."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from caloscale.cluster.names import GPU
from caloscale.errors import ConfigurationError, InvalidValueError
from caloscale.spec import EMPTY_FORM, SolverRun, build_solver_run, parse_any_run, parse_run, run_of_form
from caloscale.spec.configuration import parse_yaml
from caloscale.spec.values import BUCKETS, check_place
from caloscale.stages.planning import plan
from caloscale.stages.record import adopt_records
from caloscale.stages.reporting import Report, report_of_refusal
from caloscale.stages.showers import prepared_part, simulated_part
from caloscale.stages.solving import SolutionReport, refuse_another_problem, report_any
from caloscale.stages.workspace import open_workspace
from caloscale.storage.failure import failure_kept, read_failure
from caloscale.storage.objects import read_object

RUN_VARIABLE = "CALOSCALE_PIPELINE_RUN"
"""Environment variable with the id of the pipeline run; absent: no server runs the pipeline. No input of the steps: the
server would look for a step with this id in its cache."""
HERE = "."
"""Folder to continue: the workspace itself."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def run_id() -> str | None:
    """The id of the pipeline run; None: no server runs the pipeline."""
    return os.environ.get(RUN_VARIABLE) or None


def own_folder(workspace: str, beside: str) -> str:
    """The folder that belongs to this pipeline run alone: named after its id, in the workspace.

    beside: URI of an output of the calling step; with an empty workspace the folder is that of the run's artifacts,
    below the pipeline root. Raises ConfigurationError where that is not known.
    """
    run, root = run_id(), _root(workspace, beside)
    return root if run is None else f"{root}/{run}"


def run_folder(workspace: str, resume: str, beside: str) -> str:
    """The folder of the run: its own, or that of an earlier one to continue.

    resume: name of a folder in the workspace, or `HERE`; empty: none. Raises ConfigurationError.
    """
    if not resume:
        return own_folder(workspace, beside)
    if resume != HERE and not _NAME.fullmatch(resume):
        remedy = "give the id of the run to continue, or nothing for a new one"
        raise ConfigurationError("is no name of a folder in the workspace", field="resume", value=resume, remedy=remedy)
    root = _root(workspace, beside)
    return root if resume == HERE else f"{root}/{resume}"


def _root(workspace: str, beside: str) -> str:
    """The workspace, which holds the folders of runs."""
    run = run_id()
    if workspace:
        try:
            check_place(workspace)
            own_disk = run is not None and not workspace.startswith(("/", *BUCKETS))
            if own_disk or workspace != workspace.strip():
                problem = "would be a folder on each step's own disk" if own_disk else "begins or ends with a blank"
                raise InvalidValueError(problem, remedy="write gs://bucket/prefix, or the path of a volume, from /")
        except InvalidValueError as error:
            raise ConfigurationError(error.problem, field="workspace", value=workspace, remedy=error.remedy) from None
        return workspace.rstrip("/")
    root, found, _ = beside.partition(f"/{run}/")
    if run is None or not found:
        remedy = "write gs://bucket/prefix, s3://... or minio://..."
        raise ConfigurationError("is empty", field="workspace", remedy=remedy)
    return root


@contextmanager
def begun(step: str, workspace: str, resume: str, beside: str) -> Iterator[str]:
    """The folder of the run, for its first step; why that fails is kept in the run's own folder, for its report."""
    with failure_kept(step, own_folder(workspace, beside)):
        folder = run_folder(workspace, resume, beside)
        if resume not in ("", HERE) and _kept(folder) is None:
            remedy = "give the id of a run in the same workspace, or nothing for a new one"
            raise ConfigurationError("holds no run", file=folder, field="resume", value=resume, remedy=remedy)
        yield folder


@dataclass(frozen=True)
class Begun:
    """What the first step gives to the others."""

    folder: str
    """The folder of the run."""
    run: str
    """The resolved run configuration, JSON."""
    simulation: str
    """What the simulated showers depend on, JSON."""
    data: str
    """What the shards depend on, JSON."""
    reading: str
    """The id of the pipeline run where the showers are files, which may be others by now; empty: they are simulated."""
    gpu_resource: str
    """Resource that the pod of a training in its step requests; empty: none."""
    gpu_count: str
    """Its number, as text: the server takes nothing else for resources of a pod."""
    plan: str
    """The plan, Markdown."""


def begin(form: Mapping[str, Any], *, run: Mapping[str, Any], workspace: str, resume: str, beside: str) -> Begun:
    """Resolve the form of a run (`run_of_form`), plan it, and keep both in its folder. Raises what `plan` raises.

    An empty form continues the run that the folder holds as it is. A form that is refused changes nothing there.
    """
    with begun("plan", workspace, resume, beside) as folder:
        kept = None if run or any(form[name] != EMPTY_FORM[name] for name in form) else _kept(folder)
        configured = run_of_form(form, run) if kept is None else parse_run(kept)
        data, gpus = configured.data, configured.train.gpus
        return Begun(
            folder,
            configured.model_dump_json(by_alias=True),
            simulated_part(data).model_dump_json(by_alias=True),
            prepared_part(data).model_dump_json(by_alias=True),
            "" if data.source == "simulate" else run_id() or "",
            GPU if gpus else "",
            str(gpus or ""),
            plan(configured, folder),
        )


def solver_run(run: Mapping[str, Any], folder: str) -> SolverRun:
    """The solver run of an entry of a form; empty: that which the folder holds. Raises ConfigurationError."""
    kept = None if run else _kept(folder)
    return build_solver_run(run if kept is None else parse_yaml(kept))


def begin_solver(run: Mapping[str, Any], *, workspace: str, resume: str, beside: str) -> tuple[SolverRun, str]:
    """The solver run of an entry of a form, and its folder. Raises also what `refuse_another_problem` raises."""
    with begun("solve", workspace, resume, beside) as folder:
        configured = solver_run(run, folder)
        if run_id() is not None:  # on one's own machine the command has looked
            refuse_another_problem(configured, folder)
        return configured, folder


def _kept(folder: str) -> str | None:
    """The run configuration in the folder of a run."""
    content = read_object(f"{folder}/run.yaml")
    return None if content is None else content.decode()


def report_pipeline_run(
    workspace: str, resume: str, beside: str, *, failure: str | None = None
) -> Report | SolutionReport:
    """The report of a pipeline run, from its folder; of one that did not begin, the page of the refusal.

    failure: why the run failed, as far as the server knows.
    """
    own, folder = own_folder(workspace, beside), run_folder(workspace, resume, beside)
    refusal = read_failure(own) if own != folder else None
    configuration = None if refusal else _kept(folder)
    if configuration is None:
        return report_of_refusal(refusal or read_failure(own) or failure or "no step has begun", folder)
    if own != folder:
        with open_workspace(own, shared=True) as source, open_workspace(folder, shared=True) as target:
            adopt_records(source, target)
    return report_any(parse_any_run(configuration), folder, failure=failure)
