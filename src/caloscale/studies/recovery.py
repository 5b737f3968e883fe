"""The measure `elastic`: a training of several workers on this machine loses one and resumes with as many or fewer.

All workers start anew from the newest checkpoint, as a TFJob's do: a TensorFlow collective does not survive the loss
of a member.
"""

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from pydantic import Field

from caloscale.errors import ConfigurationError, TrainingError
from caloscale.spec import Run
from caloscale.spec.block import Block
from caloscale.spec.workspace_layout import CHECKPOINTS
from caloscale.studies.points import own_inputs
from caloscale.studies.whole_run import finish, quality, read_validations, run_of, start_run
from caloscale.training.checkpoint.progress_marker import read_marker

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
    clock = time.perf_counter()
    pause = killed_at = None
    if lost_at is None:
        _make(run, folder)
    else:
        killed_at, killed_clock = _lose_a_worker(run, folder, lost_at)
        train = run.train.model_copy(update={"workers_per_node": after})
        made_clock = _make(run.model_copy(update={"train": train}), folder, beyond_step=killed_at)
        pause = None if made_clock is None else made_clock - killed_clock
    seconds = time.perf_counter() - clock
    figures = json.loads((folder / "stages" / "train.json").read_text(encoding="utf-8"))["figures"]
    return {
        "lostAtStep": killed_at,
        "stepsLost": figures["stepsLost"],
        "restarts": figures["restarts"],
        "pauseSeconds": pause,
        "seconds": seconds,
        "steps": figures["steps"],
        "workers": before if lost_at is None else after,
        "showersPerSecond": figures["showersPerSecond"],
        "lowestDeviation": quality(figures, read_validations(folder), None)["lowest"],
    }


def _made_step(folder: Path) -> int:
    """The last step that was made, in any attempt."""
    mark = read_marker(folder / CHECKPOINTS / "progress-marker")
    return 0 if mark is None else mark.step


def _lose_a_worker(run: Run, folder: Path, step: int) -> tuple[int, float]:
    """Start the run and end its last worker after a step: the step that was made, and when. Waits for the end."""
    process, killed = start_run(run, folder), None

    def watch() -> None:
        nonlocal killed
        made = _made_step(folder)
        if killed is None and made >= step:
            children = psutil.Process(process.pid).children(recursive=True)
            workers = [child for child in children if "caloscale.stages.node_worker" in child.cmdline()]
            killed = made, time.perf_counter()
            max(workers, key=_number).kill()

    code = finish(process, watch, POLL_SECONDS)
    if killed is None:
        problem = f"the run ended with exit code {code} before step {step}"
        raise TrainingError(problem, remedy=f"read {folder.with_suffix('.log')}, or write a smaller lostAt")
    return killed


def _number(worker: psutil.Process) -> int:
    """Index of a worker."""
    return int(json.loads(worker.environ()["TF_CONFIG"])["task"]["index"])


def _make(run: Run, folder: Path, beyond_step: int | None = None) -> float | None:
    """The whole run; when it has made a step beyond this one (None: not observed)."""
    clock = None

    def watch() -> None:
        nonlocal clock
        if clock is None and beyond_step is not None and _made_step(folder) > beyond_step:
            clock = time.perf_counter()

    if code := finish(start_run(run, folder), watch, POLL_SECONDS):
        raise TrainingError(f"the run ended with exit code {code}", remedy=f"read {folder.with_suffix('.log')}")
    return clock
