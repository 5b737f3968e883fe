"""The same step within Keras' own loop: a model whose ``train_step`` it is, compiled and fitted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import tensorflow as tf

from caloscale.models.families.step import Batch, Losses
from caloscale.models.optimizers import Schedule
from caloscale.training.state import TrainingState, replica_step


def fit(
    state: TrainingState,
    schedule: Schedule,
    batches: Iterable[Batch],
    steps: int,
    *,
    before: Callable[[], float],
    after: Callable[[Losses], bool],
) -> None:
    """Make ``steps`` steps by Keras' fit, or fewer.

    batches: as `DistributionContext.distribute` gives them. before: called before each step, returns the progress of
    the training (0 to 1).
    after: called with the losses of each step; False ends the training.
    """
    if steps <= 0:
        return
    with state.distribution.strategy.scope():
        model = _Model(replica_step(state, schedule))
        model.compile(jit_compile=False)
    model.fit(batches, epochs=1, steps_per_epoch=steps, verbose=0, callbacks=[_Hooks(state, before, after)])


class _Model(tf.keras.Model):  # type: ignore[misc]
    """Has no weights of its own; `train_step` updates the networks."""

    def __init__(self, step: Callable[[Batch], Losses]) -> None:
        super().__init__(name="step")
        self._step = step
        self.built = True
        # All replicas return the same losses.
        self.distribute_reduction_method = "first"

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Keras asks for it; not used."""
        return inputs

    def train_step(self, data: Batch) -> Losses:
        """One step of one replica."""
        return self._step(data)


class _Hooks(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Calls `before` and `after` around each step."""

    def __init__(self, state: TrainingState, before: Callable[[], float], after: Callable[[Losses], bool]) -> None:
        super().__init__()
        self._state, self._before, self._after = state, before, after

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, tf.Tensor] | None = None) -> None:
        """Before a step."""
        self._state.progress.assign(self._before())

    def on_train_batch_end(self, batch: int, logs: Mapping[str, tf.Tensor]) -> None:
        """After a step."""
        if not self._after(dict(logs)):
            self.model.stop_training = True
