"""The measure `elastic`: a training of several workers on this machine loses one and resumes with as many or fewer.

All workers start anew from the newest checkpoint, as a TFJob's do: a TensorFlow collective does not survive the loss
of a member.
"""

import json
import math
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
from pydantic import Field

from caloscale.errors import ConfigurationError, TrainingError
from caloscale.spec import Run
from caloscale.spec.block import Block
from caloscale.spec.workspace_layout import CHECKPOINTS
from caloscale.stages.workspace import read_validations
from caloscale.studies.points import own_inputs
from caloscale.studies.whole_run import finish, quality, run_of, start_run
from caloscale.training.checkpoint.metadata import read_marker

POLL_SECONDS = 0.05


class ElasticInputs(Block):
    """When a worker is lost."""

    lost_at: int | None = Field(None, ge=1)
    """The step after which the last worker is lost; null: never."""
    workers_after: int | None = Field(None, ge=1)
    """Workers that make the rest; absent: as many as before."""


def train_elastic(inputs: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A whole run whose last worker is ended by SIGKILL; the same command, with ``workersAfter``, makes the rest.

    inputs: `ElasticInputs`, and fields of the run configuration, train.workersPerNode among them. Result:
    ``lostAtStep``, ``stepsLost``, ``pauseSeconds`` from the kill to the next new step, ``seconds`` of all,
    ``restarts``, ``steps``, ``workers`` at the end, ``showersPerSecond`` of the last attempt, ``lowestDeviation``.
    Raises ConfigurationError, TrainingError.
    """
    asked, fields = own_inputs(ElasticInputs, inputs)
    run = run_of(fields)
    before, lost_at = run.train.workers_per_node, asked.lost_at
    after = asked.workers_after or before
    if before < 2:
        remedy = "write 2 or more"
        raise ConfigurationError("has no other worker", field="train.workersPerNode", value=before, remedy=remedy)
    shutil.rmtree(folder, ignore_errors=True)  # a measurement that was interrupted says nothing
    clock, killed, log = time.perf_counter(), None, folder.with_suffix(".log")
    if lost_at is not None:
        code, killed = _run(run, folder, lost_at, _kill_last_worker)
        if killed is None:
            problem = f"the run ended with exit code {code} before step {lost_at}"
            raise TrainingError(problem, remedy=f"read {log}, or write a smaller lostAt")
        run = run.model_copy(update={"train": run.train.model_copy(update={"workers_per_node": after})})
    code, made = _run(run, folder, math.inf if killed is None else killed[0] + 1)
    if code:
        raise TrainingError(f"the run ended with exit code {code}", remedy=f"read {log}")
    seconds = time.perf_counter() - clock
    figures = json.loads((folder / "stages" / "train.json").read_text(encoding="utf-8"))["figures"]
    return {
        "lostAtStep": killed and killed[0],
        "stepsLost": figures["stepsLost"],
        "restarts": figures["restarts"],
        "pauseSeconds": made[1] - killed[1] if made and killed else None,
        "seconds": seconds,
        "steps": figures["steps"],
        "workers": before if lost_at is None else after,
        "showersPerSecond": figures["showersPerSecond"],
        "lowestDeviation": quality(figures, read_validations(folder), None)["lowest"],
    }


def _run(
    run: Run, folder: Path, step: float, then: Callable[[int], None] = lambda _: None
) -> tuple[int, tuple[int, float] | None]:
    """The exit code of a whole run, and the step that was made and when, as soon as that was ``step`` or more.

    then: called at that moment, with the id of the process.
    """
    process, seen = start_run(run, folder), None

    def watch() -> None:
        nonlocal seen
        mark = read_marker(folder / CHECKPOINTS / "progress-marker")
        if seen is None and mark is not None and mark.step >= step:
            seen = mark.step, time.perf_counter()
            then(process.pid)

    return finish(process, watch, POLL_SECONDS), seen


def _kill_last_worker(run: int) -> None:
    children = psutil.Process(run).children(recursive=True)
    workers = [child for child in children if "caloscale.stages.node_worker" in child.cmdline()]
    max(workers, key=lambda worker: int(json.loads(worker.environ()["TF_CONFIG"])["task"]["index"])).kill()
