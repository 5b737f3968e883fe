"""A training from its first step to the released model, and from any checkpoint on."""

from __future__ import annotations

import json
import logging
import os
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from caloscale.errors import TrainingError
from caloscale.models import latent, noise_size
from caloscale.progress import bar
from caloscale.showers.arrays import Showers
from caloscale.showers.manifest import check_shards, read_manifest
from caloscale.showers.preprocessing import to_gev
from caloscale.showers.shards import read_part
from caloscale.showers.storage import atomic_writer
from caloscale.spec import Run
from caloscale.training.builtin_loop import fit
from caloscale.training.checkpoint import Checkpoints, Progress, identity_of
from caloscale.training.input import TrainingShowers, check_manifest
from caloscale.training.record import History, TrainingRecord
from caloscale.training.release import parameters, release, save_network, versions
from caloscale.training.scalars import open_scalars, write_scalars
from caloscale.training.schedule import Schedule, progress
from caloscale.training.selection import is_chosen, physics_deviation, selection_showers
from caloscale.training.state import NOWHERE, TrainingState, make_steps
from caloscale.training.strategy import divide, open_engine

log = logging.getLogger(__name__)

HISTORY_STEPS = 20
"""Steps between two points of the training curves; between them nothing is read from the step."""
VALIDATIONS = 25
"""Comparisons with validation showers in a training, about."""
GENERATED_AT_ONCE = 64
"""Showers that are generated at a time for such a comparison."""


def train(run: Run, dataset: Path, output: Path) -> TrainingRecord:
    """Train the networks of a run on a folder of shards.

    One worker of several (by TF_CONFIG) when there are several; worker 0 writes.
    Leaves in ``output``: model/ (the released generator, see `release`), checkpoints/, logs/ (TensorBoard) and
    history.json. Goes on from the newest checkpoint there. Raises ShowerFileError (shards that are broken or made for
    another document), CheckpointError, StorageError, and TrainingError when a loss is not finite. After Ctrl-C
    (KeyboardInterrupt) a checkpoint is there.
    """
    return _Training(run, Path(dataset), Path(output)).run_to_end()


class _Training:
    def __init__(self, run: Run, dataset: Path, output: Path) -> None:
        self.clock, self.cores = time.perf_counter(), time.process_time()
        self.run, self.output = run, output
        if run.train.deterministic:
            tf.config.experimental.enable_op_determinism()
        # Several workers must be set up before TensorFlow does anything else.
        self.engine = open_engine(run, os.environ)
        self.placement = self.engine.placement
        self.manifest = read_manifest(dataset)
        check_manifest(dataset, self.manifest, run.data)
        check_shards(dataset, self.manifest)
        self.showers = TrainingShowers(
            dataset,
            self.manifest,
            divide(run, self.placement),
            seed=run.train.seed,
            mirror=run.data.mirror,
            workers=self.placement.workers,
            worker_index=self.placement.worker,
        )
        log.info("input: %s", self.showers.describe())
        self.validation = read_part(dataset, "validation", limit=selection_showers(self.manifest.parts["validation"]))
        self.state = TrainingState(run, self.engine)
        self.steps = run.train.epochs * self.showers.steps_per_epoch
        self.validated_epochs = max(1, run.train.epochs // VALIDATIONS)
        self.history = History()
        self.best: Progress | None = None
        self.before = Progress(step=0, seconds=0.0, core_seconds=0.0)
        self.resumed_from: int | None = None
        self.seconds_first_step = 0.0
        self.first_step = 0
        self.checkpoints = Checkpoints(
            output / "checkpoints", keep=run.checkpoint.keep, identity=identity_of(run, self.manifest)
        )
        self.saved = self.clock
        self._resume()

    @property
    def seconds(self) -> float:
        """Wall time so far, earlier pieces included."""
        return self.before.seconds + time.perf_counter() - self.clock

    def run_to_end(self) -> TrainingRecord:
        """All steps, then the release."""
        try:
            stopped = self._steps()
        except KeyboardInterrupt:
            self._check_finite()
            self._save()
            log.warning("stopped at step %d; the same command goes on from there", self.state.steps_made)
            raise
        self._validate()
        self._save()
        if self.placement.is_chief:
            self._write_history()
            self._release()
        return self._record(stopped)

    def _resume(self) -> None:
        restored = self.checkpoints.restore(self.state.trackable())
        untrained = self.output / "checkpoints" / "untrained.keras"
        if restored is None:
            save_network(self.state.networks.generator, untrained)
            return
        if not untrained.exists():
            save_network(TrainingState(self.run).networks.generator, untrained)
        self.before = restored
        self.resumed_from = restored.step
        self.history = History(restored.history)
        if restored.best_epoch is not None and (self.checkpoints.folder / "best").exists():
            self.best = restored

    def _steps(self) -> Literal["epochs", "maxMinutes"]:
        """The steps that are left; what ended them."""
        train = self.run.train
        self.first_step, batch = self.state.steps_made, self.showers.batch
        schedule = Schedule(train.warmup_epochs * self.showers.steps_per_epoch, train.decay)
        shards = self.showers.batches(start=self.first_step, stop=self.steps, pieces=self.placement.replicas_per_worker)
        make = fit if train.loop == "builtin" else make_steps
        self.number, self.stopped = self.first_step, False
        with (
            closing(open_scalars(self.output / "logs" if self.placement.is_chief else None)) as writer,
            bar("train", self.steps * batch, "showers", initial=self.first_step * batch) as shown,
        ):
            self.writer, self.shown = writer, shown
            try:
                make(
                    self.state,
                    schedule,
                    self.engine.feed(shards),
                    self.steps - self.first_step,
                    before=self._progress_now,
                    after=self._after_step,
                )
            except tf.errors.OpError as error:
                raise self.showers.explain(error) from error
        self._check_finite()
        return "maxMinutes" if self.stopped else "epochs"

    def _progress_now(self) -> float:
        return min(1.0, progress(self.number, self.steps, self.seconds, self.run.train.max_minutes))

    def _after_step(self, losses: dict[str, Any]) -> bool:
        """What is done between two steps; whether there is another one."""
        self.number += 1
        if self.number == self.first_step + 1:
            self.seconds_first_step = time.perf_counter() - self.clock
        number, per_epoch = self.number, self.showers.steps_per_epoch
        self.shown.update(self.showers.batch)
        if number % HISTORY_STEPS == 0 or number == self.steps:
            self._keep(number, losses, self.writer, self.shown)
        if number % per_epoch == 0 and number // per_epoch % self.validated_epochs == 0:
            self._validate(self.writer)
        if time.perf_counter() - self.saved > self.run.checkpoint.every_seconds:
            self._check_finite()
            self._save()
        # All workers agree on this figure, so that they stop together.
        self.stopped = self.run.train.max_minutes is not None and float(losses["progress"]) >= 1
        return not self.stopped

    def _keep(self, number: int, losses: dict[str, Any], writer: Any, shown: Any) -> None:
        """Read the losses of a step: for the curves, the progress bar and TensorBoard."""
        self._check_finite()
        figures = {name: float(value) for name, value in losses.items()}
        self.history.add_losses(number, figures)
        discriminator = figures["discriminator_real"] + figures["discriminator_fake"]
        epoch = f"{number / self.showers.steps_per_epoch:.1f}/{self.run.train.epochs}"
        shown.set_postfix(
            epoch=epoch, generator=f"{figures['generator']:.2f}", discriminator=f"{discriminator:.2f}", refresh=False
        )
        write_scalars(writer, number, {f"loss/{name}": value for name, value in figures.items()})

    def _check_finite(self) -> None:
        bad = int(self.state.first_bad_step.numpy())
        if bad != NOWHERE:
            raise TrainingError(
                f"a loss was not finite (NaN or infinite) at step {bad}\n  remedy: lower train.learningRate, or go on "
                f"from an older checkpoint in {self.checkpoints.folder}"
            )

    def _validate(self, writer: Any = None) -> None:
        """Compare with validation showers and keep the generator if it is the best so far."""
        self._check_finite()
        step = self.state.steps_made
        if self.best is not None and self.best.best_step == step:
            return
        epoch = round(step / self.showers.steps_per_epoch)
        figures = physics_deviation(self.validation, self._generate(self.validation))
        earlier = [d for d in self.history.content["validation"].get("deviation", []) if d is not None]
        self.history.add_validation(epoch, figures)
        if writer is not None:
            write_scalars(writer, step, {f"validation/{name}": value for name, value in figures.items()})
        if self.best is None or is_chosen(figures["deviation"], min(earlier, default=None)):
            self.best = self._progress().model_copy(
                update={"best_epoch": epoch, "best_step": step, "best_deviation": figures["deviation"]}
            )
            self.checkpoints.save_best(self.state.released, self.best)

    def _generate(self, like: Showers) -> Showers:
        """Showers of the generator as it would be released now, the same noise at every call."""
        model, data = self.run.model, self.run.data
        noise = np.random.default_rng(self.run.train.seed).standard_normal((len(like), noise_size(model)), np.float32)
        cells = np.empty_like(like.cells_gev)
        for first in range(0, len(like), GENERATED_AT_ONCE):
            part = slice(first, first + GENERATED_AT_ONCE)
            fed = latent(noise[part], like.energy_gev[part], like.angle_rad[part], model, data)
            shower = self.state.released(fed, training=False)
            cells[part] = to_gev(shower[..., 0].numpy(), data.preprocessing)
        return Showers(cells, like.energy_gev, like.angle_rad, "generated")

    def _progress(self) -> Progress:
        best = self.best or self.before
        return Progress(
            step=self.state.steps_made,
            seconds=self.seconds,
            core_seconds=self.before.core_seconds + time.process_time() - self.cores,
            best_epoch=best.best_epoch,
            best_step=best.best_step,
            best_deviation=best.best_deviation,
            history=self.history.content,
        )

    def _save(self) -> None:
        self.checkpoints.save(self.state.trackable(), self._progress())
        self.saved = time.perf_counter()

    def _write_history(self) -> None:
        with atomic_writer(self.output / "history.json") as temporary:
            temporary.write_text(json.dumps(self.history.content) + "\n", encoding="utf-8")

    def _release(self) -> None:
        """The best generator into the model folder."""
        released = self.state.released
        best = self.checkpoints.restore_best(released) or self._progress()
        networks = self.state.networks._replace(generator=released)
        untrained = self.output / "checkpoints" / "untrained.keras"
        release(self.output / "model", networks, untrained, self.run, self.manifest, best)
        self.best = best

    def _record(self, stopped: Literal["epochs", "maxMinutes"]) -> TrainingRecord:
        now, best = self._progress(), self.best or self.before
        batch, place = self.showers.batch, self.placement
        measured = time.perf_counter() - self.clock - self.seconds_first_step
        steps_here = now.step - self.first_step - 1
        return TrainingRecord(
            steps=now.step,
            epochs=now.step // self.showers.steps_per_epoch,
            showers=now.step * batch,
            seconds=now.seconds,
            core_seconds=now.core_seconds,
            seconds_first_step=self.seconds_first_step,
            showers_per_second=max(steps_here, 0) * batch / measured if measured > 0 else 0.0,
            stopped=stopped,
            strategy=place.strategy,
            loop=self.run.train.loop,
            device=place.device,
            workers=place.workers,
            replicas=place.replicas,
            global_batch_size=batch,
            best_epoch=best.best_epoch or 0,
            best_deviation=best.best_deviation or 0.0,
            parameters=parameters(self.state.networks),
            resumed_from_step=self.resumed_from,
            showers_left_out=self.showers.left_out,
            source=self.manifest.source,
            versions=versions(),
        )
