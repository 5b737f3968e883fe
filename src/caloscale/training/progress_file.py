"""The progress of a training in a small file, which other processes read."""

import logging
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path

from caloscale.errors import StorageError
from caloscale.status import PROGRESS_FILE_VARIABLE, RunProgress
from caloscale.storage.atomic import write_text

log = logging.getLogger(__name__)

EVERY_SECONDS = 2.0
"""Least time between two versions of the file, s."""


class ProgressFile:
    """The file that a variable of the environment names; without the variable nothing is written."""

    def __init__(
        self, *, steps: int, steps_per_epoch: int, batch: int | None, environment: Mapping[str, str] = os.environ
    ) -> None:
        """``steps``: of the whole training; ``batch``: showers in a step of all replicas; None: a step has none."""
        path = environment.get(PROGRESS_FILE_VARIABLE)
        self._path = Path(path) if path else None
        self._steps, self._per_epoch, self._batch = steps, steps_per_epoch, batch
        self._losses: dict[str, float] = {}
        self._checkpoint = 0
        self._first: tuple[int, float] | None = None
        self._seconds_first_step: float | None = None
        self._step_seconds: float | None = None
        self._written = 0.0

    def begin(self, step: int, seconds_first_step: float) -> None:
        """The first step of this process is made: its speed is measured from here."""
        self._first, self._seconds_first_step = (step, time.perf_counter()), seconds_first_step

    def saved(self, step: int) -> None:
        """A checkpoint of this step can be resumed from."""
        self._checkpoint = max(self._checkpoint, step)

    def losses(self, figures: Mapping[str, float]) -> None:
        """The newest losses, without those that are not finite: a solver run continues behind such an epoch."""
        self._losses = {name: value for name, value in figures.items() if math.isfinite(value)}

    def is_due(self) -> bool:
        """Whether the next step is written."""
        return self._path is not None and time.perf_counter() - self._written >= EVERY_SECONDS

    def step(self, number: int, *, now: bool = False) -> None:
        """A step is made; the file is replaced every few seconds. ``now``: all is done, and the file is replaced; what
        followed the last step, such as the release of the model, is in no step's time."""
        if self._first is not None and number > self._first[0] and not (now and self._step_seconds):
            self._step_seconds = (time.perf_counter() - self._first[1]) / (number - self._first[0])
        if self._path is None or not (now or self.is_due()):
            return
        self._written, step_seconds = time.perf_counter(), self._step_seconds
        progress = RunProgress(
            epoch=round(number / self._per_epoch, 3),
            epochs=self._steps // self._per_epoch,
            step=number,
            steps=self._steps,
            checkpoint_step=self._checkpoint,
            showers_per_second=None if step_seconds is None or self._batch is None else self._batch / step_seconds,
            losses=self._losses,
            seconds_first_step=self._seconds_first_step,
            step_seconds=step_seconds,
        )
        try:
            write_text(self._path, progress.model_dump_json(by_alias=True, exclude_none=True))
        except StorageError as error:  # the training does not depend on this file
            log.warning("progress is not written: %s", error)
