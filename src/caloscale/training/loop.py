"""A training from its first step to the released model, and from any checkpoint on."""

from __future__ import annotations

import json
import logging
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import tensorflow as tf

from caloscale.profiling.profile import StepProfiler, keeper
from caloscale.profiling.result import PROFILE_FILE
from caloscale.progress import bar
from caloscale.showers.tfrecord.shard_folder import ShardFolder, open_shards
from caloscale.spec import Run
from caloscale.storage.atomic import atomic_writer
from caloscale.training.builtin_loop import fit
from caloscale.training.checkpoint.manager import CheckpointManager
from caloscale.training.checkpoint.metadata import Progress, identity_of
from caloscale.training.coordination.failures import Retries, brief, diverged, failed, is_of_input, unreadable
from caloscale.training.coordination.peers import Peers
from caloscale.training.coordination.setup import connected_worker
from caloscale.training.coordination.signals import StopSignals
from caloscale.training.input import TrainingShowers, check_manifest
from caloscale.training.progress_file import ProgressFile
from caloscale.training.record import History, TrainingRecord
from caloscale.training.release import parameters, release, save_network, versions
from caloscale.training.scalars import open_scalars, write_scalars
from caloscale.training.schedule import Schedule, progress
from caloscale.training.selection import generate_like, is_selected, physics_deviation, selection_showers
from caloscale.training.state import NOWHERE, TrainingState, make_steps, network_variables
from caloscale.training.strategy import DistributionContext, divide

log = logging.getLogger(__name__)

HISTORY_STEPS = 20
"""Steps between two points of the training curves; between them nothing is read from the step."""
VALIDATIONS = 25
"""Comparisons with validation showers in a training, about."""


def train(run: Run, dataset: str | Path | ShardFolder, output: Path) -> TrainingRecord:
    """Train the networks of a run on a folder of shards, here or in a bucket.

    One worker of several (by TF_CONFIG) when there are several; worker 0 writes.
    Leaves in ``output``: model/ (the released generator, see `release`), checkpoints/, logs/ (TensorBoard) and
    history.json. Goes on from the newest checkpoint there (or where checkpoint.uri says). Raises ShowerFileError
    (shards that are broken or made for another document), CheckpointError, StorageError, PeerLostError, and
    TrainingError when a loss or weight is not finite. SIGTERM (Terminated) and Ctrl-C (KeyboardInterrupt) end it behind
    a step, with a checkpoint, behind the last one with the released model. docs/recovery.md says what is lost when.
    """
    clock = time.perf_counter()
    if run.train.deterministic:
        tf.config.experimental.enable_op_determinism()
    # Several workers must be set up before TensorFlow does anything else.
    with (
        StopSignals(run.cluster.grace_seconds) as signals,
        connected_worker(run, signals) as (distribution, peers),
        open_shards(dataset) as shards,
    ):
        training = _Training(run, shards, Path(output), distribution, clock)
        with training.resume(peers, signals):
            record = training.run_to_end()
    # Several workers have agreed that all is done; what one of them is told since then must not part them.
    if distribution.placement.workers == 1:
        signals.act()
    return record


class _Training:
    def __init__(
        self, run: Run, dataset: ShardFolder, output: Path, distribution: DistributionContext, clock: float
    ) -> None:
        self.clock, self.cores = clock, time.process_time()
        self.run, self.output = run, output
        self.distribution, self.placement = distribution, distribution.placement
        self.manifest = dataset.manifest
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
        self.validation = dataset.read("validation", selection_showers(held_out))
        self.state = TrainingState(run, self.distribution)
        self.steps = run.train.epochs * self.showers.steps_per_epoch
        self.validated_epochs = max(1, run.train.epochs // VALIDATIONS)
        self.history = History()
        self.selected: Progress | None = None
        self.before = Progress(step=0, seconds=0.0, core_seconds=0.0)
        self.resumed_from: int | None = None
        self.seconds_first_step = 0.0
        self.first_step = self.number = 0
        self.stopped = False
        self.stopped_by: int | None = None
        batch = self.showers.batch
        self.told = ProgressFile(steps=self.steps, steps_per_epoch=self.showers.steps_per_epoch, batch=batch)

    @property
    def seconds(self) -> float:
        """Wall time so far, earlier pieces included."""
        return self.before.seconds + time.perf_counter() - self.clock

    def resume(self, peers: Peers, signals: StopSignals) -> CheckpointManager:
        """Go on from the newest checkpoint, if there is one."""
        identity = identity_of(self.run, self.manifest, self.showers.batch)
        folder = self.output / "checkpoints"
        self.checkpoints = CheckpointManager(self.run.checkpoint, folder, identity, peers, signals)
        self.untrained = self.checkpoints.folder.path / "untrained.npz"
        fresh = self.state.networks.generator
        restored = self.checkpoints.restore(self.state.variables())
        if restored is not None:
            self.before, self.resumed_from = restored, restored.step
            self.history = History(restored.history)
            self.selected = restored if restored.selected_epoch is not None else None
            self.first_step = self.number = restored.step
            self.told.saved(restored.step)
            log.info("going on from step %d", restored.step)
        if self.placement.is_chief and not (restored and self.untrained.exists()):
            save_network(fresh if restored is None else TrainingState(self.run).networks.generator, self.untrained)
        return self.checkpoints

    def run_to_end(self) -> TrainingRecord:
        """All steps, then the release."""
        stopped = self._steps()
        if self.stopped_by is not None:
            log.warning("stopped at step %d; the same command goes on from there", self.number)
            try:
                self.checkpoints.stop(self.stopped_by)
            finally:
                self._tell()
        self._validate()
        self._save()
        if self.placement.is_chief:
            self._write_history()
            self._release()
        try:
            self.checkpoints.finish()
        finally:
            self._tell()
        return self._record(stopped)

    def _tell(self) -> None:
        """Where the training stands, with all that is saved."""
        self.told.saved(self.checkpoints.saver.safe_step)
        self.told.step(self.number, now=True)

    def _steps(self) -> Literal["epochs", "maxMinutes"]:
        """The steps that are left; what ended them."""
        batch = self.showers.batch
        retries = Retries(self.checkpoints.signals.wait)
        with (
            closing(open_scalars(self.output / "logs" if self.placement.is_chief else None)) as writer,
            bar("train", self.steps * batch, "showers", initial=self.first_step * batch) as shown,
            closing(self._profiler()) as profiler,
        ):
            self.writer, self.shown, self.profiler = writer, shown, profiler
            while not self.stopped and self.number < self.steps:
                try:
                    self._make_steps()
                except tf.errors.OpError as error:
                    self._mend(error, retries)
        self._check_finite()
        return "maxMinutes" if self.stopped else "epochs"

    def _make_steps(self) -> None:
        train = self.run.train
        make = fit if train.loop == "builtin" else make_steps
        shards = self.showers.batches(start=self.number, stop=self.steps, slices=self.placement.replicas_per_worker)
        make(
            self.state,
            Schedule(train.warmup_epochs * self.showers.steps_per_epoch, train.decay),
            self.distribution.distribute(shards),
            self.steps - self.number,
            before=self._progress_now,
            after=self._after_step,
        )

    def _mend(self, error: tf.errors.OpError, retries: Retries) -> None:
        """Return when the steps that are left can be tried again; else raise what is wrong, with a checkpoint of the
        steps before where that is possible.
        """
        if not is_of_input(error):
            if self.placement.workers > 1:
                raise error
            raise failed(error) from error
        log.warning("step %d: showers cannot be read: %s", self.number + 1, brief(error))
        if retries.pause(self.number):
            return
        # A step begins with its batch: without one nothing of it was done.
        self._check_finite()
        self._save()
        self.checkpoints.signals.act()
        raise self.showers.broken_shard() or unreadable(self.showers.folder, error) from error

    def _profiler(self) -> StepProfiler:
        """Of some steps of worker 0."""
        placement = self.placement
        share = self.showers.batch // placement.replicas * placement.replicas_per_worker
        keep = keeper(self.run, self.state.networks, share, self.output / PROFILE_FILE)
        return StepProfiler(
            keep if placement.is_chief else None, start=self.first_step, per_epoch=self.showers.steps_per_epoch
        )

    def _progress_now(self) -> float:
        self.profiler.batch_ready()
        return min(1.0, progress(self.number, self.steps, self.seconds, self.run.train.max_minutes))

    def _after_step(self, losses: dict[str, Any]) -> bool:
        """What is done between two steps; whether there is another one."""
        self.number += 1
        if self.number == self.first_step + 1:
            self.seconds_first_step = time.perf_counter() - self.clock
            self.told.begin(self.number, self.seconds_first_step)
        number, per_epoch = self.number, self.showers.steps_per_epoch
        self.shown.update(self.showers.batch)
        if number % HISTORY_STEPS == 0 or number == self.steps:
            self._keep(number, losses, self.writer, self.shown)
        if number % per_epoch == 0 and number // per_epoch % self.validated_epochs == 0:
            self._validate(self.writer)
        decision = self.checkpoints.agree(number)
        if decision.save or decision.stopped_by is not None:
            self._check_finite()
            self._save()
        self.told.saved(self.checkpoints.saver.safe_step)
        self.told.step(number)
        # All workers agree on this figure, so that they stop together.
        ended = self.run.train.max_minutes is not None and float(losses["progress"]) >= 1
        self.stopped_by = decision.stopped_by
        self.stopped = ended or self.stopped_by is not None
        self.profiler.step_done()
        return not self.stopped

    def _keep(self, number: int, losses: dict[str, Any], writer: Any, shown: Any) -> None:
        """Read the losses of a step: for the curves, the progress bar and TensorBoard."""
        self._check_finite()
        figures = {name: float(value) for name, value in losses.items()}
        self.history.add_losses(number, figures)
        self.told.losses(figures)
        discriminator = figures["discriminator_real"] + figures["discriminator_fake"]
        epoch = f"{number / self.showers.steps_per_epoch:.1f}/{self.run.train.epochs}"
        shown.set_postfix(
            epoch=epoch, generator=f"{figures['generator']:.2f}", discriminator=f"{discriminator:.2f}", refresh=False
        )
        write_scalars(writer, number, {f"loss/{name}": value for name, value in figures.items()})

    def _check_finite(self) -> None:
        bad = int(self.state.first_bad_step.numpy())
        if bad != NOWHERE:
            raise diverged("a loss was", bad, self.checkpoints.folder.path)

    def _validate(self, writer: Any = None) -> None:
        """Compare with validation showers and select the generator if its deviation allows."""
        self._check_finite()
        step = self.state.steps_made
        if self.selected is not None and self.selected.selected_step == step:
            return
        epoch = round(step / self.showers.steps_per_epoch)
        figures = physics_deviation(self.validation, generate_like(self.validation, self.state.released, self.run))
        earlier = [d for d in self.history.content["validation"].get("deviation", []) if d is not None]
        self.history.add_validation(epoch, figures)
        if writer is not None:
            write_scalars(writer, step, {f"validation/{name}": value for name, value in figures.items()})
        if self.selected is None or is_selected(figures["deviation"], min(earlier, default=None)):
            self.selected = self._progress().model_copy(
                update={"selected_epoch": epoch, "selected_step": step, "selected_deviation": figures["deviation"]}
            )
            self.checkpoints.save_selected(network_variables(self.state.released), self.selected)

    def _progress(self) -> Progress:
        selected = self.selected or self.before
        return Progress(
            step=self.state.steps_made,
            seconds=self.seconds,
            core_seconds=self.before.core_seconds + time.process_time() - self.cores,
            selected_epoch=selected.selected_epoch,
            selected_step=selected.selected_step,
            selected_deviation=selected.selected_deviation,
            history=self.history.content,
        )

    def _save(self) -> None:
        self.checkpoints.save(self.state.variables(), self._progress())

    def _write_history(self) -> None:
        with atomic_writer(self.output / "history.json") as temporary:
            temporary.write_text(json.dumps(self.history.content) + "\n", encoding="utf-8")

    def _release(self) -> None:
        """Write the selected generator to the model folder."""
        released = self.state.released
        selected = self.checkpoints.restore_selected(network_variables(released)) or self._progress()
        networks = self.state.networks._replace(generator=released)
        release(self.output / "model", networks, self.untrained, self.run, self.manifest, selected)
        self.selected = selected

    def _record(self, stopped: Literal["epochs", "maxMinutes"]) -> TrainingRecord:
        now, selected = self._progress(), self.selected or self.before
        batch, place = self.showers.batch, self.placement
        return TrainingRecord(
            steps=now.step,
            epochs=now.step // self.showers.steps_per_epoch,
            showers=now.step * batch,
            seconds=now.seconds,
            core_seconds=now.core_seconds,
            seconds_first_step=self.seconds_first_step,
            showers_per_second=self._showers_per_second(now),
            stopped=stopped,
            strategy=place.strategy,
            loop=self.run.train.loop,
            device=place.device,
            workers=place.workers,
            replicas=place.replicas,
            global_batch_size=batch,
            selected_epoch=selected.selected_epoch or 0,
            selected_deviation=selected.selected_deviation or 0.0,
            parameters=parameters(self.state.networks),
            resumed_from_step=self.resumed_from,
            **self.checkpoints.figures(),
            showers_left_out=self.showers.left_out,
            source=self.manifest.source,
            versions=versions(),
        )

    def _showers_per_second(self, now: Progress) -> float:
        """Rate of this attempt without its first step; where it made no more than that one, of all attempts."""
        batch, steps = self.showers.batch, now.step - self.first_step - 1
        seconds = time.perf_counter() - self.clock - self.seconds_first_step
        if steps <= 0:
            steps, seconds = now.step, now.seconds
        return steps * batch / seconds if seconds > 0 else 0.0
