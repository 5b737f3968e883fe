"""The state of one attempt of a training, the actions of its loop (restore, validate, save, release), and what it
reports while it runs: progress bar, curves for TensorBoard, progress file, profile of some steps."""

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from caloscale.errors import ConfigurationError, ShowerFileError
from caloscale.models.families.family import GENERATOR
from caloscale.models.families.step import Losses
from caloscale.profiling.profile import StepProfiler, keeper
from caloscale.profiling.result import PROFILE_FILE
from caloscale.progress import bar
from caloscale.showers.tfrecord.shard_folder import ShardFolder
from caloscale.spec import Run
from caloscale.storage.atomic import write_text
from caloscale.training.checkpoint.manager import CheckpointManager
from caloscale.training.checkpoint.metadata import Progress, identity_of
from caloscale.training.coordination.failures import diverged
from caloscale.training.coordination.peers import Peers
from caloscale.training.coordination.signals import StopSignals
from caloscale.training.input import TrainingShowers, check_manifest
from caloscale.training.progress_file import ProgressFile
from caloscale.training.record import StartedFrom, TrainingRecord, add_point
from caloscale.training.release import parameters, release, versions
from caloscale.training.schedule import Calendar
from caloscale.training.selection import generate_like, is_selected, physics_deviation, selection_showers
from caloscale.training.state import NOWHERE, TrainingState, network_variables
from caloscale.training.strategy import DistributionContext, divide
from caloscale.training.transfer import adapt, calibrate, start_from_model

log = logging.getLogger(__name__)


class Trainer:
    """One attempt of a training: its networks, showers and files. `open_checkpoints` comes first, then `resume`.

    started: time.perf_counter() at its start. Actions that can fail raise StorageError, and TrainingError when a loss
    or weight is not finite.
    """

    def __init__(
        self, run: Run, dataset: ShardFolder, output: Path, distribution: DistributionContext, started: float
    ) -> None:
        self.started, self.cores = started, time.process_time()
        self.run, self.output = run, output
        self.distribution, self.placement = distribution, distribution.placement
        self.dataset, self.manifest = dataset, dataset.manifest
        check_manifest(dataset.path, self.manifest, run.data)
        self.showers = TrainingShowers(
            dataset.path,
            self.manifest,
            divide(run, self.placement),
            seed=run.train.seed,
            mirror=run.data.mirror,
            workers=self.placement.workers,
            worker_index=self.placement.worker,
        )
        log.info("input: %s", self.showers.describe())
        dataset.need(self.showers.shards)
        held_out = [shard.showers for shard in self.manifest.shards_of("validation")]
        if (chosen := selection_showers(held_out)).size == sum(held_out):
            problem = "holds a validation shower that selects the epoch, and none that judges"
            remedy = "hold out more: data.validationFraction, or more showers (data.showers)"
            raise ShowerFileError(problem, file=dataset.path, field="splits.validation", value=1, remedy=remedy)
        self.validation = dataset.read("validation", chosen)
        self.state = TrainingState(run, self.distribution)
        self.calendar = Calendar(run.train.epochs, self.showers.steps_per_epoch)
        self.history: dict[str, Any] = {"step": [], "validation": {"epoch": []}}
        self.selected: Progress | None = None
        self.before = Progress(step=0, seconds=0.0, core_seconds=0.0)
        self.resumed_from: int | None = None
        self.started_from: StartedFrom | None = None
        self.first_step = self.number = 0
        """Steps that were made before this attempt, and until now."""
        self.seconds_first_step = self._rate = 0.0
        self._bar: Any = None
        self._writer: tf.summary.SummaryWriter | None = None

    def open_checkpoints(self, peers: Peers, signals: StopSignals) -> CheckpointManager:
        """The checkpoints, a context around all that follows."""
        identity = identity_of(self.run, self.manifest, self.showers.batch)
        folder = self.output / "checkpoints"
        self.checkpoints = CheckpointManager(self.run.checkpoint, folder, identity, peers, signals)
        return self.checkpoints

    def resume(self, peers: Peers) -> None:
        """Restore the newest checkpoint, if there is one. Raises ConfigurationError for fewer epochs than it has."""
        restored = self.checkpoints.restore(self.state.variables())
        if restored is not None:
            if restored.step > self.calendar.steps:
                trained = math.ceil(restored.step / self.calendar.steps_per_epoch)
                problem, file = f"is less than the {trained} epochs of the checkpoints", self.checkpoints.folder.path
                remedy = f"set train.epochs to {trained} or more, or choose another folder or checkpoint.uri"
                value = self.calendar.epochs
                raise ConfigurationError(problem, file=file, field="train.epochs", value=value, remedy=remedy)
            self.before, self.resumed_from = restored, restored.step
            self.history = restored.history or self.history
            self.selected = restored if restored.selected_epoch is not None else None
            self.first_step = self.number = restored.step
            self._rate = restored.showers_per_second
            log.info("resuming from step %d", restored.step)
        else:
            if (self.output / "history.json").exists():
                log.warning("%s holds no checkpoint: the training begins again", self.checkpoints.folder.path)
            adapt(self.state, self.dataset, peers)
            if self.run.train.start_from is not None:
                self.started_from = start_from_model(self.state, self.run)
                log.info("%s", self.started_from)
        steps, per_epoch = self.calendar.steps, self.calendar.steps_per_epoch
        self.progress_file = ProgressFile(steps=steps, steps_per_epoch=per_epoch, batch=self.showers.batch)
        self.progress_file.saved(self.first_step)
        keep = None
        if self.placement.is_chief:
            share = self.showers.batch // self.placement.replicas * self.placement.replicas_per_worker
            keep = keeper(self.state.run, self.state.networks, share, self.output / PROFILE_FILE)
        self.profiler = StepProfiler(keep, start=self.first_step, per_epoch=per_epoch)

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Around the steps: the progress bar, the profiler and, of worker 0, the event file for TensorBoard."""
        with ExitStack() as stack:
            if self.placement.is_chief:
                logs = tf.summary.create_file_writer(str(self.output / "logs"))
                self._writer = stack.enter_context(closing(logs))
            total, done = self.calendar.steps * self.showers.batch, self.first_step * self.showers.batch
            self._bar = stack.enter_context(bar("train", total, "showers", initial=done))
            stack.enter_context(closing(self.profiler))
            try:
                yield
            finally:
                self._writer = None

    def report_step(self) -> None:
        """A step and what follows it are made."""
        if (steps := self.number - self.first_step - 1) > 0:
            seconds = time.perf_counter() - self.started - self.seconds_first_step
            self._rate = steps * self.showers.batch / seconds
        self._bar.update(self.showers.batch)
        self.progress_file.saved(self.checkpoints.saver.safe_step)
        self.progress_file.step(self.number)
        self.profiler.step_done()

    def count_step(self) -> None:
        """A step was made."""
        self.number += 1
        if self.number == self.first_step + 1:
            self.seconds_first_step = time.perf_counter() - self.started
            self.progress_file.begin(self.number, self.seconds_first_step)

    def record_losses(self, losses: Losses) -> None:
        """Read the losses of the last step: for the curves, the progress bar and TensorBoard."""
        self.check_finite()
        figures = {name: float(value) for name, value in losses.items()}
        add_point(self.history, {"step": self.number, **figures})
        self.progress_file.losses(figures)
        shown = {name: f"{figures[name]:.2f}" for name in self.state.family.losses_shown if name in figures}
        epoch = f"{self.number / self.calendar.steps_per_epoch:.1f}/{self.calendar.epochs}"
        self._bar.set_postfix({"epoch": epoch, **shown}, refresh=False)
        self._write_scalars(self.number, "loss", figures)

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

    def check_finite(self) -> None:
        """Raise TrainingError when a loss of any step so far was not finite."""
        bad = int(self.state.first_bad_step.numpy())
        if bad != NOWHERE:
            raise diverged("a loss was", bad, self.checkpoints.folder.path)

    def validate(self) -> None:
        """Compare with validation showers and select the generator if its deviation allows; a step is compared once,
        also where a training that has ended is run again."""
        self.check_finite()
        step, curves = self.state.steps_made, self.history["validation"]
        epoch = self.calendar.epochs_until(step)
        known = curves["epoch"][-1:] == [epoch]
        if known and self.selected is not None:
            return
        figures = physics_deviation(
            self.validation,
            generate_like(self.validation, self.state.released, self.run),
            hits_threshold_gev=self.run.validation.hits_threshold_gev,
        )
        pairs = zip(curves["epoch"], curves.get("deviation", []))
        earlier = {number: deviation for number, deviation in pairs if deviation is not None}
        if not known:
            add_point(curves, {"epoch": epoch, **figures})
            self._write_scalars(step, "validation", figures)
            self.write_history()
        train = self.run.train
        last = round(epoch / self.calendar.progress(step, self.seconds, train.max_minutes))
        deviation = figures["deviation"]
        if self.selected is None or is_selected(deviation, earlier, train, last):
            known_deviation = deviation if math.isfinite(deviation) else None
            chosen = {"selected_epoch": round(epoch), "selected_step": step, "selected_deviation": known_deviation}
            self.selected = self._progress().model_copy(update=chosen)
            self.checkpoints.save(self._released_variables(), self.selected, selected=True)

    def write_history(self) -> None:
        """Write the curves so far to history.json, as worker 0."""
        if self.placement.is_chief:
            write_text(self.output / "history.json", json.dumps(self.history))

    def save(self) -> None:
        """Save a checkpoint while the training continues."""
        self.check_finite()
        self.checkpoints.save(self.state.variables(), self._progress())

    def release(self) -> None:
        """Write the selected generator to the model folder; where it is lost, the generator of the last step."""
        selected = self.checkpoints.restore_selected(self._released_variables())
        if selected is None:
            last = {"selected_epoch": round(self.calendar.epochs_until(self.number)), "selected_step": self.number}
            deviation = self.history["validation"]["deviation"][-1]
            selected = self._progress().model_copy(update={**last, "selected_deviation": deviation})
        calibrate(self.state, self.dataset)
        networks = {**self.state.networks, GENERATOR: self.state.released}
        release(self.output / "model", networks, self.run, self.manifest, selected)
        self.selected = selected

    def _released_variables(self) -> dict[str, Any]:
        return network_variables(self.state.released, self.state.family)

    @property
    def seconds(self) -> float:
        """Wall time so far, of all attempts, s."""
        return self.before.seconds + time.perf_counter() - self.started

    def _progress(self) -> Progress:
        selected, step, seconds = self.selected or self.before, self.state.steps_made, self.seconds
        return Progress(
            step=step,
            seconds=seconds,
            showers_per_second=self._rate or step * self.showers.batch / seconds,
            core_seconds=self.before.core_seconds + time.process_time() - self.cores,
            **selected.values_of("selected_epoch", "selected_step", "selected_deviation"),
            history=self.history,
        )

    def record(self) -> TrainingRecord:
        """The record of the training."""
        now, selected = self._progress(), self.selected or self.before
        batch, placement = self.showers.batch, self.placement
        return TrainingRecord(
            steps=now.step,
            epochs=now.step // self.showers.steps_per_epoch,
            showers=now.step * batch,
            seconds=now.seconds,
            core_seconds=now.core_seconds,
            seconds_first_step=self.seconds_first_step,
            showers_per_second=now.showers_per_second,
            stopped="epochs" if self.number >= self.calendar.steps else "maxMinutes",
            strategy=placement.strategy,
            loop=self.run.train.loop,
            device=placement.device,
            workers=placement.workers,
            replicas=placement.replicas,
            global_batch_size=batch,
            selected_epoch=selected.selected_epoch or 0,
            selected_deviation=selected.selected_deviation,
            parameters=parameters(self.state.networks),
            started_from=self.started_from,
            resumed_from_step=self.resumed_from,
            **self.checkpoints.figures(),
            source=self.manifest.source,
            versions=versions(),
        )
