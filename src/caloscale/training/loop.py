"""The loop of a training, from its first step, or from any checkpoint, to the released model."""

import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from caloscale.errors import PeerLostError
from caloscale.models.families.step import Batch, Losses
from caloscale.models.optimizers import Schedule
from caloscale.showers.tfrecord.shard_folder import ShardFolder, open_shards
from caloscale.spec import Run
from caloscale.training.coordination.failures import brief, failed, is_of_input, unreadable
from caloscale.training.coordination.peers import Peers, rendezvous
from caloscale.training.coordination.signals import StopSignals
from caloscale.training.record import TrainingRecord
from caloscale.training.state import TrainingState, make_steps, replica_step
from caloscale.training.strategy import DistributionContext, open_context, worker_of
from caloscale.training.trainer import Trainer

log = logging.getLogger(__name__)
ALARM_SECONDS = 120
"""How long TensorFlow may take to connect workers that have all started; then the kernel ends the process (142)."""
PAUSES_SECONDS = (1.0, 5.0, 15.0)
"""Pauses before showers that could not be read are read again; then the training stops."""


def train(
    run: Run,
    dataset: str | Path | ShardFolder,
    output: Path,
    begin: Callable[[TrainingState], None] = lambda _: None,
) -> TrainingRecord:
    """Train the networks of a run on a folder of shards, on a disk or in a bucket.

    begin: called with the state before the first step of this attempt. Of several workers (TF_CONFIG) worker 0 writes.
    Leaves in ``output``: model/ (the released generator), checkpoints/, logs/ (TensorBoard) and history.json. Resumes
    from the newest checkpoint there (or in checkpoint.uri). Raises ShowerFileError (shards that are damaged or of
    another run configuration), CheckpointError, StorageError, PeerLostError, and TrainingError when a loss or weight is
    not finite. SIGTERM (Terminated) and Ctrl-C (KeyboardInterrupt) end it after a step, with a checkpoint; after the
    last step, with the released model.
    """
    started = time.perf_counter()
    if run.train.deterministic:
        tf.config.experimental.enable_op_determinism()
    # Several workers must be set up before TensorFlow does anything else.
    with (
        StopSignals(run.cluster.termination_grace_period_seconds) as signals,
        connected_worker(run, signals) as (distribution, peers),
        open_shards(dataset) as shards,
    ):
        trainer = Trainer(run, shards, Path(output), distribution, started)
        with trainer.open_checkpoints(peers, signals):
            trainer.resume(peers)
            begin(trainer.state)
            record = _Loop(trainer).run_to_end()
    # Several workers have agreed that all is done; a signal that one of them receives after that must not divide them.
    if distribution.placement.workers == 1:
        signals.check()
    return record


@contextmanager
def connected_worker(run: Run, signals: StopSignals) -> Iterator[tuple[DistributionContext, Peers]]:
    """The distribution strategy of this worker, and its connections to the others.

    An error of TensorFlow in the block that follows from the failure of another worker becomes a PeerLostError.
    """
    index, cluster = worker_of(os.environ)
    # TensorFlow would wait for the others for an hour, and no Python would run meanwhile.
    peers = rendezvous(cluster, index)
    try:
        signal.alarm(ALARM_SECONDS if len(cluster) > 1 else 0)
        try:
            distribution = open_context(run, os.environ)
        finally:
            signal.alarm(0)
        signals.renew()
        peers.expect_heartbeats()
        yield distribution, peers
    except tf.errors.OpError as error:
        peers.disconnect()
        if len(cluster) < 2:
            raise
        raise PeerLostError(peers.failed, f"is gone: {brief(error)}") from error
    except BaseException:
        peers.disconnect()
        raise
    peers.close()


class _Loop:
    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.calendar, self.checkpoints = trainer, trainer.calendar, trainer.checkpoints
        # By the checkpoint, which all workers have: a training that has ended makes no step when it is run again.
        limit = trainer.run.train.max_minutes
        self.out_of_time = self.calendar.progress(trainer.number, trainer.before.seconds, limit) >= 1
        self.stopped_by: int | None = None
        self.failures: Counter[int] = Counter()
        """Times that the showers of a step could not be read."""

    def run_to_end(self) -> TrainingRecord:
        """All steps, then the release. Raises as `CheckpointManager.stop` after a stop signal."""
        trainer = self.trainer
        with trainer.reporting():
            while self._continues():
                try:
                    self._make_steps()
                except tf.errors.OpError as error:
                    self._prepare_retry(error)
        try:
            if self.stopped_by is not None:
                log.warning("stopped at step %d; the same command resumes from there", trainer.number)
                self.checkpoints.stop(self.stopped_by)
            trainer.validate()
            trainer.save()
            trainer.write_history()
            if trainer.placement.is_chief:
                trainer.release()
            self.checkpoints.finish()
        finally:
            # The progress file as all is saved that is going to be.
            trainer.progress_file.saved(self.checkpoints.saver.safe_step)
            trainer.progress_file.step(trainer.number, now=True)
        return trainer.record()

    def _continues(self) -> bool:
        return self.trainer.number < self.calendar.steps and not self.out_of_time and self.stopped_by is None

    def _make_steps(self) -> None:
        """The steps that remain, until one of them is the last or raises."""
        trainer, train, steps = self.trainer, self.trainer.run.train, self.calendar.steps
        make = fit if train.loop == "builtin" else make_steps
        slices = trainer.placement.replicas_per_worker
        batches = trainer.showers.batches(start=trainer.number, stop=steps, slices=slices)
        make(
            trainer.state,
            Schedule(train.warmup_epochs * self.calendar.steps_per_epoch, train.decay),
            trainer.distribution.distribute(batches),
            steps - trainer.number,
            before=self._before_step,
            after=self._after_step,
        )

    def _before_step(self) -> float:
        trainer = self.trainer
        trainer.profiler.batch_ready()
        return self.calendar.progress(trainer.number, trainer.seconds, trainer.run.train.max_minutes)

    def _after_step(self, losses: Losses) -> bool:
        """What is done after a step; whether another step follows."""
        trainer = self.trainer
        trainer.count_step()
        if self.calendar.reads_losses(trainer.number):
            trainer.record_losses(losses)
        if self.calendar.validates(trainer.number):
            trainer.validate()
        save, self.stopped_by = self.checkpoints.agree(trainer.number)
        if save or self.stopped_by is not None:
            trainer.save()
        # All workers agree on this figure, so that they end together.
        self.out_of_time = trainer.run.train.max_minutes is not None and float(losses["progress"]) >= 1
        trainer.report_step()
        return self._continues()

    def _prepare_retry(self, error: tf.errors.OpError) -> None:
        """Return when the steps that remain can be tried again; else raise the cause, with a checkpoint if possible."""
        trainer, showers = self.trainer, self.trainer.showers
        if not is_of_input(error):
            if trainer.placement.workers > 1:
                raise error
            raise failed(error) from error
        log.warning("step %d: showers cannot be read: %s", trainer.number + 1, brief(error))
        earlier = self.failures[trainer.number]
        self.failures[trainer.number] += 1
        if earlier < len(PAUSES_SECONDS) and not self.checkpoints.signals.wait(PAUSES_SECONDS[earlier]):
            return
        # A step begins with its batch: without one nothing of it was done.
        trainer.save()
        self.checkpoints.signals.check()
        raise showers.broken_shard() or unreadable(showers.folder, error) from error


def fit(
    state: TrainingState,
    schedule: Schedule,
    batches: Iterable[Batch],
    steps: int,
    *,
    before: Callable[[], float],
    after: Callable[[Losses], bool],
) -> None:
    """Make ``steps`` steps by Keras' own loop, or fewer: a model whose ``train_step`` it is, compiled and fitted.

    batches: as `DistributionContext.distribute` gives them. before: called before each step, returns the progress of
    the training (0 to 1). after: called with the losses of each step; False ends the training.
    """
    # Outside of the scope: for a model that is made within, Keras averages a batch over the workers, which fails (its
    # issue 20585).
    model = _Model(replica_step(state, schedule))
    model.compile(jit_compile=False)

    # Keras gives ``logs`` by its name.
    def begin(_: int, logs: object) -> None:
        state.progress.assign(before())

    def end(_: int, logs: Mapping[str, tf.Tensor]) -> None:
        if not after(dict(zip(model.names, tf.unstack(tf.reshape(logs["losses"], (-1,)))))):
            model.stop_training = True

    hooks = tf.keras.callbacks.LambdaCallback(on_train_batch_begin=begin, on_train_batch_end=end)
    with state.distribution.strategy.scope():
        model.fit(batches, epochs=1, steps_per_epoch=steps, shuffle=False, verbose=0, callbacks=[hooks])


class _Model(tf.keras.Model):  # type: ignore[misc]
    """A model without weights, whose `train_step` updates the networks."""

    def __init__(self, step: Callable[[Batch], Losses]) -> None:
        super().__init__(name="step")
        self._step = step
        self.names: tuple[str, ...] = ()
        """Of the losses."""
        self.built = True

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs  # Keras asks for it; not used

    def train_step(self, data: Batch) -> Losses:
        losses = self._step(data)
        self.names = tuple(losses)
        # All replicas return the same losses, of which Keras takes the mean along the first axis.
        return {"losses": tf.stack(list(losses.values()))[tf.newaxis]}
