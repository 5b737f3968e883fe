"""What a training reports while it runs: progress bar, curves for TensorBoard, progress file, profile of some steps."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from caloscale.profiling.profile import StepProfiler
from caloscale.progress import bar
from caloscale.training.progress_file import ProgressFile
from caloscale.training.schedule import Calendar


class Monitor:
    """Reports the steps of one attempt (`open` around them); the progress file may be written after it, too.

    batch: showers in a step of all replicas. first_step: steps that were made in earlier attempts. logs: folder of the
    event files; None: nothing is written for TensorBoard. shown: losses beside the progress bar, by name.
    """

    def __init__(
        self,
        calendar: Calendar,
        *,
        batch: int,
        first_step: int,
        logs: Path | None,
        profiler: StepProfiler,
        shown: Sequence[str] = (),
    ) -> None:
        self.profiler = profiler
        self.file = ProgressFile(steps=calendar.steps, steps_per_epoch=calendar.steps_per_epoch, batch=batch)
        self.file.saved(first_step)
        self._calendar, self._batch, self._first_step, self._logs = calendar, batch, first_step, logs
        self._shown = shown
        self._bar: Any = None
        self._writer: tf.summary.SummaryWriter | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Around the steps: the progress bar and the event file."""
        with ExitStack() as stack:
            if self._logs is not None:
                self._writer = stack.enter_context(closing(tf.summary.create_file_writer(str(self._logs))))
            total, done = self._calendar.steps * self._batch, self._first_step * self._batch
            self._bar = stack.enter_context(bar("train", total, "showers", initial=done))
            stack.enter_context(closing(self.profiler))
            try:
                yield
            finally:
                self._writer = None

    def step(self, step: int, *, saved: int) -> None:
        """The training has made a step; the checkpoint of step ``saved`` is written."""
        self._bar.update(self._batch)
        self.file.saved(saved)
        self.file.step(step)
        self.profiler.step_done()

    def losses(self, step: int, figures: Mapping[str, float]) -> None:
        """The losses of a step by name."""
        self.file.losses(figures)
        shown = {name: f"{figures[name]:.2f}" for name in self._shown if name in figures}
        epoch = f"{step / self._calendar.steps_per_epoch:.1f}/{self._calendar.epochs}"
        self._bar.set_postfix({"epoch": epoch, **shown}, refresh=False)
        self._write_scalars(step, "loss", figures)

    def validation(self, step: int, figures: Mapping[str, float]) -> None:
        """The comparison with validation showers after a step, by the names of `physics_deviation`."""
        self._write_scalars(step, "validation", figures)

    def _write_scalars(self, step: int, group: str, figures: Mapping[str, float]) -> None:
        """One point of each curve, in the format of TensorBoard's scalars plugin: tf.summary.scalar needs TensorBoard
        itself, which need not be installed.
        """
        if self._writer is None:
            return
        metadata = tf.compat.v1.SummaryMetadata(
            plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"), data_class="DATA_CLASS_SCALAR"
        )
        with self._writer.as_default(step=step):
            for name, value in figures.items():
                tf.summary.write(f"{group}/{name}", tf.constant(value, tf.float32), metadata=metadata)
