"""What TensorFlow's profiler saw of some steps, as intervals of time on one clock.

The profiler writes an XSpace (protocol buffer): planes with lines with events. On a CPU every operation of a graph is
an event "name:Type" on a line of the executor's threads ("tf_Compute..."), an all-reduce on one of "collective_ops..."
for as long as it takes; a function that XLA compiled is the run of an executable within the start of an operation,
which has the name in a statistic. On an accelerator every kernel is an event on a line of a plane "/device:...", with
the operation in its statistic ``tf_op``. Operations carry the name scopes under which they were made; gradients keep
those of the forward pass, behind "gradient_tape/".
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tensorflow as tf

INPUT, STEP = "caloscale/input", "caloscale/step"
"""Annotations of the loop: waiting for a batch, and the step on it."""

_EVERY_OPERATION = 3
_EXECUTORS = ("tf_Compute", "collective_ops")
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile", "If", "StatelessIf"})
"""Operations that only contain others."""
_START, _EXECUTABLE = "ExecutorState::ProcessAsync::Start", "CpuExecutable::ExecuteAsyncOnStream"
"""Start of an operation, and within it the run of what XLA compiled for it."""
COMPILED = "Compiled"
"""Type given to such an operation."""


@dataclass(frozen=True)
class Interval:
    """From start to end, ns on one clock."""

    start: float
    end: float
    name: str
    """Of an operation with its scopes, or of an annotation."""
    kind: str = ""
    """Type of the operation."""


@dataclass(frozen=True)
class Trace:
    """Annotations of the loop and operations of the graph."""

    inputs: tuple[Interval, ...]
    steps: tuple[Interval, ...]
    operations: tuple[Interval, ...]


class Recording:
    """What TensorFlow's profiler sees from now on, until `end`.

    Raises tf.errors.AlreadyExistsError when something else is being profiled.
    """

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="caloscale-profile-")
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=_EVERY_OPERATION, python_tracer_level=0, device_tracer_level=1
        )
        try:
            tf.profiler.experimental.start(self._folder.name, options=options)
        except BaseException:
            self._folder.cleanup()
            raise

    def end(self, *, keep: bool = True) -> Trace | None:
        """The trace; None where the profiler has left none, or it is not kept."""
        with self._folder as folder:
            tf.profiler.experimental.stop(save=keep)
            files = sorted(Path(folder).rglob("*.xplane.pb"))
            return read_trace(files[0].read_bytes()) if files else None


def read_trace(content: bytes) -> Trace:
    """The trace in a serialised XSpace."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(content)
    host = [plane for plane in space.planes if plane.name.startswith("/host:CPU")]
    devices = [plane for plane in space.planes if plane.name.startswith("/device:")]
    events = (event for plane in host for line in plane.lines for event in _events(plane, line))
    annotations = [Interval(start, end, name) for name, start, end, _ in events if name in (INPUT, STEP)]
    kernels = [interval for plane in devices for interval in _kernels(plane)]
    operations = kernels or [interval for plane in host for interval in _host_operations(plane)]
    inputs, steps = ([one for one in annotations if one.name == name] for name in (INPUT, STEP))
    ascending = (sorted(each, key=lambda interval: interval.start) for each in (inputs, steps, operations))
    return Trace(*map(tuple, ascending))


def _events(plane: Any, line: Any) -> Iterator[tuple[str, float, float, Any]]:
    for event in line.events:
        start = line.timestamp_ns + event.offset_ps / 1000
        yield plane.event_metadata[event.metadata_id].name, start, start + event.duration_ps / 1000, event


def _host_operations(plane: Any) -> Iterator[Interval]:
    for line in plane.lines:
        if not line.name.startswith(_EXECUTORS):
            continue
        yield from _compiled_functions(plane, line)
        for event, start, end, _ in _events(plane, line):
            name, colon, kind = event.rpartition(":")
            # Others are the executor's own: ThreadpoolListener::Record and so on.
            if colon and not name.endswith(":") and kind not in _CALLS:
                yield Interval(start, end, name, kind)


def _compiled_functions(plane: Any, line: Any) -> Iterator[Interval]:
    until, name = 0.0, None  # of the last operation that started
    for event, start, end, recorded in sorted(_events(plane, line), key=lambda one: one[1]):
        if event == _START:
            until, name = end, _statistic(plane, recorded.stats, "name")
        elif event == _EXECUTABLE and name is not None and end <= until:
            yield Interval(start, end, name, COMPILED)


def _kernels(plane: Any) -> Iterator[Interval]:
    for line in plane.lines:
        for kernel, start, end, event in _events(plane, line):
            stats = [*event.stats, *plane.event_metadata[event.metadata_id].stats]
            text = _statistic(plane, stats, "tf_op")
            if text is not None:
                name, _, kind = text.rpartition(":")
                yield Interval(start, end, name or text, kind or kernel)


def _statistic(plane: Any, stats: Any, name: str) -> str | None:
    """The text of the statistic of this name."""
    for one in stats:
        if plane.stat_metadata[one.metadata_id].name == name:
            return str(one.str_value or plane.stat_metadata[one.ref_value].name)
    return None
