"""Where the time of a training step goes, and how close its arithmetic is to the peak of the machine.

Every instant of the profiled steps belongs to the operations that run at that instant, in equal parts; to all-reduces
only when nothing else runs; to the input when nothing runs and the loop waits for a batch; else it is idle.
So the shares add up to the step.
"""

import logging
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from pydantic.alias_generators import to_camel

from caloscale.errors import StorageError
from caloscale.models import Networks, family_of
from caloscale.models.families.step import PARTS, phase_and_part
from caloscale.profiling.peak import measure_peak
from caloscale.profiling.result import Limit, Profile, Share
from caloscale.profiling.trace import INPUT, STEP, Interval, Recording, Trace
from caloscale.spec import Run
from caloscale.storage.atomic import write_text

log = logging.getLogger(__name__)

FIRST_STEP = 30
"""Step of a training with which its profile begins: the first ones compile and warm up."""
STEPS = 8
"""Steps of a profile."""

MATRIX_WORDS = ("Conv", "MatMul", "Einsum")
"""Types of operations whose work is arithmetic; all others mainly move numbers."""
MUCH_INPUT, MUCH_IDLE, MUCH_ALL_REDUCE = 0.2, 0.35, 0.3
"""Shares of a step from which on waiting for input, nothing, or other workers is what limits it."""
MUCH_MATRIX = 0.5
"""Share of the busy time in convolutions and matrix products from which on arithmetic is what limits."""


class _Key(NamedTuple):
    """What time is charged to; matrix operations are convolutions and matrix products."""

    phase: str
    part: str
    is_matrix: bool


_WAITING = _Key("rest", "input", is_matrix=False)


def divide(trace: Trace) -> tuple[dict[tuple[str, str], float], float, float, float, float]:
    """Seconds per (phase, part); of input wait; of idling; in matrix operations; from the first annotation to the last.

    Raises ValueError when the trace holds no whole step.
    """
    if not trace.steps:
        raise ValueError("no step was recorded")
    begin = min(interval.start for interval in (*trace.inputs[:1], *trace.steps[:1]))
    end = trace.steps[-1].end
    intervals = (*trace.inputs, *trace.operations)
    edges = np.clip([begin, end, *(edge for one in intervals for edge in (one.start, one.end))], begin, end)
    instants, places = np.unique(edges, return_inverse=True)
    seconds = 1e-9 * np.diff(instants)
    nothing = np.zeros(len(seconds))
    running: dict[_Key, NDArray[np.float64]] = defaultdict(nothing.copy)
    keys = [*(_WAITING for _ in trace.inputs), *map(_key, trace.operations)]
    for key, (first, last) in zip(keys, places[2:].reshape(-1, 2)):
        running[key][first:last] += 1
    waiting = running.pop(_WAITING, nothing)
    computing = sum((count for key, count in running.items() if key.part != "all_reduce"), nothing)
    for key in running:
        if key.part == "all_reduce":
            running[key][computing > 0] = 0
    active = sum(running.values(), nothing)
    spent: dict[tuple[str, str], float] = defaultdict(float)
    matrix = 0.0
    for key, count in running.items():
        if count.any():
            share = float(seconds @ (count / np.maximum(active, 1)))
            spent[key.phase, key.part] += share
            matrix += share * key.is_matrix
    waited = float(seconds @ ((active == 0) & (waiting > 0)))
    idle = float(seconds @ ((active == 0) & (waiting == 0)))
    return spent, waited, idle, matrix, 1e-9 * (end - begin)


def _key(operation: Interval) -> _Key:
    phase, part = phase_and_part(operation.name, operation.kind)
    return _Key(phase or "rest", part, any(word in operation.kind for word in MATRIX_WORDS))


def describe(trace: Trace, run: Run, networks: Networks, batch: int, peak_gflops: float) -> Profile:
    """The profile of the traced steps, each on ``batch`` showers; peak_gflops: of matrix products in the precision of
    the run. Raises ValueError without a whole step.
    """
    spent, waited, idle, matrix, seconds = divide(trace)
    steps = len(trace.steps)
    family = family_of(run.model)
    gflop = 1e-9 * batch * family.step_flops(run, networks)
    busy = sum(spent.values())
    order = [(phase, part) for phase in (*family.phases, "rest") for part in PARTS]
    shares = tuple(
        Share(phase=to_camel(phase), part=to_camel(part), share=spent[phase, part] / seconds)
        for phase, part in order
        if (phase, part) in spent
    )
    figures: dict[str, Any] = {
        "shares": shares,
        "input_wait": waited / seconds,
        "idle": idle / seconds,
        "matrix_share": matrix / busy if busy else 0.0,
        "gflops": gflop * steps / seconds,
        "matrix_gflops": gflop * steps / matrix if matrix else 0.0,
        "peak_gflops": peak_gflops,
    }
    limit, statement = _judge(figures, run.train.loop)
    return Profile(
        preset=run.model.network,
        precision=run.train.precision,
        device=next(kind for kind in ("TPU", "GPU", "CPU") if tf.config.list_logical_devices(kind)),
        batch=batch,
        steps=steps,
        seconds_per_step=seconds / steps,
        gflop_per_step=gflop,
        limit=limit,
        statement=statement,
        **figures,
    )


def _judge(figures: dict[str, Any], loop: str) -> tuple[Limit, str]:
    """What limits, by what takes most of the step. loop: Keras takes a batch within its step."""
    waits, idle, matrix = (figures[name] for name in ("input_wait", "idle", "matrix_share"))
    all_reduce = sum(share.share for share in figures["shares"] if share.part == "allReduce")
    busy = sum(share.share for share in figures["shares"])
    limit: Limit
    if waits > MUCH_INPUT:
        limit, reason = "input", f"input: {waits:.0%} of a step waits for showers"
    elif all_reduce > MUCH_ALL_REDUCE:
        limit, reason = "communication", f"communication: {all_reduce:.0%} of a step are all-reduces"
    elif idle > MUCH_IDLE:
        hidden = " or waiting for showers, which train.loop builtin does not distinguish" if loop == "builtin" else ""
        limit, reason = "idle", f"starting operations{hidden}: {idle:.0%} of a step is idle"
    elif matrix > MUCH_MATRIX:
        products = f"convolutions and matrix products, which run at {figures['matrix_gflops']:.0f} GFLOP/s"
        limit, reason = "compute", f"computing: {matrix:.0%} of the busy time are {products}"
    else:
        others = f"{1 - matrix:.0%} of the busy time ({busy:.0%} of the step) are operations"
        limit, reason = "memory", f"memory: {others} that move numbers rather than multiply them"
    use = figures["gflops"] / figures["peak_gflops"]
    peak = f"the step as a whole reaches {use:.0%} of the measured peak of {figures['peak_gflops']:.0f} GFLOP/s"
    return limit, f"Limited by {reason}; {peak}."


class StepProfiler:
    """Records some steps of a loop, which reports when it has a batch and when it has finished with it.

    What is between `batch_ready` and `step_done` is the step, what is between that and the next `batch_ready` is
    waiting for input. A profile that cannot be made is a warning: it never ends a training.

    keep: gets the trace; absent, nothing is recorded. first, count: steps that are recorded, numbered from 0. start:
    steps of the training before this loop. per_epoch: steps of an epoch, at whose end other things are done: the
    steps after it are recorded then.
    """

    def __init__(
        self,
        keep: Callable[[Trace], None] | None,
        *,
        first: int = FIRST_STEP,
        count: int = STEPS,
        start: int = 0,
        per_epoch: int | None = None,
    ) -> None:
        begin = start + first
        if per_epoch is not None and count < per_epoch < begin % per_epoch + count + 1:
            first += per_epoch - begin % per_epoch
        self._keep = keep or (lambda _: None)
        self._first, self._count = first if keep else -1, count
        self._done = 0
        self._recording: Recording | None = None
        self._annotation = ExitStack()
        if self._first == 0:
            self._start()

    def batch_ready(self) -> None:
        """The loop has its next batch."""
        self._annotate(STEP)

    def step_done(self) -> None:
        """The loop has finished a step."""
        self._done += 1
        if self._done == self._first:
            self._start()
        elif self._recording is not None and self._done == self._first + self._count:
            self._stop()
        else:
            self._annotate(INPUT)

    def close(self) -> None:
        """The loop ends, perhaps early or with an error: the record is discarded."""
        if self._recording is not None:
            self._annotation.close()
            recording, self._recording = self._recording, None
            with suppress(tf.errors.OpError):
                recording.end(keep=False)

    def _start(self) -> None:
        try:
            self._recording = Recording()
        except (OSError, tf.errors.OpError) as error:
            log.warning("no profile: %s", error)
        self._annotate(INPUT)

    def _stop(self) -> None:
        self._annotation.close()
        assert self._recording is not None
        recording, self._recording = self._recording, None
        try:
            if (trace := recording.end()) is not None:
                self._keep(trace)
        except (ValueError, OSError, StorageError, tf.errors.OpError) as error:
            log.warning("no profile: %s", error)

    def _annotate(self, name: str) -> None:
        self._annotation.close()
        if self._recording is not None:
            self._annotation.enter_context(tf.profiler.experimental.Trace(name))


def keeper(run: Run, networks: Networks, batch: int, file: Path) -> Callable[[Trace], None]:
    """What `StepProfiler` gives a trace to: writes the profile of a run's step as JSON."""

    def keep(trace: Trace) -> None:
        made = describe(trace, run, networks, batch, measure_peak(run.train.precision))
        write_text(file, made.model_dump_json(by_alias=True, indent=2))
        log.info("profile of %d steps: %s", made.steps, made.statement)

    return keep
